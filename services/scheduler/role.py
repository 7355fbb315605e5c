"""The scheduler worker: from leases to plans.

It replays what a decision reads, waits until its replica has seen what a lease asks for, lets the pure `place` decide,
and sends the proposal as a numbered plan until the log tells its fate. It holds nothing worth keeping: whatever it
forgets, the broker leases again and the applier's fences make harmless. It must not know how a decision is made, nor
who else schedules. Parts: `inbox.py` leases, `overlay.py` its own unconfirmed plans, `parts.py` cutting, `outbox.py`
numbers and resends.
"""

from typing import Protocol

import msgspec

from schemas import envelope
from schemas.base import EvalKey
from schemas.envelope import CORE_VERSION, ENCODER, CommandBatch
from schemas.evaluations import EvaluationEnded, Lease, Leases, Presence
from schemas.plans import Origin, PlanCommitted, PlanRefused, SubmitPlan
from services.scheduler.counters import Counters
from services.scheduler.inbox import LeaseInbox, Waiting
from services.scheduler.outbox import Failures, Outbox
from services.scheduler.overlay import Overlay
from services.scheduler.parts import PART_BYTES_MAX, cut
from shared.bus import subjects
from shared.core import place as core
from shared.core import role
from shared.core.dead import dead_letter
from shared.core.place import Assignment, MaskCache, Proposal, Snapshot
from shared.core.replica import Replica
from shared.core.waker import Waker, earliest
from shared.errors import LogError

PRESENCE_NS = 200_000_000
#: Decisions of one step: what one message of plans holds, so that the applier works while the next are made.
DECISIONS_MAX = 64
#: Task groups of one step, the first of each job not counted: large jobs too are sent after a few milliseconds.
GROUPS_MAX = 32
_REASON_CHARS_MAX = 500
#: What a decision reads.
TABLES = frozenset({"fleet", "jobs", "allocations", "policy", "reservations"})
_LEASES = msgspec.json.Decoder(Leases)


class Decide(Protocol):
    """What decides: `shared.core.place.place`, or a fake in tests."""

    def __call__(
        self, snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
    ) -> Proposal:
        """Return what shall become of one evaluation."""
        ...


