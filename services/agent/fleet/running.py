"""A fleet as a process: one connection for all its nodes, until Ctrl-C.

Decides what is told while it runs, and that a bus which is not there is said at once. Knows the two kinds of fleet by
name and nothing of what they decide.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from schemas.nodes import NodeSpec
from services.agent.fleet.lean import Fleet
from services.agent.fleet.real import Flock
from shared.bus.connect import Login, connect
from shared.bus.runner import loop_factory
from shared.bus.shell import Shell, ShellSettings
from shared.core.role import Role
from shared.errors import ConfigInvalid
from shared.fleet.profile import Habits, Profile

#: Between two looks at how far it is.
_LOOK_S = 0.2
_TELL_S = 10.0
MODES = ("lean", "real")
Kind = Fleet | Flock


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet process is given."""

    login: Login
    specs: Sequence[NodeSpec]
    profile: Profile
    #: name of this process's life: never used before, for boots are named by it.
    life: str
    seed: int = 0
    #: lean keeps allocations in columns; real is one agent a node, as on a machine of its own.
    mode: str = "lean"


def make(settings: FleetSettings) -> Kind:
    """Make the role. Its boots are new with every process. Raises ConfigInvalid."""
    if settings.mode not in MODES:
        raise ConfigInvalid(f"a fleet is {' or '.join(MODES)}, not {settings.mode!r}")
    life = settings.life
    kind: type[Kind] = Fleet if settings.mode == "lean" else Flock
    return kind(
        settings.specs,
        Habits(settings.profile),
        instance=f"fleet-{life}",
        boots=lambda node, nth: f"{life}-{node}-{nth}",
        seed=settings.seed,
    )


def run(settings: FleetSettings, told: Callable[[str], None]) -> dict[str, float]:
    """Run until SIGINT or SIGTERM; returns the fleet's numbers at the end.

    Raises BusUnavailable: no bus, or not for this user; RoleStopped: every node was refused.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(settings, told))


async def _run(settings: FleetSettings, told: Callable[[str], None]) -> dict[str, float]:
    # Whether there is a bus is said now; later the fleet waits for it, as agents do.
    await (await connect(settings.login)).end()
    fleet = make(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    shell = Shell(cast("Role", fleet), ShellSettings(login=settings.login, in_core=False))
    telling = asyncio.create_task(_tell(fleet, len(settings.specs), told))
    try:
        await shell.run(stop)
    finally:
        telling.cancel()
    return fleet.metrics()


async def _tell(fleet: Kind, nodes: int, told: Callable[[str], None]) -> None:
    """Say when all are registered, then now and then what there is."""
    while fleet.metrics()["caravan_fleet_registered"] < nodes - len(fleet.refused):  # noqa: ASYNC110 - a level
        await asyncio.sleep(_LOOK_S)
    told(f"{nodes - len(fleet.refused)} nodes are registered")
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
