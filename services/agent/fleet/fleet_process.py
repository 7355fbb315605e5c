"""A fleet as a process: one connection for all its nodes, until Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable, Sequence

import msgspec

from schemas.nodes import NodeSpec
from services.agent.fleet.agent_fleet import AgentFleet
from services.agent.fleet.columnar_fleet import ColumnarFleet
from services.agent.fleet.simulated_fleet import SimulatedFleet
from shared.bus.connection.nats_client import Login, connect
from shared.bus.process.runner import loop_factory
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.errors import ConfigInvalid
from shared.fleet.profile import FleetProfile, NodeProfile

#: Interval of registration checks.
_LOOK_S = 0.2
_TELL_S = 10.0
MODES = ("lean", "real")


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a fleet process."""

    login: Login
    specs: Sequence[NodeSpec]
    profile: FleetProfile
    #: unique name of this process run; boots are named by it.
    life: str
    seed: int = 0
    #: lean keeps allocations in columns; real runs one agent per node.
    mode: str = "lean"


def make_fleet(settings: FleetSettings) -> SimulatedFleet:
    """Create the role. Raises ConfigInvalid."""
    if settings.mode not in MODES:
        raise ConfigInvalid(f"the fleet mode must be {' or '.join(MODES)}, not {settings.mode!r}")
    life = settings.life
    kind = ColumnarFleet if settings.mode == "lean" else AgentFleet
    return kind(
        settings.specs,
        NodeProfile(settings.profile),
        instance=f"fleet-{life}",
        boots=lambda node, nth: f"{life}-{node}-{nth}",
        seed=settings.seed,
    )


def run_fleet(settings: FleetSettings, told: Callable[[str], None]) -> dict[str, float]:
    """Run until SIGINT or SIGTERM; returns the fleet's metrics at the end.

    Raises BusUnavailable: no bus, or login refused; RoleStopped: every node was refused.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(settings, told))


async def _run(settings: FleetSettings, told: Callable[[str], None]) -> dict[str, float]:
    # Fail at once without a bus; later the fleet waits for it, as agents do.
    await (await connect(settings.login)).end()
    fleet = make_fleet(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    shell = Shell(fleet, ShellSettings(login=settings.login, in_core=False))
    telling = asyncio.create_task(_tell(fleet, len(settings.specs), told))
    try:
        await shell.run(stop)
    finally:
        telling.cancel()
    return fleet.metrics()


async def _tell(fleet: SimulatedFleet, nodes: int, told: Callable[[str], None]) -> None:
    """Report when all nodes are registered, then the fleet's figures as they change."""
    while fleet.metrics()["caravan_fleet_registered"] < nodes - len(fleet.refused):  # noqa: ASYNC110 - a level
        await asyncio.sleep(_LOOK_S)
    told(f"{nodes - len(fleet.refused)} nodes registered")
    for node_id, reason in sorted(fleet.refused.items())[:5]:
        told(f"node {node_id} was refused: {reason}")
    before = ""
    while True:
        now = fleet.metrics()
        line = (
            f"{now['caravan_fleet_allocations']:.0f} allocations alive, "
            f"{now['caravan_fleet_starts_total']:.0f} started, "
            f"{now['caravan_fleet_away']:.0f} nodes away"
        )
        if line != before:
            told(line)
        before = line
        await asyncio.sleep(_TELL_S)