class Scheduler:
    """One worker. Takes leases of `instance` alone; any number of workers run beside each other."""

    name = "scheduler"

    def __init__(
        self,
        *,
        instance: str,
        decide: Decide = core.place,
        part_bytes_max: int = PART_BYTES_MAX,
    ) -> None:
        self.instance = instance
        self._part_bytes_max = part_bytes_max
        self._decide = decide
        self._replica = Replica(TABLES)
        self._waker = Waker("due")
        self._inbox = LeaseInbox()
        self._outbox = Outbox(instance)
        self._failures = Failures()
        self._overlay = Overlay()
        self._masks = MaskCache()
        self._counters = Counters()
        self._is_caught_up = False
        #: steady time of the next sign of life.
        self._presence_ns = 0

    def sources(self) -> tuple[role.Source, ...]:
        """The log, and this worker's leases."""
        subject = subjects.leases(self.instance)
        durable = f"{self.name}_{subjects.last_token(subject)}"
        leases = role.Work(name="leases", stream="EVAL", subject=subject, durable=durable)
        return (role.Replay(tables=TABLES), leases)

    @property
    def leader_key(self) -> str:
        """Workers compete for leases, not for leadership."""
        return ""

    @property
    def next_seq(self) -> int:
        """First seq not applied yet."""
        return self._replica.next_seq

    @property
    def is_idle(self) -> bool:
        """Say whether nothing but a sign of life is due here: a shell may know better than to wake it for that."""
        return not (len(self._inbox) or len(self._outbox) or len(self._failures))

    def step(self, inputs: list[role.Input], now_ns: int) -> list[role.Effect]:
        """Follow the log first, then decide what there is, send it, and show a sign of life."""
        now = self._waker.read(now_ns)
        effects: list[role.Effect] = []
        try:
            for given in inputs:
                if isinstance(given, role.Record):
                    self._follow(given)
                elif isinstance(given, role.Restored):
                    self._replica.begin_at(given.replica)
        except LogError as err:
            return [self._presence(active=False), role.Stop(str(err))]
        for given in inputs:
            effects += self._take(given, now, now_ns)
        self._decide_ready(now)
        self._counters.add("plans_resent_total", self._outbox.repeat_late(now))
        effects += self._sent(now)
        effects += self._lived(now)
        more = now if self._inbox.has_ready(self._replica.seq) else 0
        due = earliest(
            more,
            self._presence_ns,
            self._inbox.due_ns,
            self._outbox.due_ns,
            self._failures.due_ns,
        )
        return [*effects, *self._waker.until(due)]

    def metrics(self) -> dict[str, float]:
        """Gauges and counters with the meanings of nomad.worker.*."""
        return self._counters.shown(
            {
                "applied_seq": self._replica.seq,
                "leases_waiting": len(self._inbox),
                "plans_outstanding": len(self._outbox),
                "overlay_allocations": self._overlay.allocations,
            }
        )

    # ---- inputs ----

    def _follow(self, given: role.Record) -> None:
        record = self._replica.apply(given)
        if record is not None:
            self._notice(record)

    def _notice(self, record: envelope.Record) -> None:
        for event in record.events:
            # Of everything that happens only this is of concern here.
            if isinstance(event, PlanCommitted):
                if event.origin.worker == self.instance:
                    if event.cut:
                        self._counters.add("plans_cut_total")
                    self._settle(event.origin, refused=False)
            elif isinstance(event, EvaluationEnded):
                self._inbox.end(event.key)
                self._failures.done(event.key)
            elif isinstance(event, PlanRefused) and event.origin.worker == self.instance:
                self._counters.add("plans_refused_total")
                self._settle(event.origin, refused=True)

    def _settle(self, origin: Origin, *, refused: bool) -> None:
        for part in self._outbox.settle(origin.number, origin.part, refused=refused):
            self._overlay.settle(origin.number, part)

    def _take(self, given: role.Input, now: int, now_ns: int) -> list[role.Effect]:
        match given:
            case role.Message():
                return self._hear(given, now, now_ns)
            case role.Timer():
                self._waker.fired()
            case role.CaughtUp():
                self._is_caught_up = True
            case role.Reconnected():
                # What was under way may be lost; the broker shall hear of this worker at once.
                self._presence_ns = 0
                self._counters.add(
                    "plans_resent_total", self._outbox.repeat_late(now, all_of_it=True)
                )
                return [role.Open("leases")]
            case _:
                pass
        return []

    def _hear(self, message: role.Message, now: int, now_ns: int) -> list[role.Effect]:
        try:
            leases = _LEASES.decode(message.data).leases
        except (ValueError, RecursionError) as err:
            self._counters.add("dead_messages_total")
            letter = dead_letter(self, message, str(err), now_ns)
            return [role.Send(subjects.dead(message.subject), letter), role.Ack(message.token)]
        self._counters.add("leases_total", len(leases))
        for lease in leases:
            if lease.key in self._outbox:
                # Planned, and the log does not show it: that plan it is, not a second one.
                self._outbox.again(lease.key, now)
            elif lease.key not in self._failures:
                self._inbox.put(lease, now)
        return [role.Ack(message.token)]

    # ---- deciding ----

    def _decide_ready(self, now: int) -> None:
        groups = 0
        jobs = self._replica.state.jobs.by_id
        for decisions, waiting in enumerate(self._inbox.ready(self._replica.seq), 1):
            self._counters.waited(now - waiting.came_ns)
            self._plan(waiting, now)
            job = jobs.get(waiting.lease.job_id)
            groups += len(job.groups) - 1 if job is not None else 0
            if decisions >= DECISIONS_MAX or groups >= GROUPS_MAX:
                return

    def _plan(self, waiting: Waiting, now: int) -> None:
        """Decide one evaluation; whatever goes wrong with one job is that job's matter alone."""
        lease, state, overlay = waiting.lease, self._replica.state, self._overlay
        held = overlay.held(state)
        snapshot = Snapshot(state, held, self._masks, overlay.evicted(state), overlay.trail)
        assignment = Assignment(lease.key, lease.job_id, lease.triggered_by)
        number, parts = self._outbox.next_number, list[Proposal]()
        try:
            proposal = self._decide(
                snapshot, assignment, seed=lease.seed, lane=lease.lane, lanes=lease.lanes
            )
            parts = cut(proposal, state, self._part_bytes_max)
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
            self._counters.add("evaluations_failed_total")
            self._failures.put(lease.key, reason)
            return
        plans = [self._submit(lease, some, part, len(parts)) for part, some in enumerate(parts)]
        self._outbox.put(plans, now)
        self._counters.decided(sum([sum(one.counts) for one in proposal.placements]))

    def _submit(self, lease: Lease, proposal: Proposal, part: int, parts: int) -> SubmitPlan:
        state = self._replica.state
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
        return SubmitPlan(
            key=lease.key,
            job_id=lease.job_id,
            origin=origin,
            all_at_once=proposal.all_at_once,
            placements=proposal.placements,
            stops=proposal.stops,
            updates=proposal.updates,
            evictions=proposal.evictions,
            end=proposal.end,
            end_reason=proposal.end_reason,
            follow_ups=proposal.follow_ups,
            decision=proposal.decision,
        )

    # ---- effects ----

    def _sent(self, now: int) -> list[role.Effect]:
        subject = subjects.command("plan")
        effects: list[role.Effect] = [role.Send(subject, one) for one in self._outbox.flush()]
        if failed := self._failures.commands(now):
            batch = CommandBatch(sender=self.instance, commands=failed)
            effects.append(role.Send(subjects.command("evaluation"), ENCODER.encode(batch)))
        return effects

    def _lived(self, now: int) -> list[role.Effect]:
        """Show a sign of life when it is time or a lease goes back; not before the log was read to its end."""
        returned = self._inbox.late(now)
        self._counters.add("leases_returned_total", len(returned))
        if not self._is_caught_up or (now < self._presence_ns and not returned):
            return []
        self._presence_ns = now + PRESENCE_NS
        return [self._presence(returned=returned)]

    def _presence(self, *, active: bool = True, returned: tuple[EvalKey, ...] = ()) -> role.Send:
        body = Presence(
            role=self.name,
            instance=self.instance,
            seq=self._replica.seq,
            active=active,
            returned=returned,
        )
        return role.Send(subjects.presence(self.name, self.instance), ENCODER.encode(body))
