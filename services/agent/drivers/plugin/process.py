"""The process of a driver plugin: started, supervised, and asked through one connection.

Decides when it is started again, and what a request gets when it ends. A thread reads the connection and another one
writes, so that neither the agent's loop nor its fingerprint waits for a driver. The agent listens, the driver connects:
only the process that was started is let in, whatever else runs as the same user. Each life of the agent has a process
of its own: one of an earlier life that did not end with its connection is killed first. What it started is not.
"""

import asyncio
import contextlib
import os
import queue
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import msgspec
import structlog

from services.agent.backoff import Backoff
from services.agent.drivers.plugin.protocol import (
    APIS,
    IN_FLIGHT_MAX,
    LINE_BYTES_MAX,
    AcceptedDriver,
    DriverBroken,
    DriverGone,
    DriverInfo,
    DriverRefused,
    Line,
    accept,
    decode,
    shown,
)
from services.agent.drivers.process.os_process import OsProcess, has_pid, parse_stat

#: Pause before a driver that ended is started again; one that lived for LIVED_S begins with the first again.
RESTART_S, RESTART_MAX_S, LIVED_S = 1.0, 60.0, 60.0
#: A driver must have connected and said what it is within.
HANDSHAKE_S = 10.0
#: What it is sent must be taken within.
WRITE_S = 10
#: Once its connection is closed it may take so long to end.
END_S = 2.0
SOCKET, RECORD = "socket", "process"
_PATH_BYTES_MAX = 100
_log = structlog.get_logger()

Asked = Future[msgspec.Raw]


