"""Data directory of an agent: its owner, its lock and its layout.

Decides names and layout (Nomad's: `alloc/<id>/alloc/{data,logs,tmp}`, `alloc/<id>/<task>/{local,secrets,tmp}`, and
`runs/` beside it for the process and the end of each run). One directory belongs to one node and one agent at a time.
Ids enter paths as tokens only (shared/protocol/id_tokens.py).
"""

import hashlib
import os
from pathlib import Path

import msgspec

from schemas.base import Wire
from services.agent.executor.journal import Journal, replace_durably
from shared.errors import ConfigInvalid
from shared.machine_lock import machine_id, take_file_lock, take_machine_lock
from shared.protocol.id_tokens import id_token

#: Increased when older releases cannot use the directory.
FORMAT = 1
#: Tasks of other users pass through it, but other users cannot list it: files left by a task are hard to find.
_TOP_MODE = 0o711
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Identity(Wire, frozen=True, kw_only=True):
    """`agent.json`. `lives` counts the agent's starts: reports are numbered within one."""

    format: int
    node_id: str
    host_id: str
    lives: int = 0
    #: the machine that it was used on last; empty: not known.
    machine: str = ""


class TaskDirs(msgspec.Struct, frozen=True, kw_only=True):
    """Directories and files of one task of one allocation."""

    #: shared by the tasks of the allocation.
    shared: Path
    #: the task's own top; its working directory.
    task: Path
    #: records of its runs.
    runs: Path
    stdout: Path
    stderr: Path

    @property
    def top(self) -> Path:
        """The data directory; above the allocation's directory, which no task can write."""
        return self.shared.parents[2]

    def directories(self) -> tuple[Path, ...]:
        """Directories that must exist before a start."""
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


class DataDir:
    """An open data directory.

    Raises ConfigInvalid when it belongs to another node, is in use, newer or damaged, or its disk is full or faulty.
    """

    def __init__(self, top: Path, node_id: str) -> None:
        self.top = top.absolute()
        try:
            self._open(node_id)
        except OSError as err:
            text = f"data directory {self.top} cannot be used: {err.strerror}"
            raise ConfigInvalid(text) from err

    def _open(self, node_id: str) -> None:
        self._make(self.top)
        for part in ("alloc", "runs"):
            self._make(self.top / part)
        self._lock_fd = self._lock()
        try:
            identity = self._identity(node_id)
            self.host_id = identity.host_id
            self._life = take_machine_lock(
                f"agent-{identity.host_id}",
                f"another agent on this machine runs as node {node_id} in a copy of {self.top}: "
                "stop it, or configure another node id and data directory for this one",
            )
            self.kernel_boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
            self.boot_id = hashlib.sha256(
                f"{self.host_id} {self.kernel_boot} {identity.lives}".encode()
            ).hexdigest()[:32]
            self.journal = Journal(self.top / "journal")
        except BaseException:
            os.close(self._lock_fd)
            raise

    def close(self) -> None:
        """Release the lock."""
        self.journal.close()
        self._life.close()
        os.close(self._lock_fd)

    def places(self, alloc_id: str, task: str) -> TaskDirs:
        """Directories of a task. Raises ValueError for names that cannot be paths."""
        alloc = self.top / "alloc" / id_token(alloc_id)
        name = id_token(task)
        # The shared directory is named "alloc": a task of that name must not share it.
        own = alloc / (name if name != "alloc" else "~alloc")
        logs = alloc / "alloc" / "logs"
        return TaskDirs(
            shared=alloc / "alloc",
            task=own,
            runs=self.top / "runs" / id_token(alloc_id) / name,
            stdout=logs / f"{name}.stdout.0",
            stderr=logs / f"{name}.stderr.0",
        )

    @staticmethod
    def _make(top: Path) -> None:
        try:
            top.mkdir(parents=True, exist_ok=True, mode=_TOP_MODE)
            mode = top.stat().st_mode & 0o777
            if mode & ~_TOP_MODE:
                top.chmod(mode & _TOP_MODE)
        except OSError as err:
            raise ConfigInvalid(f"data directory {top} cannot be created: {err}") from err

    def _lock(self) -> int:
        text = f"data directory {self.top} is in use by another agent"
        return take_file_lock(self.top / "agent.lock", text)

    def _identity(self, node_id: str) -> _Identity:
        path = self.top / "agent.json"
        if path.exists():
            found = self._read_identity(path)
            if found.node_id != node_id:
                raise ConfigInvalid(
                    f"data directory {self.top} belongs to node {found.node_id}, but this agent is node {node_id}"
                )
        else:
            found = _Identity(format=FORMAT, node_id=node_id, host_id=os.urandom(16).hex())
        machine = machine_id()
        if machine and found.machine not in ("", machine):
            # A copy, or moved: as another host it gets the node's id only when the other one is down.
            found = msgspec.structs.replace(found, host_id=os.urandom(16).hex())
        found = msgspec.structs.replace(found, lives=found.lives + 1, machine=machine)
        replace_durably(path, msgspec.json.encode(found) + b"\n")
        return found

    def _read_identity(self, path: Path) -> _Identity:
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Identity)
        except msgspec.MsgspecError as err:
            raise ConfigInvalid(f"{path} cannot be read: {err}") from err
        if found.format > FORMAT:
            raise ConfigInvalid(
                f"data directory {self.top} has format {found.format}, this release supports up to "
                f"{FORMAT}: use the newer release"
            )
        return found
