"""Child processes: started, looked after, restarted, ended by pid; and those that an earlier life left behind.

Decides how soon what dies comes back: after 0.1 s, doubling to 5 s, from the start again once it ran for ten.
Knows no role.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from services.cli.running_ups import RunningUp

_FIRST_S = 0.1
_LONGEST_S = 5.0
_STEADY_S = 10.0
_WORDS_MAX = 200


class Child:
    """One process that shall run."""

    def __init__(
        self,
        *,
        name: str,
        role: str,
        command: tuple[str, ...],
        env: Mapping[str, str],
        log_path: Path,
    ) -> None:
        self.name = name
        self.role = role
        self.restarts = 0
        self._command = command
        self._env = env
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._delay_s = _FIRST_S
        self._due_s = 0.0

    @property
    def pid(self) -> int:
        """Process id while it runs, else 0."""
        return (
            self._process.pid if self._process is not None and self._process.poll() is None else 0
        )

    def start(self) -> None:
        """Start it, in a session of its own: Ctrl-C is for who started us."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=dict(self._env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started_s = time.monotonic()

    def look(self, now_s: float) -> str:
        """Start it again where that is due; say what happened, empty: nothing."""
        if self.pid:
            return ""
        if self._due_s:
            if now_s < self._due_s:
                return ""
            self._due_s = 0.0
            self.restarts += 1
            self.start()
            return f"restarted, pid {self.pid}"
        if now_s - self._started_s > _STEADY_S:
            self._delay_s = _FIRST_S
        self._due_s = now_s + self._delay_s
        said = f"{_ending(self._process)}; again in {self._delay_s:.1f} s{self._last_words()}"
        self._delay_s = min(2 * self._delay_s, _LONGEST_S)
        return said

    def signal(self, number: signal.Signals) -> None:
        """Signal it if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait_or_kill(self, within_s: float) -> int:
        """Wait for its end; kill it when it takes too long. Returns 1 if it was killed."""
        if self._process is None:
            return 0
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return 1
        return 0

    def _last_words(self) -> str:
        """The reason in the last line of its log, where there is one."""
        with contextlib.suppress(OSError):
            with self._log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - 8192))
                lines = log.read().splitlines()
            last = next((line for line in reversed(lines) if line.strip()), b"")
            if said := _reason_of(last):
                return f" ({said})"
        return ""


class _LogLine(msgspec.Struct):
    reason: str = ""


def _reason_of(line: bytes) -> str:
    """Say why a process ended by its last line: a log line's reason, else the line itself (an exception's message)."""
    try:
        return msgspec.json.decode(line, type=_LogLine).reason
    except (msgspec.DecodeError, UnicodeDecodeError):
        return line.decode(errors="replace").strip()[:_WORDS_MAX]


def _ending(process: subprocess.Popen[bytes] | None) -> str:
    code = process.returncode if process is not None else 0
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that what was started is taken down."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _unwind)


def _unwind(number: int, _frame: object) -> None:
    # The way down is not to be cut short by another one.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def end_leftovers(data_dir: Path, told: Callable[[str], None]) -> None:
    """End services that outlived an `up` that was killed. Their tasks run on: agents are killed, not asked to stop."""
    try:
        left = msgspec.json.decode((data_dir / "up.json").read_bytes(), type=RunningUp)
    except (OSError, msgspec.DecodeError):
        return
    mine = {name: pid for name, pid in left.services.items() if belongs_to(pid, data_dir)}
    for pid in mine.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while any(belongs_to(pid, data_dir) for pid in mine.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    if "bus" in mine:
        # Nobody may have reaped it yet: its pid file would still name a process.
        (data_dir / "bus" / "nats-server.pid").unlink(missing_ok=True)
    if mine:
        told(f"ended {len(mine)} services that an earlier run had left")


def belongs_to(pid: int, data_dir: Path) -> bool:
    """Tell whether a live process names this data directory in its command or environment."""
    wanted = str(data_dir).encode()
    for part in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/{part}").read_bytes():
                return True
    return False


def processes_of(data_dir: Path) -> list[int]:
    """Pids of all live processes that name this data directory, ourselves left out; empty where there is no /proc."""
    proc = Path("/proc")
    if not proc.exists():
        return []
    pids = [int(one.name) for one in proc.iterdir() if one.name.isdigit()]
    return sorted(pid for pid in pids if pid != os.getpid() and belongs_to(pid, data_dir))
