"""Answers and messages of Caravan. Written by `python -m schemas.generate`; a test compares.

A field that is absent has its default, and a field that this release does not know is ignored.
"""

# ruff: noqa: E501

from typing import Any

import msgspec


class AllocSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation as status commands show it. `id` is the shown id; `node` the node's id."""
    id: str
    key: int
    job_id: str = ""
    group: str = ""
    index: int = 0
    name: str = ""
    node: str = ""
    #: One of run, stop, evict.
    desired_status: str = ""
    #: One of pending, running, complete, failed, lost, unknown.
    client_status: str = ""
    version: int = 0
    create_seq: int = 0
    modify_seq: int = 0
    previous: str = ""
    #: task name -> TaskState as JSON; `tasks` of `query.alloc` has their times as text, too.
    tasks: Any = {}
    #: time of its newest task event, by its node's clock, ns since 1970; 0: none was reported.
    event_ns: int = 0
    #: healthy or unhealthy; empty: not said yet.
    health: str = ""
    #: what its node said of it, where it is unhealthy.
    health_reason: str = ""
    #: its version is tried on it before the deployment is promoted.
    canary: bool = False
    #: shown id of the deployment that it counts for; empty: none.
    deployment: str = ""


class PartLine(msgspec.Struct, frozen=True, kw_only=True):
    """What an allocation holds of a pool, in 1/10,000. `instance`: which one; empty: of a
    sum.
    """
    pool: str
    instance: str = ""
    amount: int = 0


