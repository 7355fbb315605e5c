"""The clusters of `caravan up` that run on this machine: one file each under XDG_STATE_HOME.

Commands in another terminal find the bus and its credentials there, each as a context (`contexts.py`). Files of ended
processes are ignored.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from shared.bus.connection.nats_client import Login
from shared.bus.server import accounts
from shared.machine_lock import is_this_boot


class LocalClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One running cluster. `agents`: node id -> the agent's data directory."""

    pid: int
    url: str
    data_dir: str
    cluster_id: str = ""
    started_ns: int = 0
    agents: dict[str, str] = {}
    #: name -> pid, the bus included.
    services: dict[str, int] = {}
    #: where it runs; empty: not known.
    machine: str = ""
    #: boot of the kernel that the pids are of; empty: not known.
    boot: str = ""


def records_folder() -> Path:
    """The directory of the files."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "caravan" / "up"


def write_record(up: LocalClusterRecord) -> None:
    """Record a running cluster; if the state directory is not writable, in its data directory alone."""
    data = msgspec.json.format(msgspec.json.encode(up, order="sorted"))
    _replace(Path(up.data_dir) / "up.json", data)
    folder = records_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / f"{up.pid}.json", data)
    except OSError:
        return


def remove_record(pid: int, data_dir: Path) -> None:
    """Delete the record of a cluster that has ended."""
    (data_dir / "up.json").unlink(missing_ok=True)
    try:
        (records_folder() / f"{pid}.json").unlink(missing_ok=True)
    except OSError:
        return


def read_record(data_dir: Path) -> LocalClusterRecord | None:
    """What a cluster left in its data directory: it runs, or was not shut down; None: nothing that can be read."""
    try:
        return msgspec.json.decode((data_dir / "up.json").read_bytes(), type=LocalClusterRecord)
    except (OSError, msgspec.DecodeError):
        return None


def running_clusters() -> list[LocalClusterRecord]:
    """Running clusters, newest last."""
    found = []
    try:
        paths = sorted(records_folder().glob("*.json"))
    except OSError:
        return []
    for path in paths:
        try:
            up = msgspec.json.decode(path.read_bytes(), type=LocalClusterRecord)
            os.kill(up.pid, 0)
        except (OSError, msgspec.DecodeError):
            continue
        if is_this_boot(up.boot):
            found.append(up)
    return sorted(found, key=lambda up: up.started_ns)


def running_at(url: str) -> LocalClusterRecord | None:
    """The newest cluster of this machine with this bus; None: it is elsewhere."""
    at = bus_addresses(url)
    found = (up for up in reversed(running_clusters()) if bus_addresses(up.url) == at)
    return next(found, None)


def password_file(data_dir: Path) -> Path:
    """The password of PUBLIC, which clients on this machine log in with."""
    return data_dir / "credentials" / accounts.PUBLIC


def bus_addresses(url: str) -> frozenset[tuple[str, int]]:
    """Hosts and ports of a URL, or of several with commas: what two URLs of one bus have in common."""
    return frozenset(_address(one.strip()) for one in url.split(","))


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname or "", parts.port or 4222
    except ValueError:
        return url, 0
    return ("127.0.0.1" if host in ("localhost", "::1") else host), port


def login_for(url: str, *users: str) -> Login | None:
    """Login of a user of the bus, from CARAVAN_CREDENTIALS or a running `caravan up`; None: neither is there.

    Of several users the first that the file has. Raises ConfigInvalid where it has none.
    """
    at = bus_addresses(url)
    running = [up for up in running_clusters() if bus_addresses(up.url) == at]
    local = [Path(up.data_dir) / "credentials.json" for up in running]
    given = os.environ.get("CARAVAN_CREDENTIALS")
    path = Path(given) if given else local[-1] if local else None
    if path is None:
        return None
    known = accounts.read_credentials(path)
    name, password = known.login(next((one for one in users if one in known.users), users[0]))
    return Login(url=url, user=name, password=password)


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
