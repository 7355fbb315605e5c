"""Which `caravan up` runs on this machine: one small file each under the user's state directory.

Decides where that directory is (XDG_STATE_HOME) and that a file whose process has gone says nothing. So that commands
in another terminal find the bus, and the files of local agents, without being told.
"""

import os
from pathlib import Path

import msgspec


class RunningUp(msgspec.Struct, frozen=True, kw_only=True):
    """One running cluster. `agents`: node id -> the agent's data directory."""

    pid: int
    url: str
    data_dir: str
    cluster_id: str = ""
    started_ns: int = 0
    agents: dict[str, str] = {}
    #: name -> pid, the bus included.
    services: dict[str, int] = {}


def state_dir() -> Path:
    """The directory of the files."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "caravan" / "up"


def write(up: RunningUp) -> None:
    """Say that this cluster runs; where the directory cannot be written, say it only in the data directory."""
    data = msgspec.json.format(msgspec.json.encode(up, order="sorted"))
    _replace(Path(up.data_dir) / "up.json", data)
    folder = state_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / f"{up.pid}.json", data)
    except OSError:
        return


def remove(pid: int, data_dir: Path) -> None:
    """Say that it runs no more."""
    (data_dir / "up.json").unlink(missing_ok=True)
    try:
        (state_dir() / f"{pid}.json").unlink(missing_ok=True)
    except OSError:
        return


def all_running() -> list[RunningUp]:
    """Read what runs, newest last."""
    found = []
    try:
        paths = sorted(state_dir().glob("*.json"))
    except OSError:
        return []
    for path in paths:
        try:
            up = msgspec.json.decode(path.read_bytes(), type=RunningUp)
            os.kill(up.pid, 0)
        except (OSError, msgspec.DecodeError):
            continue
        found.append(up)
    return sorted(found, key=lambda up: up.started_ns)


def newest_url() -> str:
    """URL of the newest running cluster; empty: none runs."""
    running = all_running()
    return running[-1].url if running else ""


def agent_dir(node_id: str, url: str) -> Path | None:
    """Data directory of a local agent; of the cluster at `url` where several have such a node."""
    having = [up for up in all_running() if node_id in up.agents]
    chosen = [up for up in having if up.url == url] or having
    return Path(chosen[-1].agents[node_id]) if chosen else None


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
