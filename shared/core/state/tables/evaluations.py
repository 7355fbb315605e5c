"""Evaluations: which jobs wait to be reconsidered, what blocked ones wait for, and each worker's plan numbers."""

from hashlib import blake2b
from sys import intern

import msgspec
from msgspec.structs import replace

from schemas.base import EvalKey, JobId
from schemas.envelope import ENCODER
from schemas.evaluations import (
    Blocked,
    EvaluationEnded,
    EvaluationsCollected,
    EvaluationsCreated,
    EvaluationsWoken,
)
from schemas.nodes import CapacityFreed
from schemas.plans import Origin, PlanCommitted, PlanRefused
from schemas.policy import IncarnationBegan
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.ids import make_key
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: Plan numbers are remembered for so many workers; a worker is unique per process start.
WORKERS_KEPT = 1000


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One evaluation. `status`: pending, blocked, complete, failed or canceled."""

    key: EvalKey
    job_id: JobId
    priority: int
    job_type: str
    triggered_by: str
    status: str
    #: log time before which it is not leased; 0: at once, or woken since.
    wait_until_ns: int = 0
    blocked: Blocked | None = None
    previous: EvalKey = EvalKey(0)
    reason: str = ""
    #: a worker must have seen this much before it decides.
    min_seq: int
    modify_seq: int

    @property
    def is_open(self) -> bool:
        """Tell whether it has not ended."""
        return self.status in {"pending", "blocked"}


class PlanNumber(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The last plan of a worker that the log shows: parts seen of `number`, and whether it was refused."""

    number: int
    part: int
    parts: int
    refused: bool
    seq: int

    @property
    def is_done(self) -> bool:
        """Tell whether no part of this number can follow."""
        return self.refused or self.part + 1 >= self.parts