class TaskEventShown(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a task's life; `t_ns` is its agent's clock."""
    kind: str = ""
    message: str = ""
    t_ns: int = 0


class TaskShown(msgspec.Struct, frozen=True, kw_only=True):
    """One task as its agent last reported it. `state`: pending, running or dead."""
    #: One of pending, running, dead.
    state: str = "pending"
    failed: bool = False
    restarts: int = 0
    exit_code: int | None = None
    signal: int = 0
    pid: int = 0
    events: tuple[TaskEventShown, ...] = ()
    #: checks of its services: name -> pending, passing, warning or critical.
    checks: dict[str, str] = {}


class AllocAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.alloc`. `why`: in one sentence, why it is as it is."""
    seq: int
    cluster_id: str = ""
    allocation: AllocSummary
    #: label -> port of its node.
    ports: dict[str, int] = {}
    resources: tuple[PartLine, ...] = ()
    #: which of its group's alternatives it got, the first is 0.
    variant: int = 0
    tasks: dict[str, TaskShown] = {}
    why: str = ""


class AllocsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.allocs`."""
    seq: int
    cluster_id: str = ""
    allocations: tuple[AllocSummary, ...] = ()
    total: int = 0


class BusServer(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `status`: current, behind, away, or up: it answers, while no server leads
    the log. From the first look on at which the log's leader does not answer none leads;
    the status stays that of its last answer, until after 4 s the servers are tried
    themselves.
    """
    name: str
    #: One of current, behind, away, up.
    status: str = "current"
    #: it leads the log.
    leads: bool = False
    #: entries that it lacks of the stream of which it lacks most.
    lag: int = 0
    #: streams of which it does not hold everything.
    behind: tuple[str, ...] = ()
    #: how long before `looked_ns` it was last heard of by the leader of a stream; -1: unknown.
    silent_ms: int = 0
    #: how long before `looked_ns` it was last known to hold everything, in the worst of its
    #: streams; -1: never.
    current_ms: int = 0


class BusStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The bus, as it was at `looked_ns`. Times are of the service that answers, ns since
    1970; 0: never.
    """
    #: by name; empty: not looked at, as for a past moment.
    servers: tuple[BusServer, ...] = ()
    #: when the service last looked, with or without an answer.
    looked_ns: int = 0
    #: when the leader of the log last answered.
    confirmed_ns: int = 0
    #: when this answer was made.
    answered_ns: int = 0
    #: since when nothing can be committed; 0: commits are possible, unless no server leads the
    #: log.
    blocked_since_ns: int = 0
    #: why, for people; empty while commits are possible.
    reason: str = ""
    #: streams that no server leads.
    leaderless: tuple[str, ...] = ()
    #: the times as text where they exceed 2^53; else empty.
    looked_ns_text: str = ""
    confirmed_ns_text: str = ""
    answered_ns_text: str = ""
    blocked_since_ns_text: str = ""


class ClaimLine(msgspec.Struct, frozen=True, kw_only=True):
    """A claim, and what uses it."""
    job_id: str
    group: str
    index: int
    volume: str
    node_id: str
    is_exclusive: bool = False
    #: seq of the record in which it was made.
    create_seq: int = 0
    #: id of the allocation that runs there; empty: none does.
    alloc_id: str = ""


class ClaimsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.claims`, by job, group, index and volume."""
    seq: int
    cluster_id: str = ""
    claims: tuple[ClaimLine, ...] = ()
    total: int = 0


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How much a state holds; allocations by client status."""
    jobs: int = 0
    nodes: int = 0
    allocations: dict[str, int] = {}
    evaluations: int = 0


class ClusterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.cluster`; `tables` (table -> hash) only where the query's id is `hashes`.
    `t_ns`: log time.
    """
    seq: int
    cluster_id: str = ""
    t_ns: int = 0
    counts: Counts = msgspec.field(default_factory=lambda: Counts())
    epoch: int = 0
    holder: str = ""
    fsync: bool = False
    replicas: int = 1
    foreign: int = 0
    policy: str = ""
    tables: dict[str, str] = {}
    #: what an operator should know now, a sentence each: the log is nearly full, cannot be
    #: written, is damaged, or was rolled back under nodes that had seen more.
    alarms: tuple[str, ...] = ()
    #: release of the view that answers.
    release: str = ""
    #: the servers of the bus now; without servers in an answer about a past moment.
    bus: BusStatus = msgspec.field(default_factory=lambda: BusStatus())


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """`left operator right`, in Nomad's spelling; both sides may hold `${…}` references."""
    left: str = ""
    operator: str = "="
    right: str = ""


class DeadLine(msgspec.Struct, frozen=True, kw_only=True):
    """One message that could not be read. `id`: its place in DEAD; `at`: when it was put
    there, ns since 1970.
    """
    id: str
    subject: str = ""
    reason: str = ""
    at: int = 0
    size: int = 0


class DeadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.dead`, newest first."""
    seq: int
    cluster_id: str = ""
    messages: tuple[DeadLine, ...] = ()
    total: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Under what something was decided, or would be: enough to decide it again."""
    snapshot_seq: int
    #: hash of the policy.
    policy: str = ""
    seed: int = 0
    lane: int = 0
    lanes: int = 1
    #: the scheduler that decided, its plan number, and the seq in the log; empty: not decided.
    worker: str = ""
    number: int = 0
    seq: int = 0


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One of a pool's instances, whole. Its `id` is its name forever: another id is another
    instance.
    """
    id: str
    #: socket, switch or whatever brings instances close together.
    group: int = 0
    #: why nothing new is placed on it; what has it runs on. Empty: it is healthy.
    unhealthy: str = ""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What a node offers under one name: a sum, or instances. Several entries of one name
    differ in model. `name`: `device.<type>`, `cores`, or a custom resource's own. A name
    is a sum or indexed, on every node the same.
    """
    name: str
    #: of a sum, in 1/10,000; unused where there are instances.
    amount: int = 0
    instances: tuple[Instance, ...] = ()
    vendor: str = ""
    model: str = ""
    attributes: dict[str, str] = {}


class DeclaredLine(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator declared. `node`: empty for the cluster as a whole."""
    node: str = ""
    pool: Pool


class DeploymentGroupLine(msgspec.Struct, frozen=True, kw_only=True):
    """How far one group of a deployment has come, in allocations of its version."""
    desired: int = 0
    #: of them canaries that are wanted before the promotion; 0: it needs none.
    canaries: int = 0
    placed: int = 0
    placed_canaries: int = 0
    healthy: int = 0
    unhealthy: int = 0
    promoted: bool = False
    #: allocations without health at a time.
    max_parallel: int = 1
    auto_promote: bool = False
    auto_revert: bool = False
    #: how long it may take from one healthy allocation to the next; 0: the first unhealthy one
    #: fails the deployment.
    progress_deadline_ns: int = 0
    #: log time by which the next allocation must be healthy; 0: the clock does not run.
    require_by_ns: int = 0


class GateLine(msgspec.Struct, frozen=True, kw_only=True):
    """A gate of a deployment, or its windows together, by the last crossing."""
    #: empty: the windows.
    name: str = ""
    #: closed, opening, open or passed.
    status: str = "closed"
    #: the same for people: the reading then, and the bound.
    reason: str = ""
    since_ns: int = 0


class DeploymentLine(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout of one version of a job. `status`: running, paused, successful, failed or
    cancelled.
    """
    id: str
    key: int = 0
    job: str = ""
    version: int = 0
    #: One of running, paused, successful, failed, cancelled.
    status: str = "running"
    #: the same for people, in Nomad's words.
    description: str = ""
    #: submit, revert (it takes back a version that failed) or rollout (several jobs are updated
    #: together).
    cause: str = "submit"
    #: the version that its failure took back; -1: none.
    reverted_to: int = -1
    groups: dict[str, DeploymentGroupLine] = {}
    gates: tuple[GateLine, ...] = ()
    #: an operator lets it continue regardless of its gates.
    ignores_gates: bool = False
    create_seq: int = 0
    modify_seq: int = 0


class DeploymentWait(msgspec.Struct, frozen=True, kw_only=True):
    """Why a group of an active deployment does not continue at once. `why`: health
    (allocations have none yet), unhealthy, promotion, paused, held (by a gate or a
    rollout), rollout (its healthy canaries are promoted together with those of other
    jobs), place (there is none), predecessor (its next allocations have room when the old
    ones have ended), or schedule (they are about to be placed).
    """
    group: str
    #: One of health, unhealthy, promotion, paused, held, rollout, place, schedule.
    why: str = "health"
    #: the same for people.
    reason: str = ""
    #: names of the allocations that it waits for, at most 10.
    allocations: tuple[str, ...] = ()
    #: log time of the last progress, or when the first hold or the pause began; 0: not known.
    since_ns: int = 0


class DeploymentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.deployment`: a deployment, its allocations, and why it does not continue at
    once.
    """
    seq: int
    cluster_id: str = ""
    deployment: DeploymentLine
    waits: tuple[DeploymentWait, ...] = ()
    allocations: tuple[AllocSummary, ...] = ()
    allocations_total: int = 0


class DeploymentsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.deployments`, newest first."""
    seq: int
    cluster_id: str = ""
    deployments: tuple[DeploymentLine, ...] = ()
    total: int = 0


class DrainEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A drain that is complete: the node takes nothing new until an operator changes that."""
    #: the deadline came before the last allocation had ended.
    deadline_reached: bool = False
    #: the node took nothing new before the drain, either.
    closed: bool = False


class DrainWait(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of one group that a draining node still runs."""
    job_id: str
    group: str
    allocations: int = 0
    #: what they wait for before they leave.
    why: str = ""
    #: their names, at most 10.
    names: tuple[str, ...] = ()


class DrainShown(msgspec.Struct, frozen=True, kw_only=True):
    """The drain of a node, and what is left on it."""
    #: log time from which what runs there is stopped; 0: never.
    deadline_ns: int = 0
    started_ns: int = 0
    ignore_system: bool = False
    message: str = ""
    #: allocations on the node that are not dead, and those of them that are stopping.
    left: int = 0
    stopping: int = 0
    waits: tuple[DrainWait, ...] = ()


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal in words. `code` is stable: invalid, conflict, not_found, too_large,
    unavailable and others.
    """
    code: str
    message: str
    path: str = ""
    file: str = ""
    line: int = 0


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no answer. `code`: invalid, not_found, ambiguous or unavailable."""
    error: ErrorDetail
    seq: int = 0


class WaitingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Why allocations of a group wait."""
    n: int = 0
    #: One of misconfigured, never_fits, capacity, priority, reservation, predecessor, quota,
    #: gang, node_boot, order, out_of_reach.
    class_: str = "capacity"
    reasons: tuple[str, ...] = ()


class EvalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation as status commands show it."""
    id: str
    key: int
    job_id: str = ""
    #: One of pending, blocked, complete, failed, canceled.
    status: str = ""
    priority: int = 50
    #: One of service, batch, system, sysbatch.
    type: str = "service"
    triggered_by: str = ""
    reason: str = ""
    create_seq: int = 0
    modify_seq: int = 0
    wait_until_ns: int = 0
    #: pending behind an evaluation that waits for the same resources; `waiting` says of which
    #: job.
    parked: bool = False
    #: of a blocked or parked one, by group.
    waiting: dict[str, WaitingSummary] = {}


class EvalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.eval`; `follow_ups` are the evaluations that came out of it."""
    seq: int
    cluster_id: str = ""
    evaluation: EvalSummary
    follow_ups: tuple[EvalSummary, ...] = ()


class EvalsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.evals`, newest first."""
    seq: int
    cluster_id: str = ""
    evaluations: tuple[EvalSummary, ...] = ()
    total: int = 0


class EvictionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A set of victims on a node. Sets are compared by highest priority, then
    `priority_sum`, then `work_lost`.
    """
    node: str
    victims: int = 0
    #: jobs of the victims, sorted, at most five.
    jobs: tuple[str, ...] = ()
    highest_priority: int = 0
    priority_sum: int = 0
    #: how many log positions ago the victims were placed, summed.
    work_lost: int = 0
    #: of an alternative: what was better about the chosen one.
    worse_by: str = ""


class Exhausted(msgspec.Struct, frozen=True, kw_only=True):
    """A dimension, and how many nodes that no filter refuses lack it; one node may count in
    several.
    """
    dimension: str
    nodes: int = 0


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """One field that differs between two texts of a job. `kind`: added, removed or edited;
    values are JSON.
    """
    #: One of added, removed, edited.
    kind: str
    path: str
    old: Any = None
    new: Any = None


class FileLine(msgspec.Struct, frozen=True, kw_only=True):
    """A file of an allocation."""
    name: str
    #: file, directory, link or other (a pipe, a socket, a device: never opened).
    kind: str
    size: int = 0
    #: permissions, as in `ls -l`.
    mode: str = ""
    modified_ns: int = 0


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to fs_read: bytes of a file, from where it was asked."""
    data: bytes = b""
    #: size of the file now.
    size: int = 0
    error: ErrorDetail | None = None


class FilesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to fs_list and fs_stat; of a directory by name."""
    files: tuple[FileLine, ...] = ()
    #: how many entries the directory has, as far as they were counted.
    total: int = 0
    error: ErrorDetail | None = None


class FilterCount(msgspec.Struct, frozen=True, kw_only=True):
    """A condition, and how many nodes it is the first to refuse, also by node class."""
    name: str
    refused: int = 0
    by_class: dict[str, int] = {}


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stream. The last one has `is_end`; an empty one is a keep-alive."""
    #: counts frames with data or an end from 1; 0: a keep-alive.
    number: int = 0
    #: 1 stdout, 2 stderr.
    source: int = 1
    data: bytes = b""
    is_end: bool = False
    #: of a command that ended.
    exit_code: int | None = None
    #: why it ended, after a failure.
    error: ErrorDetail | None = None


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan would do to one group, in allocations."""
    #: new ones, replacements of failed or lost ones among them.
    place: int = 0
    stop: int = 0
    #: stopped and started again under the new version.
    destructive: int = 0
    #: continue under the new version.
    in_place: int = 0
    lost: int = 0
    ignore: int = 0
    #: of a rollout: canaries first, then steps of `max_parallel` (0: all at once); health takes
    #: `min_healthy_time_ns`.
    canaries: int = 0
    max_parallel: int = 0
    steps: int = 0
    min_healthy_time_ns: int = 0


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one group's allocations by client status; `desired` is the job's count."""
    desired: int = 0
    pending: int = 0
    running: int = 0
    complete: int = 0
    failed: int = 0
    lost: int = 0
    unknown: int = 0


class InstanceShown(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a pool, in 1/10,000. Gone (`present` false) it is shown while
    something runs on it. An unhealthy one is shown, and not `present`.
    """
    id: str = ""
    vendor: str = ""
    model: str = ""
    group: int = 0
    present: bool = True
    used: int = 0
    #: why nothing new is placed on it.
    unhealthy: str = ""


class JobLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that is shown with a job; `url` begins with http or https."""
    label: str
    url: str


class JobDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the `ui` block of a job says about it."""
    description: str = ""
    links: tuple[JobLink, ...] = ()


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job in one line. `status`: pending, running or dead."""
    id: str
    #: One of service, batch, system, sysbatch.
    type: str = "service"
    #: One of pending, running, dead.
    status: str = "pending"
    stopped: bool = False
    version: int = 0
    priority: int = 50
    node_pool: str = "default"
    datacenters: tuple[str, ...] = ()
    create_index: int = 0
    modify_index: int = 0
    groups: dict[str, GroupSummary] = {}
    #: status of its Rollout. One of progressing, waiting, running, complete, failed, stopped.
    rollout_status: str = ""
    #: the job that made it; empty: it was submitted.
    parent: str = ""
    #: periodic or parameterized: it runs nothing itself, other jobs are made of it; empty: it
    #: runs.
    pattern: str = ""


class ParameterizedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """What a dispatch of a job must have (Nomad's `parameterized` block)."""
    #: optional, required or forbidden.
    payload: str = "optional"
    meta_required: tuple[str, ...] = ()
    meta_optional: tuple[str, ...] = ()


class LaunchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A child that was launched. `at_ns`: the planned instant, ns since 1970; of a forced
    one that of the request.
    """
    at_ns: int
    child_id: str
    forced: bool = False


class SkipLine(msgspec.Struct, frozen=True, kw_only=True):
    """Planned instants that made no child. `why`: overlap, missed (so many) or exists."""
    at_ns: int
    #: One of overlap, missed, exists.
    why: str
    missed: int = 0


class PeriodicShown(msgspec.Struct, frozen=True, kw_only=True):
    """When the children of a job are launched; launches and skipped ones newest first, the
    last few.
    """
    crons: tuple[str, ...]
    time_zone: str = "UTC"
    prohibit_overlap: bool = False
    enabled: bool = True
    #: the next planned instant, ns since 1970; 0: there is none.
    next_ns: int = 0
    #: why it could not be computed.
    problem: str = ""
    launches: tuple[LaunchLine, ...] = ()
    skips: tuple[SkipLine, ...] = ()


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the newest version of a job: what a deploy script waits for. `status`:
    progressing, waiting (all that has a place runs, the rest has none), running (all
    allocations run, no task of them waits to start, and none was started in the last 10
    s), complete (of a batch job), failed, or stopped. `reason` says why, for people.
    """
    #: One of progressing, waiting, running, complete, failed, stopped.
    status: str = "progressing"
    reason: str = ""
    #: whether the last submission changed the job; false: the same job again, or only an
    #: evaluation.
    changed: bool = True
    #: counts of the newest version's allocations alone, without those that are to stop.
    groups: dict[str, GroupSummary] = {}
    #: allocations, of older versions too, that are to stop and have not ended.
    stopping: int = 0
    #: how often tasks of the newest version's allocations were started again.
    restarts: int = 0
    #: when what failed is tried again, ns since 1970; 0: never, or not known.
    retry_at_ns: int = 0
    #: all runs, and the status becomes running at this time unless a task ends before, ns since
    #: 1970; 0: not so.
    settles_at_ns: int = 0
    #: the deployment of the newest version; null: it has none, or the value is of an older
    #: release.
    deployment: DeploymentLine | None = None


class WaitingLine(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of a group that found no place, and the blocked evaluation that waits for
    one.
    """
    group: str
    n: int
    #: One of misconfigured, never_fits, capacity, priority, reservation, predecessor, quota,
    #: gang, node_boot, order, out_of_reach.
    class_: str = "capacity"
    reasons: tuple[str, ...] = ()
    eval_id: str = ""
    #: seq at which class and reasons were decided; 0: not decided, the job is parked behind
    #: another.
    decided_seq: int = 0


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.job`. `placed`: allocations of the newest version that should run, or ran to
    completion, by group.
    """
    seq: int
    cluster_id: str = ""
    job: JobLine
    groups: dict[str, GroupSummary] = {}
    placed: dict[str, int] = {}
    allocations: tuple[AllocSummary, ...] = ()
    allocations_total: int = 0
    waiting: tuple[WaitingLine, ...] = ()
    evaluations: tuple[EvalSummary, ...] = ()
    rollout: Rollout = msgspec.field(default_factory=lambda: Rollout())
    #: JSON paths of what the job asks for and does not get, because it was accepted without.
    unbuilt: tuple[str, ...] = ()
    #: null: the job has no `ui` block.
    ui: JobDescription | None = None
    #: null: the job is not periodic.
    periodic: PeriodicShown | None = None
    #: null: the job is not dispatched.
    parameterized: ParameterizedBlock | None = None
    children: tuple[JobLine, ...] = ()
    #: of `children`, which are those launched or dispatched from it that are still known,
    #: newest first.
    children_total: int = 0


class JobProjection(msgspec.Struct, frozen=True, kw_only=True):
    """`view.job.<id>`: a job in numbers, for clients that follow it."""
    cluster_id: str
    seq: int
    job_id: str
    version: int = 0
    #: pending, running or dead.
    status: str = "pending"
    stopped: bool = False
    modify_index: int = 0
    groups: dict[str, GroupSummary] = {}
    #: as in NodeProjection.
    incarnation: int = 0
    #: absent in values of an older release. Of the job's own records: of a parked job it says
    #: that an evaluation is pending, and `query.job` behind which job.
    rollout: Rollout | None = None
    #: the job left the state, by a purge or long after its end: the last value of its subject
    #: for an hour.
    purged: bool = False


class JobVersionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.job_version`: the canonical text of one version."""
    seq: int
    cluster_id: str = ""
    job_id: str
    version: int
    spec: Any
    #: base64: what the job was dispatched with.
    payload: bytes = b""
    #: the job that launched or dispatched it; empty: it was submitted.
    parent: str = ""


class VersionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a job: its canonical text and the seq of its registration."""
    version: int
    seq: int
    spec: Any
    #: a failed deployment goes back to the newest version that is.
    stable: bool = False
    #: name given by an operator, and what was said of it; empty: none.
    tag: str = ""
    tag_description: str = ""


class JobVersionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.job_versions`, newest first, as far back as texts are kept."""
    seq: int
    cluster_id: str = ""
    job_id: str
    versions: tuple[VersionLine, ...] = ()
    total: int = 0


class JobsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.jobs`."""
    seq: int
    cluster_id: str = ""
    jobs: tuple[JobLine, ...] = ()
    total: int = 0


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """A public key of the keeper."""
    #: 16 hex digits.
    key_id: str
    #: X25519, 32 bytes.
    public: bytes
    #: seq of the record that made it known.
    create_seq: int = 0


class KeysAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.keys`, newest first: clients seal with the first one."""
    seq: int
    cluster_id: str = ""
    keys: tuple[KeyLine, ...] = ()
    total: int = 0


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is feasible but full, and what it lacks."""
    node: str
    shortfall: dict[str, float] = {}


class PoolShown(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of a node or of the cluster, in 1/10,000. `kind`: sum, indexed or cluster-wide.
    `excess`: what is used beyond what there is, after there was less; what runs
    continues.
    """
    #: One of sum, indexed, cluster-wide.
    kind: str = "sum"
    capacity: int = 0
    used: int = 0
    free: int = 0
    excess: int = 0
    instances: tuple[InstanceShown, ...] = ()


class NodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`view.node.<id>` and a row of `node status`. Units: MHz, MiB."""
    cluster_id: str = ""
    seq: int = 0
    id: str
    name: str = ""
    datacenter: str = ""
    pool: str = ""
    class_: str = ""
    #: One of initializing, ready, down, disconnected.
    status: str = ""
    #: One of eligible, ineligible.
    eligibility: str = "eligible"
    #: an operator empties it; from this log time on what runs there is stopped (0: never).
    draining: bool = False
    drain_deadline_ns: int = 0
    capacity: dict[str, int] = {}
    used: dict[str, int] = {}
    #: devices, cores and custom resources, by name.
    pools: dict[str, PoolShown] = {}
    #: ports that the cluster may still pick.
    ports_free: int = 0
    allocations: int = 0
    #: as in NodeProjection; left out before the first.
    incarnation: int | None = None


class PortLine(msgspec.Struct, frozen=True, kw_only=True):
    """A port in use on a node, and the allocation that holds it."""
    port: int
    allocation: str = ""
    #: named by its job, not picked by the cluster.
    static: bool = False


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.node`: one node in `nodes`, with what runs on it."""
    seq: int
    cluster_id: str = ""
    nodes: tuple[NodeSummary, ...]
    attributes: dict[str, str] = {}
    meta: dict[str, str] = {}
    ports: tuple[PortLine, ...] = ()
    allocations: tuple[AllocSummary, ...] = ()
    allocations_total: int = 0
    #: null: the node does not drain.
    drain: DrainShown | None = None
    #: null: the node drains, was not drained, or an operator changed its eligibility since.
    drained: DrainEnded | None = None


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan would place. `score`: of the first allocation there, in [-1, 1]."""
    node: str
    count: int = 0
    score: float = 0.0


class NodesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.nodes`."""
    seq: int
    cluster_id: str = ""
    nodes: tuple[NodeSummary, ...] = ()
    total: int = 0


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """Which job types may evict allocations of lower priority (Nomad's defaults)."""
    service: bool = False
    batch: bool = False
    system: bool = True
    sysbatch: bool = False


class RemoteDriver(msgspec.Struct, frozen=True, kw_only=True):
    """A driver whose tasks run elsewhere: they take of `<driver>.cpu` (MHz) and
    `<driver>.memory` (MiB). On the node that keeps track each task takes only these.
    """
    cpu_mhz: int = 10
    memory_mib: int = 16


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster schedules and forgets. Its hash is named by every plan made under it.
    Always written out whole: a default that a later release changes must not change an
    old log.
    """
    #: binpack, spread or fragmentation.
    algorithm: str = "binpack"
    anti_affinity: bool = True
    #: node pool -> algorithm for jobs in it; a job's own choice goes first.
    pool_algorithms: dict[str, str] = {}
    #: which nodes are scored: all, two_choices (two drawn for each allocation) or log2 (Nomad's
    #: scan).
    candidates: str = "all"
    preemption: Preemption = msgspec.field(default_factory=lambda: Preemption())
    #: waiting items that may hold nodes back for themselves at the same time.
    reservations_max: int = 8
    #: by driver name; what registers later is compiled with them.
    remote_drivers: dict[str, RemoteDriver] = {}
    #: log time after which terminal entities may be collected.
    submission_keep_ns: int = 3600000000000
    evaluation_keep_ns: int = 3600000000000
    allocation_keep_ns: int = 3600000000000
    job_keep_ns: int = 14400000000000
    node_keep_ns: int = 86400000000000
    #: and how many terminal ones of a kind are kept at the most, regardless of their age.
    terminal_keep_max: int = 100000
    #: times an evaluation is handed out before it fails.
    delivery_limit: int = 20
    #: heartbeats, one a second, that a node may miss in a row before it is down.
    heartbeats_missed: int = 3
    #: how the targets of spread blocks count: exact (each takes its share of the count, then
    #: scores decide) or scored (by scores alone, as Nomad does).
    spread_targets: str = "exact"


class OperatorVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an operator verb. `status`: accepted, refused or pending (not in the log
    yet: ask again).
    """
    request_id: str
    #: One of accepted, refused, pending.
    status: str
    cluster_id: str = ""
    seq: int = 0
    #: false: it was so already.
    changed: bool = False
    #: system.gc: how many of each kind left the state.
    collected: dict[str, int] = {}
    #: node.*, operator.declare: which node was meant.
    node_id: str = ""
    #: alloc.stop: which allocation was meant.
    alloc_id: str = ""
    #: deployment.*: which deployment was meant.
    deployment_id: str = ""
    #: shown id of the rollout.
    rollout_id: str = ""
    #: node.drain: log time from which what runs there is stopped; 0: never.
    deadline_ns: int = 0
    #: node.set_meta: what constraints see of the node now, and what of it an operator said.
    meta: dict[str, str] = {}
    operator_meta: dict[str, str | None] = {}
    #: operator.declare: what is declared now.
    pool: Pool | None = None
    #: operator.set_policy: the policy now in force.
    policy: Policy | None = None
    #: job.force_launch: id of the child.
    child_id: str = ""
    #: system.roll: the generation that continues.
    generation: int = 0
    error: ErrorDetail | None = None


class ParsedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `api.jobs.parse`. `status`: accepted or refused; nothing is registered
    or kept.
    """
    #: One of accepted, refused.
    status: str
    #: Nomad's JSON, for `JobSubmission.Job`; null when refused.
    job: Any = None
    warnings: tuple[str, ...] = ()
    error: ErrorDetail | None = None
    errors: tuple[ErrorDetail, ...] = ()


class UnplacedLine(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a group would find no place, and why."""
    n: int
    #: One of misconfigured, never_fits, capacity, priority, reservation, predecessor, quota,
    #: gang, node_boot, order, out_of_reach.
    class_: str = "capacity"
    reasons: tuple[str, ...] = ()


class VictimLine(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation of a less important job that would have to make room. `alloc`: its shown
    id.
    """
    alloc: str
    job: str = ""
    group: str = ""
    priority: int = 0
    node: str = ""


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.plan`: what registering a job would do. Nothing is kept."""
    seq: int
    cluster_id: str = ""
    job_id: str
    version: int = 0
    #: the check-and-set index to submit with.
    modify_index: int = 0
    #: whether anything would change.
    changes: bool = False
    #: whether allocations would be created or stopped; not by an update in place, nor by what
    #: continues waiting.
    touches_allocations: bool = False
    diff: tuple[FieldChange, ...] = ()
    groups: dict[str, GroupPlan] = {}
    nodes: tuple[NodePlan, ...] = ()
    #: allocations of others that would be evicted for it.
    victims: tuple[VictimLine, ...] = ()
    unplaced: dict[str, UnplacedLine] = {}
    #: what the deployment would wait for first, and again whenever it is so: gates and windows,
    #: in words.
    gates: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class PolicyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.policy`: how the cluster schedules and forgets."""
    seq: int
    cluster_id: str = ""
    policy: Policy
    policy_hash: str = ""
    modify_index: int = 0
    #: numbers of the policy beyond 2^53 as text, by name.
    policy_text: dict[str, str] = {}


class PoolLine(msgspec.Struct, frozen=True, kw_only=True):
    """A pool over all nodes; `nodes`: how many offer it. Instances are shown with their
    nodes.
    """
    #: One of sum, indexed, cluster-wide.
    kind: str = "sum"
    capacity: int = 0
    used: int = 0
    free: int = 0
    excess: int = 0
    instances: tuple[InstanceShown, ...] = ()
    name: str
    nodes: int = 0


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """One group that waits. `class`: misconfigured, never_fits, capacity, priority (behind
    another that waits for the same, or more important jobs have its room), reservation
    (room is there, on nodes held back), predecessor (its own old allocations are to end
    first; their room is kept for it), quota, gang or node_boot.
    """
    #: 1 is next, in its node pool; 0: it is in no queue, because no node could hold it.
    position: int
    job: str
    group: str
    #: allocations that have no place.
    n: int
    #: One of misconfigured, never_fits, capacity, priority, reservation, predecessor, quota,
    #: gang, node_boot, order, out_of_reach.
    class_: str = "capacity"
    priority: int = 50
    #: its node pool.
    pool: str = "default"
    #: log time since when the job waits; 0: not known.
    since_ns: int = 0
    reasons: tuple[str, ...] = ()
    #: what would have it tried again.
    wakes: tuple[str, ...] = ()
    #: nodes held back for it.
    nodes: tuple[str, ...] = ()
    eval_id: str = ""
    #: seq at which class and reasons were decided; 0: not decided, the job is parked behind
    #: another.
    decided_seq: int = 0


class QueuedWait(msgspec.Struct, frozen=True, kw_only=True):
    """What the queue holds of a group that waits, as it was decided last."""
    #: seq of the decision; 0: not decided, the job is parked behind another that waits for the
    #: same.
    decided_seq: int = 0
    n: int = 0
    #: One of misconfigured, never_fits, capacity, priority, reservation, predecessor, quota,
    #: gang, node_boot, order, out_of_reach.
    class_: str = "capacity"
    reasons: tuple[str, ...] = ()


class ResourcesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.resources`: every pool that is offered or held anywhere, and what operators
    declared of it.
    """
    seq: int
    cluster_id: str = ""
    pools: tuple[PoolLine, ...] = ()
    declared: tuple[DeclaredLine, ...] = ()
    total: int = 0


class RolloutLine(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout in one line: new versions of several jobs that are brought up together."""
    id: str
    key: int
    key_text: str = ""
    name: str
    #: together or in_order.
    order: str = "together"
    #: running, successful, failed or cancelled.
    status: str = "running"
    #: in words.
    description: str = ""
    #: of an ended one: healthy, unhealthy, deadline, gate, operator, newer_version or stopped.
    cause: str = ""
    #: in the order of the submission.
    jobs: tuple[str, ...] = ()
    #: members that are done.
    done: int = 0
    create_seq: int = 0
    modify_seq: int = 0


class RolloutMemberLine(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a rollout."""
    job: str
    version: int
    #: the version to which it goes back; -1: the job is new.
    before: int = -1
    #: waiting, running, successful, failed, cancelled, unchanged; after a failure rolled_back
    #: or stopped.
    status: str = "running"
    #: shown id of its deployment; empty: it has none.
    deployment_id: str = ""
    #: why it waits; empty: it does not.
    reason: str = ""
    #: null: it has none, or the state forgot it.
    deployment: DeploymentLine | None = None
    #: what each group of it waits for.
    waits: tuple[DeploymentWait, ...] = ()


class RolloutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.rollout`: a rollout, its members, and why each does not continue at once."""
    seq: int
    cluster_id: str = ""
    rollout: RolloutLine
    members: tuple[RolloutMemberLine, ...] = ()


class RolloutsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.rollouts`, newest first."""
    seq: int
    cluster_id: str = ""
    rollouts: tuple[RolloutLine, ...] = ()
    total: int = 0


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """A node with room: its score and the scorers that it is the mean of, each in [-1, 1]."""
    node: str
    score: float = 0.0
    scores: dict[str, float] = {}


class ServiceInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a service: an allocation that runs, as its job declares it."""
    service: str
    #: of the node, unless the job says another one; empty: not known.
    address: str = ""
    #: 0: the service has none.
    port: int = 0
    tags: tuple[str, ...] = ()
    meta: dict[str, str] = {}
    #: of its checks, the worst: passing (also without checks), warning, pending, critical;
    #: unknown: its node is silent.
    status: str = "passing"
    job: str = ""
    group: str = ""
    #: empty: a service of the group.
    task: str = ""
    index: int = 0
    version: int = 0
    node: str = ""
    #: shown id of the allocation.
    alloc: str = ""
    #: of the allocation in its deployment: healthy, unhealthy, or empty.
    health: str = ""
    #: of the node.
    datacenter: str = ""


class ServiceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.service`: where the instances of a service are, by job, group and index."""
    seq: int
    cluster_id: str = ""
    name: str
    instances: tuple[ServiceInstance, ...] = ()
    total: int = 0


class ServiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One service in one line."""
    name: str
    instances: int = 0
    passing: int = 0
    #: of all its instances.
    tags: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class ServicesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.services`, by name."""
    seq: int
    cluster_id: str = ""
    services: tuple[ServiceLine, ...] = ()
    total: int = 0


class SessionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to SessionInput, once its input was taken."""
    error: ErrorDetail | None = None


class SigningKeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """A public key that verifies identities of tasks."""
    #: 16 hex digits: `kid` of the tokens that it signed.
    key_id: str
    #: as in JWT: RS256.
    algorithm: str
    #: SubjectPublicKeyInfo, DER.
    public: bytes
    #: seq of the record that made it known.
    create_seq: int = 0
    #: log time of that record.
    create_ns: int = 0


class SigningKeysAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.signing_keys`, newest first: the first one signs, all of them verify."""
    seq: int
    cluster_id: str = ""
    keys: tuple[SigningKeyLine, ...] = ()
    total: int = 0


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a task over the last hour, sampled every ten seconds, in this life of its
    agent. Counts are by bucket: below 16 a bucket is a value; a bucket b above holds the
    values from (8 + b mod 8) << (b / 8 - 1), b / 8 rounded down, to below the first value
    of the next one.
    """
    alloc_id: str
    task: str
    samples: int = 0
    from_ns: int = 0
    to_ns: int = 0
    #: bucket, as text -> samples in it.
    cpu_millicores: dict[str, int] = {}
    memory_bytes: dict[str, int] = {}
    cpu_peak_millicores: int = 0
    memory_peak_bytes: int = 0
    throttled_ns: int = 0
    oom_kills: int = 0


class TaskUse(msgspec.Struct, frozen=True, kw_only=True):
    """Current usage of a task, measured by its driver: all processes where the kernel counts
    them, else the first.
    """
    alloc_id: str
    task: str
    driver: str
    #: since its start, and as thousandths of a core over the last quarter second.
    cpu_ns: int = 0
    cpu_millicores: int = 0
    memory_bytes: int = 0
    #: why usage is unknown; empty: it is known.
    problem: str = ""
    #: counters since its start, and processes now; 0: none, or not counted by its driver here.
    memory_peak_bytes: int = 0
    throttled_ns: int = 0
    oom_kills: int = 0
    pids: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    #: what the job asks for; 0: not known.
    asked_cpu_mhz: int = 0
    asked_memory_mib: int = 0


class StatsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to stats."""
    node_id: str = ""
    tasks: tuple[TaskUse, ...] = ()
    #: MiB that the directories of an allocation take, by its id.
    disk_mib: dict[str, int] = {}
    #: clock of a core, by which millicores are MHz; 0: not known.
    core_mhz: int = 0
    history: tuple[TaskHistory, ...] = ()
    error: ErrorDetail | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a submission. `status`: accepted, refused or pending (ask again under
    the same id).
    """
    submission_id: str
    #: One of accepted, refused, pending.
    status: str
    cluster_id: str = ""
    seq: int = 0
    job_id: str = ""
    version: int = 0
    modify_index: int = 0
    eval_id: str = ""
    #: of jobs submitted together: shown id of their rollout; `job_id` is then the first of
    #: them.
    rollout_id: str = ""
    warnings: tuple[str, ...] = ()
    error: ErrorDetail | None = None
    errors: tuple[ErrorDetail, ...] = ()


class SubmissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.submission`."""
    seq: int
    cluster_id: str = ""
    verdict: Verdict


class TaskAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to restart and signal: the tasks it was sent to."""
    tasks: tuple[str, ...] = ()
    error: ErrorDetail | None = None


class VariableLine(msgspec.Struct, frozen=True, kw_only=True):
    """A variable in one line, without its items; or a path without items that a lock holds."""
    path: str
    #: seq of its newest put; 0: it has no items.
    revision: int
    #: seq of the first put of this life of the path.
    create_seq: int = 0
    #: log time of the first and of the newest put.
    create_ns: int = 0
    modify_ns: int = 0
    #: how many items, and bytes of their names and texts.
    items: int = 0
    size: int = 0
    modify_ns_text: str = ""
    #: seq at which the lock that holds the path was taken; 0: none does.
    lock_seq: int = 0
    #: of that lock: so long after its last renewal it expires, and so long after that nothing
    #: can lock the path.
    lock_ttl_ms: int = 0
    lock_delay_ms: int = 0


class VariablesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.variables`, by path."""
    seq: int
    cluster_id: str = ""
    variables: tuple[VariableLine, ...] = ()
    total: int = 0


class VolumeCapability(msgspec.Struct, frozen=True, kw_only=True):
    """A way in which a volume may be used."""
    access_mode: str
    attachment_mode: str = "file-system"


class VolumeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A host volume that was created by request."""
    id: str
    name: str
    node_id: str
    #: pending, ready, failed, deleting; unavailable: it was ready, and its node is not.
    status: str
    #: why it failed, or could not be deleted yet.
    reason: str = ""
    plugin: str = ""
    node_name: str = ""
    node_pool: str = ""
    #: as asked for; empty: any.
    asked_pool: str = ""
    constraints: tuple[Constraint, ...] = ()
    capacity_min_bytes: int = 0
    capacity_max_bytes: int = 0
    #: what its plugin says of it; 0: nothing.
    capacity_bytes: int = 0
    capabilities: tuple[VolumeCapability, ...] = ()
    parameters: dict[str, str] = {}
    #: where it is on its node.
    path: str = ""
    create_seq: int = 0
    modify_seq: int = 0
    #: shown ids of the allocations that use it.
    alloc_ids: tuple[str, ...] = ()
    capacity_min_bytes_text: str = ""
    capacity_max_bytes_text: str = ""
    capacity_bytes_text: str = ""


class VolumesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.volumes`, by name and id."""
    seq: int
    cluster_id: str = ""
    volumes: tuple[VolumeLine, ...] = ()
    total: int = 0


class WaitingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`query.waiting`: what waits for a place, the next one first."""
    seq: int
    cluster_id: str = ""
    waiting: tuple[QueueLine, ...] = ()
    total: int = 0


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`caravan why`, `query.why_not`: which nodes were looked at for an allocation, and what
    spoke for and against. All of `why_not` is of the state at `seq`, but for `queue`.
    """
    seq: int
    cluster_id: str = ""
    job_id: str
    group: str
    #: of `why`: which allocation, and where it is.
    allocation: str = ""
    #: the node that was chosen, or asked about; empty: neither.
    node: str = ""
    decision: Decision
    nodes_considered: int = 0
    #: nodes that constraints and the resources asked for allow, and those with room.
    feasible: int = 0
    fitting: int = 0
    #: constraints, what is too small even empty, what closes nodes to new allocations, rules of
    #: the job's other allocations, and last what reserves nodes with room for a job ahead. Each
    #: node is counted once, as in `reasons`: nodes_considered is the sum of all refused, of
    #: `lacking` and of `fitting`.
    filters: tuple[FilterCount, ...] = ()
    exhausted: tuple[Exhausted, ...] = ()
    nearest: tuple[Nearest, ...] = ()
    #: best first; the node that was chosen or asked about is among them.
    top: tuple[Scored, ...] = ()
    #: of `why`: allocations that were evicted for it.
    victims: tuple[str, ...] = ()
    #: why one more finds no room at this moment; empty: there is, or was, room. One of
    #: misconfigured, never_fits, capacity, priority, reservation, predecessor, quota, gang,
    #: node_boot, order, out_of_reach.
    class_: str = ""
    reasons: tuple[str, ...] = ()
    text: str = ""
    #: nodes that no filter refuses and that lack room.
    lacking: int = 0
    #: of what evicts: what the victims cost, and the cheapest other choices, at most three.
    eviction: EvictionChoice | None = None
    alternatives: tuple[EvictionChoice, ...] = ()
    #: of `why_not`: the last decision about the group, of its own moment; null: it does not
    #: wait.
    queue: QueuedWait | None = None
