"""Planted bugs, by name: each breaks one promise of the design, and a check that cannot find it proves nothing.

Decides nothing; replaces a function of the product while one world runs and puts it back after. The product knows
nothing of this file. A bug that is planted here must be found by `check.py` within 200 seeds.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from schemas.envelope import ENCODER, Record
from schemas.jobs import Verdict
from shared.core.role import Reply
from shared.sim.process import Site

#: Replaces an attribute of an object, module or class until the world ends.
Patch = Callable[[object, str, object], None]


def _of(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _ack_before_append(patch: Patch, _site: Site) -> None:
    """Intake answers before the log holds anything."""
    intake = _of("services.intake.role", "Intake")
    plain = intake._ask  # noqa: SLF001

    def ask(self: Any, submission: Any, submission_id: str, message: Any) -> None:
        plain(self, submission, submission_id, message)
        verdict = Verdict(submission_id=submission_id, status="accepted")
        self._effects.append(Reply(message.token, ENCODER.encode(verdict)))

    patch(intake, "_ask", ask)


def _no_job_fence(patch: Patch, _site: Site) -> None:
    """The applier takes plans made on any snapshot, for any evaluation."""

    def pass_all(state: Any, plan: Any) -> Any:
        """Refuse nothing: the job as it is."""
        return state.jobs.by_id.get(plan.job_id)

    patch(import_module("shared.core.decide.plans"), "_check_fences", pass_all)


def _skip_dedup(patch: Patch, _site: Site) -> None:
    """The applier does not look whether it decided a submission before."""
    route = import_module("shared.core.decide.route")
    plain = route.decide_submission

    def decide(state: Any, command: Any) -> Any:
        known = state.jobs.submissions
        held = known.pop(getattr(command, "submission_id", ""), None)
        events = plain(state, command)
        if held is not None:
            known[command.submission_id] = held
        return events

    patch(route, "decide_submission", decide)


def _two_leaders(patch: Patch, site: Site) -> None:
    """Everybody who asks is leader, and the log takes records from anybody at any seq."""
    bus = site.bus

    def take(*_: object) -> bool:
        return True

    def append(subject: str, data: bytes, *_: object) -> int:
        return bus.log.inject(subject, data)

    patch(bus.leaderships, "take", take)
    patch(bus.log, "append", append)


def _lost_wakeup(patch: Patch, _site: Site) -> None:
    """The broker forgets to wake what waits for room."""

    def take(*_: object) -> list[int]:
        return []

    patch(_of("services.eval_broker.lines", "Lines"), "take", take)


def _ignore_epoch(patch: Patch, _site: Site) -> None:
    """Replicas take records of an older epoch for facts."""
    chain = _of("shared.core.log", "Chain")
    plain = chain.accept

    def accept(self: Any, seq: int, subject: str, data: bytes) -> Record | None:
        record: Record | None = self._decode(seq, subject, data)
        if record is None or record.epoch >= self.epoch:
            return plain(self, seq, subject, data)  # type: ignore[no-any-return]
        self.next_seq = seq + 1
        self.accepted += 1
        return record

    patch(chain, "accept", accept)


def _stale_projection(patch: Patch, _site: Site) -> None:
    """The agent obeys whatever projection comes last, however old."""
    desired = _of("services.agent.desired", "Desired")
    plain = desired.take_projection

    def take(self: Any, message: Any, turn: Any) -> None:
        self.seq = 0
        plain(self, message, turn)

    patch(desired, "take_projection", take)


def _drop_report(patch: Patch, _site: Site) -> None:
    """The agent takes a report for seen once it was sent."""
    reports = _of("services.agent.reports", "Reports")
    plain = reports.compose

    def compose(self: Any, *args: Any) -> Any:
        report = plain(self, *args)
        self._carried.clear()
        return report

    patch(reports, "compose", compose)


def _crowd_in(patch: Patch, _site: Site) -> None:
    """The agent starts what comes without a look at who has to leave first."""

    def nobody(_: object) -> bool:
        return False

    patch(_of("services.agent.desired", "Desired"), "_has_leaving", nobody)


def _evict_equals(patch: Patch, _site: Site) -> None:
    """Ten levels are none: whoever is no more important may have to go."""
    patch(import_module("shared.core.preempt"), "LEVELS", 0)
    patch(import_module("shared.core.decide.evictions"), "LEVELS", 0)


def _reuse_row_early(patch: Patch, _site: Site) -> None:
    """An allocation's row is free as soon as it ended, not when it was collected."""
    table = _of("shared.core.tables.allocations", "AllocationTable")
    terminal = _of("shared.core.tables.allocations", "TERMINAL")
    plain = table._set_client  # noqa: SLF001

    def set_client(self: Any, rows: Any, codes: Any, seq: int) -> None:
        ended = rows[terminal[codes] & ~terminal[self.client[rows]]]
        plain(self, rows, codes, seq)
        self._pool.free(ended)

    patch(table, "_set_client", set_client)


