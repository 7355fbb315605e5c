"""Planted bugs, by name: each breaks one promise of the design, and a check that does not find it proves nothing.

A mutant replaces a function of the product while one world runs. Every mutant must be found within 200 seeds.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from schemas.envelope import ENCODER, LogRecord
from schemas.jobs import Verdict
from schemas.launches import LaunchDue
from shared.core.runtime.messages import Reply
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.world.agent_mutants import AGENT_MUTANTS
from shared.sim.world.patches import Patch, named
from shared.sim.world.variable_mutants import VARIABLE_MUTANTS


def _ack_before_append(patch: Patch, _context: SimulationContext) -> None:
    """Intake answers before the submission is in the log."""
    intake = named("services.intake.role", "Intake")
    plain = intake._ask  # noqa: SLF001

    def ask(self: Any, submission: Any, submission_id: str, message: Any, step: Any) -> None:
        plain(self, submission, submission_id, message, step)
        verdict = Verdict(submission_id=submission_id, status="accepted")
        step.emit(Reply(message.token, ENCODER.encode(verdict)))

    patch(intake, "_ask", ask)


def _no_job_fence(patch: Patch, _context: SimulationContext) -> None:
    """The applier takes plans made on any snapshot, for any evaluation."""

    def pass_all(state: Any, plan: Any) -> Any:
        """Return the current job, refuse nothing."""
        return state.jobs.by_id.get(plan.job_id)

    patch(import_module("shared.core.decide.plans.verify"), "_check_fences", pass_all)


def _skip_dedup(patch: Patch, _context: SimulationContext) -> None:
    """The applier does not deduplicate submissions."""
    route = import_module("shared.core.decide.route")
    jobs = import_module("shared.core.decide.jobs.submissions")
    plain = jobs.decide_submission

    def decide(state: Any, command: Any) -> Any:
        known = state.jobs.submissions
        held = known.pop(getattr(command, "submission_id", ""), None)
        events = plain(state, command)
        if held is not None:
            known[command.submission_id] = held
        return events

    patch(route, "DECIDERS", {**route.DECIDERS, **dict.fromkeys(jobs.DECIDERS, decide)})


def _two_leaders(patch: Patch, context: SimulationContext) -> None:
    """Every candidate is leader, and the log takes appends at any seq."""
    bus = context.bus

    def take(*_: object) -> bool:
        return True

    def append(subject: str, data: bytes, *_: object) -> int:
        return bus.log.inject(subject, data)

    patch(bus.leaderships, "take", take)
    patch(bus.log, "append", append)


def _wrong_column(patch: Patch, _context: SimulationContext) -> None:
    """The applier's record of used CPU on the first node is wrong by the smallest amount; no table hash covers it."""
    applier = named("services.plan_applier.role", "PlanApplier")
    plain = applier._confirm  # noqa: SLF001
    spoiled: dict[Any, Any] = {}

    def confirm(self: Any, seq: int, step: Any) -> None:
        plain(self, seq, step)
        used = self.replica.state.allocations.held.used
        if len(used) and self.replica is not spoiled.get(self):
            spoiled[self] = self.replica
            used[0, 0] += 1

    patch(applier, "_confirm", confirm)


def _lost_wakeup(patch: Patch, _context: SimulationContext) -> None:
    """The broker does not wake blocked evaluations."""

    def take(*_: object) -> list[int]:
        return []

    patch(named("services.eval_broker.blocked_queue", "BlockedQueues"), "take", take)


def _ignore_epoch(patch: Patch, _context: SimulationContext) -> None:
    """Replicas apply records of an older epoch."""
    chain = named("shared.core.runtime.chain", "Chain")
    plain = chain.accept

    def accept(self: Any, seq: int, subject: str, data: bytes) -> LogRecord | None:
        record: LogRecord | None = self.decode(seq, subject, data)
        if record is None or record.epoch >= self.epoch:
            return plain(self, seq, subject, data)  # type: ignore[no-any-return]
        self.next_seq = seq + 1
        self.accepted += 1
        return record

    patch(chain, "accept", accept)


