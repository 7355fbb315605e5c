"""Jobs: what a submitter writes (Nomad's JSON shape), what the log keeps, and the verdicts.

A job's text travels once, inside `JobRegistered.spec`, as canonical JSON that most roles never decode. What
scheduling needs of it (counts, asks, constraints) is compiled by intake into `GroupSpec` and travels beside it.
"""

import msgspec

from schemas.base import Command, EvalKey, Event, JobId, Wire
from schemas.gates import UpdateGate, UpdateWindow

JOB_TYPES = ("service", "batch", "system", "sysbatch")
#: Job types that run on every feasible node.
SYSTEM_JOB_TYPES = frozenset({"system", "sysbatch"})
#: Job types whose allocations end by themselves.
FINITE_JOB_TYPES = frozenset({"batch", "sysbatch"})
#: Job types whose allocations run until they are stopped; new versions of them are deployed.
SERVICE_JOB_TYPES = frozenset({"service", "system"})


class Constraint(Wire, frozen=True, kw_only=True):
    """`left operator right`, in Nomad's spelling; both sides may hold `${…}` references."""

    left: str = ""
    operator: str = "="
    right: str = ""


class Affinity(Wire, frozen=True, kw_only=True):
    """A wish: nodes that satisfy `left operator right` score higher, with a negative weight lower."""

    left: str = ""
    operator: str = "="
    right: str = ""
    #: -100 to 100, not 0.
    weight: int = 50


class SpreadTarget(Wire, frozen=True, kw_only=True):
    """The share of a group's allocations that nodes with this value should have; `*` names every other value."""

    value: str = ""
    percent: int = 0


class Spread(Wire, frozen=True, kw_only=True):
    """Allocations are spread over the values of an attribute; without targets evenly."""

    #: an interpolation such as `${meta.rack}`.
    attribute: str = ""
    #: 1 to 100.
    weight: int = 50
    targets: tuple[SpreadTarget, ...] = ()


class DistinctProperty(Wire, frozen=True, kw_only=True):
    """At most `limit` allocations on nodes that share the value of an attribute."""

    attribute: str = ""
    limit: int = 1
    #: counts all groups of the job, not only its own.
    job_wide: bool = False


class ReschedulePolicy(Wire, frozen=True, kw_only=True):
    """When a failed allocation is replaced elsewhere (Nomad's `reschedule` block, its service defaults)."""

    attempts: int = 0
    interval_ns: int = 0
    delay_ns: int = 30_000_000_000
    #: constant, exponential or fibonacci.
    delay_function: str = "exponential"
    max_delay_ns: int = 3_600_000_000_000
    unlimited: bool = True


class Disconnect(Wire, frozen=True, kw_only=True):
    """What becomes of allocations on a node that falls silent (Nomad's `disconnect` block)."""

    #: how long they are unknown before they are lost; 0: lost at once.
    lost_after_ns: int = 0
    #: place another one meanwhile.
    replace: bool = True
    #: which one stays when both run again: best_score, keep_original, keep_replacement or longest_running.
    reconcile: str = "best_score"


class UpdatePolicy(Wire, frozen=True, kw_only=True):
    """The pace at which a new version of a group replaces the old one (Nomad's `update` block)."""

    #: allocations without health at the same time; 0: all are replaced at once, and there is no deployment.
    max_parallel: int = 1
    #: who says that an allocation is healthy: checks, task_states or manual.
    health_check: str = "checks"
    #: how long it must run, with its checks passing, before it is healthy.
    min_healthy_time_ns: int = 10_000_000_000
    #: one that is not healthy so long after its start is unhealthy.
    healthy_deadline_ns: int = 300_000_000_000
    #: a deployment that makes no progress for so long fails; 0: it fails with the first unhealthy allocation.
    progress_deadline_ns: int = 600_000_000_000
    #: allocations of the new version beside the old ones until it is promoted; of system jobs: percent of the nodes.
    canary: int = 0
    #: promote as soon as all canaries are healthy.
    auto_promote: bool = False
    #: go back to the newest stable version when the deployment fails.
    auto_revert: bool = False


