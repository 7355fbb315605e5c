"""The eval broker: who decides which evaluation next, and when the sleeping ones wake.

Order lives here and in no stream. The broker leases pending evaluations to scheduler workers, by priority, then age,
one of a job at a time; the log is what gives a worker its credit back. It decides no placement and writes no fact:
waking and giving up are commands to the plan applier, sent again until the log shows them.

Everything but attempts, leases and presence is derived from the replayed tables, so that a standby which wins has the
same queue after one pass over the open evaluations. What it leases a second time, the job fence makes harmless.
Parts: `ready.py` order, `lines.py` what waits for the same, `asleep.py` delayed, `workers.py` leases, `requests.py`
commands.
"""

import msgspec

from schemas import envelope
from schemas.base import EvalKey, JobId
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
from services.eval_broker.asleep import DelayQueue
from services.eval_broker.backlog import Backlog
from services.eval_broker.counters import Counters
from services.eval_broker.joined import Joined
from services.eval_broker.lines import Lines, Moment
from services.eval_broker.needs import need_of, need_of_blocked
from services.eval_broker.ready import ReadyQueue
from services.eval_broker.requests import Endings, Requests
from services.eval_broker.workers import Held, Workers
from shared.bus import subjects
from shared.core import role
from shared.core.dead import dead_letter
from shared.core.ids import make_key
from shared.core.replica import Replica
from shared.core.splitmix import splitmix64
from shared.core.tables.evaluations import Evaluation
from shared.core.waker import Waker, earliest
from shared.errors import LogError

#: Leases in one message.
CHUNK = 64
#: Evaluations of one job that may wait; of more, all but the newest are canceled.
WAITING_MAX = 3
_PRESENCE = msgspec.json.Decoder(Presence)


