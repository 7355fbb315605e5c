"""Answers of `query.<noun>` about evaluations, what waits, and why a node was chosen; see answers.py."""

import msgspec

from schemas.answers import QueryAnswer
from schemas.base import ExactWire, Wire
from schemas.projections import EvalSummary


class Decision(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
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
    #: `seed` as text where it exceeds 2^53; else empty.
    seed_text: str = ""


class FilterCount(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A condition, and how many nodes it is the first to refuse, also by node class."""

    name: str
    refused: int = 0
    by_class: dict[str, int] = {}


class Exhausted(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A dimension, and how many nodes that no filter refuses lack it; one node may count in several."""

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


class EvictionChoice(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A set of victims on a node. Sets are compared by highest priority, then `priority_sum`, then `work_lost`."""

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


class QueuedWait(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """What the queue holds of a group that waits, as it was decided last."""

    #: seq of the decision; 0: not decided, the job is parked behind another that waits for the same.
    decided_seq: int = 0
    n: int = 0
    wait_class: str = msgspec.field(name="class", default="capacity")
    reasons: tuple[str, ...] = ()


class WhyAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`caravan why`, `query.why_not`: which nodes were looked at for an allocation, and what spoke for and against.

    All of `why_not` is of the state at `seq`, but for `queue`.
    """

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
    #: constraints, what is too small even empty, what closes nodes to new allocations, rules of the job's other
    #: allocations, and last what reserves nodes with room for a job ahead. Each node is counted once, as in `reasons`:
    #: nodes_considered is the sum of all refused, of `lacking` and of `fitting`.
    filters: tuple[FilterCount, ...] = ()
    exhausted: tuple[Exhausted, ...] = ()
    nearest: tuple[Nearest, ...] = ()
    #: best first; the node that was chosen or asked about is among them.
    top: tuple[Scored, ...] = ()
    #: of `why`: allocations that were evicted for it.
    victims: tuple[str, ...] = ()
    #: why one more finds no room at this moment; empty: there is, or was, room.
    wait_class: str = msgspec.field(name="class", default="")
    reasons: tuple[str, ...] = ()
    text: str = ""
    #: nodes that no filter refuses and that lack room.
    lacking: int = 0
    #: of what evicts: what the victims cost, and the cheapest other choices, at most three.
    eviction: EvictionChoice | None = None
    alternatives: tuple[EvictionChoice, ...] = ()
    #: of `why_not`: the last decision about the group, of its own moment; null: it does not wait.
    queue: QueuedWait | None = None


class EvalsAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.evals`, newest first."""

    evaluations: tuple[EvalSummary, ...] = ()
    total: int = 0


class QueueLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """One group that waits.

    `class`: misconfigured, never_fits, capacity, priority (behind another that waits for the same, or more important
    jobs have its room), reservation (room is there, on nodes held back), predecessor (its own old allocations are to
    end first; their room is kept for it), quota, gang or node_boot.
    """

    #: 1 is next, in its node pool; 0: it is in no queue, because no node could hold it.
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
    #: `since_ns` as text where it exceeds 2^53; else empty.
    since_ns_text: str = ""
    #: seq at which class and reasons were decided; 0: not decided, the job is parked behind another.
    decided_seq: int = 0


class WaitingAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.waiting`: what waits for a place, the next one first."""

    waiting: tuple[QueueLine, ...] = ()
    total: int = 0


class EvalAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.eval`; `follow_ups` are the evaluations that came out of it."""

    evaluation: EvalSummary
    follow_ups: tuple[EvalSummary, ...] = ()
