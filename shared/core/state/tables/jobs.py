"""Jobs: their newest version, the job fence, the texts of recent versions, and the verdicts of submissions."""

from collections.abc import Mapping
from hashlib import blake2b
from sys import intern
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from schemas.base import EvalKey, JobId, RolloutKey
from schemas.deployments import DeploymentEnded
from schemas.gates import UpdateGate, UpdateWindow
from schemas.jobs import (
    SYSTEM_JOB_TYPES,
    GroupSpec,
    IntakeAdvanced,
    JobEvaluated,
    JobRegistered,
    JobsCollected,
    JobStabilityChanged,
    JobStopped,
    JobVersionTagged,
    ParameterizedBlock,
    PeriodicBlock,
    RegisterJob,
    SubmissionRefused,
    SubmissionsCollected,
)
from schemas.plans import PlanCommitted
from schemas.rollouts import RolloutEnded, RolloutStarted
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: Versions that are kept, as in Nomad: beside them those with a name, and the newest stable one.
VERSIONS_KEPT = 6
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
    #: the job that launched or dispatched it.
    parent: JobId = JobId("")
    periodic: PeriodicBlock | None = None
    #: the version that was the newest when this one took the text of an older one; -1: it is not a revert.
    reverted_from: int = -1
    parameterized: ParameterizedBlock | None = None
    #: what holds its deployments back.
    gates: tuple[UpdateGate, ...] = ()
    windows: tuple[UpdateWindow, ...] = ()

    @property
    def is_pattern(self) -> bool:
        """It runs nothing itself: other jobs are made of it."""
        return self.periodic is not None or self.parameterized is not None

    @property
    def is_launching(self) -> bool:
        """Its children are launched at the instants of its specs."""
        is_cron = self.periodic is not None and self.parameterized is None
        return is_cron and bool(self.periodic and self.periodic.enabled) and not self.stopped

    @property
    def runs_nothing(self) -> bool:
        """No allocation of it is wanted, regardless of its groups' counts."""
        return self.stopped or self.is_pattern


class SubmissionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
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
    #: of a refusal; of an accepted submission the newest other content under its id in the drop box, `jobs-<jobs_seq>`.
    reason: str = ""
    warnings: tuple[str, ...] = ()
    #: of jobs that were submitted together; `job_id` is then the first of them.
    rollout: RolloutKey = RolloutKey(0)

    @property
    def conflict(self) -> str:
        """The refusal of other content that came after this was accepted; empty: none.

        It stands in a field that accepted submissions do not use, so that snapshots keep the format of release 0.1.0.
        """
        return self.reason if self.status == "accepted" else ""


class JobVersion(msgspec.Struct, frozen=True, gc=False):
    """One version of a job, and its text."""

    version: int
    spec: bytes
    seq: int
    #: as it was when another version took its place; None: it is the newest, or of before release 0.2.0.
    job: Job | None = None
    #: its deployment was successful, or an operator said so: a failed one goes back to it.
    is_stable: bool = False
    #: name given by an operator, and what he said of it.
    tag: str = ""
    tag_description: str = ""

    @property
    def mark(self) -> tuple[int, bool, str, str] | None:
        """What was said of it later; None: nothing."""
        if not (self.is_stable or self.tag):
            return None
        return (self.version, self.is_stable, self.tag, self.tag_description)


