"""The eval broker: the order in which evaluations are decided, and when blocked and delayed ones are woken.

It leases pending evaluations to scheduler workers by priority, then age, one of a job at a time. It decides no
placement and writes no fact: waking and ending are commands to the plan applier, sent again until the log shows them.

Everything but attempts, leases and presence is derived from the replayed tables, so a standby that wins has the same
queues after one pass over the open evaluations. If it leases an evaluation twice, the job fence refuses one plan.
Parts: `ready_queue.py`, `blocked_queue.py`, `delay_queue.py`, `coalesced.py`, `worker_leases.py`, `unconfirmed.py`.
"""

from msgspec.structs import replace

from schemas import envelope
from schemas.base import EvalKey, JobId
from schemas.bounds import bounded_decoder
from schemas.envelope import ENCODER, CommandBatch
from schemas.evaluations import (
    Blocked,
    EndEvaluations,
    EvaluationEnded,
    EvaluationsCreated,
    EvaluationsWoken,
    Lease,
    Leases,
    Presence,
    WakeEvaluations,
)
from schemas.jobs import JobRegistered, JobStopped
from schemas.nodes import CapacityFreed
from schemas.plans import Origin, PlanCommitted, PlanRefused
from services.eval_broker.backlog import BacklogReporter
from services.eval_broker.blocked_queue import BlockedQueues, StepTime
from services.eval_broker.coalesced import CoalescedEvaluations
from services.eval_broker.counters import BrokerCounters
from services.eval_broker.delay_queue import DelayQueue
from services.eval_broker.placement_need import (
    CAPACITY_FREED,
    TIME_HAS_COME,
    blocked_placement_need,
    has_waited,
    placement_need,
    waiting_place,
)
from services.eval_broker.ready_queue import ReadyQueue
from services.eval_broker.unconfirmed import UnconfirmedEndings, UnconfirmedKeys
from services.eval_broker.worker_leases import NextWorker, RevokedLease, WorkerLeases
from shared.core.runtime import messages
from shared.core.runtime.deadline_timer import earliest
from shared.core.runtime.log_clock import LogClock
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.step import Step
from shared.core.splitmix import splitmix64
from shared.core.state.tables.evaluations import Evaluation
from shared.protocol import subjects

#: Leases in one message.
LEASES_PER_MESSAGE = 64
#: Evaluations of one job that may wait; of more, all but the newest are canceled.
WAITING_PER_JOB_MAX = 3
_PRESENCE = bounded_decoder(Presence)