def _evict_equals(patch: Patch, _context: SimulationContext) -> None:
    """The priority gap of preemption is 0."""
    patch(import_module("shared.core.scheduling.preemption.search"), "PRIORITY_GAP_MIN", 0)
    patch(import_module("shared.core.decide.plans.evictions"), "PRIORITY_GAP_MIN", 0)


def _reuse_row_early(patch: Patch, _context: SimulationContext) -> None:
    """An allocation's row is free at its end, not at its collection."""
    table = named("shared.core.state.tables.allocations", "AllocationTable")
    terminal = named("shared.core.state.tables.allocations", "TERMINAL")
    plain = table._set_client  # noqa: SLF001

    def set_client(self: Any, rows: Any, codes: Any, seq: int) -> None:
        ended = rows[terminal[codes] & ~terminal[self.client[rows]]]
        plain(self, rows, codes, seq)
        self._pool.free(ended)

    patch(table, "_set_client", set_client)


def _wall_clock_in_core(patch: Patch, context: SimulationContext) -> None:
    """A table reads the clock while it applies a fact."""
    fleet = named("shared.core.state.tables.fleet", "FleetTable")
    plain = fleet._changed  # noqa: SLF001

    def changed(self: Any, rows: Any, seq: int) -> None:
        plain(self, rows, seq)
        self.modify_seq[rows] += context.loop.now_ns // 1_000_000_000

    patch(fleet, "_changed", changed)


def _both_stay(patch: Patch, _context: SimulationContext) -> None:
    """Duplicates are kept when a disconnected node returns."""
    reconcile = import_module("shared.core.scheduling.reconcile.service_jobs")
    plain = reconcile.duplicates_to_stop

    def leaving(state: Any, group: Any, rows: Any, keep: Any, *, score_of: Any) -> Any:
        return plain(state, group, rows, keep & False, score_of=score_of)

    patch(reconcile, "duplicates_to_stop", leaving)


def _give_twice(patch: Patch, _context: SimulationContext) -> None:
    """The applier does not verify assigned resources."""
    assigner = import_module("shared.core.resources.assign").ResourceAssigner

    def is_sound(*_: object) -> bool:
        return True

    patch(assigner, "is_sound", is_sound)


def _promote_twice(patch: Patch, _context: SimulationContext) -> None:
    """A group whose canaries were promoted waits for its promotion again."""
    group = named("shared.core.state.tables.deployments", "GroupProgress")

    def needs(self: Any) -> bool:
        return bool(self.desired_canaries > 0)

    patch(group, "needs_promotion", property(needs))


def _revert_loop(patch: Patch, _context: SimulationContext) -> None:
    """A deployment that fails registers the text of its own version again."""
    rollouts = import_module("shared.core.decide.deployments.progress")

    def target(state: Any, job: Any, _deployment: Any) -> Any:
        newest = state.jobs.version(job.id, job.version)
        found = msgspec.structs.replace(newest, job=job)
        return found, f"rolling back to job version {found.version}"

    patch(rollouts, "_revert_target", target)


def _stale_timer(patch: Patch, _context: SimulationContext) -> None:
    """The timekeeper is eight seconds early, and the applier believes it."""
    route = import_module("shared.core.decide.deployments.requests")
    plain = route.decide_deployment_due
    source = named("services.timekeeper.progress_deadlines", "ProgressDeadlines")
    due = source.due_ns

    def early(self: Any, state: Any, key: Any, now_ns: int) -> int:
        found: int = due(self, state, key, now_ns)
        return max(found - 8_000_000_000, 1) if found else 0

    def decide(state: Any, command: Any) -> Any:
        deployment = state.deployments.by_key.get(command.key)
        due_ns = 0 if deployment is None else deployment.due_ns
        t_ns, state.t_ns = state.t_ns, max(state.t_ns, due_ns)
        try:
            return plain(state, msgspec.structs.replace(command, due_ns=due_ns))
        finally:
            state.t_ns = t_ns

    patch(source, "due_ns", early)
    patch(route, "decide_deployment_due", decide)


def _one_incarnation(patch: Patch, _context: SimulationContext) -> None:
    """A log restored from an older copy continues in the incarnation of the lost one."""

    def decide(*_: object) -> None:
        """Begin none."""

    def decide_seen(*_: object, **_named: object) -> None:
        """Begin none."""

    # Either sign of a restore would do: a new start of the bus, and a node that has seen more.
    patch(import_module("services.plan_applier.incarnation"), "decide_bus", decide)
    patch(import_module("services.plan_applier.incarnation"), "decide_seen", decide_seen)