class DriverProcess:
    """One driver. `folder`: its own, in the agent's data directory. `program` finds the path, and may raise."""

    def __init__(
        self,
        name: str,
        folder: Path,
        program: Callable[[], str],
        *,
        environment: Mapping[str, str],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._folder = folder
        self._program = program
        self._environment = dict(environment)
        self._on_ready = on_ready
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[Asked, Callable[[], None] | None]] = {}
        self._waiting: list[Future[AcceptedDriver]] = []
        self._next_id = 1
        self._link: _Link | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name=f"driver {name}", daemon=True)
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        #: of the present connection; None: there is none.
        self.traits: AcceptedDriver | None = None
        #: raised with each connection.
        self.generation = 0
        #: why the driver cannot be used; empty: it can, or is only being started.
        self.off = ""

    def begin(self) -> None:
        """Start it, and start it again whenever it ends."""
        self._thread.start()

    def close(self) -> None:
        """End the process; what it started runs on."""
        self._closing.set()
        self._hang_up()
        if self._thread.is_alive():
            self._thread.join(2 * END_S)

    def restart(self, reason: str) -> None:
        """Have it end and be started again."""
        _log.warning("driver.restarted", driver=self._name, reason=reason)
        self._hang_up()

    # ---- requests ----

    async def ready(self) -> AcceptedDriver:
        """Wait until it is connected."""
        return await asyncio.wrap_future(self._when_ready())

    def ready_now(self, within_s: float) -> AcceptedDriver | None:
        """Wait in a thread until it is connected; None: it is not."""
        with contextlib.suppress(FutureTimeout):
            return self._when_ready().result(within_s)
        return None

    async def call(
        self,
        verb: str,
        *,
        late: Callable[[], None] | None = None,
        is_long: bool = False,
        **fields: Any,
    ) -> msgspec.Raw:
        """Ask for something. Raises DriverGone, DriverRefused.

        `late`: called, in another thread, when the answer comes after this was cancelled. `is_long`: it may stay open.
        """
        if is_long:
            return await asyncio.wrap_future(self.post(verb, late=late, **fields))
        async with self._slots:
            return await asyncio.wrap_future(self.post(verb, late=late, **fields))

    def post(self, verb: str, *, late: Callable[[], None] | None = None, **fields: Any) -> Asked:
        """Send a request and return its answer to come. A line that is too long raises ValueError."""
        answer: Asked = Future()
        with self._lock:
            link, number = self._link, self._next_id
            self._next_id += 1
            if link is None:
                answer.set_exception(DriverGone(f"driver {self._name} does not run"))
                return answer
            data = msgspec.json.encode({"id": number, "verb": verb, **fields})
            if len(data) > LINE_BYTES_MAX:
                raise ValueError(
                    f"driver {self._name}: the request has more than {LINE_BYTES_MAX} bytes"
                )
            self._asked[number] = (answer, late)
        link.send(data + b"\n")
        return answer

    def _when_ready(self) -> Future[AcceptedDriver]:
        found: Future[AcceptedDriver] = Future()
        with self._lock:
            if self.traits is not None:
                found.set_result(self.traits)
            else:
                self._waiting = [one for one in self._waiting if not one.done()]
                self._waiting.append(found)
        return found

    # ---- the process ----

    def _supervise(self) -> None:
        pause = Backoff(RESTART_S, RESTART_MAX_S)
        while not self._closing.is_set():
            lived = threading.Event()
            timer = threading.Timer(LIVED_S, lived.set)
            timer.daemon = True
            timer.start()
            before = self.generation
            try:
                self._live()
                reason = "it ended its connection"
            except Exception as err:  # noqa: BLE001 - a program may fail in any way; it is tried again.
                reason = str(err) or repr(err)
            timer.cancel()
            if self.generation == before:
                self.off = shown(reason)
            self._leave()
            if lived.is_set():
                pause.reset()
            if not self._closing.is_set():
                wait_s = pause.take()
                _log.warning("driver.ended", driver=self._name, reason=reason, again_in_s=wait_s)
                self._closing.wait(wait_s)

    def _live(self) -> None:
        """Run it once, until its connection ends. Raises DriverBroken, OSError, and what a program's check raises."""
        program = self._program()
        end_recorded(self._folder)
        with contextlib.closing(_listen(self._folder)) as door:
            child = subprocess.Popen(
                [program],
                env={**self._environment, "CARAVAN_DRIVER_SOCKET": _socket_path(self._folder)},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                _record(self._folder, child.pid)
                link = _Link(self._let_in(door, child), child.pid)
            except BaseException:
                _end(child)
                raise
        try:
            self._converse(link)
        finally:
            self._leave()
            link.close()
            _end(child)

    def _let_in(self, door: socket.socket, child: "subprocess.Popen[bytes]") -> socket.socket:
        """Wait for the connection of a process. Raises DriverBroken."""
        door.settimeout(0.05)
        for _ in range(int(HANDSHAKE_S / 0.05)):
            try:
                peer, _ = door.accept()
            except TimeoutError:
                if child.poll() is not None:
                    raise DriverBroken(
                        f"it ended with {child.returncode} before it connected"
                    ) from None
                if self._closing.is_set():
                    raise DriverBroken("the agent ends") from None
                continue
            found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", found)[0] == child.pid:
                peer.setblocking(True)
                return peer
            # Something else that runs as the same user, such as a task without isolation.
            peer.close()
        raise DriverBroken(f"it did not connect within {HANDSHAKE_S:g} s")

    def _converse(self, link: "_Link") -> None:
        with self._lock:
            self._link = link
        if self._closing.is_set():
            return
        hello = self.post("info", apis=APIS)
        link.limit(HANDSHAKE_S)
        while not hello.done():
            self._take(link.line())
        link.limit(None)
        try:
            traits = accept(self._name, decode(hello.result(), DriverInfo))
        except DriverRefused as err:
            raise DriverBroken(f"info: {err}") from None
        self.off = ""
        with self._lock:
            self.traits = traits
            self.generation += 1
            self._slots = asyncio.Semaphore(min(traits.info.max_in_flight, IN_FLIGHT_MAX))
            waiting, self._waiting = self._waiting, []
        self._on_ready()
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(traits)
        _log.info(
            "driver.ready", driver=self._name, version=shown(traits.info.version), api=traits.api
        )
        while line := link.line():
            self._take(line)

    def _take(self, line: bytes) -> None:
        """Take one line. Raises DriverBroken for what is no answer."""
        if not line:
            raise DriverBroken("it ended before it said what it is")
        said = decode(line, Line)
        with self._lock:
            answer, late = self._asked.pop(said.id, (None, None))
        if answer is None:
            return
        if not answer.set_running_or_notify_cancel():
            if late is not None:
                late()
        elif said.error is not None:
            text = shown(said.error.message) or "it gave no reason"
            answer.set_exception(
                DriverRefused(text, recoverable=said.error.recoverable, is_open=said.error.open)
            )
        else:
            answer.set_result(said.result)

    def _hang_up(self) -> None:
        with self._lock:
            link = self._link
        if link is not None:
            link.shut()

    def _leave(self) -> None:
        """Let everybody know that what was asked gets no answer."""
        with self._lock:
            self._link, self.traits = None, None
            asked, self._asked = self._asked, {}
        for answer, _ in asked.values():
            if answer.set_running_or_notify_cancel():
                answer.set_exception(DriverGone(f"driver {self._name} ended"))


class _Link:
    """A connection: whole lines in, whole lines out by a thread of its own."""

    def __init__(self, peer: socket.socket, pid: int) -> None:
        self._peer = peer
        self._buffer = bytearray()
        limit = struct.pack("ll", WRITE_S, 0)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"driver {pid} out", daemon=True)
        self._writer.start()

    def send(self, data: bytes) -> None:
        """Send a line; one that cannot be sent ends the connection."""
        self._out.put(data)

    def limit(self, within_s: float | None) -> None:
        """Bound the wait for more bytes."""
        packed = struct.pack("ll", int(within_s or 0), 0)
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)

    def line(self) -> bytes:
        """Return the next line; empty: the connection ended. Raises DriverBroken, OSError."""
        while True:
            at = self._buffer.find(b"\n")
            if at >= 0:
                found = bytes(self._buffer[: at + 1])
                del self._buffer[: at + 1]
                if found.strip():
                    return found
                continue
            if len(self._buffer) > LINE_BYTES_MAX:
                raise DriverBroken(f"it sent a line of more than {LINE_BYTES_MAX} bytes")
            try:
                data = self._peer.recv(1 << 16)
            except BlockingIOError:
                raise DriverBroken("it did not answer in time") from None
            except ConnectionError:
                return b""
            if not data:
                return b""
            self._buffer += data

    def shut(self) -> None:
        """End it for both sides."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and its thread."""
        self.shut()
        self._out.put(b"")
        self._writer.join()
        self._peer.close()

    def _write(self) -> None:
        while data := self._out.get():
            try:
                self._peer.sendall(data)
            except OSError:
                self.shut()
                return


def _socket_path(folder: Path) -> str:
    """Return where a driver connects to: the path of a socket is short, so it may be one from its directory."""
    path = str(folder / SOCKET)
    return path if len(os.fsencode(path)) <= _PATH_BYTES_MAX else SOCKET


def _listen(folder: Path) -> socket.socket:
    (folder / SOCKET).unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            door.bind(f"/proc/self/fd/{fd}/{SOCKET}")
        finally:
            os.close(fd)
        (folder / SOCKET).chmod(0o600)
        door.listen(8)
    except BaseException:
        door.close()
        raise
    return door


def _record(folder: Path, pid: int) -> None:
    with contextlib.suppress(OSError):
        (folder / RECORD).write_text(Path(f"/proc/{pid}/stat").read_text(errors="replace"))


def end_recorded(folder: Path) -> None:
    """Kill the driver's process of an earlier life of the agent, if it is still there."""
    try:
        found: OsProcess = parse_stat((folder / RECORD).read_text())[0]
    except (OSError, ValueError):
        return
    if has_pid(found):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(found.pid, signal.SIGKILL)
    (folder / RECORD).unlink(missing_ok=True)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a driver whose connection is closed, or kill it; not what it started."""
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
