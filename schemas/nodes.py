"""Nodes: registration, liveness and what an agent sends about its node."""

from schemas.base import SECOND_NS, Command, Event, NodeId, Wire
from schemas.host_volumes import VolumeStatus
from schemas.remotes import RemoteTask

#: Order of `status` codes in the fleet's columns.
NODE_STATUSES = ("initializing", "ready", "down", "disconnected")


class Instance(Wire, frozen=True, kw_only=True):
    """One of a pool's instances, whole. Its `id` is its name forever: another id is another instance."""

    id: str
    #: socket, switch or whatever brings instances close together.
    group: int = 0
    #: why nothing new is placed on it; what has it runs on. Empty: it is healthy.
    unhealthy: str = ""


class Pool(Wire, frozen=True, kw_only=True):
    """What a node offers under one name: a sum, or instances. Several entries of one name differ in model.

    `name`: `device.<type>`, `cores`, or a custom resource's own. A name is a sum or indexed, on every node the same.
    """

    name: str
    #: of a sum, in 1/10,000; unused where there are instances.
    amount: int = 0
    instances: tuple[Instance, ...] = ()
    vendor: str = ""
    model: str = ""
    attributes: dict[str, str] = {}


class NodeSpec(Wire, frozen=True, kw_only=True):
    """What an agent's fingerprint says. Units: MHz and MiB that allocations may use (reserved already subtracted)."""

    node_id: NodeId
    name: str = ""
    datacenter: str = "dc1"
    node_pool: str = "default"
    node_class: str = ""
    cpu_mhz: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    #: of one core, what a reserved one takes of `cpu_mhz`; 0: cores cannot be reserved.
    core_mhz: int = 0
    #: devices, cores and custom resources, by name.
    pools: tuple[Pool, ...] = ()
    #: first and last of the ports that the cluster may pick, and ports that are excluded.
    port_min: int = 20_000
    port_max: int = 32_000
    reserved_ports: tuple[int, ...] = ()
    #: sorted by key; drivers appear as `driver.<name>` = "1".
    attributes: dict[str, str] = {}
    meta: dict[str, str] = {}


class NodeRegistered(Event, frozen=True, kw_only=True, tag="node.registered"):
    """A node joined, came back after a restart, or its fingerprint changed. The lowest free row is its place."""

    spec: NodeSpec
    #: drawn once by the agent's data directory; another host under the same node id is refused.
    host_id: str
    #: new at every boot of the machine or of the agent's journal; reports are numbered within it.
    boot_id: str
    number: int = 0
    #: the node followed a history that is not in this log, which was restored from an older copy: the first and the
    #: last record that are lost; 0: nothing is.
    lost_first_seq: int = 0
    lost_seq: int = 0


class NodeRefused(Event, frozen=True, kw_only=True, tag="node.refused"):
    """A registration was refused: another host owns the id, or a number is out of range."""

    node_id: NodeId
    host_id: str
    boot_id: str
    code: str
    reason: str


class NodesStatusChanged(Event, frozen=True, kw_only=True, tag="nodes.status_changed"):
    """Liveness changed for the nodes in these rows."""

    rows: tuple[int, ...]
    #: one of NODE_STATUSES.
    status: str
    reason: str = ""
    #: of disconnected ones: log time from which `lost_after` of their allocations counts.
    since_ns: int = 0


class NodeEligibilityChanged(Event, frozen=True, kw_only=True, tag="node.eligibility_changed"):
    """An operator allowed or forbade new allocations on a node."""

    row: int
    eligible: bool


class NodeDrainChanged(Event, frozen=True, kw_only=True, tag="node.drain_changed"):
    """An operator empties a node, or stops doing so: then it may take new allocations again."""

    row: int
    #: true: it takes nothing new either.
    draining: bool
    #: log time from which what runs there is stopped, and replaced elsewhere; 0: never.
    deadline_ns: int = 0
    #: allocations of system jobs stay.
    ignore_system: bool = False
    #: of an end: the node takes nothing new.
    keep_ineligible: bool = False
    #: log time at which the drain began; later changes of it do not count.
    started_ns: int = 0
    #: what the operator says of it.
    message: str = ""
    #: the node took nothing new before the drain began either: nor does it when the drain ends.
    closed: bool = False


class NodeDrained(Event, frozen=True, kw_only=True, tag="node.drained"):
    """The last allocation of a draining node ended: the drain is over. The node still takes nothing new."""

    row: int
    #: the deadline came before.
    deadline_reached: bool = False


class NodeMetaChanged(Event, frozen=True, kw_only=True, tag="node.meta_changed"):
    """An operator changed a node's meta: `meta` is all that he says of it now, laid over what its agent says."""

    node_id: NodeId
    #: null: what the agent says under this key does not count.
    meta: dict[str, str | None]


