"""The fields of a scenario file, with their defaults. Durations are texts like `90s` or `2h`; units are MHz and MiB."""

import msgspec

from shared.fleet.profile import DurationField, NodeClass, NodeFailures, RunProfile, StartProfile
from shared.sim.engine.service_times import ServiceTimes


class DrawnNumber(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number drawn for each job: one of the two fields."""

    #: lower and upper bound, uniform.
    between: tuple[int, int] | None = None
    #: value -> weight.
    choice: dict[str, int] = {}


NumberOrDraw = int | DrawnNumber


class DeviceAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one type for each allocation."""

    #: below 1: a share of one instance.
    count: float = 1
    vendor: str = ""
    model: str = ""


class ScenarioConstraint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constraint, with Nomad's fields."""

    attribute: str
    operator: str = "="
    value: str = ""


class JobTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job template: a job file, or these fields. Each number may be drawn."""

    #: a job file; then only `runs` applies beside it.
    file: str = ""
    type: str = "batch"
    priority: NumberOrDraw = 50
    pool: str = "default"
    datacenters: tuple[str, ...] = ("*",)
    count: NumberOrDraw = 1
    cpu_mhz: NumberOrDraw = 100
    memory_mib: NumberOrDraw = 64
    disk_mib: NumberOrDraw = 0
    #: device type -> count.
    devices: dict[str, DeviceAsk] = {}
    constraints: tuple[ScenarioConstraint, ...] = ()
    #: all-or-nothing placement.
    all_at_once: bool = False
    #: run time, drawn for each allocation; empty: by `runs` of the scenario.
    runs: DurationField = ""
    exit_code: int = 0


class TraceSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs of a recorded cluster: one of openb, swf and log."""

    #: a pod list of openb (Alibaba's cluster-trace-gpu-v2023), CSV.
    openb: str = ""
    #: a workload in the Standard Workload Format.
    swf: str = ""
    #: an exported log (caravan log export): its submissions, at their intervals.
    log: str = ""
    #: factor of arrival speed; run times are unchanged.
    speed: float = 1.0
    #: factor by which run times are shortened.
    shorter: float = 1.0
    #: jobs skipped at the beginning; time starts with the next.
    skip: int = 0
    #: the most jobs used; 0: all.
    first: int = 0
    #: MHz per processor of SWF, which has no such field.
    cpu_mhz: int = 1000
    #: MiB per processor of SWF where it is missing.
    memory_mib: int = 512


class ScenarioArrivals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arriving jobs, with ids `<name>-<number>`; waits are reported by name. Once, unless a rate is set."""

    name: str
    job: JobTemplate | None = None
    trace: TraceSource | None = None
    #: first and last time of arrivals; empty: the end of the scenario.
    at: str = "0s"
    until: str = ""
    #: interval of arrivals.
    every: str = ""
    #: arrivals per hour on average (Poisson).
    per_hour: float = 0.0
    #: arrivals in all, uniform over the time.
    uniform: int = 0
    #: jobs per arrival.
    burst: int = 1
    #: the most jobs; 0: no limit.
    most: int = 0


class ScenarioNodes(NodeClass, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of equal nodes, or, with `openb`, the nodes of a list."""

    #: a node list of openb, CSV; of this class, then only name, datacenter, pool, disk, attributes and meta count.
    openb: str = ""
    #: every n-th node of the list.
    every: int = 1


class RecordedCluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded cluster as the initial state: nodes, jobs and allocations."""

    #: folder of an export.
    export: str
    #: seq; 0: its end.
    seq: int = 0


class NodeSelection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A choice of nodes: by name, or a count or share of a class."""

    nodes: tuple[str, ...] = ()
    #: class name: the prefix of its nodes' names.
    of: str = ""
    count: int = 0
    share: float = 0.0


class ScenarioFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of the cluster at a moment: exactly one kind."""

    at: str
    #: interval of repetition; empty: once.
    every: str = ""
    times: int = 0
    #: nodes die.
    lose: NodeSelection | None = None
    #: nodes are cut off; their allocations run on.
    cut_off: NodeSelection | None = None
    #: an operator drains nodes.
    drain: NodeSelection | None = None
    #: nodes are reclaimed after a warning: drained, then removed.
    reclaim: NodeSelection | None = None
    #: an operator stops every job with this prefix of its id.
    stop: str = ""
    #: changed fields of the policy.
    policy: dict[str, object] = {}
    #: of lose, cut_off and reclaim: time until the nodes return; of drain: until it ends; empty: never.
    back_after: str = ""
    #: of reclaim and drain: time until remaining allocations are stopped.
    warning: str = "2m"


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scenario file."""

    name: str = ""
    about: str = ""
    seed: int = 1
    duration: str = "1h"
    #: the longest run after the last arrival, until all work that ends has ended.
    settle: str = "0s"
    schedulers: int = 1
    #: fields of the policy; others have their defaults.
    policy: dict[str, object] = {}
    times: ServiceTimes = ServiceTimes()
    nodes: tuple[ScenarioNodes, ...] = ()
    cluster: RecordedCluster | None = None
    starts: StartProfile = StartProfile(after="1s")
    runs: tuple[RunProfile, ...] = ()
    stops: DurationField = "1s"
    failures: NodeFailures = NodeFailures()
    #: jobs placed and started before the scenario begins.
    before: tuple[ScenarioArrivals, ...] = ()
    arrivals: tuple[ScenarioArrivals, ...] = ()
    faults: tuple[ScenarioFault, ...] = ()