def _wall_clock_in_core(patch: Patch, site: Site) -> None:
    """A table looks at the clock while it applies a fact."""
    fleet = _of("shared.core.tables.fleet", "FleetTable")
    plain = fleet._changed  # noqa: SLF001

    def changed(self: Any, rows: Any, seq: int) -> None:
        plain(self, rows, seq)
        self.modify_seq[rows] += site.loop.now_ns // 1_000_000_000

    patch(fleet, "_changed", changed)


def _hasty_main(patch: Patch, _site: Site) -> None:
    """Main tasks do not wait for those before them."""

    def passed(_task: object) -> bool:
        return True

    patch(import_module("services.agent.lifecycle"), "_is_passed", passed)


def _repeat_step(patch: Patch, _site: Site) -> None:
    """An agent that comes back does not remember which steps are done."""
    task = _of("services.agent.workload", "Task")
    phases = _of("services.agent.workload", "Phase")
    plain = task.restore

    def restore(self: Any, kept: Any) -> None:
        plain(self, kept)
        if self.phase is phases.DEAD and self.plan.hook == "prestart":
            self.phase = phases.IDLE

    patch(task, "restore", restore)


def _both_stay(patch: Patch, _site: Site) -> None:
    """Nobody chooses when a node comes back whose work was replaced."""
    reconcile = import_module("shared.core.reconcile")
    plain = reconcile.leaving

    def leaving(state: Any, group: Any, rows: Any, keep: Any, *, score_of: Any) -> Any:
        return plain(state, group, rows, keep & False, score_of=score_of)

    patch(reconcile, "leaving", leaving)


def _give_twice(patch: Patch, _site: Site) -> None:
    """The applier takes a worker's word for what is free."""
    assigner = import_module("shared.core.resources.assign").Assigner

    def is_sound(*_: object) -> bool:
        return True

    patch(assigner, "is_sound", is_sound)


MUTANTS: dict[str, Callable[[Patch, Site], None]] = {
    "ack-before-append": _ack_before_append,
    "no-job-fence": _no_job_fence,
    "skip-dedup": _skip_dedup,
    "two-leaders": _two_leaders,
    "lost-wakeup": _lost_wakeup,
    "ignore-epoch": _ignore_epoch,
    "stale-projection": _stale_projection,
    "drop-report": _drop_report,
    "crowd-in": _crowd_in,
    "evict-equals": _evict_equals,
    "give-twice": _give_twice,
    "both-stay": _both_stay,
    "hasty-main": _hasty_main,
    "repeat-step": _repeat_step,
    "reuse-row-early": _reuse_row_early,
    "wall-clock-in-core": _wall_clock_in_core,
}


@contextmanager
def planted(name: str, site: Site) -> Generator[None]:
    """Run with one bug planted; the empty name plants none. Raises KeyError for an unknown one."""
    with ExitStack() as undo:

        def patch(owner: object, attribute: str, value: object) -> None:
            # An instance's own attribute hides the class's: putting the bound method back is as good as none.
            undo.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)

        if name:
            MUTANTS[name](patch, site)
        yield
