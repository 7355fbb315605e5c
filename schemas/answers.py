"""Answers of `query.<noun>`: what `view` says and status commands print. Every one carries `seq`, and all its fields.

Decides nothing. An error is `ErrorAnswer`, told apart by its `error` key. Lists are cut at the query's `limit`; `total`
tells how many there were.
"""

import msgspec

from schemas.base import Wire
from schemas.jobs import ErrorDetail, Verdict
from schemas.policy import Policy
from schemas.projections import AllocSummary, EvalSummary, GroupSummary, NodeSummary


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
    #: allocations of others that would be stopped for it.
    victims: tuple[str, ...] = ()
    unplaced: dict[str, UnplacedLine] = {}
    warnings: tuple[str, ...] = ()


class PolicyAnswer(Answer, frozen=True, kw_only=True):
    """`query.policy`: how the cluster schedules and forgets."""

    policy: Policy
    policy_hash: str = ""
    modify_index: int = 0


class NodesAnswer(Answer, frozen=True, kw_only=True):
    """`query.nodes`."""

    nodes: tuple[NodeSummary, ...] = ()
    total: int = 0


class NodeAnswer(Answer, frozen=True, kw_only=True):
    """`query.node`: one node in `nodes`, with what runs on it."""

    nodes: tuple[NodeSummary, ...]
    attributes: dict[str, str] = {}
    meta: dict[str, str] = {}
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


class AllocAnswer(Answer, frozen=True, kw_only=True):
    """`query.alloc`. `why`: in one sentence, why it is as it is."""

    allocation: AllocSummary
    tasks: dict[str, TaskShown] = {}
    why: str = ""


class EvalsAnswer(Answer, frozen=True, kw_only=True):
    """`query.evals`, newest first."""

    evaluations: tuple[EvalSummary, ...] = ()
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