class EvalBroker(ReplicatedRole):
    """Orders pending evaluations and leases them; delays, blocks and wakes. Acts only as leader."""

    name = "eval_broker"
    leader_key = "eval_broker"

    def __init__(self, *, instance: str, replicas: ReplicaFactory = Replica) -> None:
        super().__init__(instance, frozenset({"jobs", "evaluations", "policy"}), replicas)
        self._workers = WorkerLeases()
        self._counters = BrokerCounters()
        self._backlog = BacklogReporter(instance)
        #: the queues below are derived from the state.
        self._is_active = False
        self._clear()

    def sources(self) -> tuple[messages.Source, ...]:
        """The log, and the presence of workers."""
        return (
            messages.Replay(tables=self.replica.tables),
            messages.Listen("presence", subjects.presences("scheduler")),
        )

    def metrics(self) -> dict[str, float]:
        """Gauges with the meanings of nomad.broker.* and nomad.blocked_evals.*, and counters."""
        return self._counters.shown(
            {
                "ready_evaluations": self._ready.ready,
                "unacked_evaluations": len(self._workers),
                "pending_evaluations": self._ready.behind + len(self._joined),
                "waiting_evaluations": len(self._delayed),
                "cancelable_evaluations": len(self._endings),
                **self._queues.gauges(),
                "workers": len(self._workers.lane_by_worker),
                "acting_bool": int(self._is_active),
                "applied_seq": self.replica.seq,
            }
        )

    # ---- inputs ----

    def on_message(self, message: messages.Message, step: Step) -> None:
        """Take a worker's presence: the leases that it returns, and whether it is active."""
        try:
            presence = _read_presence(message)
        except (ValueError, RecursionError) as err:
            self._counters.add("dead_messages")
            if self.is_leader:
                step.emit(self.dead_letter(message, str(err), step.now_ns))
            return
        instance, now = presence.instance, step.steady_ns
        if not presence.active:
            self._lose(instance, counts=False)
            return
        self._workers.record_presence(instance, now)
        for key in presence.returned:
            if self._workers.holder(key) == instance:
                self._counters.add("leases_returned")
                self._release(key, counts=False)
        forgotten = self._workers.forgotten(instance, now)
        self._counters.add("leases_reminded", len(forgotten))
        for at in range(0, len(forgotten), LEASES_PER_MESSAGE):
            step.emit(self._message(instance, tuple(forgotten[at : at + LEASES_PER_MESSAGE])))

    def on_applied(self, record: envelope.LogRecord, seq: int, step: Step) -> None:
        """Update the queues; the tables already include the whole record."""
        if self._is_active:
            self._notice(record, StepTime(step.steady_ns, seq))

    def _on_new_writer(self, step: Step) -> None:
        """Ask again for what the log does not show; `finish` sends it."""
        del step
        self._room_asked.hurry()
        self._delay_asked.hurry()
        self._endings.hurry()

    def finish(self, step: Step) -> None:
        """Drop lost workers, then send leases and commands that are due."""
        now = step.steady_ns
        self._update_acting(now)
        lost, doubted = self._workers.take_silent(now)
        for instance in lost:
            self._lose(instance, counts=True)
        for held in doubted:
            self._counters.add("leases_doubted")
            self._requeue_lease(held, counts=False)
        if self._is_active:
            self._act(step)

    def _notice(self, record: envelope.LogRecord, moment: StepTime) -> None:
        ordinal, seq = 0, moment.seq
        parked_of, joined = self._queues.parked_by_job, self._joined.of
        incarnations = self.replica.state.policy.incarnations
        for event in record.events:
            match event:
                case EvaluationEnded():
                    self._forget(event.key, moment, was_tried=event.status == "complete")
                case PlanCommitted():
                    if event.cut or event.origin.parts > 1 or event.key in joined:
                        self._plan_committed(event)
                    if event.job_id in parked_of:
                        self._unpark(event.job_id, moment)
                case JobRegistered() | JobStopped():
                    if event.job_id in parked_of:
                        self._unpark(event.job_id, moment)
                case EvaluationsCreated():
                    for _ in event.evaluations:
                        self._refresh(EvalKey(incarnations.key(seq, ordinal)), moment)
                        ordinal += 1
                case EvaluationsWoken():
                    for key in event.keys:
                        self._awake(key, moment)
                        self._refresh(key, moment)
                case PlanRefused():
                    self._counters.add("plans_refused")
                    self._planned(event.key, event.origin, counts=True)
                case CapacityFreed():
                    self._queues.free(event, seq, moment)
                case _:
                    pass

    def _plan_committed(self, event: PlanCommitted) -> None:
        """Release the lease after the last part of a partial plan; record the plan for joined evaluations."""
        self._joined.planned(event.key, event.origin.snapshot_seq)
        if (event.cut or event.origin.parts > 1) and event.origin.part + 1 >= event.origin.parts:
            did = event.placements or event.stops or event.updates
            self._planned(event.key, event.origin, counts=not did)

    def _planned(self, key: EvalKey, origin: Origin, *, counts: bool) -> None:
        """Release a lease whose plan is complete in the log, unless that ended the evaluation.

        A plan of another worker, whose lease has expired, does not end the current lease.
        """
        if self._workers.holder(key) != origin.worker:
            return
        evaluation = self.replica.state.evaluations.by_key.get(key)
        if evaluation is not None and evaluation.is_open:
            self._release(key, counts=counts)

    # ---- what is derived from state ----

    def _clear(self) -> None:
        self._ready = ReadyQueue()
        table = self.replica.state.evaluations
        self._queues = BlockedQueues(table.freed_seq, table.grown_seq)
        self._delayed = DelayQueue()
        self._log_clock = LogClock()
        self._room_asked = UnconfirmedKeys()
        self._delay_asked = UnconfirmedKeys()
        self._endings = UnconfirmedEndings()
        #: number of leases of an evaluation that ended without an accepted plan.
        self._attempts: dict[EvalKey, int] = {}
        self._joined = CoalescedEvaluations()
        #: lower bound of the snapshot of every lease: a former broker may have joined evaluations to any key.
        self._min_snapshot_seq = self.replica.seq
        self._workers.forget_leases()
        self._counters.clear()

    def _update_acting(self, now: int) -> None:
        """Start to act once this instance leads and has read the whole log; drop all when it stops leading."""
        if self.is_acting is self._is_active:
            return
        self._is_active = self.is_acting
        self._clear()
        if self._is_active:
            moment = StepTime(now, self.replica.seq)
            for key in self.replica.state.evaluations.open:
                self._refresh(key, moment)

    def _refresh(self, key: EvalKey, moment: StepTime) -> None:
        """Move an evaluation to the queue that its state demands."""
        evaluation = self.replica.state.evaluations.by_key.get(key)
        if evaluation is None or not evaluation.is_open:
            self._forget(key, moment, was_tried=_was_planned(evaluation))
        elif evaluation.blocked is not None:
            self._ready.drop(key)
            need = blocked_placement_need(self.replica.state, evaluation, evaluation.blocked)
            self._queues.block(key, need, evaluation.blocked, moment)
            self._counters.blocked(key, *self._ask(evaluation.job_id, evaluation.blocked))
        elif evaluation.wait_until_ns:
            self._delayed.add(key, evaluation.wait_until_ns)
        elif key not in self._endings.words:
            self._admit(evaluation, moment)

    def _admit(self, evaluation: Evaluation, moment: StepTime) -> None:
        """Make a pending evaluation ready, or park it behind others of its shape if it only adds allocations."""
        key, queues = evaluation.key, self._queues
        is_woken = has_waited(evaluation)
        is_tried = is_woken or queues.is_in_trial(key)
        need = None if is_tried else placement_need(self.replica.state, evaluation)
        if need is None:
            self._queue(evaluation, moment.ns, waited=is_woken)
            return
        for older in queues.parked_by_job.get(evaluation.job_id, ()):
            # Evaluations of a job without allocations all request the same.
            queues.leave(older, moment)
            self._end(older, "canceled", "superseded")
        queues.park(key, need, moment)

    def _unpark(self, job_id: JobId, moment: StepTime) -> None:
        """Requeue the parked evaluations of a job that changed: they may have to do more than add allocations."""
        for key in self._queues.parked_by_job.get(job_id, ()):
            self._queues.leave(key, moment)
            self._refresh(key, moment)

    def _ask(self, job_id: JobId, blocked: Blocked) -> tuple[int, int]:
        """Return MHz and MiB that a blocked evaluation could not place."""
        job = self.replica.state.jobs.by_id.get(job_id)
        asks = [
            (one.cpu_mhz * waiting.count, one.memory_mib * waiting.count)
            for one in (job.groups if job is not None else ())
            if (waiting := blocked.waiting.get(one.name)) is not None
        ]
        return sum(cpu for cpu, _ in asks), sum(memory for _, memory in asks)

    def _queue(self, evaluation: Evaluation, now: int, *, waited: bool) -> None:
        """Make a pending evaluation ready; if too many of one job wait, cancel all but the newest.

        `waited`: for room, so that it competes with others that did, and is decided in their order.
        The newest is the one that needs the latest snapshot: its decision covers the older ones.
        """
        job_id = evaluation.job_id
        if evaluation.triggered_by == "node-update" and self._joins(evaluation):
            return
        place = waiting_place(self.replica.state, evaluation) if waited else None
        waiting = self._ready.add(evaluation.key, job_id, evaluation.priority, now, place=place)
        if waiting <= WAITING_PER_JOB_MAX:
            return
        by_key = self.replica.state.evaluations.by_key
        crowd = self._ready.waiting_of(job_id)
        newest = max(
            crowd, key=lambda key: (max(by_key[key].min_seq, self._joined.min_seq_of(key)), key)
        )
        for key in crowd:
            if key != newest:
                self._end(key, "canceled", "superseded")

    def _joins(self, evaluation: Evaluation) -> bool:
        """Join a node-update evaluation to a waiting one of the same job, which keeps its place.

        When many nodes are lost in a row, most jobs get further evaluations before the first is decided.
        A joined evaluation stays open until the log shows a plan whose snapshot covers it.
        """
        key, by_key = evaluation.key, self.replica.state.evaluations.by_key
        older = self._ready.next_of(evaluation.job_id)
        if key in self._ready.known or older is None:
            return False
        # The record that creates this one may end the older one, too: the tables already include it.
        if not by_key[older].is_open or by_key[older].priority < evaluation.priority:
            return False
        self._joined.join(key, older, evaluation.min_seq)
        return True

    def _awake(self, key: EvalKey, moment: StepTime) -> None:
        """Remove an evaluation that was woken from the blocked or the delay queue."""
        if self._queues.mark_woken(key, moment):
            self._room_asked.done(key)
            self._counters.unblocked(key)
        elif self._delayed.drop(key):
            self._delay_asked.done(key)

    def _forget(self, key: EvalKey, moment: StepTime, *, was_tried: bool) -> None:
        """Remove an evaluation that ended; `was_tried`: with a plan."""
        given = self._workers.end(key)
        if given is not None:
            self._counters.ended(given.leased_at_ns, moment.ns)
        table = self.replica.state.evaluations
        after = None
        if table.blocked_of and (ended := table.by_key.get(key)) is not None:
            after = table.blocked_of.get(ended.job_id)
        if self._queues.leave(key, moment, was_tried=was_tried, after=after):
            self._room_asked.done(key)
            self._counters.unblocked(key)
        if not self._ready.drop(key):
            self._endings.done(key)
            if self._delayed.drop(key):
                self._delay_asked.done(key)
        self._attempts.pop(key, None)
        if key in self._joined.of:
            self._part(key, moment, was_tried=was_tried)

    def _part(self, key: EvalKey, moment: StepTime, *, was_tried: bool) -> None:
        """End the joined evaluations that the plan covered; requeue the others."""
        seen, unseen = self._joined.part(key, was_tried=was_tried)
        by_key = self.replica.state.evaluations.by_key
        told = frozenset(seen)
        for news in (*seen, *unseen):
            found = by_key.get(news)
            if found is None or not found.is_open:
                continue
            if news in told:
                self._end(news, "canceled", "superseded")
            else:
                self._refresh(news, moment)

    # ---- leases ----

    def _lose(self, instance: str, *, counts: bool) -> None:
        for held in self._workers.leave(instance):
            self._requeue_lease(held, counts=counts)

    def _release(self, key: EvalKey, *, counts: bool) -> None:
        given = self._workers.end(key)
        if given is not None:
            self._requeue_lease((key, given), counts=counts)

    def _requeue_lease(self, held: RevokedLease, *, counts: bool) -> None:
        """Requeue an evaluation whose lease ended without an accepted plan, or fail it after too many attempts.

        The attempt does not count if the log has no new record since: then the bus or the applier was down.
        """
        key, given = held
        self._ready.give_back(key)
        if not counts or self.replica.seq <= given.leased_at_seq:
            return
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        if attempts >= self.replica.state.policy.policy.delivery_limit:
            self._counters.add("evaluations_failed")
            self._end(key, "failed", f"handed out {attempts} times without a plan that held")

    def _end(self, key: EvalKey, status: str, reason: str) -> None:
        self._ready.drop(key)
        self._endings.add(key, status, reason)

    def _lease_ready(self, step: Step) -> None:
        now, is_first = step.steady_ns, True
        by_key = self.replica.state.evaluations.by_key
        for key in self._queues.ready():
            self._queue(by_key[key], now, waited=key in self._queues.scarce)
        floor, ready = self._queues.floor(now), self._ready
        if ready.has_waited:
            # First among equals, but not before what is more important.
            self._lease_waited(step, max(floor, ready.highest))
        share = self._workers.share(ready.ready, LEASES_PER_MESSAGE)
        while share and ready.ready:
            worker = self._workers.next()
            if worker.room <= 0:
                break
            keys, waited_ns = ready.take(min(worker.room, share), floor, now)
            if not keys:
                break
            # A worker that decides alone sees the whole fleet first: a lane may be a single node (ADR 17).
            lane = self._lane(worker, whole=worker.is_alone and is_first and not ready.ready)
            is_first = False
            leases = tuple([self._lease(key, lane) for key in keys])
            self._give(step, worker, leases, waited_ns)
        if ready.has_waited:
            self._lease_waited(step, floor)

    def _lease_waited(self, step: Step, floor: int) -> None:
        """Lease evaluations that waited for room: in their order, to one worker at a time (ADR 34).

        It decides them one after the other, each on a state with its plans for those before.
        """
        ready, worker = self._ready, self._workers.next(waited=True)
        if worker.room <= 0:
            return
        # All that it may hold, in one message: the next batch waits for the end of this one.
        keys, waited_ns = ready.take(worker.room, floor, step.steady_ns, waited=True)
        if not keys:
            return
        lane = self._lane(worker, whole=worker.is_alone and not ready.ready)
        # None may become ready before one that is ahead of it.
        seq = self.replica.seq
        leases = tuple([replace(self._lease(key, lane), min_seq=seq) for key in keys])
        self._give(step, worker, leases, waited_ns, waited=True)

    def _lane(self, worker: NextWorker, *, whole: bool) -> tuple[int, int]:
        """The lane of a worker, or the whole fleet."""
        lanes = self._workers.lane_by_worker
        return (0, 1) if whole else (lanes[worker.instance], len(lanes))

    def _give(
        self,
        step: Step,
        worker: NextWorker,
        leases: tuple[Lease, ...],
        waited_ns: list[int],
        *,
        waited: bool = False,
    ) -> None:
        instance, now = worker.instance, step.steady_ns
        self._workers.give(leases, instance, now, self.replica.seq, waited=waited)
        step.emit(self._message(instance, leases))
        self._counters.leased(waited_ns)

    def _lease(self, key: EvalKey, lane: tuple[int, int]) -> Lease:
        state = self.replica.state
        evaluation = state.evaluations.by_key[key]
        job = state.jobs.by_id.get(evaluation.job_id)
        # A decision on anything before the job's fence would be refused as stale.
        fence = job.plan_seq if job is not None else 0
        min_seq = max(
            evaluation.min_seq, self._joined.min_seq_of(key), self._min_snapshot_seq, fence
        )
        return Lease(
            key=key,
            job_id=evaluation.job_id,
            priority=evaluation.priority,
            triggered_by=evaluation.triggered_by,
            min_seq=min_seq,
            lane=lane[0],
            lanes=lane[1],
            seed=splitmix64(key),
            attempt=self._attempts.get(key, 0),
        )

    def _message(self, instance: str, leases: tuple[Lease, ...]) -> messages.Send:
        body = Leases(broker=self.instance, leases=leases)
        return messages.Send(subjects.leases(instance), ENCODER.encode(body))

    # ---- what is due ----

    def _act(self, step: Step) -> None:
        now = step.steady_ns
        for held in self._workers.take_overdue(now):
            self._counters.add("leases_expired")
            self._requeue_lease(held, counts=True)
        self._send_commands(step)
        self._lease_ready(step)
        waiting = self._ready.ready + self._ready.behind + self._queues.waiting_for_workers
        self._backlog.report(step, waiting, self.replica.seq)
        sleeps = self._delayed.next_ns if self._delay_asked.room else 0
        due = earliest(
            self._workers.due_ns,
            self._room_asked.due_ns,
            self._delay_asked.due_ns,
            self._endings.due_ns,
            self._backlog.due_ns,
            self._queues.due_ns(now),
            now + sleeps - self._log_clock.read(step, self.replica.state.t_ns) if sleeps else 0,
        )
        self.timer.arm(step, due)

    def _send_commands(self, step: Step) -> None:
        """Send commands for evaluations to wake or end; send again what the log has not confirmed in time."""
        now = step.steady_ns
        room = self._queues.take(self._room_asked.room, now)
        log_ns = self._log_clock.read(step, self.replica.state.t_ns)
        late = self._delayed.take(log_ns, self._delay_asked.room)
        commands: list[WakeEvaluations | EndEvaluations] = []
        if keys := self._room_asked.ask(room, now):
            commands.append(WakeEvaluations(keys=keys, reason=CAPACITY_FREED))
        if keys := self._delay_asked.ask(late, now):
            commands.append(WakeEvaluations(keys=keys, reason=TIME_HAS_COME))
        commands += self._endings.commands(now)
        if commands:
            batch = CommandBatch(sender=self.instance, commands=tuple(commands))
            step.emit(messages.Send(subjects.command("evaluation"), ENCODER.encode(batch)))


def _read_presence(message: messages.Message) -> Presence:
    """Decode a presence. Raises ValueError, also if it came on another worker's subject."""
    presence = _PRESENCE.decode(message.data)
    if subjects.presence("scheduler", presence.instance) != message.subject:
        raise ValueError(f"{presence.instance!r} shows life on {message.subject}")
    return presence


def _was_planned(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and evaluation.status == "complete"
