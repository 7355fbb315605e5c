"""The scheduler worker: from leases to plans.

It replays what a decision reads, waits until its replica has seen what a lease requests, calls the pure `place`, and
sends the proposal as a numbered plan until the log shows its fate. It holds nothing worth keeping: what it forgets, the
broker leases again, and the applier's fences make repeated plans harmless.
Parts: `lease_inbox.py`, `overlay.py` (its unconfirmed plans), `plan_parts.py`, `plan_outbox.py`.
"""

from typing import Protocol

from schemas import envelope
from schemas.base import EvalKey
from schemas.bounds import bounded_decoder
from schemas.envelope import CORE_VERSION, ENCODER, CommandBatch
from schemas.evaluations import EvaluationEnded, Lease, Leases, Presence
from schemas.plans import Origin, PlanCommitted, PlanRefused, SubmitPlan
from services.scheduler.counters import SchedulerCounters
from services.scheduler.lease_inbox import LeaseInbox, PendingLease
from services.scheduler.overlay import Overlay
from services.scheduler.plan_outbox import FailedEvaluations, PlanOutbox
from services.scheduler.plan_parts import PART_BYTES_MAX, split_proposal
from shared.core.runtime import messages
from shared.core.runtime.deadline_timer import earliest
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.restored import Restored
from shared.core.runtime.role import Input
from shared.core.runtime.step import Step
from shared.core.scheduling import place as core
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.protocol import subjects

PRESENCE_NS = 200_000_000
#: Decisions of one step: what one message of plans holds, so that the applier works while the next are made.
DECISIONS_MAX = 64
#: Task groups of one step, the first of each job not counted: large jobs too are sent after a few milliseconds.
GROUPS_MAX = 32
_REASON_CHARS_MAX = 500
#: What a decision reads.
TABLES = frozenset(
    {"fleet", "jobs", "allocations", "policy", "reservations", "deployments", "claims"}
)
_LEASES = bounded_decoder(Leases)


class PlaceFunction(Protocol):
    """What decides: `shared.core.scheduling.place.place`, or a fake in tests."""

    def __call__(
        self, snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
    ) -> Proposal:
        """Return the proposal for one evaluation."""
        ...


