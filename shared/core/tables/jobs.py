"""Jobs: their newest version, the job fence, the texts of recent versions, and the verdicts of submissions."""

from collections.abc import Mapping
from hashlib import blake2b
from sys import intern
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from schemas.base import EvalKey, JobId
from schemas.jobs import (
    GroupSpec,
    IntakeAdvanced,
    JobEvaluated,
    JobRegistered,
    JobsCollected,
    JobStopped,
    SubmissionRefused,
    SubmissionsCollected,
)
from schemas.plans import PlanCommitted
from shared.core.columns import EntryHashes, texts
from shared.core.tables.handling import Handlers, Handling

#: Versions whose text is kept, as in Nomad.
VERSIONS_KEPT = 6
_EVERYWHERE: Final = frozenset({"system", "sysbatch"})
K = TypeVar("K", bound=str)


class PlanFence(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The plan that last changed a job, so that its later parts can be told from other changes."""

    key: int = 0
    worker: str = ""
    number: int = 0
    #: `plan_seq` before its first part.
    before: int = 0
    #: a part was cut: the evaluation must not end with this plan.
    cut: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The newest version of a job."""

    id: JobId
    version: int
    job_type: str
    priority: int
    datacenters: tuple[str, ...]
    node_pool: str
    all_at_once: bool
    groups: tuple[GroupSpec, ...]
    #: hash of the canonical text.
    spec_digest: str
    stopped: bool = False
    purge: bool = False
    create_seq: int
    #: seq of the last submission that changed it: the check-and-set index.
    modify_seq: int
    #: seq at which the spec or the desired allocations last changed: the job fence.
    plan_seq: int
    fence: PlanFence = PlanFence()


class Submission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What became of one submission."""

    digest: str
    #: accepted or refused.
    status: str
    job_id: JobId
    seq: int
    version: int = 0
    modify_index: int = 0
    evaluation: EvalKey = EvalKey(0)
    code: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()


class JobVersion(msgspec.Struct, frozen=True, gc=False):
    """The text of one version of a job."""

    version: int
    spec: bytes
    seq: int


class JobTable(Handling):
    """All jobs and submissions."""

    def __init__(self) -> None:
        self.by_id: dict[JobId, Job] = {}
        #: newest last, at most VERSIONS_KEPT.
        self.versions: dict[JobId, tuple[JobVersion, ...]] = {}
        #: jobs that leave as soon as nothing of them is left.
        self.purging: dict[JobId, None] = {}
        #: system and sysbatch jobs that are not stopped.
        self.everywhere: dict[JobId, None] = {}
        #: in order of seq.
        self.submissions: dict[str, Submission] = {}
        #: everything in JOBS up to here has its verdict.
        self.jobs_seq = 0
        self._jobs = EntryHashes[JobId]()
        self._submissions = EntryHashes[str]()

    def handlers(self) -> Handlers:
        """What applies each fact."""
        return {
            PlanCommitted: self._plan,
            JobRegistered: self._register,
            JobStopped: self._stop,
            JobEvaluated: self._evaluate,
            SubmissionRefused: self._refuse,
            IntakeAdvanced: self._advance,
            SubmissionsCollected: self._collect_submissions,
            JobsCollected: self._collect,
        }

    def spec(self, job_id: JobId, version: int) -> bytes | None:
        """Return the text of a version that is still kept, else None."""
        for kept in self.versions.get(job_id, ()):
            if kept.version == version:
                return kept.spec
        return None

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        jobs = self._jobs.digest(lambda keys: texts(_pairs(keys, self.by_id)))
        submissions = self._submissions.digest(lambda keys: texts(_pairs(keys, self.submissions)))
        text = f"{jobs}{submissions}{self.jobs_seq}".encode()
        return blake2b(text, digest_size=8).hexdigest()

    def _register(self, event: JobRegistered, seq: int) -> None:
        job_id = event.job_id
        old = self.by_id.get(job_id)
        if old is not None and old.version == event.version:
            self._accept(event, seq, old, event.warnings)
            return
        spec = bytes(event.spec)
        self.by_id[job_id] = job = Job(
            id=job_id,
            version=event.version,
            job_type=event.job_type,
            priority=event.priority,
            datacenters=event.datacenters,
            node_pool=event.node_pool,
            all_at_once=event.all_at_once,
            groups=event.groups,
            spec_digest=spec_digest(spec),
            create_seq=old.create_seq if old is not None else seq,
            modify_seq=seq,
            plan_seq=seq,
        )
        kept: tuple[JobVersion, ...] = (JobVersion(event.version, spec, seq),)
        if old is not None:
            kept = (*self.versions[job_id], *kept)[-VERSIONS_KEPT:]
            self.purging.pop(job_id, None)
            self.everywhere.pop(job_id, None)
        self.versions[job_id] = kept
        if event.job_type in _EVERYWHERE:
            self.everywhere[job_id] = None
        self._jobs.touched.append(job_id)
        self._accept(event, seq, job, event.warnings)

    def _evaluate(self, event: JobEvaluated, seq: int) -> None:
        self._accept(event, seq, self.by_id[event.job_id])

    def _advance(self, event: IntakeAdvanced, seq: int) -> None:
        del seq
        self.jobs_seq = event.jobs_seq

    def _collect(self, event: JobsCollected, seq: int) -> None:
        del seq
        for job_id in event.job_ids:
            del self.by_id[job_id]
            del self.versions[job_id]
            self.purging.pop(job_id, None)
            self.everywhere.pop(job_id, None)
            self._jobs.touch(job_id)

    def _stop(self, event: JobStopped, seq: int) -> None:
        job = replace(
            self.by_id[event.job_id],
            stopped=True,
            purge=event.purge,
            modify_seq=seq,
            plan_seq=seq,
            fence=PlanFence(),
        )
        self.by_id[job.id] = job
        self.everywhere.pop(job.id, None)
        if event.purge:
            self.purging[job.id] = None
        self._jobs.touch(job.id)
        self._accept(event, seq, job)

    def _plan(self, event: PlanCommitted, seq: int) -> None:
        for evictions in event.evictions:
            victim = self.by_id[evictions.job_id]
            victim = replace(victim, plan_seq=seq, fence=PlanFence())
            self.by_id[victim.id] = victim
            self._jobs.touch(victim.id)
        if not (event.placements or event.stops or event.updates or event.cut):
            return
        job = self.by_id.get(event.job_id)
        if job is None:
            return
        origin, fence = event.origin, job.fence
        is_same = (
            fence.number == origin.number
            and fence.key == event.key
            and fence.worker == origin.worker
        )
        # One text of a worker for all its plans; nothing whose default could be left out by an encoder.
        fence = PlanFence(
            event.key,
            intern(origin.worker),
            origin.number,
            fence.before if is_same else job.plan_seq,
            bool(event.cut) or (is_same and fence.cut),
        )
        self.by_id[job.id] = replace(job, plan_seq=seq, fence=fence)
        self._jobs.touched.append(job.id)

    def _accept(
        self,
        event: JobRegistered | JobStopped | JobEvaluated,
        seq: int,
        job: Job,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.submissions[event.submission_id] = Submission(
            digest=event.digest,
            status="accepted",
            job_id=job.id,
            seq=seq,
            version=job.version,
            modify_index=job.modify_seq,
            evaluation=event.evaluation,
            warnings=warnings,
        )
        self._submissions.touched.append(event.submission_id)

    def _refuse(self, event: SubmissionRefused, seq: int) -> None:
        if event.submission_id in self.submissions:
            return
        self.submissions[event.submission_id] = Submission(
            digest=event.digest,
            status="refused",
            job_id=event.job_id,
            seq=seq,
            code=event.code,
            reason=event.reason,
        )
        self._submissions.touch(event.submission_id)

    def _collect_submissions(self, event: SubmissionsCollected, seq: int) -> None:
        del seq
        gone = []
        for submission_id, entry in self.submissions.items():
            if entry.seq > event.upto_seq:
                break
            gone.append(submission_id)
        for submission_id in gone:
            del self.submissions[submission_id]
            self._submissions.touch(submission_id)


def spec_digest(spec: bytes) -> str:
    """Hash the canonical text of a job: 32 hex digits."""
    return blake2b(spec, digest_size=16).hexdigest()


def _pairs(keys: list[K], entries: Mapping[K, Job | Submission]) -> list[object]:
    """What is hashed: entries with their keys; None for those that are gone."""
    found = [entries.get(key) for key in keys]
    if None in found:
        pairs = zip(keys, found, strict=True)
        return [None if entry is None else (key, entry) for key, entry in pairs]
    return list(zip(keys, found, strict=True))