def _cron_doubled_at_takeover(patch: Patch, _context: SimulationContext) -> None:
    """The applier launches what a timekeeper says is due, though another one said it before."""
    route = import_module("shared.core.decide.route")
    launches = import_module("shared.core.decide.jobs.launches")
    names = vars(launches)
    plain, name = launches.decide_launch, launches.child_name

    def decide(state: Any, command: Any) -> Any:
        held = state.launches.by_parent.get(command.parent)
        if held is None:
            return plain(state, command)
        changed = replace(held, handled_ns=command.after_ns)
        state.launches.by_parent[command.parent] = changed

        def another(parent: str, at_ns: int) -> str:
            return f"{name(parent, at_ns)}-{state.seq}"

        names["child_name"] = another
        events = plain(state, command)
        names["child_name"] = name
        state.launches.by_parent[command.parent] = held
        return events

    patch(route, "DECIDERS", {**route.DECIDERS, LaunchDue: decide})


def _dispatch_twice(patch: Patch, _context: SimulationContext) -> None:
    """A dispatch makes a child whatever token it has."""

    def never(_job_id: str, token: str) -> str:
        return f"unknown {token}"

    patch(import_module("shared.core.decide.jobs.dispatch"), "token_key", never)


def _heed_late_copies(patch: Patch, _context: SimulationContext) -> None:
    """Late copies of operators' requests are decided, whatever was asked for since."""

    def never(*_: object) -> bool:
        return False

    for module in (
        "shared.core.decide.operator",
        "shared.core.decide.nodes.drains",
        "services.view.operator_verbs",
        "services.view.operator_api",
    ):
        patch(import_module(module), "is_late", never)


def _no_pace(patch: Patch, _context: SimulationContext) -> None:
    """Updates go on whatever is without health."""
    paced = import_module("shared.core.scheduling.reconcile.paced_jobs")

    def changeable_count(max_parallel: int, *_: object, **__: object) -> int:
        return max_parallel

    patch(paced, "changeable_count", changeable_count)


def _drain_forgets_pace(patch: Patch, _context: SimulationContext) -> None:
    """A drain moves everything at once."""

    def movable_count(*_: object, healthy: int, drainable: int) -> int:
        return max(healthy, drainable)

    patch(
        import_module("shared.core.scheduling.reconcile.drained_allocs"),
        "movable_count",
        movable_count,
    )


def _drain_forgets_the_last(patch: Patch, _context: SimulationContext) -> None:
    """A drain ends while allocations still run on its node."""

    def busy_nodes(*_: object) -> frozenset[int]:
        return frozenset()

    patch(import_module("shared.core.decide.nodes.drains"), "_busy_nodes", busy_nodes)


def _rollback_forgets_a_member(patch: Patch, _context: SimulationContext) -> None:
    """A failed rollout leaves its first member as it is."""
    rollouts = import_module("shared.core.decide.deployments.rollouts")
    back = rollouts._back  # noqa: SLF001

    def forgetful(state: Any, rollout: Any, nth: int) -> Any:
        return back(state, rollout, nth) if nth else ()

    patch(rollouts, "_back", forgetful)


def _promotes_one_alone(patch: Patch, _context: SimulationContext) -> None:
    """A member of a rollout is promoted without the others."""

    def promoted_with(_state: Any, deployment: Any) -> Any:
        return [deployment]

    progress = import_module("shared.core.decide.deployments.progress")
    patch(progress, "promoted_with", promoted_with)


def _held_goes_on(patch: Patch, _context: SimulationContext) -> None:
    """The scheduler and the applier let a held deployment go on."""
    table = named("shared.core.state.tables.deployments", "Deployment")
    patch(table, "is_moving", property(lambda self: self.status == "running"))


