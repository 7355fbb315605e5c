"""An engine of the tests' own, which may be stopped, frozen and started again while its containers run.

It has a network namespace of its own, so that nothing is published on this machine; `inside` is how to get in. The
machine's own engine is never touched.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import docker

from services.agent.drivers.docker.engine import probe_socket
from tests import not_tested
from tests.bounds import WAIT_S, until
from tests.compose.engine import NoEngineError, _install, _leave_network, _unmount_below

#: Programs of the image; all are one static file.
PROGRAMS = (
    *("sh", "sleep", "cat", "echo", "env", "id", "ls", "true", "false", "kill", "ln", "mv", "rm"),
    *("mkfifo", "touch", "mkdir", "chown", "hostname", "nc", "wget", "head", "tail", "seq", "dd"),
    *("stty", "grep", "ulimit", "pwd", "stat", "mount", "chmod", "nslookup", "tty", "yes", "tr"),
)
IMAGE = "caravan-test-box:1"


class OwnEngine:
    """A dockerd, its containerd, and all they keep."""

    def __init__(self) -> None:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise NoEngineError("an engine of our own needs root on Linux")
        if not shutil.which("dockerd"):
            _install()
        self._folder = Path(tempfile.mkdtemp(prefix="caravan-docker-"))
        self.url = f"unix://{self._folder / 'sock'}"
        self._process: subprocess.Popen[bytes] | None = None
        # The namespace outlives a killed dockerd: another process stays in it.
        self._keeper = subprocess.Popen(
            ["sleep", str(20 * WAIT_S)],
            stdin=subprocess.DEVNULL,
            preexec_fn=_leave_network,  # noqa: PLW1509 - nothing else runs in a thread here.
        )
        self.inside = ("nsenter", f"--net=/proc/{self._keeper.pid}/ns/net", "--")
        self.client: docker.DockerClient | None = None
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        self.client = docker.DockerClient(base_url=self.url, timeout=WAIT_S)

    def start(self) -> None:
        """Start dockerd; running containers are found again."""
        options = {
            "data-root": self._folder / "data",
            "exec-root": self._folder / "run",
            "pidfile": self._folder / "dockerd.pid",
            "host": self.url,
            "iptables": "false",
            "ip6tables": "false",
            "ip-masq": "false",
            "live-restore": "true",
        }
        (self._folder / "dockerd.pid").unlink(missing_ok=True)
        (self._folder / "sock").unlink(missing_ok=True)
        with (self._folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.inside,
                    "dockerd",
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + WAIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                last = (self._folder / "dockerd.log").read_text(errors="replace").splitlines()[-3:]
                raise NoEngineError(f"dockerd does not start here: {' / '.join(last)}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        if not (self._folder / "sock").exists():
            return False
        try:
            probe_socket(self.url)
        except OSError:
            return False
        client = docker.APIClient(base_url=self.url, timeout=5)
        try:
            return bool(client.ping())
        except (docker.errors.DockerException, OSError):
            return False
        finally:
            client.close()

    def kill(self) -> None:
        """End dockerd without a word; its containers run on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        # Its containerd dies with it, a moment later: the next dockerd must not take it for its own.
        pid = self._folder / "run" / "containerd" / "containerd.pid"
        until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), "containerd's end")

    def freeze(self) -> None:
        """Dockerd keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Dockerd continues."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def run_inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the engine's network."""
        return subprocess.run(
            [*self.inside, *words], capture_output=True, text=True, timeout=WAIT_S, check=False
        )

    def import_image(self) -> None:
        """Make the image of the tests from this machine's static busybox."""
        if not_tested.is_full() and not shutil.which("busybox"):
            _install()
        box = shutil.which("busybox")
        if box is None or b"statically linked" not in _kind(box):
            raise NoEngineError("the image of these tests is made from busybox-static: install it")
        root = self._folder / "image"
        for name in ("bin", "etc", "tmp", "root"):
            (root / name).mkdir(parents=True)
        shutil.copy(box, root / "bin" / "busybox")
        for name in PROGRAMS:
            (root / "bin" / name).symlink_to("busybox")
        (root / "etc" / "passwd").write_text(
            "root:x:0:0::/root:/bin/sh\nweb:x:1000:1000::/:/bin/sh\n"
        )
        (root / "tmp").chmod(0o1777)
        tar = shutil.make_archive(str(self._folder / "image"), "tar", root)
        name, _, tag = IMAGE.partition(":")
        self.client.api.import_image_from_file(
            tar, repository=name, tag=tag, changes=['CMD ["sh"]']
        )

    def end(self) -> None:
        """End everything that was started, and remove its files."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            client = docker.DockerClient(base_url=self.url, timeout=WAIT_S)
            for one in client.containers.list(all=True):
                one.remove(force=True)
            client.close()
            self._process.terminate()
            try:
                self._process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        pid = self._folder / "run" / "containerd" / "containerd.pid"
        if pid.exists() and pid.read_text().strip().isdigit():
            # It is dockerd's child, and stays when dockerd was killed.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGTERM)
        self._keeper.kill()
        self._keeper.wait()
        if self.client is not None:
            self.client.close()
        _unmount_below(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)


def _kind(path: str) -> bytes:
    """What a program is linked with: a static one names no interpreter."""
    head = Path(path).read_bytes()[:4096]
    return b"" if b"ld-linux" in head or b"ld-musl" in head else b"statically linked"
