"""`caravan fleet`: thousands of simulated nodes on the bus, from this process, until Ctrl-C.

Decides where the fleet's login comes from (the `up` of this machine, else CARAVAN_CREDENTIALS) and what is told. What
a fleet is: `services/agent/fleet/`, found by name, so that no service is known here.
"""

import os
import re
import secrets
from importlib import import_module
from pathlib import Path

from services.cli import running_ups
from services.cli.asking import bus_url
from services.cli.output import CliError, Output
from shared.bus import accounts
from shared.bus.connect import Login, without_login
from shared.errors import BusUnavailable, ConfigInvalid
from shared.fleet.profile import NODES_MAX, Profile, node_specs, read_profile

#: Of --nodes: as many as the profile has.
UNSAID = -1
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}|")
_SHOWN = {
    "nodes": "caravan_fleet_nodes",
    "registered": "caravan_fleet_registered",
    "refused": "caravan_fleet_refused",
    "started": "caravan_fleet_starts_total",
    "alive": "caravan_fleet_allocations",
}


def fleet(
    out: Output, *, nodes: int, profile: str, name_prefix: str, seed: int, agents: str
) -> int:
    """Speak for simulated nodes until SIGINT or SIGTERM. Raises CliError, ConfigInvalid."""
    if nodes != UNSAID and not 1 <= nodes <= NODES_MAX:
        raise CliError("usage", f"--nodes is {nodes}, it must be 1 to {NODES_MAX}")
    if agents not in ("lean", "real"):
        raise CliError("usage", f"--agents is lean or real, not {agents!r}")
    if not _PREFIX.fullmatch(name_prefix):
        raise CliError("usage", f"--name-prefix {name_prefix!r} cannot begin the id of a node")
    wanted = _profile(profile)
    specs = node_specs(wanted, max(nodes, 0), prefix=name_prefix)
    running = import_module("services.agent.fleet.running")
    url = bus_url()
    settings = running.FleetSettings(
        login=_login(url),
        specs=specs,
        profile=wanted,
        life=secrets.token_hex(6),
        seed=seed,
        mode=agents,
    )
    out.progress(f"{len(specs)} {agents} nodes on {without_login(url)}; Ctrl-C ends them")
    try:
        numbers = running.run(settings, out.progress)
    except BusUnavailable as err:
        hint = "is `caravan up` running? CARAVAN_NATS_URL names another bus"
        raise CliError("unavailable", f"no bus at {without_login(url)}: {err}; {hint}") from err
    ended = {name: int(numbers[key]) for name, key in _SHOWN.items()}
    out.result(ended)
    out.line(f"ended: {ended['nodes']} nodes, {ended['started']} allocations were started")
    return 0


def _profile(path: str) -> Profile:
    """Read the profile; without a file everything starts at once, services run for ever, batches are over."""
    if not path:
        return Profile()
    try:
        return read_profile(Path(path).read_bytes(), path)
    except OSError as err:
        raise CliError("io", err.strerror or str(err), file=path) from err
    except ConfigInvalid as err:
        raise CliError("invalid", str(err)) from err


def _login(url: str) -> Login:
    """Find the fleet's user. Raises CliError."""
    ups = [Path(one.data_dir) for one in running_ups.all_running() if one.url == url]
    given = os.environ.get("CARAVAN_CREDENTIALS")
    path = Path(given) if given else ups[-1] / "credentials.json" if ups else None
    if path is None:
        raise CliError(
            "config",
            f"no credentials for {without_login(url)}: no `caravan up` runs there, and "
            "CARAVAN_CREDENTIALS names no file",
        )
    user, password = accounts.read_credentials(path).login(accounts.FLEET)
    return Login(url=url, name="fleet", user=user, password=password)
