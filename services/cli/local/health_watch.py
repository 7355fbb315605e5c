"""Checks of `caravan up` beside its processes: the disk of the bus, and the problems that services report.

Decides when the bus is started again: a server whose write failed stores nothing more, even if the disk has space
again.
"""

import http.client
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from services.cli.local.processes import SERVICES
from shared.bus.process.health_server import Health
from shared.bus.shell.problems import STORAGE

_EVERY_S = 1.0
_ANSWER_S = 0.3
#: Below the first figure the disk counts as full, from the second on as usable again.
_FULL_BYTES = 1 << 20
_ROOM_BYTES = 4 << 20
#: Pause between two starts of the bus for its storage, doubling to the second figure.
_AGAIN_S, _AGAIN_S_MAX = 10.0, 300.0
#: Roles that watch the log; each reports the same.
_ASKED = ("plan_applier", "intake", "view", SERVICES)


class HealthWatch:
    """`look` returns new problems. `names`: the processes, whose ports are in `folder/logs/NAME.port`."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        free_bytes: Callable[[Path], int] | None = None,
    ) -> None:
        self._folder = folder
        self._names = [name for name in names if name.startswith(_ASKED)]
        self._free_bytes = free_bytes or _free_bytes
        self._due_s = 0.0
        self._is_full = False
        self._told: dict[str, str] = {}
        self._restart_due_s = 0.0
        self._pause_s = _AGAIN_S
        #: the bus must be started again before it writes.
        self.is_restart_due = False

    def look(self, now_s: float) -> list[str]:
        """Return a line for each change; sets `is_restart_due`."""
        self.is_restart_due = False
        if now_s < self._due_s:
            return []
        self._due_s = now_s + _EVERY_S
        found: dict[str, str] = {}
        for name in self._names:
            found |= self._problems(name)
        # After the problems: a disk that filled while they were read must not restart the bus.
        lines = self._look_at_disk()
        lines += [text for name, text in found.items() if self._told.get(name) != text]
        lines += [f"ended: {text}" for name, text in self._told.items() if name not in found]
        self._told = found
        self._decide(found, now_s)
        return lines

    def _look_at_disk(self) -> list[str]:
        try:
            free = self._free_bytes(self._folder)
        except OSError:
            return []
        if not self._is_full and free < _FULL_BYTES:
            self._is_full = True
            return [
                f"the disk of {self._folder} is full: free some space, work continues by itself"
            ]
        if self._is_full and free >= _ROOM_BYTES:
            self._is_full = False
            return [f"the disk of {self._folder} has room again, {free >> 20} MiB"]
        return []

    def _problems(self, name: str) -> Mapping[str, str]:
        try:
            port = int((self._folder / "logs" / f"{name}.port").read_text())
            asked = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
            try:
                asked.request("GET", "/health")
                told = msgspec.json.decode(asked.getresponse().read(), type=Health)
                return told.problems | {text: text for text in told.alarms}
            finally:
                asked.close()
        except (OSError, ValueError, http.client.HTTPException):
            # A process that does not answer is the supervisor's matter.
            return {}

    def _decide(self, found: Mapping[str, str], now_s: float) -> None:
        if STORAGE not in found:
            self._pause_s = _AGAIN_S if now_s >= self._restart_due_s else self._pause_s
        elif not self._is_full and now_s >= self._restart_due_s:
            self.is_restart_due = True
            self._restart_due_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _AGAIN_S_MAX)


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