class MigratePolicy(Wire, frozen=True, kw_only=True):
    """The pace at which allocations of a group leave drained nodes (Nomad's `migrate` block)."""

    #: allocations that may be missing at the same time.
    max_parallel: int = 1
    #: who says that a replacement is healthy: checks or task_states.
    health_check: str = "checks"
    min_healthy_time_ns: int = 10_000_000_000
    healthy_deadline_ns: int = 300_000_000_000


class ResourceAsk(Wire, frozen=True, kw_only=True):
    """What one allocation takes of a pool. `pool`: `device.<type>`, `cores`, or a custom resource's own name.

    `amount` counts 1/10,000 of an instance (or of a unit of a sum): 25,000 is two whole instances and half of a third.
    """

    pool: str
    amount: int = 10_000
    #: of a device; empty: any will do.
    vendor: str = ""
    model: str = ""
    #: over `${device.…}`: vendor, type, model and `attr.<name>`.
    constraints: tuple[Constraint, ...] = ()
    affinities: tuple[Affinity, ...] = ()
    #: of instances with groups (sockets, switches): compact or scatter; `strict`: all of one group.
    grouping: str = ""


class VolumeAsk(Wire, frozen=True, kw_only=True):
    """A host volume that depends on the index of the allocation: its own (`per_alloc`), or the one that it claims."""

    source: str
    read_only: bool = False
    #: the volume of an allocation is `source[index]`.
    per_alloc: bool = False
    #: its index claims the volume at its first placement, and runs nowhere else from then on.
    sticky: bool = False
    #: no other index or group may claim it, too.
    is_exclusive: bool = False


class GroupSpec(Wire, frozen=True, kw_only=True):
    """What scheduling needs of one task group. Units: MHz and MiB of one allocation."""

    name: str
    count: int = 1
    cpu_mhz: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    #: what else an allocation takes: the first list that fits anywhere; empty: nothing.
    alternatives: tuple[tuple[ResourceAsk, ...], ...] = ()
    #: ports that the allocation holds on its node: these, and so many that the cluster picks.
    static_ports: tuple[int, ...] = ()
    dynamic_ports: int = 0
    #: job, group and task constraints together.
    constraints: tuple[Constraint, ...] = ()
    #: job, group and task affinities together.
    affinities: tuple[Affinity, ...] = ()
    #: job's and group's spread blocks.
    spreads: tuple[Spread, ...] = ()
    #: no two allocations on one node: of this `group`, or of the whole `job`; empty: does not matter.
    distinct_hosts: str = ""
    distinct_properties: tuple[DistinctProperty, ...] = ()
    #: binpack, spread or fragmentation; empty: as the node pool or the cluster has it.
    algorithm: str = ""
    #: drivers that a node must have, sorted.
    drivers: tuple[str, ...] = ()
    reschedule: ReschedulePolicy = ReschedulePolicy()
    disconnect: Disconnect = Disconnect()
    #: null: no deployment, all allocations are replaced at once.
    update: UpdatePolicy | None = None
    #: of service jobs; null: all leave a drained node at once.
    migrate: MigratePolicy | None = None
    #: a replacement wants the data of its predecessor, and so its node.
    sticky: bool = False
    #: of service jobs: ordered, and an index is one instance at the most, whatever becomes of its node.
    stateful: bool = False
    #: hash of everything that forces a replacement when it changes; equal digests are updated in place.
    digest: str = ""
    #: host volumes whose node depends on the index of an allocation, by source; others are constraints.
    volumes: tuple[VolumeAsk, ...] = ()


class PeriodicBlock(Wire, frozen=True, kw_only=True):
    """When the children of a job are launched (Nomad's `periodic` block)."""

    #: cron specs, one or more; the earliest of their instants counts.
    crons: tuple[str, ...] = ()
    #: IANA name; the clock that the specs are read by.
    time_zone: str = "UTC"
    #: no launch while a child of the job has an open evaluation or a live allocation.
    prohibit_overlap: bool = False
    #: false: the job is kept and nothing is launched, not even by force.
    enabled: bool = True


class ParameterizedBlock(Wire, frozen=True, kw_only=True):
    """What a dispatch of a job must have (Nomad's `parameterized` block)."""

    #: optional, required or forbidden.
    payload: str = "optional"
    meta_required: tuple[str, ...] = ()
    meta_optional: tuple[str, ...] = ()


