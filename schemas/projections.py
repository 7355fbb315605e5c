"""Projections: last values of the state, published by `view` (`node.<id>`, `view.*`), and the answers of `query.*`.

Every one carries `(cluster_id, seq)`; a lower seq never replaces a higher one. What status commands show holds all its
fields, those with their default value too: a reader in a shell finds every key. Next: `answers.py`.
"""

import msgspec

from schemas.base import Wire


class GroupRef(Wire, frozen=True, array_like=True):
    """A task group of a job version, as an array of three: job, version, name of the group."""

    job_id: str
    version: int
    group: str


class DesiredExtra(Wire, frozen=True, kw_only=True):
    """What few allocations have: beside the columns."""

    #: position of the allocation, counted from 0.
    at: int
    #: ports that the cluster picked, in the order of the job's labels; static ones stand in the job.
    ports: tuple[int, ...] = ()
    #: pool -> ids of the instances that it holds.
    instances: dict[str, tuple[str, ...]] = {}
    #: which of the group's alternatives it takes.
    variant: int = 0
    #: key of the allocation that it replaces; 0: none.
    previous: int = 0


class NodeProjection(Wire, frozen=True, kw_only=True):
    """`node.<id>`: the whole desired set of one node. What it omits shall not run.

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
    #: task groups that `groups_at` points into; one may stand here more than once.
    groups: tuple[GroupRef, ...] = ()
    keys: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    groups_at: tuple[int, ...] = ()
    #: numbers in the names `job.group[index]`.
    indexes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    #: positions of those that shall stop, ascending; all others shall run.
    stops: tuple[int, ...] = ()
    #: positions of those that shall stop before anything new starts, ascending.
    evicts: tuple[int, ...] = ()
    #: by position, ascending.
    extras: tuple[DesiredExtra, ...] = ()
    #: a refusal of the last registration under this id, for the agent's log.
    refused: str = ""
    #: what an operator says of the node, laid over what its agent says; null takes a key out.
    operator_meta: dict[str, str | None] = {}


class JobProjection(Wire, frozen=True, kw_only=True):
    """`view.job.<id>`: a job in numbers, for whoever follows it."""

    cluster_id: str
    seq: int
    job_id: str
    version: int = 0
    #: pending, running or dead.
    status: str = "pending"
    stopped: bool = False
    modify_index: int = 0
    groups: dict[str, "GroupSummary"] = {}


class GroupSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Counts of one group's allocations by client status; `desired` is the job's count."""

    desired: int = 0
    pending: int = 0
    running: int = 0
    complete: int = 0
    failed: int = 0
    lost: int = 0
    unknown: int = 0


class InstanceShown(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One instance of a pool, in 1/10,000. Gone (`present` false) it is shown while something runs on it."""

    id: str = ""
    vendor: str = ""
    model: str = ""
    group: int = 0
    present: bool = True
    used: int = 0


class PoolShown(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A pool of a node or of the cluster, in 1/10,000. `kind`: sum, indexed or cluster-wide.

    `excess`: what is used beyond what there is, after there was less; what runs goes on.
    """

    kind: str = "sum"
    capacity: int = 0
    used: int = 0
    free: int = 0
    excess: int = 0
    instances: tuple[InstanceShown, ...] = ()


class NodeSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
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


class AllocSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
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
    #: task name -> TaskState as JSON.
    tasks: msgspec.Raw = msgspec.Raw(b"{}")


class EvalSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
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
    #: pending, but nobody decides it: another that waits for the same stands before it. Told by `query.eval` only.
    parked: bool = False
    waiting: dict[str, "WaitingSummary"] = {}


class WaitingSummary(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Why allocations of a group wait."""

    n: int = 0
    wait_class: str = msgspec.field(name="class", default="capacity")
    reasons: tuple[str, ...] = ()


class Query(Wire, frozen=True, kw_only=True):
    """A request on `query.<noun>`. `min_seq`: answer only from a state at least this new (read your own writes)."""

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