class EvaluationTable(EventConsumer):
    """All evaluations, open and recently ended."""

    def __init__(self) -> None:
        self.by_key: dict[EvalKey, Evaluation] = {}
        #: pending and blocked ones, in order of creation.
        self.open: dict[EvalKey, None] = {}
        #: the same by job.
        self.open_of: dict[JobId, tuple[EvalKey, ...]] = {}
        #: the blocked one of a job, if any.
        self.blocked_of: dict[JobId, EvalKey] = {}
        #: those of them that propose nodes to be held back, by job.
        self.proposing: dict[JobId, EvalKey] = {}
        #: ended ones, in order of their end.
        self.ended: dict[EvalKey, None] = {}
        #: computed class -> seq at which room last appeared on it.
        self.freed_seq: dict[int, int] = {}
        #: computed class -> seq at which a node of it last came or began to offer more.
        self.grown_seq: dict[int, int] = {}
        self.workers: dict[str, PlanNumber] = {}
        #: enters keys: what the log says of itself.
        self.incarnation = 0
        self._ordinal_seq = 0
        self._ordinal = 0
        self._hashes = EntryHashes[EvalKey]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            EvaluationsCreated: self._create,
            EvaluationEnded: self._end,
            EvaluationsWoken: self._wake,
            PlanCommitted: self._commit,
            PlanRefused: self._refuse,
            CapacityFreed: self._free,
            EvaluationsCollected: self._collect,
            IncarnationBegan: self._begin_incarnation,
        }

    def _begin_incarnation(self, event: IncarnationBegan, seq: int) -> None:
        del seq
        self.incarnation = event.incarnation

    def next_ordinal(self, seq: int) -> int:
        """Ordinal that the next evaluation created by the transaction at `seq` gets."""
        return self._ordinal if self._ordinal_seq == seq else 0

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        entries = self._hashes.digest(
            lambda keys: encode_entries([self.by_key.get(key) for key in keys])
        )
        freed, grown = sorted(self.freed_seq.items()), sorted(self.grown_seq.items())
        rest = ENCODER.encode((entries, freed, grown, self.workers))
        return blake2b(rest, digest_size=8).hexdigest()

    def is_next(self, origin: Origin) -> bool:
        """Tell whether the log waits for this number and part of the worker's plans."""
        last = self.workers.get(origin.worker)
        if last is None:
            return origin.number == 1 and origin.part == 0
        if last.is_done:
            return origin.number == last.number + 1 and origin.part == 0
        return origin.number == last.number and origin.part == last.part + 1

    def _create(self, event: EvaluationsCreated, seq: int) -> None:
        ordinal = self.next_ordinal(seq)
        self._ordinal_seq, self._ordinal = seq, ordinal + len(event.evaluations)
        first = make_key(seq + self.incarnation, ordinal)
        for nth, new in enumerate(event.evaluations):
            key, job_id, blocked = EvalKey(first + nth), new.job_id, new.blocked
            self.by_key[key] = Evaluation(
                key=key,
                job_id=job_id,
                priority=new.priority,
                job_type=new.job_type,
                triggered_by=new.triggered_by,
                status="pending" if blocked is None else "blocked",
                wait_until_ns=new.wait_until_ns,
                blocked=blocked,
                previous=new.previous,
                min_seq=seq,
                modify_seq=seq,
            )
            self.open[key] = None
            others = self.open_of.get(job_id)
            self.open_of[job_id] = (key,) if others is None else (*others, key)
            if blocked is not None:
                self.blocked_of[job_id] = key
                if blocked.candidates:
                    self.proposing[job_id] = key
            self._hashes.touched.append(key)

    def _end(self, event: EvaluationEnded, seq: int) -> None:
        key = event.key
        old = self.by_key[key]
        self.by_key[key] = replace(
            old, status=intern(event.status), reason=event.reason, modify_seq=seq, blocked=None
        )
        self._hashes.touched.append(key)
        del self.open[key]
        others = self.open_of[old.job_id]
        if len(others) == 1:
            del self.open_of[old.job_id]
        else:
            at = others.index(key)
            self.open_of[old.job_id] = others[:at] + others[at + 1 :]
        self.ended[key] = None
        if self.blocked_of:
            self._unblock(old.job_id, key)

    def _wake(self, event: EvaluationsWoken, seq: int) -> None:
        for key in event.keys:
            old = self.by_key[key]
            self._set(
                replace(
                    old,
                    status="pending",
                    wait_until_ns=0,
                    blocked=None,
                    reason=event.reason,
                    min_seq=seq,
                    modify_seq=seq,
                )
            )
            self._unblock(old.job_id, key)

    def _commit(self, event: PlanCommitted, seq: int) -> None:
        self._number(event.origin, seq, is_refused=False)
        if event.cut:
            self._retry(event.key, seq)

    def _refuse(self, event: PlanRefused, seq: int) -> None:
        self._number(event.origin, seq, is_refused=True)
        self._retry(event.key, seq)

    def _free(self, event: CapacityFreed, seq: int) -> None:
        for computed_class in event.classes:
            self.freed_seq[computed_class] = seq
            if event.grown:
                self.grown_seq[computed_class] = seq

    def _collect(self, event: EvaluationsCollected, seq: int) -> None:
        del seq
        for key in event.keys:
            del self.by_key[key]
            del self.ended[key]
            self._hashes.touch(key)

    def _unblock(self, job_id: JobId, key: EvalKey) -> None:
        if self.blocked_of.get(job_id) == key:
            del self.blocked_of[job_id]
            self.proposing.pop(job_id, None)

    def _retry(self, key: EvalKey, seq: int) -> None:
        old = self.by_key.get(key)
        if old is not None and old.is_open:
            self._set(replace(old, min_seq=seq, modify_seq=seq))

    def _set(self, evaluation: Evaluation) -> None:
        self.by_key[evaluation.key] = evaluation
        self._hashes.touch(evaluation.key)

    def _number(self, origin: Origin, seq: int, *, is_refused: bool) -> None:
        workers, worker = self.workers, origin.worker
        workers.pop(worker, None)
        workers[worker] = PlanNumber(origin.number, origin.part, origin.parts, is_refused, seq)
        if len(workers) > WORKERS_KEPT:
            # Oldest entry first: entries are re-inserted when they change, so order is that of seq.
            del workers[next(iter(workers))]