class JobRegistered(Event, frozen=True, kw_only=True, tag="job.registered"):
    """A submission was accepted as a new version of a job.

    The same text again under a new submission id registers nothing new: `version` stays, only the verdict is kept.
    """

    submission_id: str
    #: hash of the submitted content: the same id with another digest is refused.
    digest: str
    job_id: JobId
    version: int
    #: service, batch, system or sysbatch.
    job_type: str = "service"
    priority: int = 50
    datacenters: tuple[str, ...] = ("*",)
    node_pool: str = "default"
    all_at_once: bool = False
    groups: tuple[GroupSpec, ...] = ()
    #: canonical JSON of the job as submitted.
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    #: the evaluation created beside it.
    evaluation: EvalKey = EvalKey(0)
    warnings: tuple[str, ...] = ()
    #: it is kept and nothing of it runs, as after `job.stopped`.
    stopped: bool = False
    #: the job that launched or dispatched it; empty: it was submitted.
    parent: JobId = JobId("")
    #: it runs nothing itself: its children are launched at these times, and no evaluation is created beside it.
    periodic: PeriodicBlock | None = None
    #: periodic: instants after this one count, ns since 1970; the log time of this version's registration.
    launches_after_ns: int = 0
    #: it runs nothing itself: each dispatch makes a child of it, and no evaluation is created beside it.
    parameterized: ParameterizedBlock | None = None
    #: of a child that was dispatched: another dispatch of its parent with this token is this child; empty: none.
    dispatch_token: str = ""
    #: the version that was the newest when this one took the text of an older one; -1: it is not a revert.
    reverted_from: int = -1
    #: a deployment of it begins, under the key of `evaluation`: of the groups with a pace, as large as they are.
    deploys: bool = False
    #: what holds its deployments back.
    gates: tuple[UpdateGate, ...] = ()
    windows: tuple[UpdateWindow, ...] = ()
    #: the span that submitted it, as in the header `traceparent` of W3C Trace Context; empty: none was named.
    traceparent: str = ""
    #: base64: the JSON of a `JobSource`, compressed as zlib does (RFC 1950); empty: none was sent. No state has it.
    source: bytes = b""


class JobStopped(Event, frozen=True, kw_only=True, tag="job.stopped"):
    """Stop all allocations of a job; with `purge` it leaves the state once they ended."""

    submission_id: str
    digest: str
    job_id: JobId
    purge: bool = False
    evaluation: EvalKey = EvalKey(0)


class JobStabilityChanged(Event, frozen=True, kw_only=True, tag="job.stability_changed"):
    """An operator marked a version of a job stable or unstable. A successful deployment marks its version, too."""

    request_id: str
    job_id: JobId
    version: int
    stable: bool


class JobVersionTagged(Event, frozen=True, kw_only=True, tag="job.version_tagged"):
    """An operator named a version of a job, which is kept while it has a name."""

    request_id: str
    job_id: JobId
    version: int
    #: unique within the job; empty: its name was removed.
    name: str = ""
    description: str = ""


class JobEvaluated(Event, frozen=True, kw_only=True, tag="job.evaluated"):
    """A request to evaluate a job again that did not change."""

    submission_id: str
    digest: str
    job_id: JobId
    evaluation: EvalKey = EvalKey(0)
    #: what failed past its attempts is replaced as well.
    force_reschedule: bool = False


class SubmissionRefused(Event, frozen=True, kw_only=True, tag="submission.refused"):
    """A submission was refused against the state. At most 1 KiB."""

    submission_id: str
    digest: str
    verb: str
    job_id: JobId
    #: see `ErrorDetail.code`.
    code: str
    reason: str
    #: conflict in the drop box: the id that was used before; `submission_id` is then `jobs-<jobs_seq>`.
    reused_id: str = ""


class IntakeAdvanced(Event, frozen=True, kw_only=True, tag="intake.advanced"):
    """Everything in JOBS up to `jobs_seq` has its verdict; intake may purge below."""

    jobs_seq: int