class NodeConfirmedDead(Event, frozen=True, kw_only=True, tag="node.confirmed_dead"):
    """An operator said that nothing of a node that is out of reach runs any more, until it is heard of again."""

    row: int


class PoolDeclared(Event, frozen=True, kw_only=True, tag="pool.declared"):
    """An operator said what a node, or with an empty `node_id` the whole cluster, offers. Nothing in it: no more."""

    node_id: str
    pool: Pool


class NodesCollected(Event, frozen=True, kw_only=True, tag="nodes.collected"):
    """Nodes down for long, without allocations, left the state; their rows are free."""

    rows: tuple[int, ...]


class CapacityFreed(Event, frozen=True, kw_only=True, tag="capacity.freed"):
    """Room appeared on nodes of these computed classes; blocked evaluations that may use it can be woken."""

    classes: tuple[int, ...]
    #: no node where it appeared has more free than this, MHz, MiB memory and MiB disk; empty: not known.
    room: tuple[int, ...] = ()
    #: a node came or offers more, so that what no node was large enough for may fit now.
    grown: bool = False


# ---- commands (cmd.liveness, cmd.report.<node>) ----


class ChangeLiveness(Command, frozen=True, kw_only=True, tag="change_liveness"):
    """The heartbeat monitor saw nodes fall silent or come back. Natural key: (node, its status now).

    A node that registered after `seen_seq` is left alone.
    """

    node_ids: tuple[NodeId, ...]
    status: str
    reason: str = ""
    seen_seq: int = 0


class TaskState(Wire, frozen=True, kw_only=True):
    """One task as its agent sees it. `state`: pending, running or dead."""

    state: str
    failed: bool = False
    restarts: int = 0
    exit_code: int | None = None
    signal: int = 0
    pid: int = 0
    #: newest last, at most ten.
    events: tuple["TaskEvent", ...] = ()
    #: checks of its services, those of the group with the first main task:
    #: name -> pending, passing, warning or critical.
    checks: dict[str, str] = {}


class TaskEvent(Wire, frozen=True, kw_only=True):
    """One line of a task's life. `t_ns` is the agent's own clock and only explains."""

    kind: str
    message: str = ""
    t_ns: int = 0


class AllocReport(Wire, frozen=True, kw_only=True):
    """The state of one allocation, named by its key and its row (the applier checks that they agree)."""

    key: int
    row: int
    #: a client status: pending, running, complete, failed.
    status: str
    tasks: dict[str, TaskState] = {}
    #: index into HEALTHS; 0: nothing is known, or nothing is new.
    health: int = 0
    #: why it is unhealthy, at most 200 characters.
    health_reason: str = ""
    #: version of the job that the health is about: of another one it does not count. -1: not said.
    health_version: int = -1
    #: what runs elsewhere for its tasks; of a task that is not started yet the start that follows.
    remotes: dict[str, RemoteTask] = {}


class BriefStates(Wire, frozen=True, kw_only=True):
    """States of allocations of whose tasks there is nothing to tell, as columns. Shapes: keys, rows (A,)."""

    keys: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    #: runs: index into CLIENT_STATUSES, how many, index, how many, …
    statuses: tuple[int, ...] = ()
    #: runs: index into HEALTHS, how many, …; empty: 0 of all.
    healths: tuple[int, ...] = ()
    #: runs: version of the job that the health is about, how many, …; empty: not said.
    health_versions: tuple[int, ...] = ()


class ReportNode(Command, frozen=True, kw_only=True, tag="report_node"):
    """All that a node has to say. Natural key: (node_id, boot_id, number); carries every state not yet seen.

    With `spec` it registers. `node_id` must be the token of the subject it came on.
    """

    node_id: NodeId
    host_id: str
    boot_id: str
    number: int
    spec: NodeSpec | None = None
    states: tuple[AllocReport, ...] = ()
    #: others, in brief: what is known of their tasks stays as it is.
    brief: BriefStates = BriefStates()
    #: with `spec`: the incarnation and seq that the node followed before the newest incarnation, until the log has
    #: seen it; 0: nothing to compare.
    followed_incarnation: int = 0
    followed_seq: int = 0
    #: what became of orders for host volumes, as far as the log has not seen it.
    volumes: tuple[VolumeStatus, ...] = ()


#: How often an agent sends a heartbeat.
HEARTBEAT_NS = SECOND_NS


class Heartbeat(Wire, frozen=True, kw_only=True):
    """`hb.<node>`, core NATS, never stored."""

    node_id: NodeId
    boot_id: str
    #: highest projection seq applied, and the incarnation of the log that it is of.
    seq: int = 0
    incarnation: int = 0
    #: the supervisor of the agent sends it while it restarts the agent, without `boot_id`: the node stays ready.
    restarting: bool = False
