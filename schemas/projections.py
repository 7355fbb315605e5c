"""Projections: last values of the state, published by `view` (`node.<id>`, `view.*`), and the answers of `query.*`.

Every one carries `(cluster_id, seq)`; a lower seq never replaces a higher one. What status commands show holds all its
fields, those with their default value too: a reader in a shell finds every key. Next: `answers.py`.
"""

import msgspec

from schemas.base import ExactWire, Wire
from schemas.host_volumes import VolumeOrder
from schemas.remotes import RemoteEnding, RemoteWanted


class GroupRef(Wire, frozen=True, array_like=True):
    """A task group of a job version, as an array of three: job, version, name of the group."""

    job_id: str
    version: int
    group: str


class DesiredExtra(Wire, frozen=True, kw_only=True):
    """What few allocations have: beside the columns."""

    #: position of the allocation, counted from 0.
    at: int
    #: ports that the cluster picked, in the order of the job's labels; static ones are in the job.
    ports: tuple[int, ...] = ()
    #: pool -> ids of the instances that it holds.
    instances: dict[str, tuple[str, ...]] = {}
    #: which of the group's alternatives it takes.
    variant: int = 0
    #: key of the allocation that it replaces; 0: none.
    previous: int = 0
    #: of its remote tasks; null: it has none, or begins their slot.
    remote: RemoteWanted | None = None


class NodeProjection(Wire, frozen=True, kw_only=True):
    """`node.<id>`: the whole desired set of one node. What it omits must not run.

    Allocations are columns of runs. Shapes: keys, rows, indexes (R,); groups_at (R,), or empty: the n-th run is of the
    n-th group; counts (R,), or empty: each run is one allocation. A run of `n` has keys `key`, `key + 1`, …, so have
    its rows and indexes, and all of it is of one group. Positions count allocations, not runs. The shown id is computed
    from the key: docs/any-language.md.
    """

    cluster_id: str
    seq: int
    node_id: str
    #: the host and boot that the log knows for this id: an agent that finds another's here must stop.
    host_id: str = ""
    boot_id: str = ""
    #: highest report number in the log for that boot.
    reports_seen: int = 0
    #: task groups that `groups_at` points into; one may be listed more than once.
    groups: tuple[GroupRef, ...] = ()
    keys: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    groups_at: tuple[int, ...] = ()
    #: numbers in the names `job.group[index]`.
    indexes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    #: positions of those that must stop, ascending; all others must run.
    stops: tuple[int, ...] = ()
    #: positions of those that must stop before anything new starts, ascending.
    evicts: tuple[int, ...] = ()
    #: by position, ascending.
    extras: tuple[DesiredExtra, ...] = ()
    #: a refusal of the last registration under this id, for the agent's log.
    refused: str = ""
    #: what an operator says of the node, laid over what its agent says; null takes a key out.
    operator_meta: dict[str, str | None] = {}
    #: incarnation of the log, and the seq at which it began. Order: by incarnation, then by seq.
    incarnation: int = 0
    first_seq: int = 0
    #: the incarnation before it: a node that followed another one compares with the whole log, by registering again.
    former_incarnation: int = 0
    #: epoch of the plan applier that leads, 0: the first one. Where it rises, reports that the log does not show are
    #: sent again, since the former one may have had them.
    epoch: int = 0
    #: host volumes that it is to have, or to delete; by id.
    volumes: tuple[VolumeOrder, ...] = ()
    #: what runs elsewhere, is tracked by no allocation, and is to be ended by this node.
    remote_ends: tuple[RemoteEnding, ...] = ()


class JobProjection(Wire, frozen=True, kw_only=True):
    """`view.job.<id>`: a job in numbers, for clients that follow it."""

    cluster_id: str
    seq: int
    job_id: str
    version: int = 0
    #: pending, running or dead.
    status: str = "pending"
    stopped: bool = False
    modify_index: int = 0
    groups: dict[str, "GroupSummary"] = {}
    #: as in NodeProjection.
    incarnation: int = 0
    #: absent in values of an older release. Of the job's own records: of a parked job it says that an evaluation is
    #: pending, and `query.job` behind which job.
    rollout: "Rollout | None" = None
    #: the job left the state, by a purge or long after its end: the last value of its subject for an hour.
    purged: bool = False


class GroupSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Counts of one group's allocations by client status; `desired` is the job's count."""

    desired: int = 0
    pending: int = 0
    running: int = 0
    complete: int = 0
    failed: int = 0
    lost: int = 0
    unknown: int = 0


class Rollout(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """Progress of the newest version of a job: what a deploy script waits for.

    `status`: progressing, waiting (all that has a place runs, the rest has none), running (all allocations run, no task
    of them waits to start, and none was started in the last 10 s), complete (of a batch job), failed, or stopped.
    `reason` says why, for people.
    """

    status: str = "progressing"
    reason: str = ""
    #: whether the last submission changed the job; false: the same job again, or only an evaluation.
    changed: bool = True
    #: counts of the newest version's allocations alone, without those that are to stop.
    groups: dict[str, GroupSummary] = {}
    #: allocations, of older versions too, that are to stop and have not ended.
    stopping: int = 0
    #: how often tasks of the newest version's allocations were started again.
    restarts: int = 0
    #: when what failed is tried again, ns since 1970; 0: never, or not known.
    retry_at_ns: int = 0
    #: all runs, and the status becomes running at this time unless a task ends before, ns since 1970; 0: not so.
    settles_at_ns: int = 0
    #: the deployment of the newest version; null: it has none, or the value is of an older release.
    deployment: "DeploymentLine | None" = None
    #: `retry_at_ns` as text where it exceeds 2^53; else empty.
    retry_at_ns_text: str = ""
    #: `settles_at_ns` as text where it exceeds 2^53; else empty.
    settles_at_ns_text: str = ""


class DeploymentGroupLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
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
    #: how long it may take from one healthy allocation to the next; 0: the first unhealthy one fails the deployment.
    progress_deadline_ns: int = 0
    #: log time by which the next allocation must be healthy; 0: the clock does not run.
    require_by_ns: int = 0
    #: `progress_deadline_ns` as text where it exceeds 2^53; else empty.
    progress_deadline_ns_text: str = ""
    #: `require_by_ns` as text where it exceeds 2^53; else empty.
    require_by_ns_text: str = ""


class GateLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """A gate of a deployment, or its windows together, by the last crossing."""

    #: empty: the windows.
    name: str = ""
    #: closed, opening, open or passed.
    status: str = "closed"
    #: the same for people: the reading then, and the bound.
    reason: str = ""
    since_ns: int = 0
    #: `since_ns` as text where it exceeds 2^53; else empty.
    since_ns_text: str = ""


class DeploymentLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """The rollout of one version of a job. `status`: running, paused, successful, failed or cancelled."""

    id: str
    key: int = 0
    job: str = ""
    version: int = 0
    status: str = "running"
    #: the same for people, in Nomad's words.
    description: str = ""
    #: submit, revert (it takes back a version that failed) or rollout (several jobs are updated together).
    cause: str = "submit"
    #: the version that its failure took back; -1: none.
    reverted_to: int = -1
    groups: dict[str, DeploymentGroupLine] = {}
    gates: tuple[GateLine, ...] = ()
    #: an operator lets it continue regardless of its gates.
    ignores_gates: bool = False
    create_seq: int = 0
    modify_seq: int = 0
    #: `key` as text where it exceeds 2^53; else empty.
    key_text: str = ""


class DeploymentWait(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """Why a group of an active deployment does not continue at once.

    `why`: health (allocations have none yet), unhealthy, promotion, paused, held (by a gate or a rollout), rollout
    (its healthy canaries are promoted together with those of other jobs), place (there is none), predecessor (its next
    allocations have room when the old ones have ended), or schedule (they are about to be placed).
    """

    group: str
    why: str = "health"
    #: the same for people.
    reason: str = ""
    #: names of the allocations that it waits for, at most 10.
    allocations: tuple[str, ...] = ()
    #: log time of the last progress, or when the first hold or the pause began; 0: not known.
    since_ns: int = 0
    #: `since_ns` as text where it exceeds 2^53; else empty.
    since_ns_text: str = ""


class InstanceShown(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One instance of a pool, in 1/10,000. Gone (`present` false) it is shown while something runs on it.

    An unhealthy one is shown, and not `present`.
    """

    id: str = ""
    vendor: str = ""
    model: str = ""
    group: int = 0
    present: bool = True
    used: int = 0
    #: why nothing new is placed on it.
    unhealthy: str = ""