class SubmissionsCollected(Event, frozen=True, kw_only=True, tag="submissions.collected"):
    """Verdicts written at or before `upto_seq` left the state."""

    upto_seq: int


class JobsCollected(Event, frozen=True, kw_only=True, tag="jobs.collected"):
    """Dead jobs without allocations left the state."""

    job_ids: tuple[JobId, ...]


# ---- commands (cmd.job) ----


class MemoryLimit(Wire, frozen=True, kw_only=True):
    """The `memory_max` of a task: how far it may grow above what the scheduler counts."""

    group: str
    task: str
    memory_max_mib: int


class RegisterJob(Command, frozen=True, kw_only=True, tag="register_job"):
    """Register a job. Natural key: submission_id."""

    submission_id: str
    digest: str
    job_id: JobId
    job_type: str = "service"
    priority: int = 50
    datacenters: tuple[str, ...] = ("*",)
    node_pool: str = "default"
    all_at_once: bool = False
    groups: tuple[GroupSpec, ...] = ()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    warnings: tuple[str, ...] = ()
    #: keep the job and run nothing of it.
    stopped: bool = False
    #: as in JobRegistered; submissions have no parent.
    parent: JobId = JobId("")
    periodic: PeriodicBlock | None = None
    parameterized: ParameterizedBlock | None = None
    #: as in JobRegistered.
    gates: tuple[UpdateGate, ...] = ()
    windows: tuple[UpdateWindow, ...] = ()
    #: refuse unless the job's modify_index equals this; 0: the job must not exist; -1: do not check.
    check_index: int = -1
    #: position in JOBS that this came from and the one before it; 0 for a request.
    jobs_seq: int = 0
    jobs_prev: int = 0
    #: as in JobRegistered.
    traceparent: str = ""
    #: tasks with a memory_max that is a number, to warn of those that no node can hold.
    memory_limits: tuple[MemoryLimit, ...] = ()
    #: as in JobRegistered.
    source: bytes = b""


class StopJob(Command, frozen=True, kw_only=True, tag="stop_job"):
    """Stop a job. Natural key: submission_id."""

    submission_id: str
    digest: str
    job_id: JobId
    purge: bool = False
    jobs_seq: int = 0
    jobs_prev: int = 0


class EvaluateJob(Command, frozen=True, kw_only=True, tag="evaluate_job"):
    """Reconsider a job. Natural key: submission_id."""

    submission_id: str
    digest: str
    job_id: JobId
    jobs_seq: int = 0
    jobs_prev: int = 0
    #: also replace failed allocations, regardless of attempts and delays.
    force_reschedule: bool = False


class SkipSubmission(Command, frozen=True, kw_only=True, tag="skip_submission"):
    """A message in JOBS that could not become a command (it went to DEAD): move on. Natural key: jobs_seq."""

    jobs_seq: int
    jobs_prev: int = 0


# ---- verdicts (replies of api.jobs.*, values of view.submission.<id>) ----


class ErrorDetail(Wire, frozen=True, kw_only=True):
    """A refusal in words. `code` is stable: invalid, conflict, not_found, too_large, unavailable and others."""

    code: str
    message: str
    path: str = ""
    file: str = ""
    line: int = 0


class Verdict(Wire, frozen=True, kw_only=True):
    """The answer to a submission. `status`: accepted, refused or pending (ask again under the same id)."""

    submission_id: str
    status: str
    cluster_id: str = ""
    seq: int = 0
    job_id: str = ""
    version: int = 0
    modify_index: int = 0
    eval_id: str = ""
    #: of jobs submitted together: shown id of their rollout; `job_id` is then the first of them.
    rollout_id: str = ""
    warnings: tuple[str, ...] = ()
    error: ErrorDetail | None = None
    errors: tuple[ErrorDetail, ...] = ()


class ParsedJob(Wire, frozen=True, kw_only=True):
    """The answer to `api.jobs.parse`. `status`: accepted or refused; nothing is registered or kept."""

    status: str
    #: Nomad's JSON, for `JobSubmission.Job`; null when refused.
    job: msgspec.Raw = msgspec.Raw(b"null")
    warnings: tuple[str, ...] = ()
    error: ErrorDetail | None = None
    errors: tuple[ErrorDetail, ...] = ()
