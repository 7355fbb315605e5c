"""What the agent keeps of the runs that a driver plugin may have.

- `drivers/<name>/runs/<key>` is written before the driver is asked to start a run, and removed when its end is known:
  so no run is ever forgotten that the driver may have. `abandoned`: it must never come alive.
- `runs/<alloc>/<task>/<n>/handle` in the run's own directory is what the driver answered, for the driver alone.
"""

import contextlib
import hashlib
from pathlib import Path

import msgspec

from services.agent.drivers.driver import DriverRun
from services.agent.drivers.end_record import replace_file
from shared.core.runtime.remote_messages import RemoteRun

_HANDLE = "handle"


class RunClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A run that its driver may have."""

    #: of the run's records, as in the journal's.
    directory: str
    kernel_boot: str
    abandoned: bool = False
    #: of a run that is elsewhere: it is another node's too, and only ended where that is ordered.
    remote: RemoteRun | None = None


def run_key(run: DriverRun, host_id: str) -> str:
    """Name a run to its driver: 32 hexadecimal digits, unlike those of every other run of any node.

    What runs elsewhere is named by its token, wherever it is tracked.
    """
    if run.remote is not None:
        return run.remote.token
    words = f"{host_id} {run.alloc_id} {run.task} {run.number}"
    return hashlib.sha256(words.encode()).hexdigest()[:32]


class RunClaims:
    """The claims of one driver, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> dict[str, RunClaim]:
        """Return every claim, by key."""
        names = sorted(one.name for one in self._folder.iterdir())
        found = {name: self.read(name) for name in names if not name.endswith(".new")}
        return {name: claim for name, claim in found.items() if claim is not None}

    def read(self, key: str) -> RunClaim | None:
        """Read one; None: the driver was never asked to start it, or its end is known."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self._folder / key).read_bytes(), type=RunClaim)
        return None

    def write(self, key: str, claim: RunClaim) -> None:
        """Write or replace one. Raises OSError."""
        replace_file(self._folder / key, msgspec.json.encode(claim), sync=True)

    def remove(self, key: str) -> None:
        """Remove one, if it is there."""
        with contextlib.suppress(OSError):
            (self._folder / key).unlink(missing_ok=True)


def write_handle(directory: Path, handle: msgspec.Raw) -> None:
    """Keep a handle: an aid to the driver, which finds the run without it too."""
    with contextlib.suppress(OSError):
        replace_file(directory / _HANDLE, bytes(handle), sync=True)


def read_handle(directory: Path) -> msgspec.Raw | None:
    """Read a handle; None: the start was not answered."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = (directory / _HANDLE).read_bytes()
        msgspec.json.decode(found)
        return msgspec.Raw(found)
    return None
