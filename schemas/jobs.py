"""Jobs: what a submitter writes (Nomad's JSON shape), what the log keeps, and the verdicts.

A job's text travels once, inside `JobRegistered.spec`, as canonical JSON that most roles never decode. What
scheduling needs of it (counts, asks, constraints) is compiled by intake into `GroupSpec` and travels beside it.
"""

import msgspec

from schemas.base import Command, EvalKey, Event, JobId, Wire

JOB_TYPES = ("service", "batch", "system", "sysbatch")


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
    """The share of a group's allocations that nodes with this value shall have; `*` names every other value."""

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
    #: who stays when both run again: best_score, keep_original, keep_replacement or longest_running.
    reconcile: str = "best_score"


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
    #: hash of everything that forces a replacement when it changes; equal digests are updated in place.
    digest: str = ""


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


class JobStopped(Event, frozen=True, kw_only=True, tag="job.stopped"):
    """A job shall have no running allocations any more; with `purge` it leaves the state once they ended."""

    submission_id: str
    digest: str
    job_id: JobId
    purge: bool = False
    evaluation: EvalKey = EvalKey(0)


class JobEvaluated(Event, frozen=True, kw_only=True, tag="job.evaluated"):
    """Somebody asked to reconsider a job that did not change."""

    submission_id: str
    digest: str
    job_id: JobId
    evaluation: EvalKey = EvalKey(0)


class SubmissionRefused(Event, frozen=True, kw_only=True, tag="submission.refused"):
    """A submission was refused against the state. At most 1 KiB."""

    submission_id: str
    digest: str
    verb: str
    job_id: JobId
    #: see `ErrorDetail.code`.
    code: str
    reason: str


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
    #: refuse unless the job's modify_index equals this; 0: the job must not exist; -1: do not check.
    check_index: int = -1
    #: position in JOBS that this came from and the one before it; 0 for the fast door.
    jobs_seq: int = 0
    jobs_prev: int = 0


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
