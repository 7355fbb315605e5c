"""A device plugin that runs beside the agent: started, read line by line, ended when it hangs, started again.

A thread of its own reads it: the first fingerprint of the node is taken before the agent has an event loop, and a
program that hangs holds up nothing else. It ends with the agent, also after kill -9. Next: `device_plugins.py`.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from schemas.nodes import Pool
from services.agent.backoff import Backoff
from services.agent.devices.device_lines import (
    LINE_BYTES_MAX,
    PluginAnswerInvalid,
    read_devices,
    reason_text,
)
from services.agent.drivers.process.fork_server import python_command
from services.agent.operator_programs import ProgramRefused
from shared.core.resources.offers import SLOTS_MAX

#: The program dies with the thread that started it: with the agent. Between its birth and that call the agent may end.
_TETHER = (
    "import os; from services.agent.drivers.isolation import kernel; kernel.die_with_parent(9); "
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PLUGIN_ENVIRONMENT = {"PATH": _PATH, "LANG": "C.UTF-8"}
#: Between SIGTERM and SIGKILL.
END_S = 2.0
#: One that prints without pause is read so often.
_LINE_PAUSE_S = 0.2
_READ_BYTES = 65_536
_log = structlog.get_logger()


class PluginLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a program, in seconds."""

    #: without a line it counts as hung, and is ended.
    silence_s: float = 60.0
    #: before it is started again: at first, and at most.
    pause_s: float = 1.0
    pause_max_s: float = 60.0
    #: its devices are unhealthy when it was away so long.
    grace_s: float = 20.0


def tethered(command: Sequence[str]) -> list[str]:
    """Return a command that ends with the thread that starts it."""
    return [*python_command(_TETHER), str(os.getpid()), *command]


def end_group(pid: int, number: int) -> None:
    """Send a signal to a program and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class PluginProcess:
    """One program. `command`: what to run, asked before each start; raises ProgramRefused."""

    def __init__(
        self, name: str, command: Callable[[], Sequence[str]], limits: PluginLimits | None = None
    ) -> None:
        self.name = name
        self._command = command
        self._limits = limits or PluginLimits()
        self._lock = threading.Lock()
        self._pools: tuple[Pool, ...] = ()
        #: why it is away, and since when.
        self._fault = ""
        self._fault_s = 0.0
        self._ids: set[tuple[str, str]] = set()
        self._pid = 0
        self._closing = threading.Event()
        #: it printed its first line, or failed to.
        self.answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"device {name}", daemon=True)
        self._thread.start()

    def pools(self) -> tuple[Pool, ...]:
        """Return what it found last; all of it unhealthy, with the reason, when it was away for long."""
        with self._lock:
            away_s = time.monotonic() - self._fault_s
            if not self._fault or away_s < self._limits.grace_s:
                return self._pools
            reason = f"device plugin {self.name}: {self._fault}"
            return tuple(_unhealthy(pool, reason) for pool in self._pools)

    def close(self) -> None:
        """End it, and what it started."""
        with self._lock:
            self._closing.set()
            if self._pid:
                end_group(self._pid, signal.SIGTERM)
        self._thread.join(3 * END_S)

    # ---- its thread ----

    def _run(self) -> None:
        backoff = Backoff(self._limits.pause_s, self._limits.pause_max_s)
        while not self._closing.is_set():
            try:
                self._live(backoff)
            except ProgramRefused as err:
                self._set_fault(str(err))
            except OSError as err:
                self._set_fault(f"it cannot be run: {err.strerror or err}")
            self._closing.wait(backoff.take())

    def _live(self, backoff: Backoff[float]) -> None:
        """Run it once. Raises ProgramRefused, OSError."""
        command = tethered([*self._command(), "fingerprint"])
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=PLUGIN_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            with self._lock:
                self._pid = child.pid
                is_late = self._closing.is_set()
            if not is_late:
                self._read(child, backoff)
        finally:
            with self._lock:
                self._pid = 0
            self._end(child)
            child.stdout.close()

    def _read(self, child: "subprocess.Popen[bytes]", backoff: Backoff[float]) -> None:
        """Take its lines until it ends, or has to be ended."""
        try:
            reason = self._take_lines(child, backoff)
        except PluginAnswerInvalid as err:
            reason = str(err)
        if not self._closing.is_set():
            self._set_fault(reason)

    def _take_lines(self, child: "subprocess.Popen[bytes]", backoff: Backoff[float]) -> str:
        """Return how it ended. Raises PluginAnswerInvalid."""
        assert child.stdout is not None
        fd, rest = child.stdout.fileno(), b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            deadline_s = time.monotonic() + self._limits.silence_s
            while True:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    return f"it printed no line within {self._limits.silence_s:g} s"
                part = os.read(fd, _READ_BYTES)
                if not part:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(END_S)
                    return f"it ended with {child.returncode}"
                *lines, rest = (rest + part).split(b"\n")
                if max(map(len, (*lines, rest))) > LINE_BYTES_MAX:
                    return f"it printed a line of more than {LINE_BYTES_MAX} bytes"
                if lines:
                    # Of several lines the newest counts.
                    self._take(lines[-1])
                    backoff.reset()
                    self._closing.wait(_LINE_PAUSE_S)
                    deadline_s = time.monotonic() + self._limits.silence_s

    def _take(self, line: bytes) -> None:
        pools = read_devices(line)
        self._ids |= {(pool.name, one.id) for pool in pools for one in pool.instances}
        if len(self._ids) > SLOTS_MAX:
            # Each id has a slot in the cluster for as long as the node lives.
            text = f"it named more than {SLOTS_MAX} devices; an id stays that of one device"
            raise PluginAnswerInvalid(text)
        with self._lock:
            was, self._pools, self._fault = self._fault, pools, ""
        if was or not self.answered.is_set():
            count = sum(len(pool.instances) for pool in pools)
            _log.info("devices.found", plugin=self.name, devices=count)
        self.answered.set()

    def _set_fault(self, reason: str) -> None:
        reason = reason_text(reason)
        with self._lock:
            is_new = reason != self._fault
            if not self._fault:
                self._fault_s = time.monotonic()
            self._fault = reason
        self.answered.set()
        if is_new:
            _log.warning("devices.plugin_failed", plugin=self.name, reason=reason)

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        """End a program and what it started. One that the kernel holds is waited for: there is never a second one."""
        if child.poll() is None:
            end_group(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_S)
        end_group(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
        while child.poll() is None and not self._closing.wait(1.0):
            pass


def _unhealthy(pool: Pool, reason: str) -> Pool:
    found = tuple(
        one if one.unhealthy else msgspec.structs.replace(one, unhealthy=reason)
        for one in pool.instances
    )
    return msgspec.structs.replace(pool, instances=found)