def _revert_keeps_counts(patch: Patch, _context: SimulationContext) -> None:
    """A job that goes back to an older version keeps the counts of its newest."""
    versions = import_module("shared.core.decide.jobs.versions")
    plain = versions.next_version

    def next_version(state: Any, command: Any, job: Any) -> Any:
        found = plain(state, command, job)
        if type(command).__name__ != "RevertJob":
            return found
        counts = {one.name: one.count for one in job.groups}
        groups = [replace(one, count=counts.get(one.name, one.count)) for one in found.groups]
        return replace(found, groups=tuple(groups))

    patch(import_module("shared.core.decide.jobs.submissions"), "next_version", next_version)


def _scale_in_update(patch: Patch, _context: SimulationContext) -> None:
    """A job is scaled in the middle of its deployment."""
    versions = import_module("shared.core.decide.jobs.versions")
    plain = versions._scaled  # noqa: SLF001

    def scaled(state: Any, command: Any, job: Any) -> Any:
        active = state.deployments.active.pop(job.id, None)
        try:
            return plain(state, command, job)
        finally:
            if active is not None:
                state.deployments.active[job.id] = active

    patch(versions, "_scaled", scaled)


def _tag_forgotten(patch: Patch, _context: SimulationContext) -> None:
    """Versions lose their tags when the next version is registered."""
    table = import_module("shared.core.state.tables.jobs")
    plain = table._bounded  # noqa: SLF001

    def bounded(versions: Any) -> Any:
        return tuple([replace(one, tag="") for one in plain(versions)])

    patch(table, "_bounded", bounded)


def _drain_takes_system(patch: Patch, _context: SimulationContext) -> None:
    """A drain that leaves system jobs alone stops them, too."""

    def ignores_system(*_: object) -> bool:
        return False

    table = named("shared.core.state.tables.fleet", "FleetTable")
    patch(table, "ignores_system", ignores_system)


def _late_forgets(patch: Patch, _context: SimulationContext) -> None:
    """A replacement that is not placed with the stop does not know what it replaces."""

    def await_replacements(*_: object) -> None:
        """Keep none."""

    table = named("shared.core.state.tables.allocations", "AllocationTable")
    patch(table, "_await_replacements", await_replacements)


def _room_given_away(patch: Patch, _context: SimulationContext) -> None:
    """What ends of its stop gives its room to everybody, not to its replacement."""

    def keeps_room(_table: object, rows: Any, _codes: object) -> Any:
        return np.zeros(len(rows), dtype=bool)

    for module in ("shared.core.state.tables.allocations", "shared.core.decide.nodes.reports"):
        patch(import_module(module), "keeps_room", keeps_room)


def _rule_reaches_nothing(patch: Patch, _context: SimulationContext) -> None:
    """A distinct rule that comes with a new version leaves what runs where it is."""

    def beyond_rules(_state: Any, _group: Any, rows: Any, **_: Any) -> Any:
        return np.zeros(len(rows), dtype=bool)

    reconcile = import_module("shared.core.scheduling.reconcile.service_jobs")
    patch(reconcile, "beyond_rules", beyond_rules)


def _data_left_behind(patch: Patch, _context: SimulationContext) -> None:
    """The scheduler does not read that a disk is sticky."""

    def has_data_nodes(_request: object) -> bool:
        return False

    for module in ("shared.core.scheduling.place", "shared.core.scheduling.selection.data_nodes"):
        patch(import_module(module), "has_data_nodes", has_data_nodes)


def _silence_is_death(patch: Patch, _context: SimulationContext) -> None:
    """What is stateful is lost as soon as its node is silent."""

    def is_surely_gone(_state: object, rows: Any) -> Any:
        return np.ones(len(rows), dtype=bool)

    lost_allocs = import_module("shared.core.scheduling.reconcile.lost_allocs")
    patch(lost_allocs, "is_surely_gone", is_surely_gone)


def _replaced_before_its_end(patch: Patch, _context: SimulationContext) -> None:
    """An index is free as soon as its instance is to stop, for the scheduler and for the applier."""
    groups = named("shared.core.scheduling.reconcile.stateful_groups", "_StatefulGroup")
    plain = groups._instances  # noqa: SLF001

    def instances(self: Any, rows: Any, lost: Any) -> Any:
        found = plain(self, rows, lost)
        return replace(found, live=found.wanted)

    def second_instance(*_: object) -> None:
        """Find none."""

    patch(groups, "_instances", instances)
    patch(import_module("shared.core.decide.plans.verify"), "second_instance", second_instance)


