"""Evaluations: which jobs wait to be reconsidered, what blocked ones wait for, and each worker's plan numbers."""

from hashlib import blake2b

import msgspec

from schemas.base import EvalKey, Event, JobId
from schemas.envelope import ENCODER
from schemas.evaluations import (
    Blocked,
    EvaluationEnded,
    EvaluationsCollected,
    EvaluationsCreated,
    EvaluationsWoken,
    NewEvaluation,
)
from schemas.nodes import CapacityFreed
from schemas.plans import Origin, PlanCommitted, PlanRefused
from shared.core.columns import EntryHashes
from shared.core.ids import make_key

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


class EvaluationTable:
    """All evaluations, open and recently ended."""

    handles = (
        EvaluationsCreated,
        EvaluationsWoken,
        EvaluationEnded,
        EvaluationsCollected,
        CapacityFreed,
        PlanCommitted,
        PlanRefused,
    )

    def __init__(self) -> None:
        self.by_key: dict[EvalKey, Evaluation] = {}
        #: pending and blocked ones, in order of creation.
        self.open: dict[EvalKey, None] = {}
        #: the same by job.
        self.open_of: dict[JobId, dict[EvalKey, None]] = {}
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
        self._ordinal_seq = 0
        self._ordinal = 0
        self._hashes = EntryHashes[EvalKey]()

    def evolve(self, event: Event, seq: int) -> None:
        """Apply one fact."""
        match event:
            case EvaluationsCreated():
                for new in event.evaluations:
                    self._create(new, seq)
            case EvaluationEnded():
                self._end(event, seq)
            case EvaluationsWoken():
                for key in event.keys:
                    self._wake(key, event.reason, seq)
            case PlanCommitted():
                self._number(event.origin, seq, refused=False)
                if event.cut:
                    self._retry(event.key, seq)
            case PlanRefused():
                self._number(event.origin, seq, refused=True)
                self._retry(event.key, seq)
            case CapacityFreed():
                for computed_class in event.classes:
                    self.freed_seq[computed_class] = seq
                    if event.grown:
                        self.grown_seq[computed_class] = seq
            case EvaluationsCollected():
                for key in event.keys:
                    del self.by_key[key]
                    del self.ended[key]
                    self._hashes.touch(key)
            case _:
                raise AssertionError(event)

    def next_ordinal(self, seq: int) -> int:
        """Ordinal that the next evaluation created by the transaction at `seq` gets."""
        return self._ordinal if self._ordinal_seq == seq else 0

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        entries = self._hashes.digest(self._hash_entry)
        freed, grown = sorted(self.freed_seq.items()), sorted(self.grown_seq.items())
        rest = ENCODER.encode((entries, freed, grown, self.workers))
        return blake2b(rest, digest_size=8).hexdigest()

    def _hash_entry(self, key: EvalKey) -> int:
        entity = self.by_key.get(key)
        if entity is None:
            return 0
        digest = blake2b(ENCODER.encode(entity), digest_size=8).digest()
        return int.from_bytes(digest, "little") | 1

    def _create(self, new: NewEvaluation, seq: int) -> None:
        ordinal = self.next_ordinal(seq)
        self._ordinal_seq, self._ordinal = seq, ordinal + 1
        key = EvalKey(make_key(seq, ordinal))
        self.by_key[key] = Evaluation(
            key=key,
            job_id=new.job_id,
            priority=new.priority,
            job_type=new.job_type,
            triggered_by=new.triggered_by,
            status="pending" if new.blocked is None else "blocked",
            wait_until_ns=new.wait_until_ns,
            blocked=new.blocked,
            previous=new.previous,
            min_seq=seq,
            modify_seq=seq,
        )
        self.open[key] = None
        self.open_of.setdefault(new.job_id, {})[key] = None
        if new.blocked is not None:
            self.blocked_of[new.job_id] = key
            if new.blocked.candidates:
                self.proposing[new.job_id] = key
        self._hashes.touch(key)

    def _end(self, event: EvaluationEnded, seq: int) -> None:
        old = self.by_key[event.key]
        self._set(
            msgspec.structs.replace(
                old, status=event.status, reason=event.reason, modify_seq=seq, blocked=None
            )
        )
        del self.open[event.key]
        of_job = self.open_of[old.job_id]
        del of_job[event.key]
        if not of_job:
            del self.open_of[old.job_id]
        self.ended[event.key] = None
        self._unblock(old.job_id, event.key)

    def _wake(self, key: EvalKey, reason: str, seq: int) -> None:
        old = self.by_key[key]
        self._set(
            msgspec.structs.replace(
                old,
                status="pending",
                wait_until_ns=0,
                blocked=None,
                reason=reason,
                min_seq=seq,
                modify_seq=seq,
            )
        )
        self._unblock(old.job_id, key)

    def _unblock(self, job_id: JobId, key: EvalKey) -> None:
        if self.blocked_of.get(job_id) == key:
            del self.blocked_of[job_id]
            self.proposing.pop(job_id, None)

    def _retry(self, key: EvalKey, seq: int) -> None:
        old = self.by_key.get(key)
        if old is not None and old.is_open:
            self._set(msgspec.structs.replace(old, min_seq=seq, modify_seq=seq))

    def _set(self, evaluation: Evaluation) -> None:
        self.by_key[evaluation.key] = evaluation
        self._hashes.touch(evaluation.key)

    def _number(self, origin: Origin, seq: int, *, refused: bool) -> None:
        self.workers.pop(origin.worker, None)
        self.workers[origin.worker] = PlanNumber(
            origin.number, origin.part, origin.parts, refused, seq
        )
        if len(self.workers) > WORKERS_KEPT:
            # Oldest entry first: entries are re-inserted when they change, so order is that of seq.
            del self.workers[next(iter(self.workers))]
