"""An agent's data directory: whose it is, who uses it now, and where everything in it stands.

Decides names and layout (Nomad's: `alloc/<id>/alloc/{data,logs,tmp}`, `alloc/<id>/<task>/{local,secrets,tmp}`, and
`runs/` beside it for what tells a run's process and end). One directory belongs to one node and one agent at a time.
Ids enter paths as tokens only (shared/bus/names.py).
"""

import fcntl
import hashlib
import os
from pathlib import Path

import msgspec

from schemas.base import Wire
from services.agent.journal import Journal, sync_directory, write_durably
from shared.bus.names import id_token
from shared.errors import ConfigInvalid

#: Raised when an older release could not use the directory any more.
FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Identity(Wire, frozen=True, kw_only=True):
    """`agent.json`. `lives` counts the agent's starts: reports are numbered within one."""

    format: int
    node_id: str
    host_id: str
    lives: int = 0


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where one task of one allocation keeps its things."""

    #: shared by the tasks of the allocation.
    shared: Path
    #: the task's own top; its working directory.
    task: Path
    #: where runs leave their process and their end.
    runs: Path
    stdout: Path
    stderr: Path

    def directories(self) -> tuple[Path, ...]:
        """All that must exist before a start."""
        parts = [self.shared / part for part in ("data", "logs", "tmp")]
        parts += [self.task / part for part in ("local", "secrets", "tmp")]
        return (*parts, self.runs)

    def variables(self) -> dict[str, str]:
        """The directories in a task's environment."""
        return {
            "NOMAD_ALLOC_DIR": str(self.shared),
            "NOMAD_TASK_DIR": str(self.task / "local"),
            "NOMAD_SECRETS_DIR": str(self.task / "secrets"),
        }


class Home:
    """An open data directory. Raises ConfigInvalid when it is another's, in use, newer or damaged."""

    def __init__(self, top: Path, node_id: str) -> None:
        self.top = top.absolute()
        self._make(self.top)
        self._lock_fd = self._lock()
        try:
            identity = self._identity(node_id)
            self.host_id = identity.host_id
            self.kernel_boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
            self.boot_id = hashlib.sha256(
                f"{self.host_id} {self.kernel_boot} {identity.lives}".encode()
            ).hexdigest()[:32]
            self.journal = Journal(self.top / "journal")
        except BaseException:
            os.close(self._lock_fd)
            raise

    def close(self) -> None:
        """Let the next agent in."""
        self.journal.close()
        os.close(self._lock_fd)

    def places(self, alloc_id: str, task: str) -> Places:
        """Where a task keeps its things. Raises ValueError for names that cannot be paths."""
        alloc = self.top / "alloc" / id_token(alloc_id)
        name = id_token(task)
        # The shared directory is named "alloc": a task of that name must not share it.
        own = alloc / (name if name != "alloc" else "~alloc")
        logs = alloc / "alloc" / "logs"
        return Places(
            shared=alloc / "alloc",
            task=own,
            runs=self.top / "runs" / id_token(alloc_id) / name,
            stdout=logs / f"{name}.stdout.0",
            stderr=logs / f"{name}.stderr.0",
        )

    @staticmethod
    def _make(top: Path) -> None:
        try:
            top.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as err:
            raise ConfigInvalid(f"data directory {top} cannot be made: {err}") from err

    def _lock(self) -> int:
        path = self.top / "agent.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            holder = os.read(fd, 64).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise ConfigInvalid(
                f"data directory {self.top} is in use by another agent, pid {holder}"
            ) from err
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        return fd

    def _identity(self, node_id: str) -> _Identity:
        path = self.top / "agent.json"
        if path.exists():
            found = self._read_identity(path)
            if found.node_id != node_id:
                raise ConfigInvalid(
                    f"data directory {self.top} belongs to node {found.node_id}, this is {node_id}"
                )
        else:
            host_id = os.urandom(16).hex()
            found = _Identity(format=FORMAT, node_id=node_id, host_id=host_id)
        found = msgspec.structs.replace(found, lives=found.lives + 1)
        fresh = path.with_suffix(".new")
        write_durably(fresh, msgspec.json.encode(found) + b"\n")
        fresh.replace(path)
        sync_directory(self.top)
        return found

    def _read_identity(self, path: Path) -> _Identity:
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Identity)
        except msgspec.MsgspecError as err:
            raise ConfigInvalid(f"{path} cannot be read: {err}") from err
        if found.format > FORMAT:
            raise ConfigInvalid(
                f"data directory {self.top} has format {found.format}, this release knows "
                f"{FORMAT}: use the newer release"
            )
        return found
