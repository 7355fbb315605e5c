"""The command line as a process: closed streams, Ctrl-C while it loads, clusters and leftovers that live."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from services.cli.local import processes
from services.cli.local.processes import kill_leftover_services, processes_using
from services.cli.runtime import contexts, local_clusters
from shared.bus.server.nats_server import free_port, port_is_free
from shared.machine_lock import kernel_boot
from tests.bounds import until

ROOT = Path(__file__).resolve().parents[2]


def test_a_closed_pipe_is_no_traceback() -> None:
    """When the reader leaves, nothing is printed about it."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "services.cli", "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, cwd=ROOT)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_while_loading_is_no_traceback() -> None:
    """Until all is loaded Ctrl-C ends the process in silence; afterwards it is Python's again, or still ignored."""
    press = "import services.cli.sigint, os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", press], capture_output=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
    ask = "import signal, services.cli.main; print(repr(signal.getsignal(signal.SIGINT)))"
    for begin, handler in (("", "default_int_handler"), ("trap '' INT; ", "SIG_IGN")):
        line = f'{begin}exec "{sys.executable}" -c "{ask}"'
        told = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True, cwd=ROOT)
        assert handler in told.stdout.decode()


@pytest.mark.parametrize("redirect", ["exec >&-", "exec >&- 2>&-"])
def test_closed_streams_are_no_traceback(redirect: str) -> None:
    """Who closes stdout gets silence: no fault of ours, and nothing in place of what was closed."""
    line = f'{redirect}; exec "{sys.executable}" -m services.cli dead list --json'
    env = {**os.environ, "CARAVAN_NATS_URL": f"nats://127.0.0.1:{free_port()}"}
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, check=False, cwd=ROOT, env=env
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_poor_encoding_is_no_traceback(tmp_path: Path) -> None:
    """What a terminal's encoding lacks is shown as a question mark."""
    path = tmp_path / "ring.hcl"
    path.write_text('locals {\n a = local.b\n b = local.a\n}\njob "j" {}\n')
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "job", "validate", str(path)],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"local.a ? local.b" in done.stdout


def test_only_living_ups_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find the newest cluster whose process lives, and the directories of its agents."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert contexts.running_contexts() == []
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    agents = {"n1": str(tmp_path / "n1")}
    for pid, url, started_ns in ((os.getpid(), "nats://a", 1), (gone.pid, "nats://b", 2)):
        up = local_clusters.LocalClusterRecord(
            pid=pid, url=url, data_dir=str(tmp_path), started_ns=started_ns, agents=agents
        )
        local_clusters.write_record(up)
    assert contexts.select().context.url == "nats://a"
    assert [up.agents for up in local_clusters.running_clusters()] == [agents]
    local_clusters.remove_record(os.getpid(), tmp_path)
    assert contexts.running_contexts() == []


def test_leftovers_are_seen(tmp_path: Path) -> None:
    """A process whose environment names the directory is found until it ends."""
    child = subprocess.Popen(["/bin/sleep", "60"], env={"X": str(tmp_path)})
    try:
        # The kernel shows the environment of a new program a moment after `Popen` returned.
        until(lambda: processes_using(tmp_path) == [child.pid], "the child with its environment")
    finally:
        child.kill()
        child.wait()
    assert processes_using(tmp_path) == []


def test_the_port_of_the_bus_of_an_earlier_up_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed bus holds its port a moment longer than its process is seen: the next `up` waits for its end."""
    pauses: list[float] = []
    left = subprocess.Popen(["/bin/sleep", "600"], env={"X": str(tmp_path)})
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if left.poll() is None:
                left.wait()
            else:
                held.close()

        clock = SimpleNamespace(sleep=pause, monotonic=time.monotonic)
        monkeypatch.setattr(processes, "time", clock)
        up = local_clusters.LocalClusterRecord(
            pid=left.pid,
            url=f"nats://127.0.0.1:{port}",
            data_dir=str(tmp_path),
            services={"view": left.pid},
            boot=kernel_boot(),
        )
        (tmp_path / "up.json").write_bytes(msgspec.json.encode(up))
        kill_leftover_services(tmp_path, lambda _: None)
        assert port_is_free(port)
    assert pauses
    assert left.wait() == -signal.SIGKILL
