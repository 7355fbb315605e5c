"""Policy and cluster facts: everything that changes a decision is an event."""

from schemas.base import Command, Event, Wire
from schemas.nodes import Pool

#: How nodes are scored, by name. No tuple: events carry no index into it.
ALGORITHMS = {
    "binpack": "the fullest node first",
    "spread": "the emptiest node first",
    "fragmentation": "GPUs are packed (docs/packing.md); where there are none it is binpack",
}
#: Which nodes are scored, by name.
CANDIDATES = {
    "all": "every feasible node",
    "two_choices": "two drawn for each allocation",
    "log2": "as many as Nomad's scan",
}
#: How the targets of spread blocks count, by name.
SPREAD_TARGETS = {
    "exact": "each target takes its share of the count before scores decide",
    "scored": "by scores alone, as Nomad does",
}


class Preemption(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Which job types may evict allocations of lower priority (Nomad's defaults)."""

    service: bool = False
    batch: bool = False
    system: bool = True
    sysbatch: bool = False


class RemoteDriver(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A driver whose tasks run elsewhere: they take of `<driver>.cpu` (MHz) and `<driver>.memory` (MiB).

    On the node that keeps track each task takes only these.
    """

    cpu_mhz: int = 10
    memory_mib: int = 16


class Policy(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """How the cluster schedules and forgets. Its hash is named by every plan made under it.

    Always written out whole: a default that a later release changes must not change an old log.
    """

    #: binpack, spread or fragmentation.
    algorithm: str = "binpack"
    anti_affinity: bool = True
    #: node pool -> algorithm for jobs in it; a job's own choice goes first.
    pool_algorithms: dict[str, str] = {}
    #: which nodes are scored: all, two_choices (two drawn for each allocation) or log2 (Nomad's scan).
    candidates: str = "all"
    preemption: Preemption = Preemption()
    #: waiting items that may hold nodes back for themselves at the same time.
    reservations_max: int = 8
    #: by driver name; what registers later is compiled with them.
    remote_drivers: dict[str, RemoteDriver] = {}
    #: log time after which terminal entities may be collected.
    submission_keep_ns: int = 3_600_000_000_000
    evaluation_keep_ns: int = 3_600_000_000_000
    allocation_keep_ns: int = 3_600_000_000_000
    job_keep_ns: int = 14_400_000_000_000
    node_keep_ns: int = 86_400_000_000_000
    #: and how many terminal ones of a kind are kept at the most, regardless of their age.
    terminal_keep_max: int = 100_000
    #: times an evaluation is handed out before it fails.
    delivery_limit: int = 20
    #: heartbeats, one a second, that a node may miss in a row before it is down.
    heartbeats_missed: int = 3
    #: how the targets of spread blocks count: exact (each takes its share of the count, then scores decide) or scored
    #: (by scores alone, as Nomad does).
    spread_targets: str = "exact"


class ClusterCreated(Event, frozen=True, kw_only=True, tag="cluster.created"):
    """The first fact of every log."""

    cluster_id: str
    policy: Policy = Policy()
    #: raised by an operator before the applier may emit newer event types.
    log_level: int = 1
    #: the start of the bus that the log was created on; empty: not known.
    bus: str = ""


class PolicyChanged(Event, frozen=True, kw_only=True, tag="policy.changed"):
    """An operator changed the policy."""

    policy: Policy


class LogRolled(Event, frozen=True, kw_only=True, tag="log.rolled"):
    """The log continues in another stream behind this record. The only event of a record of kind `roll`."""

    #: number of the generation that continues.
    generation: int


class IncarnationBegan(Event, frozen=True, kw_only=True, tag="log.incarnation_began"):
    """The log may have been restored from an older copy: ids made from here on are new, so none repeats a lost one.

    The only event of its transaction. Keys are made of `seq + incarnation`, which is a time in milliseconds and rises.
    """

    incarnation: int
    #: the start of the bus under which it began; empty: not known.
    bus: str = ""
    reason: str = ""
    #: the highest seq that a node has seen of a history that is not in this log; 0: none.
    lost_seq: int = 0


class LossAccepted(Event, frozen=True, kw_only=True, tag="log.loss_accepted"):
    """An operator accepted that records at the beginning of the log are lost; the log continues from a snapshot."""

    #: the first record that is left.
    first_seq: int
    reason: str


class OperatorRefused(Event, frozen=True, kw_only=True, tag="operator.refused"):
    """An operator's request was refused against the state."""

    request_id: str
    code: str
    reason: str


# ---- commands (cmd.operator) ----


class SetPolicy(Command, frozen=True, kw_only=True, tag="set_policy"):
    """Change the policy. Natural key: the policy itself."""

    request_id: str
    policy: Policy
    #: log seq that its sender had seen: it is late if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class SetEligibility(Command, frozen=True, kw_only=True, tag="set_eligibility"):
    """Allow or forbid new allocations on a node. Natural key: (node, its eligibility now)."""

    request_id: str
    node_id: str
    eligible: bool
    #: log seq that its sender had seen: it is late if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class DeclarePool(Command, frozen=True, kw_only=True, tag="declare_pool"):
    """Say what a node or the cluster offers. Natural key: (node, name, its declaration now)."""

    request_id: str
    node_id: str
    pool: Pool
    #: log seq that its sender had seen: it is late if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class StopAllocation(Command, frozen=True, kw_only=True, tag="stop_allocation"):
    """Stop an allocation, and replace it as its job wants. Natural key: the allocation, whether it is to go already."""

    request_id: str
    alloc_key: int


class DrainNode(Command, frozen=True, kw_only=True, tag="drain_node"):
    """Empty a node, or stop doing so. Natural key: (node, its drain and deadline now)."""

    request_id: str
    node_id: str
    draining: bool
    #: log time; 0: none.
    deadline_ns: int = 0
    #: log seq that its sender had seen: it is late if what it is about changed since; 0: not compared.
    seen_seq: int = 0
    #: allocations of system jobs stay.
    ignore_system: bool = False
    #: of an end: the node takes nothing new.
    keep_ineligible: bool = False
    message: str = ""


class SetNodeMeta(Command, frozen=True, kw_only=True, tag="set_node_meta"):
    """Change what an operator says about a node. Natural key: (node, key, its value now)."""

    request_id: str
    node_id: str
    #: null takes a key out, the agent's own too.
    change: dict[str, str | None]
    #: log seq that its sender had seen: it is late if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class ConfirmDeath(Command, frozen=True, kw_only=True, tag="confirm_death"):
    """Confirm that nothing runs on a node that is out of reach. Natural key: the node, until it is heard of again."""

    request_id: str
    node_id: str
    #: log seq that its sender had seen: it is late if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class BeginIncarnation(Command, frozen=True, kw_only=True, tag="begin_incarnation"):
    """A node has seen more than the log holds. Natural key: (incarnation, seq), unless the log has got there.

    Sent by the heartbeat monitor; the applier compares with its own state.
    """

    node_id: str
    incarnation: int
    seq: int


class RollLog(Command, frozen=True, kw_only=True, tag="roll_log"):
    """End a generation of the log. Natural key: the generation to end."""

    request_id: str
    generation: int


class AcceptLoss(Command, frozen=True, kw_only=True, tag="accept_loss"):
    """Record that the beginning of the log is lost. Natural key: none needed, saying it again changes nothing."""

    request_id: str
    #: the first record that is left.
    first_seq: int
    reason: str


class CollectGarbage(Command, frozen=True, kw_only=True, tag="collect_garbage"):
    """Collect everything terminal now, regardless of its age. Natural key: none needed, it only removes what ended."""

    request_id: str
