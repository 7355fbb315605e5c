"""What a scenario's file says, field by field, with its defaults.

Decides nothing: `reading.py` checks, `play.py` does. Durations are texts like `90s` or `2h`; amounts are MHz and MiB.
"""

import msgspec

from shared.fleet.profile import Failures, Lasts, NodeClass, Runs, Starts
from shared.sim.engine.times import ServiceTimes


class Draw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number drawn anew for each job: one of the two."""

    #: first and last, each as likely.
    between: tuple[int, int] | None = None
    #: value -> weight.
    choice: dict[str, int] = {}


Size = int | Draw


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one type that each allocation takes."""

    #: a part below 1 is of one instance.
    count: float = 1
    vendor: str = ""
    model: str = ""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constraint, in Nomad's words."""

    attribute: str
    operator: str = "="
    value: str = ""


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as it comes again and again: a file of its own, or these fields. Each number may be drawn."""

    #: a job file; then no other field but `runs` counts.
    file: str = ""
    type: str = "batch"
    priority: Size = 50
    pool: str = "default"
    datacenters: tuple[str, ...] = ("*",)
    count: Size = 1
    cpu_mhz: Size = 100
    memory_mib: Size = 64
    disk_mib: Size = 0
    #: device type -> how many.
    devices: dict[str, Ask] = {}
    constraints: tuple[Rule, ...] = ()
    #: nothing of it is placed unless all is.
    all_at_once: bool = False
    #: how long its allocations run, drawn for each; empty: as `runs` of the scenario say.
    runs: Lasts = ""
    exit_code: int = 0


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs of a recorded cluster: one of the three."""

    #: a pod list of openb (Alibaba's cluster-trace-gpu-v2023), CSV.
    openb: str = ""
    #: a workload in the Standard Workload Format.
    swf: str = ""
    #: an export of a log (caravan log export): its submissions, at their distances.
    log: str = ""
    #: so much faster; run times are not changed.
    speed: float = 1.0
    #: also run times.
    shorter: float = 1.0
    #: without the first so many; time begins with the next.
    skip: int = 0
    #: only so many of the rest; 0: all.
    first: int = 0
    #: of a processor in SWF, which names none.
    cpu_mhz: int = 1000
    #: of a processor in SWF where it names none.
    memory_mib: int = 512


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that come. Their ids are `<name>-<number>`; waiting is told by name. Once, unless it says how often."""

    name: str
    job: Template | None = None
    trace: Trace | None = None
    #: when the first may come, and from when on none does; empty: the end of the scenario.
    at: str = "0s"
    until: str = ""
    #: one each so long.
    every: str = ""
    #: so many an hour on average, independent of each other.
    per_hour: float = 0.0
    #: so many in all, spread over the time evenly at random.
    uniform: int = 0
    #: jobs that come together each time.
    burst: int = 1
    #: jobs at the most; 0: no bound.
    most: int = 0


class Nodes(NodeClass, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are alike, or, with `openb`, those of a node list."""

    #: a node list of openb, CSV; of this class, then only name, datacenter, pool, disk, attributes and meta count.
    openb: str = ""
    #: only every so many-th node of the list.
    every: int = 1


class Recorded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A real cluster's state to begin with: nodes, jobs, and what runs there."""

    #: folder of an export.
    export: str
    #: seq; 0: its end.
    seq: int = 0


class Whom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some nodes: those named, or of a class so many, or a share of it."""

    nodes: tuple[str, ...] = ()
    #: beginning of the node's name: that of its class.
    of: str = ""
    count: int = 0
    share: float = 0.0


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What befalls the cluster at a moment: exactly one of these."""

    at: str
    #: again and again, so long after each other; empty: once.
    every: str = ""
    times: int = 0
    #: nodes die.
    lose: Whom | None = None
    #: nodes are cut off, and what runs there goes on.
    cut_off: Whom | None = None
    #: an operator drains nodes.
    drain: Whom | None = None
    #: nodes are taken away after a warning: drained, then dead.
    reclaim: Whom | None = None
    #: an operator stops every job whose id begins so.
    stop: str = ""
    #: fields of the policy that change.
    policy: dict[str, object] = {}
    #: of lose, cut_off and reclaim: the nodes come back so long after; empty: never. Of drain: it ends.
    back_after: str = ""
    #: of reclaim and drain: time between the order and the end of what runs there.
    warning: str = "2m"


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    name: str = ""
    about: str = ""
    seed: int = 1
    duration: str = "1h"
    #: after the last arrival, until nothing waits or runs that ends, so long at the most.
    settle: str = "0s"
    schedulers: int = 1
    #: fields of the policy; the rest are its defaults.
    policy: dict[str, object] = {}
    times: ServiceTimes = ServiceTimes()
    nodes: tuple[Nodes, ...] = ()
    cluster: Recorded | None = None
    starts: Starts = Starts(after="1s")
    runs: tuple[Runs, ...] = ()
    stops: Lasts = "1s"
    failures: Failures = Failures()
    #: what runs already when the scenario begins: placed and started before its first moment.
    before: tuple[Arrivals, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    faults: tuple[Fault, ...] = ()
