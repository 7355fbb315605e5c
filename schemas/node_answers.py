"""Answers of `query.<noun>` about nodes, what runs on them, and their resources; see answers.py."""

from schemas.answers import QueryAnswer
from schemas.base import ExactWire, Wire
from schemas.nodes import Pool
from schemas.projections import AllocSummary, NodeSummary, PoolShown


class NodesAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.nodes`."""

    nodes: tuple[NodeSummary, ...] = ()
    total: int = 0


class PortLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A port in use on a node, and the allocation that holds it."""

    port: int
    allocation: str = ""
    #: named by its job, not picked by the cluster.
    static: bool = False


class DrainWait(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Allocations of one group that a draining node still runs."""

    job_id: str
    group: str
    allocations: int = 0
    #: what they wait for before they leave.
    why: str = ""
    #: their names, at most 10.
    names: tuple[str, ...] = ()


class DrainShown(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
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
    #: `deadline_ns` as text where it exceeds 2^53; else empty.
    deadline_ns_text: str = ""
    #: `started_ns` as text where it exceeds 2^53; else empty.
    started_ns_text: str = ""


class DrainEnded(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A drain that is complete: the node takes nothing new until an operator changes that."""

    #: the deadline came before the last allocation had ended.
    deadline_reached: bool = False
    #: the node took nothing new before the drain, either.
    closed: bool = False


class NodeAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.node`: one node in `nodes`, with what runs on it."""

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


class AllocsAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.allocs`."""

    allocations: tuple[AllocSummary, ...] = ()
    total: int = 0


class TaskEventShown(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """One line of a task's life; `t_ns` is its agent's clock."""

    kind: str = ""
    message: str = ""
    t_ns: int = 0
    #: `t_ns` as text where it exceeds 2^53; else empty.
    t_ns_text: str = ""


class TaskShown(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One task as its agent last reported it. `state`: pending, running or dead."""

    state: str = "pending"
    failed: bool = False
    restarts: int = 0
    exit_code: int | None = None
    signal: int = 0
    pid: int = 0
    events: tuple[TaskEventShown, ...] = ()
    #: checks of its services: name -> pending, passing, warning or critical.
    checks: dict[str, str] = {}


class PartLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """What an allocation holds of a pool, in 1/10,000. `instance`: which one; empty: of a sum."""

    pool: str
    instance: str = ""
    amount: int = 0


class AllocAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.alloc`. `why`: in one sentence, why it is as it is."""

    allocation: AllocSummary
    #: label -> port of its node.
    ports: dict[str, int] = {}
    resources: tuple[PartLine, ...] = ()
    #: which of its group's alternatives it got, the first is 0.
    variant: int = 0
    tasks: dict[str, TaskShown] = {}
    why: str = ""


class DeclaredLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """What an operator declared. `node`: empty for the cluster as a whole."""

    node: str = ""
    pool: Pool


class PoolLine(PoolShown, frozen=True, kw_only=True):
    """A pool over all nodes; `nodes`: how many offer it. Instances are shown with their nodes."""

    name: str
    nodes: int = 0


class ResourcesAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.resources`: every pool that is offered or held anywhere, and what operators declared of it."""

    pools: tuple[PoolLine, ...] = ()
    declared: tuple[DeclaredLine, ...] = ()
    total: int = 0
