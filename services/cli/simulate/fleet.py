"""`caravan fleet`: simulated nodes on the bus, run by this process until Ctrl-C.

The fleet itself is `services/agent/fleet/`, imported by name: the command line does not depend on services.
"""

import re
import secrets
from importlib import import_module
from pathlib import Path

import msgspec

from services.cli.runtime import hints
from services.cli.runtime.bus_client import selected_bus_url
from services.cli.runtime.local_clusters import login_for
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.nats_client import Login, redacted_url
from shared.bus.server import accounts
from shared.errors import BusUnavailable, ConfigInvalid
from shared.fleet.profile import NODES_MAX, FleetProfile, node_specs, read_profile

#: --nodes: as many as the profile has.
NODES_FROM_PROFILE = -1
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}|")
_SHOWN = {
    "nodes": "caravan_fleet_nodes",
    "registered": "caravan_fleet_registered",
    "refused": "caravan_fleet_refused",
    "started": "caravan_fleet_starts_total",
    "alive": "caravan_fleet_allocations",
}


class FleetResult(msgspec.Struct, frozen=True):
    """`fleet --json`."""

    nodes: int
    registered: int
    refused: int
    started: int
    alive: int


def fleet(
    out: CommandOutput, *, nodes: int, profile: str, name_prefix: str, seed: int, agents: str
) -> int:
    """Run simulated nodes until SIGINT or SIGTERM. Raises CliError, ConfigInvalid."""
    if nodes != NODES_FROM_PROFILE and not 1 <= nodes <= NODES_MAX:
        raise CliError("usage", f"--nodes must be 1 to {NODES_MAX}, not {nodes}")
    if agents not in ("lean", "real"):
        raise CliError("usage", f"--agents must be lean or real, not {agents!r}")
    if not _PREFIX.fullmatch(name_prefix):
        raise CliError("usage", f"--name-prefix {name_prefix!r} is not a valid prefix of a node id")
    wanted = _profile(profile)
    specs = node_specs(wanted, max(nodes, 0), prefix=name_prefix)
    running = import_module("services.agent.fleet.fleet_process")
    url = selected_bus_url()
    settings = running.FleetSettings(
        login=_login(url),
        specs=specs,
        profile=wanted,
        life=secrets.token_hex(6),
        seed=seed,
        mode=agents,
    )
    out.progress(f"{len(specs)} {agents} nodes on {redacted_url(url)}; Ctrl-C stops them")
    try:
        numbers = running.run_fleet(settings, out.progress)
    except BusUnavailable as err:
        text = f"no bus at {redacted_url(url)}: {err}; {hints.absent_bus()}"
        raise CliError("unavailable", text) from err
    ended = FleetResult(**{name: int(numbers[key]) for name, key in _SHOWN.items()})
    out.result(ended)
    out.line(f"stopped: {ended.nodes} nodes, {ended.started} allocations were started")
    return 0


def _profile(path: str) -> FleetProfile:
    """Read the profile; without a file tasks start at once, services run forever, batch tasks end at once."""
    if not path:
        return FleetProfile()
    try:
        return read_profile(Path(path).read_bytes(), path)
    except OSError as err:
        raise CliError("io", err.strerror or str(err), file=path) from err
    except ConfigInvalid as err:
        raise CliError("invalid", str(err)) from err


def _login(url: str) -> Login:
    """Find the fleet's login. Raises CliError."""
    login = login_for(url, accounts.FLEET)
    if login is None:
        text = f"no credentials for {redacted_url(url)}: no `caravan up` runs there"
        raise CliError("config", f"{text}, and CARAVAN_CREDENTIALS is not set")
    return msgspec.structs.replace(login, name="fleet")