class EvalBroker:
    """Orders pending evaluations and leases them; delays, blocks and wakes. Acts only as leader."""

    name = "eval_broker"

    def __init__(self, *, instance: str) -> None:
        self.instance = instance
        self._replica = Replica(frozenset({"jobs", "evaluations", "policy"}))
        self._waker = Waker("due")
        self._workers = Workers()
        self._counters = Counters()
        self._backlog = Backlog(instance)
        self._is_leader = False
        self._is_caught_up = False
        #: derived from state, while this instance acts.
        self._is_acting = False
        self._clear()

    def sources(self) -> tuple[role.Source, ...]:
        """The log, and the workers' signs of life."""
        return (
            role.Replay(tables=self._replica.tables),
            role.Listen("presence", subjects.presences("scheduler")),
        )

    @property
    def leader_key(self) -> str:
        """One broker acts, others replay."""
        return self.name

    @property
    def next_seq(self) -> int:
        """First seq not applied yet."""
        return self._replica.next_seq

    def step(self, inputs: list[role.Input], now_ns: int) -> list[role.Effect]:
        """Follow the log, hear the workers, then lease and ask for what is due."""
        now = self._waker.read(now_ns)
        effects: list[role.Effect] = []
        try:
            for given in inputs:
                effects += self._take(given, now, now_ns)
        except LogError as err:
            return [role.Stop(str(err))]
        self._act_or_rest(now)
        lost, doubted = self._workers.unheard(now)
        for instance in lost:
            self._lose(instance, counts=True)
        for held in doubted:
            self._counters.add("leases_doubted_total")
            self._hand_back(held, counts=False)
        if self._is_acting:
            effects += self._act(now, now_ns)
        return effects

    def metrics(self) -> dict[str, float]:
        """Gauges with the meanings of nomad.broker.* and nomad.blocked_evals.*, and counters."""
        return self._counters.shown(
            {
                "ready_evaluations": self._ready.ready,
                "unacked_evaluations": len(self._workers),
                "pending_evaluations": self._ready.behind + len(self._joined),
                "waiting_evaluations": len(self._delayed),
                "cancelable_evaluations": len(self._endings),
                **self._lines.gauges(),
                "workers_count": len(self._workers.lane_of),
                "acting_bool": int(self._is_acting),
                "applied_seq": self._replica.seq,
            }
        )

    # ---- inputs ----

    def _take(self, given: role.Input, now: int, now_ns: int) -> list[role.Effect]:
        match given:
            case role.Record():
                self._follow(given, now)
            case role.Restored():
                self._replica.begin_at(given.replica)
            case role.Message():
                return self._hear(given, now, now_ns)
            case role.Timer():
                self._waker.fired()
            case role.CaughtUp():
                self._is_caught_up = True
            case role.LeadershipWon():
                self._is_leader = True
            case role.LeadershipLost():
                self._is_leader = False
            case _:
                pass
        return []

    def _hear(self, message: role.Message, now: int, now_ns: int) -> list[role.Effect]:
        try:
            presence = _read(message)
        except (ValueError, RecursionError) as err:
            self._counters.add("dead_messages_total")
            letter = dead_letter(self, message, str(err), now_ns)
            return [role.Send(subjects.dead(message.subject), letter)] if self._is_leader else []
        instance = presence.instance
        if not presence.active:
            self._lose(instance, counts=False)
            return []
        self._workers.hear(instance, now)
        for key in presence.returned:
            if self._workers.holder(key) == instance:
                self._counters.add("leases_returned_total")
                self._release(key, counts=False)
        forgotten = self._workers.forgotten(instance, now)
        self._counters.add("leases_reminded_total", len(forgotten))
        return [
            self._message(instance, tuple(forgotten[at : at + CHUNK]))
            for at in range(0, len(forgotten), CHUNK)
        ]

    def _follow(self, given: role.Record, now: int) -> None:
        record = self._replica.apply(given)
        if record is not None and self._is_acting:
            self._notice(record, given.seq, now)

    def _notice(self, record: envelope.Record, seq: int, now: int) -> None:
        """Bring what is derived up to date; the tables already stand after the whole record."""
        ordinal = 0
        moment = Moment(now, seq)
        parked_of, joined = self._lines.parked_of, self._joined.of
        for event in record.events:
            match event:
                case EvaluationEnded():
                    self._forget(event.key, moment, was_tried=event.status == "complete")
                case PlanCommitted():
                    if event.cut or event.origin.parts > 1 or event.key in joined:
                        self._landed(event)
                    if event.job_id in parked_of:
                        self._unpark(event.job_id, moment)
                case JobRegistered() | JobStopped():
                    if event.job_id in parked_of:
                        self._unpark(event.job_id, moment)
                case EvaluationsCreated():
                    for _ in event.evaluations:
                        self._refresh(EvalKey(make_key(seq, ordinal)), moment)
                        ordinal += 1
                case EvaluationsWoken():
                    for key in event.keys:
                        self._awake(key, moment)
                        self._refresh(key, moment)
                case PlanRefused():
                    self._counters.add("plans_refused_total")
                    self._planned(event.key, event.origin, counts=True)
                case CapacityFreed():
                    self._lines.free(event, seq, moment)
                case _:
                    pass

    def _landed(self, event: PlanCommitted) -> None:
        """Give the lease of a plan back that was cut somewhere, once its last part is there; news saw it, too."""
        self._joined.planned(event.key, event.origin.snapshot_seq)
        if (event.cut or event.origin.parts > 1) and event.origin.part + 1 >= event.origin.parts:
            did = event.placements or event.stops or event.updates
            self._planned(event.key, event.origin, counts=not did)

    def _planned(self, key: EvalKey, origin: Origin, *, counts: bool) -> None:
        """Take back a lease whose plan the log shows to its end, unless that ended the evaluation.

        A plan of another worker, whose lease died before, says nothing about the lease there is now.
        """
        if self._workers.holder(key) != origin.worker:
            return
        evaluation = self._replica.state.evaluations.by_key.get(key)
        if evaluation is not None and evaluation.is_open:
            self._release(key, counts=counts)

    # ---- what is derived from state ----

    def _clear(self) -> None:
        self._ready = ReadyQueue()
        table = self._replica.state.evaluations
        self._lines = Lines(table.freed_seq, table.grown_seq)
        self._delayed = DelayQueue()
        self._room_asked = Requests()
        self._delay_asked = Requests()
        self._endings = Endings()
        #: how often the lease of an evaluation came to nothing.
        self._attempts: dict[EvalKey, int] = {}
        self._joined = Joined()
        #: what a worker must have seen whatever it decides: another broker may have joined news to it.
        self._seen_by_others = self._replica.seq
        self._workers.forget_leases()
        self._counters.clear()

    def _act_or_rest(self, now: int) -> None:
        """Start to act once leadership is won and the log was read to its end; drop everything when it is lost."""
        shall_act = self._is_leader and self._is_caught_up
        if shall_act is self._is_acting:
            return
        self._is_acting = shall_act
        self._clear()
        if shall_act:
            moment = Moment(now, self._replica.seq)
            for key in self._replica.state.evaluations.open:
                self._refresh(key, moment)

    def _refresh(self, key: EvalKey, moment: Moment) -> None:
        """Put an evaluation where the state says that it belongs."""
        evaluation = self._replica.state.evaluations.by_key.get(key)
        if evaluation is None or not evaluation.is_open:
            self._forget(key, moment, was_tried=_was_tried(evaluation))
        elif evaluation.blocked is not None:
            self._ready.drop(key)
            need = need_of_blocked(self._replica.state, evaluation, evaluation.blocked)
            self._lines.block(key, need, evaluation.blocked, moment)
            self._counters.blocked(key, *self._ask(evaluation.job_id, evaluation.blocked))
        elif evaluation.wait_until_ns:
            self._delayed.add(key, evaluation.wait_until_ns)
        elif key not in self._endings.words:
            self._admit(evaluation, moment)

    def _admit(self, evaluation: Evaluation, moment: Moment) -> None:
        """Let a pending evaluation be leased, or stand in line where it can only place, behind others of its shape."""
        key, lines = evaluation.key, self._lines
        need = None if lines.is_trying(key) else need_of(self._replica.state, evaluation)
        if need is None:
            self._queue(evaluation, moment.ns)
            return
        for older in lines.parked_of.get(evaluation.job_id, ()):
            # All of a job that nothing was placed of ask for the same.
            lines.leave(older, moment)
            self._end(older, "canceled", "superseded")
        lines.park(key, need, moment)

    def _unpark(self, job_id: JobId, moment: Moment) -> None:
        """Put a job's parked evaluations where they belong now that the job changed: there is more to decide."""
        for key in self._lines.parked_of.get(job_id, ()):
            self._lines.leave(key, moment)
            self._refresh(key, moment)

    def _ask(self, job_id: JobId, blocked: Blocked) -> tuple[int, int]:
        """MHz and MiB of what a blocked evaluation could not place."""
        job = self._replica.state.jobs.by_id.get(job_id)
        asks = [
            (one.cpu_mhz * waiting.count, one.memory_mib * waiting.count)
            for one in (job.groups if job is not None else ())
            if (waiting := blocked.waiting.get(one.name)) is not None
        ]
        return sum(cpu for cpu, _ in asks), sum(memory for _, memory in asks)

    def _queue(self, evaluation: Evaluation, now: int) -> None:
        """Let a pending evaluation be leased; where a crowd of one job waits, only the newest shall stay.

        The newest is the one that a worker must have seen the most for: no older one knows more.
        """
        job_id = evaluation.job_id
        if evaluation.triggered_by == "node-update" and self._joins(evaluation):
            return
        waiting = self._ready.add(evaluation.key, job_id, evaluation.priority, now)
        if waiting <= WAITING_MAX:
            return
        by_key = self._replica.state.evaluations.by_key
        crowd = self._ready.waiting_of(job_id)
        newest = max(
            crowd, key=lambda key: (max(by_key[key].min_seq, self._joined.seq_of(key)), key)
        )
        for key in crowd:
            if key != newest:
                self._end(key, "canceled", "superseded")

    def _joins(self, evaluation: Evaluation) -> bool:
        """Let a node's news of a job be looked at with what of the job waits already, which keeps its place.

        When many nodes are lost one after the other, nearly every job hears of it again before it was looked at once.
        The news stay open until the log shows a plan that has seen them.
        """
        key, by_key = evaluation.key, self._replica.state.evaluations.by_key
        older = self._ready.next_of(evaluation.job_id)
        if key in self._ready.known or older is None:
            return False
        # The record that brings the news may end the older one, too: the tables stand behind it already.
        if not by_key[older].is_open or by_key[older].priority < evaluation.priority:
            return False
        self._joined.join(key, older, evaluation.min_seq)
        return True

    def _awake(self, key: EvalKey, moment: Moment) -> None:
        """Forget that an evaluation slept."""
        if self._lines.woken(key, moment):
            self._room_asked.done(key)
            self._counters.unblocked(key)
        elif self._delayed.drop(key):
            self._delay_asked.done(key)

    def _forget(self, key: EvalKey, moment: Moment, *, was_tried: bool) -> None:
        """Forget an evaluation that ended; `was_tried`: with a plan."""
        given = self._workers.end(key)
        if given is not None:
            self._counters.ended(given.given_ns, moment.ns)
        table = self._replica.state.evaluations
        after = None
        if table.blocked_of and (ended := table.by_key.get(key)) is not None:
            after = table.blocked_of.get(ended.job_id)
        if self._lines.leave(key, moment, was_tried=was_tried, after=after):
            self._room_asked.done(key)
            self._counters.unblocked(key)
        if not self._ready.drop(key):
            self._endings.done(key)
            if self._delayed.drop(key):
                self._delay_asked.done(key)
        self._attempts.pop(key, None)
        if key in self._joined.of:
            self._part(key, moment, was_tried=was_tried)

    def _part(self, key: EvalKey, moment: Moment, *, was_tried: bool) -> None:
        """End the news that the plan of an evaluation looked at, too; the others are still to be decided."""
        seen, unseen = self._joined.part(key, was_tried=was_tried)
        by_key = self._replica.state.evaluations.by_key
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
            self._hand_back(held, counts=counts)

    def _release(self, key: EvalKey, *, counts: bool) -> None:
        given = self._workers.end(key)
        if given is not None:
            self._hand_back((key, given), counts=counts)

    def _hand_back(self, held: Held, *, counts: bool) -> None:
        """Let a lease that came to nothing be given again, or give the evaluation up.

        Where the log has not moved since, the bus or the applier is to blame, and the attempt does not count.
        """
        key, given = held
        self._ready.give_back(key)
        if not counts or self._replica.seq <= given.given_seq:
            return
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        if attempts >= self._replica.state.policy.policy.delivery_limit:
            self._counters.add("evaluations_failed_total")
            self._end(key, "failed", f"handed out {attempts} times without a plan that held")

    def _end(self, key: EvalKey, status: str, reason: str) -> None:
        self._ready.drop(key)
        self._endings.add(key, status, reason)

    def _hand_out(self, now: int) -> list[role.Effect]:
        effects: list[role.Effect] = []
        by_key = self._replica.state.evaluations.by_key
        for key in self._lines.ready():
            self._queue(by_key[key], now)
        floor = self._lines.floor(now)
        share = self._workers.share(self._ready.ready, CHUNK)
        while share and self._ready.ready:
            instance, room, is_alone = self._workers.next()
            if room <= 0:
                break
            keys, waited_ns = self._ready.take(min(room, share), floor, now)
            if not keys:
                break
            # Who decides alone shall see the whole fleet first: with few nodes a lane may be a single one (ADR 17).
            is_alone = is_alone and not effects and not self._ready.ready
            lanes = self._workers.lane_of
            lane = (0, 1) if is_alone else (lanes[instance], len(lanes))
            leases = tuple([self._lease(key, lane) for key in keys])
            self._workers.give(leases, instance, now, self._replica.seq)
            effects.append(self._message(instance, leases))
            self._counters.leased(waited_ns)
        return effects

    def _lease(self, key: EvalKey, lane: tuple[int, int]) -> Lease:
        state = self._replica.state
        evaluation = state.evaluations.by_key[key]
        job = state.jobs.by_id.get(evaluation.job_id)
        # A decision on anything before the job's fence would be refused as stale.
        fence = job.plan_seq if job is not None else 0
        min_seq = max(evaluation.min_seq, self._joined.seq_of(key), self._seen_by_others, fence)
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

    def _message(self, instance: str, leases: tuple[Lease, ...]) -> role.Send:
        body = Leases(broker=self.instance, leases=leases)
        return role.Send(subjects.leases(instance), ENCODER.encode(body))

    # ---- what is due ----

    def _act(self, now: int, now_ns: int) -> list[role.Effect]:
        for held in self._workers.overdue(now):
            self._counters.add("leases_expired_total")
            self._hand_back(held, counts=True)
        effects = [*self._commands(now, now_ns), *self._hand_out(now)]
        waiting = self._ready.ready + self._ready.behind + self._lines.held_up
        effects += self._backlog.told(waiting, self._replica.seq, now)
        sleeps = self._delayed.next_ns if self._delay_asked.room else 0
        due = earliest(
            self._workers.due_ns,
            self._room_asked.due_ns,
            self._delay_asked.due_ns,
            self._endings.due_ns,
            self._backlog.due_ns,
            self._lines.due_ns(now),
            self._waker.steady(sleeps) if sleeps else 0,
        )
        return [*effects, *self._waker.until(due)]

    def _commands(self, now: int, now_ns: int) -> list[role.Effect]:
        """Ask for what must wake or end, and again for what the log has not shown in time."""
        room = self._lines.take(self._room_asked.room, now)
        # The log's clock may be ahead of ours.
        log_ns = max(now_ns, self._replica.state.t_ns)
        late = self._delayed.take(log_ns, self._delay_asked.room)
        commands: list[WakeEvaluations | EndEvaluations] = []
        if keys := self._room_asked.ask(room, now):
            commands.append(WakeEvaluations(keys=keys, reason="capacity freed"))
        if keys := self._delay_asked.ask(late, now):
            commands.append(WakeEvaluations(keys=keys, reason="its time has come"))
        commands += self._endings.commands(now)
        if not commands:
            return []
        batch = CommandBatch(sender=self.instance, commands=tuple(commands))
        return [role.Send(subjects.command("evaluation"), ENCODER.encode(batch))]


def _read(message: role.Message) -> Presence:
    """Read a sign of life. Raises ValueError, also where it came on another worker's subject."""
    presence = _PRESENCE.decode(message.data)
    if subjects.presence("scheduler", presence.instance) != message.subject:
        raise ValueError(f"{presence.instance!r} shows life on {message.subject}")
    return presence


def _was_tried(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and evaluation.status == "complete"
