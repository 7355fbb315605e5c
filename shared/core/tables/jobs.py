"""Jobs: their newest version, the job fence, the texts of recent versions, and the verdicts of submissions."""

from hashlib import blake2b

import msgspec

from schemas.base import EvalKey, Event, JobId
from schemas.envelope import ENCODER
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
from shared.core.columns import EntryHashes

#: Versions whose text is kept, as in Nomad.
VERSIONS_KEPT = 6


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


class JobTable:
    """All jobs and submissions."""

    handles = (
        JobRegistered,
        JobStopped,
        JobEvaluated,
        SubmissionRefused,
        IntakeAdvanced,
        SubmissionsCollected,
        JobsCollected,
        PlanCommitted,
    )

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

    def evolve(self, event: Event, seq: int) -> None:
        """Apply one fact."""
        match event:
            case PlanCommitted():
                self._plan(event, seq)
            case JobRegistered():
                self._register(event, seq)
            case JobStopped():
                self._stop(event, seq)
            case JobEvaluated():
                job = self.by_id[event.job_id]
                self._accept(event, seq, job)
            case SubmissionRefused():
                self._refuse(event, seq)
            case IntakeAdvanced():
                self.jobs_seq = event.jobs_seq
            case SubmissionsCollected():
                self._collect_submissions(event.upto_seq)
            case JobsCollected():
                for job_id in event.job_ids:
                    del self.by_id[job_id]
                    del self.versions[job_id]
                    self.purging.pop(job_id, None)
                    self.everywhere.pop(job_id, None)
                    self._jobs.touch(job_id)
            case _:
                raise AssertionError(event)

    def spec(self, job_id: JobId, version: int) -> bytes | None:
        """Return the text of a version that is still kept, else None."""
        for kept in self.versions.get(job_id, ()):
            if kept.version == version:
                return kept.spec
        return None

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        jobs = self._jobs.digest(lambda key: _hash(key, self.by_id.get(key)))
        submissions = self._submissions.digest(lambda key: _hash(key, self.submissions.get(key)))
        text = f"{jobs}{submissions}{self.jobs_seq}".encode()
        return blake2b(text, digest_size=8).hexdigest()

    def _register(self, event: JobRegistered, seq: int) -> None:
        old = self.by_id.get(event.job_id)
        if old is not None and old.version == event.version:
            self._accept(event, seq, old, event.warnings)
            return
        spec = bytes(event.spec)
        job = Job(
            id=event.job_id,
            version=event.version,
            job_type=event.job_type,
            priority=event.priority,
            datacenters=event.datacenters,
            node_pool=event.node_pool,
            all_at_once=event.all_at_once,
            groups=event.groups,
            spec_digest=blake2b(spec, digest_size=16).hexdigest(),
            create_seq=old.create_seq if old is not None else seq,
            modify_seq=seq,
            plan_seq=seq,
        )
        self.by_id[job.id] = job
        self.purging.pop(job.id, None)
        self.everywhere.pop(job.id, None)
        if job.job_type in {"system", "sysbatch"}:
            self.everywhere[job.id] = None
        kept = (*self.versions.get(job.id, ()), JobVersion(job.version, spec, seq))
        self.versions[job.id] = kept[-VERSIONS_KEPT:]
        self._jobs.touch(job.id)
        self._accept(event, seq, job, event.warnings)

    def _stop(self, event: JobStopped, seq: int) -> None:
        job = msgspec.structs.replace(
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
            victim = msgspec.structs.replace(victim, plan_seq=seq, fence=PlanFence())
            self.by_id[victim.id] = victim
            self._jobs.touch(victim.id)
        job = self.by_id.get(event.job_id)
        changes = event.placements or event.stops or event.updates or event.cut
        if job is None or not changes:
            return
        origin, fence = event.origin, job.fence
        same = (fence.key, fence.worker, fence.number) == (event.key, origin.worker, origin.number)
        fence = PlanFence(
            key=event.key,
            worker=origin.worker,
            number=origin.number,
            before=fence.before if same else job.plan_seq,
            cut=bool(event.cut) or (same and fence.cut),
        )
        self.by_id[job.id] = msgspec.structs.replace(job, plan_seq=seq, fence=fence)
        self._jobs.touch(job.id)

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
        self._submissions.touch(event.submission_id)

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

    def _collect_submissions(self, upto_seq: int) -> None:
        gone = []
        for submission_id, entry in self.submissions.items():
            if entry.seq > upto_seq:
                break
            gone.append(submission_id)
        for submission_id in gone:
            del self.submissions[submission_id]
            self._submissions.touch(submission_id)


def _hash(key: str, entity: Job | Submission | None) -> int:
    if entity is None:
        return 0
    digest = blake2b(ENCODER.encode((key, entity)), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1