def _starts_unready(patch: Patch, _context: SimulationContext) -> None:
    """An index starts as soon as the one before it is placed."""
    groups = named("shared.core.scheduling.reconcile.stateful_groups", "_StatefulGroup")
    plain = groups._instances  # noqa: SLF001

    def instances(self: Any, rows: Any, lost: Any) -> Any:
        found = plain(self, rows, lost)
        return replace(found, healthy=found.wanted)

    patch(groups, "_instances", instances)


def _stops_lowest(patch: Patch, _context: SimulationContext) -> None:
    """Stateful groups stop from the lowest index up."""

    def lowest(index: Any, rows: Any) -> Any:
        return rows[np.lexsort((rows, index[rows]))][:1]

    patch(import_module("shared.core.scheduling.reconcile.stateful_groups"), "_highest", lowest)


def _waited_like_others(patch: Patch, _context: SimulationContext) -> None:
    """The broker leases those that waited for room to any worker, like evaluations that did not wait."""

    def has_waited(*_: object) -> bool:
        """Deny it."""
        return False

    patch(import_module("services.eval_broker.role"), "has_waited", has_waited)


def _delete_in_use(patch: Patch, _context: SimulationContext) -> None:
    """The applier deletes volumes that allocations use."""

    def no_users(*_: object) -> list[int]:
        return []

    patch(import_module("shared.core.decide.host_volumes"), "user_rows", no_users)


def _place_on_leaving(patch: Patch, _context: SimulationContext) -> None:
    """The applier places allocations on volumes that are being deleted."""

    def nothing(*_: object) -> str:
        return ""

    patch(import_module("shared.core.decide.plans.verify"), "leaving_fault", nothing)


MUTANTS: dict[str, Callable[[Patch, SimulationContext], None]] = {
    "ack-before-append": _ack_before_append,
    "volume-deleted-in-use": _delete_in_use,
    "volume-leaves-under-plan": _place_on_leaving,
    "no-job-fence": _no_job_fence,
    "skip-dedup": _skip_dedup,
    "two-leaders": _two_leaders,
    "lost-wakeup": _lost_wakeup,
    "wrong-column": _wrong_column,
    "ignore-epoch": _ignore_epoch,
    "evict-equals": _evict_equals,
    "give-twice": _give_twice,
    "both-stay": _both_stay,
    "reuse-row-early": _reuse_row_early,
    "wall-clock-in-core": _wall_clock_in_core,
    "promote-twice": _promote_twice,
    "revert-loop": _revert_loop,
    "stale-timer": _stale_timer,
    "one-incarnation": _one_incarnation,
    "cron-doubled-at-takeover": _cron_doubled_at_takeover,
    "dispatch-twice": _dispatch_twice,
    "heed-late-copies": _heed_late_copies,
    "no-pace": _no_pace,
    "drain-forgets-pace": _drain_forgets_pace,
    "drain-forgets-the-last": _drain_forgets_the_last,
    "rollback-forgets-a-member": _rollback_forgets_a_member,
    "promotes-one-alone": _promotes_one_alone,
    "held-goes-on": _held_goes_on,
    "revert-keeps-counts": _revert_keeps_counts,
    "scale-in-update": _scale_in_update,
    "tag-forgotten": _tag_forgotten,
    "drain-takes-system": _drain_takes_system,
    "late-forgets": _late_forgets,
    "room-given-away": _room_given_away,
    "rule-reaches-nothing": _rule_reaches_nothing,
    "data-left-behind": _data_left_behind,
    "waited-like-others": _waited_like_others,
    "silence-is-death": _silence_is_death,
    "replaced-before-its-end": _replaced_before_its_end,
    "starts-unready": _starts_unready,
    "stops-lowest": _stops_lowest,
    **AGENT_MUTANTS,
    **VARIABLE_MUTANTS,
}


@contextmanager
def plant_bug(name: str, context: SimulationContext) -> Generator[None]:
    """Run with one bug planted; the empty name plants none. Raises KeyError for an unknown one."""
    with ExitStack() as undo:

        def patch(owner: object, attribute: str, value: object) -> None:
            # Restoring a bound method on an instance hides the class's, which has the same effect.
            undo.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)

        if name:
            MUTANTS[name](patch, context)
        yield
