"""The setup of an engine run, and the events that a script may contain.

A run is a pure function of its setup and its script: the same twice write the same log, byte for byte.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from schemas.policy import Policy
from shared.fleet.profile import FleetProfile
from shared.sim.engine.service_times import ServiceTimes
from shared.sim.virtual_time import START_NS

if TYPE_CHECKING:
    from shared.core.runtime.messages import Record
    from shared.core.runtime.replica import Replica
    from shared.core.state.state import State
    from shared.fleet.simulated_allocs import SimulatedAllocs


class EngineSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is set before the first scripted event."""

    cluster_id: str = "simulated"
    seed: int = 1
    schedulers: int = 1
    policy: Policy = Policy()
    #: how nodes start, run and end allocations, and fail.
    profile: FleetProfile = FleetProfile()
    #: a state to continue from, with its allocations running; None: an empty cluster at `begin_ns`.
    start: "Replica | None" = None
    begin_ns: int = START_NS
    times: ServiceTimes = ServiceTimes()
    #: of the start: log times of seqs (`LogTimeIndex.marks`), for garbage collection of what ended before.
    marks: tuple[tuple[int, int], ...] = ()
    #: (seed, state) -> simulated allocations with durations of their own; None: by task profiles.
    lives: "Callable[[int, Callable[[], State]], SimulatedAllocs] | None" = None
    #: roles that only read share one state; otherwise each has its own. The log is the same.
    shares: bool = True
    #: called with every record as it is written.
    sink: "Callable[[Record], None] | None" = None
    #: machine clock read around each step, for the report alone.
    cpu_ns: Callable[[], int] | None = None
    checkpoint_every: int = 1000
    #: lateness of timers (all timers may fire late): a quiet cluster need not collect garbage every five seconds.
    garbage_late_ns: int = 600_000_000_000
    checkpoint_late_ns: int = 600_000_000_000


class ScriptedSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A request to intake: `{"Job": …}` for submit, `{"JobID": …}` for the other verbs."""

    verb: str = "submit"
    body: bytes
    #: submission id, where the body has none.
    submission_id: str = ""


class NodeJoins(msgspec.Struct, frozen=True, kw_only=True):
    """A node registers."""

    spec: NodeSpec


class NodeFallsSilent(msgspec.Struct, frozen=True, kw_only=True):
    """A node becomes silent. `dies`: its allocations are lost; otherwise they run on."""

    node_id: NodeId
    dies: bool = True


class NodeComesBack(msgspec.Struct, frozen=True, kw_only=True):
    """A silent node returns; after its death, under a new boot with nothing running."""

    node_id: NodeId


ScriptedEvent = ScriptedSubmission | NodeJoins | NodeFallsSilent | NodeComesBack


class EngineStats(msgspec.Struct, kw_only=True):
    """Counts of a run, deterministic except for `cpu_ns`."""

    records: int = 0
    bytes: int = 0
    events: int = 0
    #: events of the virtual loop.
    loop_events: int = 0
    steps: dict[str, int] = {}
    decisions: int = 0
    submissions: int = 0
    #: verdicts by code.
    refused: dict[str, int] = {}
    reports: int = 0
    dead_letters: list[str] = []
    #: measured, by role.
    cpu_ns: dict[str, int] = {}