class PoolShown(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A pool of a node or of the cluster, in 1/10,000. `kind`: sum, indexed or cluster-wide.

    `excess`: what is used beyond what there is, after there was less; what runs continues.
    """

    kind: str = "sum"
    capacity: int = 0
    used: int = 0
    free: int = 0
    excess: int = 0
    instances: tuple[InstanceShown, ...] = ()


class NodeSummary(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """`view.node.<id>` and a row of `node status`. Units: MHz, MiB."""

    cluster_id: str = ""
    seq: int = 0
    id: str
    name: str = ""
    datacenter: str = ""
    pool: str = ""
    node_class: str = msgspec.field(name="class", default="")
    status: str = ""
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
    incarnation: int | msgspec.UnsetType = msgspec.UNSET
    #: `drain_deadline_ns` as text where it exceeds 2^53; else empty.
    drain_deadline_ns_text: str = ""


class AllocSummary(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """One allocation as status commands show it. `id` is the shown id; `node` the node's id."""

    id: str
    key: int
    job_id: str = ""
    group: str = ""
    index: int = 0
    name: str = ""
    node: str = ""
    desired_status: str = ""
    client_status: str = ""
    version: int = 0
    create_seq: int = 0
    modify_seq: int = 0
    previous: str = ""
    #: task name -> TaskState as JSON; `tasks` of `query.alloc` has their times as text, too.
    tasks: msgspec.Raw = msgspec.Raw(b"{}")
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
    #: `key` as text where it exceeds 2^53; else empty.
    key_text: str = ""
    #: `event_ns` as text where it exceeds 2^53; else empty.
    event_ns_text: str = ""


class EvalSummary(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """One evaluation as status commands show it."""

    id: str
    key: int
    job_id: str = ""
    status: str = ""
    priority: int = 50
    job_type: str = msgspec.field(name="type", default="service")
    triggered_by: str = ""
    reason: str = ""
    create_seq: int = 0
    modify_seq: int = 0
    wait_until_ns: int = 0
    #: pending behind an evaluation that waits for the same resources; `waiting` says of which job.
    parked: bool = False
    #: of a blocked or parked one, by group.
    waiting: dict[str, "WaitingSummary"] = {}
    #: `key` as text where it exceeds 2^53; else empty.
    key_text: str = ""
    #: `wait_until_ns` as text where it exceeds 2^53; else empty.
    wait_until_ns_text: str = ""


class WaitingSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Why allocations of a group wait."""

    n: int = 0
    wait_class: str = msgspec.field(name="class", default="capacity")
    reasons: tuple[str, ...] = ()


class ServiceInstance(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One instance of a service: an allocation that runs, as its job declares it."""

    service: str
    #: of the node, unless the job says another one; empty: not known.
    address: str = ""
    #: 0: the service has none.
    port: int = 0
    tags: tuple[str, ...] = ()
    meta: dict[str, str] = {}
    #: of its checks, the worst: passing (also without checks), warning, pending, critical; unknown: its node is silent.
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


class ServiceProjection(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """`view.service.<name>`: where a service is, for balancers and clients; without instances it expires in an hour."""

    cluster_id: str
    seq: int
    service: str
    #: by job, group and index; at most 1000, of more the passing ones first.
    instances: tuple[ServiceInstance, ...] = ()
    #: how many there are.
    total: int = 0
    #: as in NodeProjection.
    incarnation: int = 0


class ServiceTags(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The name of a service that has an instance, with the tags of all its instances."""

    name: str
    tags: tuple[str, ...] = ()


class ServiceNamesProjection(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """`view.services`: the names of all services that have an instance. What is not among them has none."""

    cluster_id: str
    seq: int
    #: by name; at most 10,000.
    services: tuple[ServiceTags, ...] = ()
    #: how many there are.
    total: int = 0
    #: as in NodeProjection.
    incarnation: int = 0


class ServiceLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One service in one line."""

    name: str
    instances: int = 0
    passing: int = 0
    #: of all its instances.
    tags: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class Query(Wire, frozen=True, kw_only=True):
    """A request on `query.<noun>`. `min_seq`: answer only from a state at least this new (read your own writes)."""

    #: of one object; in a list the beginning of the ids or names that are listed.
    id: str = ""
    #: list filters: job, node, status.
    job_id: str = ""
    node_id: str = ""
    status: str = ""
    group: str = ""
    version: int = -1
    min_seq: int = 0
    limit: int = 1000
    offset: int = 0


class PlanQuery(Wire, frozen=True, kw_only=True):
    """A request on `query.plan`: what would registering this job do?"""

    #: the job in Nomad's JSON shape, as in JobSubmission.
    job: msgspec.Raw = msgspec.field(name="Job")
    min_seq: int = 0
    #: as in JobSubmission.
    accept_unbuilt: bool = False
    accept_unknown: bool = False
