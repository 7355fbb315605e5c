"""Answers of `query.<noun>`: what `view` says and status commands print. Every one carries `seq`, and all its fields.

Decides nothing. An error is `ErrorAnswer`, told apart by its `error` key. Lists are cut at the query's `limit`; `total`
tells how many there were.
"""

import msgspec

from schemas.base import Wire
from schemas.jobs import ErrorDetail, Verdict
from schemas.nodes import Pool
from schemas.policy import Policy
from schemas.projections import AllocSummary, EvalSummary, GroupSummary, NodeSummary, PoolShown


class Answer(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all answers: `seq` is the state's, in the log of `cluster_id`."""

    seq: int
    cluster_id: str = ""


class ErrorAnswer(Wire, frozen=True, kw_only=True):
    """Why there is no answer. `code`: invalid, not_found, ambiguous or unavailable."""

    error: ErrorDetail
    seq: int = 0


class JobLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A job in one line. `status`: pending, running or dead."""

    id: str
    job_type: str = msgspec.field(name="type", default="service")
    status: str = "pending"
    stopped: bool = False
    version: int = 0
    priority: int = 50
    node_pool: str = "default"
    datacenters: tuple[str, ...] = ()
    create_index: int = 0
    modify_index: int = 0
    groups: dict[str, GroupSummary] = {}


class WaitingLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Allocations of a group that found no place, and the blocked evaluation that waits for one."""

    group: str
    n: int
    wait_class: str = msgspec.field(name="class", default="capacity")
    reasons: tuple[str, ...] = ()
    eval_id: str = ""


class JobsAnswer(Answer, frozen=True, kw_only=True):
    """`query.jobs`."""

    jobs: tuple[JobLine, ...] = ()
    total: int = 0


class JobAnswer(Answer, frozen=True, kw_only=True):
    """`query.job`. `placed`: allocations of the newest version that shall run, or ran to completion, by group."""

    job: JobLine
    groups: dict[str, GroupSummary] = {}
    placed: dict[str, int] = {}
    allocations: tuple[AllocSummary, ...] = ()
    allocations_total: int = 0
    waiting: tuple[WaitingLine, ...] = ()
    evaluations: tuple[EvalSummary, ...] = ()


class JobVersionAnswer(Answer, frozen=True, kw_only=True):
    """`query.job_version`: the canonical text of one version."""

    job_id: str
    version: int
    spec: msgspec.Raw


class VersionLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One version of a job: its canonical text and the seq of its registration."""

    version: int
    seq: int
    spec: msgspec.Raw


class JobVersionsAnswer(Answer, frozen=True, kw_only=True):
    """`query.job_versions`, newest first, as far back as texts are kept."""

    job_id: str
    versions: tuple[VersionLine, ...] = ()
    total: int = 0


class FieldChange(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One field that differs between two texts of a job. `kind`: added, removed or edited; values are JSON."""

    kind: str
    path: str
    old: msgspec.Raw = msgspec.Raw(b"null")
    new: msgspec.Raw = msgspec.Raw(b"null")


class GroupPlan(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """What a plan would do to one group, in allocations."""

    #: new ones, replacements of failed or lost ones among them.
    place: int = 0
    stop: int = 0
    #: stopped and started again under the new version.
    destructive: int = 0
    #: go on under the new version.
    in_place: int = 0
    lost: int = 0
    ignore: int = 0


class NodePlan(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Where a plan would place. `score`: of the first allocation there, in [-1, 1]."""

    node: str
    count: int = 0
    score: float = 0.0


class UnplacedLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """How many of a group would find no place, and why."""

    n: int
    wait_class: str = msgspec.field(name="class", default="capacity")
    reasons: tuple[str, ...] = ()


class VictimLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """An allocation of a less important job that would have to make room. `alloc`: its shown id."""

    alloc: str
    job: str = ""
    group: str = ""
    priority: int = 0
    node: str = ""


class PlanAnswer(Answer, frozen=True, kw_only=True):
    """`query.plan`: what registering a job would do. Nothing is kept."""

    job_id: str
    version: int = 0
    #: the check-and-set index to submit with.
    modify_index: int = 0
    #: whether anything would change.
    changes: bool = False
    diff: tuple[FieldChange, ...] = ()
    groups: dict[str, GroupPlan] = {}
    nodes: tuple[NodePlan, ...] = ()
    #: allocations of others that would be evicted for it.
    victims: tuple[VictimLine, ...] = ()
    unplaced: dict[str, UnplacedLine] = {}
    warnings: tuple[str, ...] = ()


class Decision(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Under what something was decided, or would be: enough to decide it again."""

    snapshot_seq: int
    #: hash of the policy.
    policy: str = ""
    seed: int = 0
    lane: int = 0
    lanes: int = 1
    #: who decided, in which of its plans, and where the log has it; empty: nobody yet.
    worker: str = ""
    number: int = 0
    seq: int = 0


class FilterCount(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A condition, and how many nodes it is the first to refuse, also by node class."""

    name: str
    refused: int = 0
    by_class: dict[str, int] = {}


class Exhausted(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A dimension, and how many feasible nodes have too little of it; one node may count in several."""

    dimension: str
    nodes: int = 0


class Nearest(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A node that is feasible but full, and what it lacks."""

    node: str
    shortfall: dict[str, float] = {}


class Scored(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A node with room: its score and the scorers that it is the mean of, each in [-1, 1]."""

    node: str
    score: float = 0.0
    scores: dict[str, float] = {}


class WhyAnswer(Answer, frozen=True, kw_only=True):
    """`caravan why`, `query.why_not`: which nodes were looked at for an allocation, and what spoke for and against."""

    job_id: str
    group: str
    #: of `why`: which allocation, and where it is.
    allocation: str = ""
    #: the node that was chosen, or asked about; empty: neither.
    node: str = ""
    decision: Decision
    nodes_considered: int = 0
    #: nodes that no filter refuses, and those of them with room.
    feasible: int = 0
    fitting: int = 0
    filters: tuple[FilterCount, ...] = ()
    exhausted: tuple[Exhausted, ...] = ()
    nearest: tuple[Nearest, ...] = ()
    #: best first; the node that was chosen or asked about is among them.
    top: tuple[Scored, ...] = ()
    #: of `why`: allocations that were evicted for it.
    victims: tuple[str, ...] = ()
    #: misconfigured, never_fits, capacity, …; empty: there is, or was, room.
    wait_class: str = msgspec.field(name="class", default="")
    reasons: tuple[str, ...] = ()
    text: str = ""


class PolicyAnswer(Answer, frozen=True, kw_only=True):
    """`query.policy`: how the cluster schedules and forgets."""

    policy: Policy
    policy_hash: str = ""
    modify_index: int = 0


class NodesAnswer(Answer, frozen=True, kw_only=True):
    """`query.nodes`."""

    nodes: tuple[NodeSummary, ...] = ()
    total: int = 0


class PortLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A port in use on a node, and the allocation that holds it."""

    port: int
    allocation: str = ""
    #: named by its job, not picked by the cluster.
    static: bool = False


class NodeAnswer(Answer, frozen=True, kw_only=True):
    """`query.node`: one node in `nodes`, with what runs on it."""

    nodes: tuple[NodeSummary, ...]
    attributes: dict[str, str] = {}
    meta: dict[str, str] = {}
    ports: tuple[PortLine, ...] = ()
    allocations: tuple[AllocSummary, ...] = ()
    allocations_total: int = 0


class AllocsAnswer(Answer, frozen=True, kw_only=True):
    """`query.allocs`."""

    allocations: tuple[AllocSummary, ...] = ()
    total: int = 0


class TaskEventShown(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One line of a task's life; `t_ns` is its agent's clock."""

    kind: str = ""
    message: str = ""
    t_ns: int = 0


class TaskShown(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One task as its agent last reported it. `state`: pending, running or dead."""

    state: str = "pending"
    failed: bool = False
    restarts: int = 0
    exit_code: int | None = None
    signal: int = 0
    pid: int = 0
    events: tuple[TaskEventShown, ...] = ()


class PartLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """What an allocation holds of a pool, in 1/10,000. `instance`: which one; empty: of a sum."""

    pool: str
    instance: str = ""
    amount: int = 0


class AllocAnswer(Answer, frozen=True, kw_only=True):
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


class ResourcesAnswer(Answer, frozen=True, kw_only=True):
    """`query.resources`: every pool that is offered or held anywhere, and what operators declared of it."""

    pools: tuple[PoolLine, ...] = ()
    declared: tuple[DeclaredLine, ...] = ()
    total: int = 0


class EvalsAnswer(Answer, frozen=True, kw_only=True):
    """`query.evals`, newest first."""

    evaluations: tuple[EvalSummary, ...] = ()
    total: int = 0


class QueueLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One group that waits.

    `class`: misconfigured, never_fits, capacity, priority (behind another that waits for the same, or more important
    jobs have its room), reservation (room is there, on nodes held back), quota, gang or node_boot.
    """

    #: 1 is next, in its node pool; 0: it stands in no line, because nothing there is could hold it.
    position: int
    job: str
    group: str
    #: allocations that have no place.
    n: int
    wait_class: str = msgspec.field(name="class", default="capacity")
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


class WaitingAnswer(Answer, frozen=True, kw_only=True):
    """`query.waiting`: what waits for a place, the next one first."""

    waiting: tuple[QueueLine, ...] = ()
    total: int = 0


class EvalAnswer(Answer, frozen=True, kw_only=True):
    """`query.eval`; `follow_ups` are the evaluations that came out of it."""

    evaluation: EvalSummary
    follow_ups: tuple[EvalSummary, ...] = ()


class Counts(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """How much a state holds; allocations by client status."""

    jobs: int = 0
    nodes: int = 0
    allocations: dict[str, int] = {}
    evaluations: int = 0


class ClusterAnswer(Answer, frozen=True, kw_only=True):
    """`query.cluster`; `tables` (table -> hash) only where the query's id is `hashes`. `t_ns`: log time."""

    t_ns: int = 0
    counts: Counts = Counts()
    epoch: int = 0
    holder: str = ""
    fsync: bool = False
    replicas: int = 1
    foreign: int = 0
    policy: str = ""
    tables: dict[str, str] = {}


class SubmissionAnswer(Answer, frozen=True, kw_only=True):
    """`query.submission`."""

    verdict: Verdict


class DeadLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One message that nobody could read. `id`: its place in DEAD; `at`: when it was put there, ns since 1970."""

    id: str
    subject: str = ""
    reason: str = ""
    at: int = 0
    size: int = 0


class DeadAnswer(Answer, frozen=True, kw_only=True):
    """`query.dead`, newest first."""

    messages: tuple[DeadLine, ...] = ()
    total: int = 0


ENCODER = msgspec.json.Encoder(order="deterministic")