class Scheduler(ReplicatedRole):
    """One worker. Takes leases of `instance` alone; any number of workers run beside each other."""

    name = "scheduler"

    def __init__(
        self,
        *,
        instance: str,
        decide: PlaceFunction = core.place,
        part_bytes_max: int = PART_BYTES_MAX,
        replicas: ReplicaFactory = Replica,
    ) -> None:
        super().__init__(instance, TABLES, replicas)
        self._part_bytes_max = part_bytes_max
        self._decide = decide
        self._inbox = LeaseInbox()
        self._outbox = PlanOutbox(instance)
        self._failures = FailedEvaluations()
        self._overlay = Overlay()
        self._masks = PlacementCache()
        self._counters = SchedulerCounters()
        #: steady time of the next sign of life.
        self._presence_ns = 0

    def sources(self) -> tuple[messages.Source, ...]:
        """The log, and this worker's leases."""
        subject = subjects.leases(self.instance)
        durable = f"{self.name}_{subjects.last_token(subject)}"
        leases = messages.Work(name="leases", stream="EVAL", subject=subject, durable=durable)
        return (messages.Replay(tables=TABLES), leases)

    @property
    def is_idle(self) -> bool:
        """Return whether only a presence message is due: the shell need not wake the role for it."""
        return not (len(self._inbox) or len(self._outbox) or len(self._failures))

    def take_inputs(self, inputs: list[Input], step: Step) -> None:
        """Take the log's records first, so that leases of the same step find the newest state."""
        others: list[Input] = []
        for item in inputs:
            if isinstance(item, messages.Record | Restored):
                self.take(item, step)
            else:
                others.append(item)
        for item in others:
            self.take(item, step)

    def finish(self, step: Step) -> None:
        """Decide what is leased, send the plans, and show presence."""
        now = step.steady_ns
        self._decide_ready(now)
        self._counters.add("plans_resent", self._outbox.resend_late(now))
        self._send_plans(step)
        self._show_presence(step)
        more = now if self._inbox.has_ready(self.replica.seq) else 0
        due = earliest(
            more,
            self._presence_ns,
            self._inbox.due_ns,
            self._outbox.due_ns,
            self._failures.due_ns,
        )
        self.timer.arm(step, due)

    def before_stop(self, step: Step) -> None:
        """Tell the broker that this worker is gone."""
        step.emit(self._presence(active=False))

    def metrics(self) -> dict[str, float]:
        """Gauges and counters with the meanings of nomad.worker.*."""
        return self._counters.shown(
            {
                "applied_seq": self.replica.seq,
                "leases_waiting": len(self._inbox),
                "plans_outstanding": len(self._outbox),
                "overlay_allocations": self._overlay.allocations,
            }
        )

    # ---- inputs ----

    def on_applied(self, record: envelope.LogRecord, seq: int, step: Step) -> None:
        """Settle this worker's plans, and forget evaluations that ended."""
        del seq, step
        for event in record.events:
            if isinstance(event, PlanCommitted):
                if event.origin.worker == self.instance:
                    if event.cut:
                        self._counters.add("plans_cut")
                    self._settle(event.origin, refused=False)
            elif isinstance(event, EvaluationEnded):
                self._inbox.end(event.key)
                self._failures.done(event.key)
            elif isinstance(event, PlanRefused) and event.origin.worker == self.instance:
                self._counters.add("plans_refused")
                self._settle(event.origin, refused=True)

    def _on_new_writer(self, step: Step) -> None:
        """Send the plans and failures again that the log does not show."""
        resent = self._outbox.resend_late(step.steady_ns, all_of_it=True)
        self._counters.add("plans_resent", resent)
        self._failures.hurry()

    def _settle(self, origin: Origin, *, refused: bool) -> None:
        for part in self._outbox.settle(origin.number, origin.part, refused=refused):
            self._overlay.settle(origin.number, part)

    def on_input(self, item: Input, step: Step) -> None:
        """After a reconnect send everything again: it may be lost. The broker hears of this worker at once."""
        if isinstance(item, messages.Reconnected):
            self._presence_ns = 0
            resent = self._outbox.resend_late(step.steady_ns, all_of_it=True)
            self._counters.add("plans_resent", resent)
            step.emit(messages.Open("leases"))

    def on_message(self, message: messages.Message, step: Step) -> None:
        """Take leases."""
        try:
            leases = _LEASES.decode(message.data).leases
        except (ValueError, RecursionError) as err:
            self._counters.add("dead_messages")
            step.emit(self.dead_letter(message, str(err), step.now_ns))
            step.emit(messages.Ack(message.token))
            return
        self._counters.add("leases", len(leases))
        for lease in leases:
            if lease.key in self._outbox:
                # Planned, and the log does not show it: that plan it is, not a second one.
                self._outbox.again(lease.key, step.steady_ns)
            elif lease.key not in self._failures:
                self._inbox.put(lease, step.steady_ns)
        step.emit(messages.Ack(message.token))

    # ---- deciding ----

    def _decide_ready(self, now: int) -> None:
        groups = 0
        jobs = self.replica.state.jobs.by_id
        for decisions, waiting in enumerate(self._inbox.ready(self.replica.seq), 1):
            self._counters.waited(now - waiting.came_ns)
            self._plan(waiting, now)
            job = jobs.get(waiting.lease.job_id)
            groups += len(job.groups) - 1 if job is not None else 0
            if decisions >= DECISIONS_MAX or groups >= GROUPS_MAX:
                return

    def _plan(self, waiting: PendingLease, now: int) -> None:
        """Decide one evaluation; an error of one job affects that job only."""
        lease, state, overlay = waiting.lease, self.replica.state, self._overlay
        held = overlay.held(state)
        snapshot = Snapshot(state, held, self._masks, overlay.evicted(state), overlay.dirty_rows)
        assignment = Assignment(lease.key, lease.job_id, lease.triggered_by)
        number, parts = self._outbox.next_number, list[Proposal]()
        try:
            proposal = self._decide(
                snapshot, assignment, seed=lease.seed, lane=lease.lane, lanes=lease.lanes
            )
            parts = split_proposal(proposal, state, self._part_bytes_max)
            for part, some in enumerate(parts):
                overlay.add(
                    state,
                    lease.job_id,
                    some.placements,
                    number=number,
                    part=part,
                    evictions=some.evictions,
                )
        except Exception as err:  # noqa: BLE001 - a worker must outlive one bad job; the log keeps the reason.
            for part in range(len(parts)):
                overlay.settle(number, part)
            reason = f"{type(err).__name__}: {err}"[:_REASON_CHARS_MAX]
            self._counters.add("evaluations_failed")
            self._failures.put(lease.key, reason)
            return
        plans = [self._submit(lease, some, part, len(parts)) for part, some in enumerate(parts)]
        self._outbox.put(plans, now)
        self._counters.decided(sum([sum(one.counts) for one in proposal.placements]))

    def _submit(self, lease: Lease, proposal: Proposal, part: int, parts: int) -> SubmitPlan:
        state = self.replica.state
        origin = Origin(
            worker=self.instance,
            number=self._outbox.next_number,
            part=part,
            parts=parts,
            snapshot_seq=state.seq,
            policy=state.policy.policy_hash,
            seed=lease.seed,
            lane=lease.lane,
            lanes=lease.lanes,
            core=CORE_VERSION,
        )
        return proposal.to_command(lease.key, lease.job_id, origin)

    # ---- effects ----

    def _send_plans(self, step: Step) -> None:
        subject = subjects.command("plan")
        for data in self._outbox.flush():
            step.emit(messages.Send(subject, data))
        if failed := self._failures.commands(step.steady_ns):
            batch = CommandBatch(sender=self.instance, commands=failed)
            step.emit(messages.Send(subjects.command("evaluation"), ENCODER.encode(batch)))

    def _show_presence(self, step: Step) -> None:
        """Show presence when it is due or a lease goes back, but not before the log was read to its end."""
        now = step.steady_ns
        returned = self._inbox.late(now)
        self._counters.add("leases_returned", len(returned))
        if self.is_caught_up and (now >= self._presence_ns or returned):
            self._presence_ns = now + PRESENCE_NS
            step.emit(self._presence(returned=returned))

    def _presence(
        self, *, active: bool = True, returned: tuple[EvalKey, ...] = ()
    ) -> messages.Send:
        body = Presence(
            role=self.name,
            instance=self.instance,
            seq=self.replica.seq,
            active=active,
            returned=returned,
        )
        return messages.Send(subjects.presence(self.name, self.instance), ENCODER.encode(body))
