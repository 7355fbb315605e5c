"""Child processes: started, supervised, restarted, ended by pid; and leftovers of an earlier run.

A process that ends is restarted after 0.1 s, doubling to 5 s; the delay is reset once it has run for 10 s.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import msgspec

from services.cli.runtime.local_clusters import LocalClusterRecord
from services.cli.sigint import is_deferred
from shared.bus.server.nats_server import port_is_free
from shared.machine_lock import is_this_boot

#: Name of the process of all roles but agents, where they share one.
SERVICES = "services"
_FIRST_S = 0.1
_LONGEST_S = 5.0
_STEADY_S = 10.0
_REASON_CHARS_MAX = 200


class SupervisedProcess:
    """One process that is kept running."""

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
        #: why it ended last; empty while it never did.
        self.failure = ""
        #: when it ended first since it last ran for a while; 0: it never ended.
        self.failing_since_s = 0.0
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

    @property
    def was_killed(self) -> bool:
        """Whether its last life ended by a signal."""
        code = self._process.returncode if self._process is not None else 0
        return code is not None and code < 0

    def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches only this process."""
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
        """Restart it when due; returns what happened, empty: nothing."""
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
        if self._delay_s == _FIRST_S:
            self.failing_since_s = now_s
        self._due_s = now_s + self._delay_s
        ended, reason = _exit_reason(self._process), self._last_line()
        self.failure = ended + reason
        text = f"{ended}; restart in {self._delay_s:.1f} s{reason}"
        self._delay_s = min(2 * self._delay_s, _LONGEST_S)
        return text

    def signal(self, number: signal.Signals) -> None:
        """Signal it if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait_or_kill(self, within_s: float) -> int:
        """Wait for its end, then kill it. Returns 1 if it was killed."""
        if self._process is None:
            return 0
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return 1
        return 0

    def _last_line(self) -> str:
        """The reason in the last line of its log, if there is one."""
        with contextlib.suppress(OSError):
            with self._log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - 8192))
                lines = log.read().splitlines()
            for line in reversed(lines):
                if line.strip() and (reason := _reason_of(line)) is not None:
                    return f" ({reason})" if reason else ""
        return ""


class _LogLine(msgspec.Struct):
    event: str = ""
    reason: str = ""


def _reason_of(line: bytes) -> str | None:
    """Why a process ended, from its last line: the reason of a log line, else the line (an exception's message).

    None: the line before it tells, since roles of the process end because another one stopped.
    """
    try:
        found = msgspec.json.decode(line, type=_LogLine)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return line.decode(errors="replace").strip()[:_REASON_CHARS_MAX]
    return None if found.event == "service.ended" and not found.reason else found.reason


def _exit_reason(process: subprocess.Popen[bytes] | None) -> str:
    code = process.returncode if process is not None else 0
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def unwind_on_signals() -> None:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that child processes are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _unwind)


def _unwind(number: int, frame: FrameType | None) -> None:
    if is_deferred(number, frame):
        return
    # Another signal must not interrupt the cleanup.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def kill_leftover_services(data_dir: Path, report: Callable[[str], None]) -> None:
    """Kill services that outlived a killed `up`, and wait at most 5 s until they, and their port, are gone.

    Tasks keep running: agents are killed, not stopped.
    """
    try:
        left = msgspec.json.decode((data_dir / "up.json").read_bytes(), type=LocalClusterRecord)
    except (OSError, msgspec.DecodeError):
        return
    # After a reboot the pids are of other processes, even if one of them names the directory.
    pids = left.services if is_this_boot(left.boot) else {}
    mine = {name: pid for name, pid in pids.items() if uses_data_dir(pid, data_dir)}
    for pid in mine.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while (
        any(uses_data_dir(pid, data_dir) for pid in mine.values()) and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    # A process that ends closes its ports after its command line is gone from /proc.
    port = urlsplit(left.url).port
    while port and not port_is_free(port) and time.monotonic() < deadline:
        time.sleep(0.01)
    if "bus" in mine:
        # It may not be reaped yet: its pid file would still name a process.
        (data_dir / "bus" / "nats-server.pid").unlink(missing_ok=True)
    if mine:
        report(f"ended {len(mine)} services left over from an earlier run")


def uses_data_dir(pid: int, data_dir: Path) -> bool:
    """Whether a live process names this data directory in its command or environment."""
    wanted = str(data_dir).encode()
    for part in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/{part}").read_bytes():
                return True
    return False


def processes_using(data_dir: Path) -> list[int]:
    """Pids of all other live processes that name this data directory; empty without /proc."""
    proc = Path("/proc")
    if not proc.exists():
        return []
    pids = [int(one.name) for one in proc.iterdir() if one.name.isdigit()]
    return sorted(pid for pid in pids if pid != os.getpid() and uses_data_dir(pid, data_dir))