class JobTable(EventConsumer):
    """All jobs and submissions."""

    def __init__(self) -> None:
        self.by_id: dict[JobId, Job] = {}
        #: newest last, VERSIONS_KEPT of them and those that are pinned.
        self.versions: dict[JobId, tuple[JobVersion, ...]] = {}
        #: jobs that leave as soon as nothing of them is left.
        self.purging: dict[JobId, None] = {}
        #: system and sysbatch jobs that are not stopped and run themselves.
        self.everywhere: dict[JobId, None] = {}
        #: in order of seq.
        self.submissions: dict[str, SubmissionRecord] = {}
        #: everything in JOBS up to here has its verdict.
        self.jobs_seq = 0
        self._jobs = EntryHashes[JobId]()
        #: of what was said of versions later.
        self._marks = EntryHashes[JobId]()
        self._submissions = EntryHashes[str]()

    def handlers(self) -> EventHandlers:
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
            DeploymentEnded: self._settle,
            JobStabilityChanged: self._set_stability,
            JobVersionTagged: self._tag,
            RolloutStarted: self._start_rollout,
            RolloutEnded: self._settle_rollout,
        }

    def spec(self, job_id: JobId, version: int) -> bytes | None:
        """Return the text of a version that is still kept, else None."""
        for kept in self.versions.get(job_id, ()):
            if kept.version == version:
                return kept.spec
        return None

    def job_at(self, job_id: JobId, version: int) -> Job | None:
        """Return a job with the groups that it had in a version which is still kept, else None."""
        job = self.by_id.get(job_id)
        if job is not None and job.version == version:
            return job
        kept = self.version(job_id, version)
        return None if kept is None else kept.job

    def version(self, job_id: JobId, version: int) -> JobVersion | None:
        """Return a version that is still kept, else None."""
        for kept in self.versions.get(job_id, ()):
            if kept.version == version:
                return kept
        return None

    def stable_version(self, job_id: JobId) -> JobVersion | None:
        """Return the newest version that is stable, else None."""
        for kept in reversed(self.versions.get(job_id, ())):
            if kept.is_stable:
                return kept
        return None

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        marks = self._marks.digest(
            lambda keys: encode_entries([self._marks_of(key) for key in keys])
        )
        jobs = self._jobs.digest(lambda keys: encode_entries(_pairs(keys, self.by_id)))
        submissions = self._submissions.digest(
            lambda keys: encode_entries(_pairs(keys, self.submissions))
        )
        # Logs of before there were deployments say nothing of versions.
        text = f"{jobs}{submissions}{self.jobs_seq}{marks.strip('0') and marks}".encode()
        return blake2b(text, digest_size=8).hexdigest()

    def _register(self, event: JobRegistered, seq: int) -> None:
        job_id = event.job_id
        old = self.by_id.get(job_id)
        if old is not None and old.version == event.version:
            self._accept(event, seq, old, event.warnings)
            return
        spec = bytes(event.spec)
        self.by_id[job_id] = job = make_job(
            event,
            old,
            version=event.version,
            digest=spec_digest(spec),
            seq=seq,
            reverted_from=event.reverted_from,
        )
        kept: tuple[JobVersion, ...] = (JobVersion(event.version, spec, seq),)
        if old is not None:
            *older, last = self.versions[job_id]
            kept = _bounded((*older, replace(last, job=old), *kept))
            if any(one.mark for one in kept):
                self._marks.touch(job_id)
            self.purging.pop(job_id, None)
            self.everywhere.pop(job_id, None)
        self.versions[job_id] = kept
        if event.job_type in SYSTEM_JOB_TYPES and not event.stopped and not job.is_pattern:
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
            if any(one.mark for one in self.versions.pop(job_id)):
                self._marks.touch(job_id)
            self.purging.pop(job_id, None)
            self.everywhere.pop(job_id, None)
            self._jobs.touch(job_id)

    def _settle(self, event: DeploymentEnded, seq: int) -> None:
        del seq
        if event.status == "successful" and not event.rollout:
            self._mark(event.job_id, event.version, is_stable=True)

    def _settle_rollout(self, event: RolloutEnded, seq: int) -> None:
        del seq
        for one in event.stable:
            self._mark(one.job_id, one.version, is_stable=True)

    def _start_rollout(self, event: RolloutStarted, seq: int) -> None:
        self.submissions[event.submission_id] = SubmissionRecord(
            digest=event.digest,
            status="accepted",
            job_id=event.members[0].job_id,
            seq=seq,
            version=event.members[0].version,
            warnings=event.warnings,
            rollout=event.key,
        )
        self._submissions.touched.append(event.submission_id)

    def _set_stability(self, event: JobStabilityChanged, seq: int) -> None:
        del seq
        self._mark(event.job_id, event.version, is_stable=event.stable)

    def _tag(self, event: JobVersionTagged, seq: int) -> None:
        del seq
        self._mark(event.job_id, event.version, tag=event.name, tag_description=event.description)

    def _mark(self, job_id: JobId, version: int, **fields: bool | str) -> None:
        """Change what is said of a version."""
        kept = self.versions.get(job_id, ())
        self.versions[job_id] = tuple(
            [replace(one, **fields) if one.version == version else one for one in kept]
        )
        self._marks.touch(job_id)

    def _marks_of(self, job_id: JobId) -> object:
        marks = [one.mark for one in self.versions.get(job_id, ()) if one.mark]
        return (job_id, marks) if marks else None

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
        if not event.submission_id:
            # A child: what launched it has the verdict, if there is one.
            return
        self.submissions[event.submission_id] = SubmissionRecord(
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
        self.submissions[event.submission_id] = SubmissionRecord(
            digest=event.digest,
            status="refused",
            job_id=event.job_id,
            seq=seq,
            code=event.code,
            reason=event.reason,
        )
        self._submissions.touch(event.submission_id)
        first = self.submissions.get(event.reused_id) if event.reused_id else None
        if first is not None and first.status == "accepted":
            self.submissions[event.reused_id] = replace(first, reason=event.submission_id)
            self._submissions.touch(event.reused_id)

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


def _bounded(versions: tuple[JobVersion, ...]) -> tuple[JobVersion, ...]:
    """Let the oldest versions go that are too many; the newest stable one and those with a name stay."""
    tagged = sum(one.tag != "" for one in versions)
    excess = len(versions) - tagged - VERSIONS_KEPT
    if excess <= 0:
        return versions
    stable = max((one.version for one in versions if one.is_stable), default=-1)
    free = [one.version for one in versions if not one.tag and one.version != stable]
    gone = set(free[:excess])
    return tuple([one for one in versions if one.version not in gone])


def make_job(
    given: RegisterJob | JobRegistered,
    old: Job | None,
    *,
    version: int,
    digest: str,
    seq: int,
    reverted_from: int = -1,
) -> Job:
    """Make the newest version of a job, registered at `seq`. `digest`: of its text; `old`: the version before."""
    return Job(
        id=given.job_id,
        version=version,
        job_type=given.job_type,
        priority=given.priority,
        datacenters=given.datacenters,
        node_pool=given.node_pool,
        all_at_once=given.all_at_once,
        groups=given.groups,
        spec_digest=digest,
        stopped=given.stopped,
        create_seq=old.create_seq if old is not None else seq,
        modify_seq=seq,
        plan_seq=seq,
        parent=given.parent,
        periodic=given.periodic,
        parameterized=given.parameterized,
        gates=given.gates,
        windows=given.windows,
        reverted_from=reverted_from,
    )


def spec_digest(spec: bytes) -> str:
    """Hash the canonical text of a job: 32 hex digits."""
    return blake2b(spec, digest_size=16).hexdigest()


def _pairs(keys: list[K], entries: Mapping[K, Job | SubmissionRecord]) -> list[object]:
    """What is hashed: entries with their keys; None for those that are gone."""
    found = [entries.get(key) for key in keys]
    if None in found:
        pairs = zip(keys, found, strict=True)
        return [None if entry is None else (key, entry) for key, entry in pairs]
    return list(zip(keys, found, strict=True))
