"""Answers of `query.<noun>` about jobs, their versions and plans of them; see answers.py."""

import msgspec

from schemas.answers import QueryAnswer
from schemas.base import ExactWire, Wire
from schemas.job_versions import VersionLine
from schemas.jobs import ParameterizedBlock
from schemas.projections import AllocSummary, EvalSummary, GroupSummary, Rollout


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
    #: status of its Rollout.
    rollout_status: str = ""
    #: the job that made it; empty: it was submitted.
    parent: str = ""
    #: periodic or parameterized: it runs nothing itself, other jobs are made of it; empty: it runs.
    pattern: str = ""


class WaitingLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Allocations of a group that found no place, and the blocked evaluation that waits for one."""

    group: str
    n: int
    wait_class: str = msgspec.field(name="class", default="capacity")
    reasons: tuple[str, ...] = ()
    eval_id: str = ""
    #: seq at which class and reasons were decided; 0: not decided, the job is parked behind another.
    decided_seq: int = 0


class LaunchLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """A child that was launched. `at_ns`: the planned instant, ns since 1970; of a forced one that of the request."""

    at_ns: int
    child_id: str
    forced: bool = False
    #: `at_ns` as text where it exceeds 2^53; else empty.
    at_ns_text: str = ""


class SkipLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """Planned instants that made no child. `why`: overlap, missed (so many) or exists."""

    at_ns: int
    why: str
    missed: int = 0
    #: `at_ns` as text where it exceeds 2^53; else empty.
    at_ns_text: str = ""


class PeriodicShown(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """When the children of a job are launched; launches and skipped ones newest first, the last few."""

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
    #: `next_ns` as text where it exceeds 2^53; else empty.
    next_ns_text: str = ""


class JobsAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.jobs`."""

    jobs: tuple[JobLine, ...] = ()
    total: int = 0


class JobLink(Wire, frozen=True, omit_defaults=False):
    """A link that is shown with a job; `url` begins with http or https."""

    label: str
    url: str


class JobDescription(Wire, frozen=True, omit_defaults=False):
    """What the `ui` block of a job says about it."""

    description: str = ""
    links: tuple[JobLink, ...] = ()


class JobAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.job`. `placed`: allocations of the newest version that should run, or ran to completion, by group."""

    job: JobLine
    groups: dict[str, GroupSummary] = {}
    placed: dict[str, int] = {}
    allocations: tuple[AllocSummary, ...] = ()
    allocations_total: int = 0
    waiting: tuple[WaitingLine, ...] = ()
    evaluations: tuple[EvalSummary, ...] = ()
    rollout: Rollout = Rollout()
    #: JSON paths of what the job asks for and does not get, because it was accepted without.
    unbuilt: tuple[str, ...] = ()
    #: null: the job has no `ui` block.
    ui: JobDescription | None = None
    #: null: the job is not periodic.
    periodic: PeriodicShown | None = None
    #: null: the job is not dispatched.
    parameterized: ParameterizedBlock | None = None
    children: tuple[JobLine, ...] = ()
    #: of `children`, which are those launched or dispatched from it that are still known, newest first.
    children_total: int = 0


class JobVersionAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.job_version`: the canonical text of one version."""

    job_id: str
    version: int
    spec: msgspec.Raw
    #: base64: what the job was dispatched with.
    payload: bytes = b""
    #: the job that launched or dispatched it; empty: it was submitted.
    parent: str = ""


class JobVersionsAnswer(QueryAnswer, frozen=True, kw_only=True):
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


class GroupPlan(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
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
    #: of a rollout: canaries first, then steps of `max_parallel` (0: all at once); health takes `min_healthy_time_ns`.
    canaries: int = 0
    max_parallel: int = 0
    steps: int = 0
    min_healthy_time_ns: int = 0
    #: `min_healthy_time_ns` as text where it exceeds 2^53; else empty.
    min_healthy_time_ns_text: str = ""


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


class PlanAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.plan`: what registering a job would do. Nothing is kept."""

    job_id: str
    version: int = 0
    #: the check-and-set index to submit with.
    modify_index: int = 0
    #: whether anything would change.
    changes: bool = False
    #: whether allocations would be created or stopped; not by an update in place, nor by what continues waiting.
    touches_allocations: bool = False
    diff: tuple[FieldChange, ...] = ()
    groups: dict[str, GroupPlan] = {}
    nodes: tuple[NodePlan, ...] = ()
    #: allocations of others that would be evicted for it.
    victims: tuple[VictimLine, ...] = ()
    unplaced: dict[str, UnplacedLine] = {}
    #: what the deployment would wait for first, and again whenever it is so: gates and windows, in words.
    gates: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
