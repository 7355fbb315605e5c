"""What a run of the engine is made of, and what may be scripted into it.

Decides nothing. A run is a pure function of its `Setup` and its script: the same twice write the same log, byte for
byte. Next: `times.py`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from schemas.policy import Policy
from shared.fleet.profile import Manner, Profile
from shared.sim.engine.times import ServiceTimes
from shared.sim.loop import START_NS

if TYPE_CHECKING:
    from shared.core.replica import Replica
    from shared.core.role import Record
    from shared.core.state import State
    from shared.fleet.lives import Lives

MannerOf = Callable[[str, str, str, int, Mapping[str, str]], Manner]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is there before the first scripted thing happens."""

    cluster_id: str = "simulated"
    seed: int = 1
    schedulers: int = 1
    policy: Policy = Policy()
    #: how nodes start, run and end what is placed on them.
    profile: Profile = Profile()
    #: a state to go on from, with what ran there still running; None: an empty cluster at `begin_ns`.
    start: "Replica | None" = None
    begin_ns: int = START_NS
    times: ServiceTimes = ServiceTimes()
    #: of the start: which seq was written when (Horizon.marks), so that what ended before is forgotten in time.
    marks: tuple[tuple[int, int], ...] = ()
    #: job id, type, group, index, meta -> how an allocation lives; None: as the profile says.
    manner_of: MannerOf | None = None
    #: of what runs at the start: key -> how much longer, ns; None: as if it began now.
    left_ns: Callable[[int], int | None] | None = None
    #: (seed, state) -> lives that decide by themselves how each allocation lives; None: as manners say.
    lives: "Callable[[int, Callable[[], State]], Lives] | None" = None
    #: roles that only read share one state; else each has its own, which changes nothing but the time it takes.
    shares: bool = True
    #: hears every record of the log as it is written.
    sink: "Callable[[Record], None] | None" = None
    #: reads a clock of the machine around each decision, for the report alone; nothing in the run depends on it.
    cpu_ns: Callable[[], int] | None = None
    checkpoint_every: int = 1000
    #: timers that may fire late, as every shell's may: a quiet cluster need not look for garbage each five seconds.
    garbage_late_ns: int = 600_000_000_000
    checkpoint_late_ns: int = 600_000_000_000


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A request at the fast door: `{"Job": …}` for submit, `{"JobID": …}` for the other verbs."""

    verb: str = "submit"
    body: bytes
    #: names it where the body does not.
    submission_id: str = ""


class NodeJoins(msgspec.Struct, frozen=True, kw_only=True):
    """A node registers."""

    spec: NodeSpec


class NodeFallsSilent(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is heard of a node any more. `dies`: what runs there ends unseen; else it runs on."""

    node_id: NodeId
    dies: bool = True


class NodeComesBack(msgspec.Struct, frozen=True, kw_only=True):
    """A silent node is heard again: after its death under a new boot, with nothing running."""

    node_id: NodeId


Happening = Submission | NodeJoins | NodeFallsSilent | NodeComesBack


class Stats(msgspec.Struct, kw_only=True):
    """Counts of a run. Virtual and equal each time, but for `cpu_ns`."""

    records: int = 0
    bytes: int = 0
    events: int = 0
    #: of the heap.
    happenings: int = 0
    steps: dict[str, int] = {}
    decisions: int = 0
    submissions: int = 0
    #: verdicts by code.
    refused: dict[str, int] = {}
    reports: int = 0
    dead_letters: list[str] = []
    #: measured, by role.
    cpu_ns: dict[str, int] = {}
