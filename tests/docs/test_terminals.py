"""What a person meets at a terminal: a narrow one, one without colours, Ctrl-C at any point, a bus that is none."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.processes import processes_using
from tests.bounds import WAIT_S
from tests.bus.up import Up
from tests.docs.terminal import run

pytestmark = pytest.mark.bus
ROOT = Path(__file__).resolve().parents[2]
HELLO = str(ROOT / "examples" / "hello.nomad.hcl")
CARAVAN = (sys.executable, "-m", "services.cli")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    one = Up(tmp_path_factory.mktemp("term"), one_process=True)
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_nothing_is_wider_than_the_terminal(up: Up, columns: int) -> None:
    """Every command for people keeps to the width it has, with the picture of a rollout too."""
    for words in (
        ["job", "run", "--var", f"count={columns // 20}", HELLO],
        ["job", "plan", "--var", "count=1", HELLO],
        ["job", "status"],
        ["job", "status", "hello"],
        ["node", "status", "--allocs"],
        ["alloc", "status", "hello.greeters[0]"],
        ["eval", "list"],
        ["log", "tail"],
    ):
        code, screen = run([*CARAVAN, *words], up.env, columns=columns)
        assert code == (1 if "plan" in words else 0), screen.text()
        wide = [line for line in screen.text() if len(line) > columns and "/" not in line]
        assert not wide, words


def test_the_rollout_is_drawn_and_stays(up: Up) -> None:
    """On a terminal the last picture remains: a tick, a bar for each group, and how many run."""
    code, screen = run([*CARAVAN, "job", "run", "--var", "count=4", HELLO], up.env)
    text = screen.text()
    assert code == 0
    assert any(line.startswith("✓ job hello, version ") for line in text), text
    assert sum("━━━━" in line and "4/4 healthy" in line for line in text) == 1
    assert "\x1b[32m" in "".join(screen.lines)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}])
def test_no_colour_is_no_colour(up: Up, env: dict[str, str]) -> None:
    """With NO_COLOR no text is painted, whatever the command."""
    for words in (
        ["job", "status", "hello"],
        ["job", "run", "--var", "count=3", HELLO],
        ["log", "tail"],
    ):
        code, screen = run([*CARAVAN, *words], {**up.env, **env})
        assert code == 0
        assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m", "".join(screen.lines)), screen.lines


def test_a_pipe_gets_plain_lines(up: Up) -> None:
    """Piped, progress is one line a change, without a control character."""
    command = [*CARAVAN, "job", "run", "--var", "count=2", HELLO]
    done = subprocess.run(command, env=up.env, capture_output=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout and b"\r" not in done.stdout
    assert b"greeters: 2/2 healthy" in done.stdout


@pytest.mark.parametrize("lines", [1, 50])
def test_a_reader_that_leaves_is_no_traceback(up: Up, lines: int) -> None:
    """`caravan log tail -f | head -1` ends with the reader, also while no event comes that it could not write."""
    text = f"{sys.executable} -m services.cli log tail -n {lines} -f | head -n 1"
    done = subprocess.run(
        ["/bin/sh", "-c", text], env=up.env, capture_output=True, check=False, timeout=WAIT_S
    )
    assert len(done.stdout.splitlines()) == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.full(
    "where the signal arrives is luck: one traceback under load, none in 40 tries more"
)
@pytest.mark.parametrize(
    "at",
    [
        "services.cli.command_spec",
        "msgspec",
        "asyncio",
        "nats.js",
        "shared.bus.connection.public_client",
    ],
)
def test_ctrl_c_while_it_starts_is_quiet(up: Up, at: str) -> None:
    """However much of it was imported, Ctrl-C ends it as a shell expects, without a traceback."""
    command = [sys.executable, "-X", "importtime", "-m", "services.cli", "log", "tail", "-f"]
    process = subprocess.Popen(
        command, env=up.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.split()[-1] == at:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode in (130, -signal.SIGINT), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words", [["log", "tail", "-f"], ["alloc", "logs", "-f", "hello.greeters[0]"]]
)
def test_ctrl_c_ends_what_follows(up: Up, words: list[str]) -> None:
    """What continues forever ends with 130 and without a traceback."""
    job = str(ROOT / "examples" / "hello.nomad.hcl")
    subprocess.run([*CARAVAN, "job", "run", job], env=up.env, check=True, capture_output=True)
    process = subprocess.Popen(
        [*CARAVAN, *words], env=up.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (130, b"")


def test_ctrl_c_while_following_leaves_the_job_alone(up: Up) -> None:
    """Ctrl-C ends the following, not what was submitted: it runs once its node is awake again."""
    agent = json.loads((up.data_dir / "up.json").read_text())["services"]["agent-node-1"]
    # The node stays ready while it sleeps: else the job would wait for another one, and its following end.
    up.documented("operator", "scheduler", "set", "heartbeats_missed=600")
    os.kill(agent, signal.SIGSTOP)
    try:
        command = [*CARAVAN, "job", "run", str(ROOT / "examples" / "batch.nomad.hcl")]
        process = subprocess.Popen(
            command, env=up.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "pending" in line:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        # A command that changes a cluster names it; nothing else is said.
        assert process.returncode == 130
        assert re.fullmatch(r"cluster \S+ \(nats://\S+, context \S+\)\n", err), err
    finally:
        os.kill(agent, signal.SIGCONT)
        up.documented("operator", "scheduler", "set", "heartbeats_missed=3")

    def complete() -> int:
        groups = up.run("job", "status", "count-to-ten")[1]["groups"]
        return groups["counters"]["complete"]

    up.until(lambda: complete() == 5, "the job ran")


class Listener:
    """Something on a port that is no bus of ours: silent, or an old server."""

    def __init__(self, greeting: bytes, *, has_services: bool = True) -> None:
        self._has_services = has_services
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._socket.getsockname()[1]}"
        self._greeting = greeting
        self.accepted = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._socket.accept()
                self.accepted += 1
                threading.Thread(target=self._talk, args=(one,), daemon=True).start()

    def _talk(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            one.sendall(self._greeting)
            while data := one.recv(4096):
                if b"PING" in data:
                    one.sendall(b"PONG\r\n")
                # One whose services stand still has subscribers, of which none answers.
                for reply in (
                    ()
                    if not self._has_services
                    else re.findall(rb"^PUB \S+ (\S+) \d+", data, re.MULTILINE)
                ):
                    # As a server answers without a subscriber.
                    one.sendall(b"HMSG %s 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % reply)

    def close(self) -> None:
        self._socket.close()


_INFO = '{"server_id":"x","version":"%s","proto":1,"headers":true,"max_payload":1048576}'


@pytest.mark.parametrize("words", [["job", "status"], ["job", "run", "--detach", HELLO]])
@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_bus_is_asked_once_and_said(
    tmp_path: Path, greeting: bytes, words: list[str]
) -> None:
    """A port that is silent, or speaks something else, is one line and exit 1.

    A command that changes a cluster, and would first ask which one it is, waits for one connection too, not for two.
    """
    listener = Listener(greeting)
    env = {**os.environ, "CARAVAN_NATS_URL": listener.url, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*CARAVAN, *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    listener.close()
    assert (done.returncode, done.stdout, listener.accepted) == (1, "", 1), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith(f"caravan: no bus at {listener.url}")
    assert "caravan up" in line


def test_a_bus_without_answers_is_told_within_the_timeout(tmp_path: Path) -> None:
    """The bus is there and its view is silent: said while it waits, and at the end with what to look at."""
    listener = Listener(f"INFO {_INFO % '2.15.1'}\r\n".encode(), has_services=False)
    env = {**os.environ, "CARAVAN_NATS_URL": listener.url, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*CARAVAN, "operator", "status", "--wait", "quorum", "--timeout", "4s"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    listener.close()
    assert (done.returncode, done.stdout) == (1, "")
    waiting, last = done.stderr.splitlines()
    assert waiting == f"waiting: no answer of view to query.cluster at {listener.url} yet"
    # For how long is said once.
    assert last.startswith(f"caravan: not quorum after 4 s: no answer at {listener.url}; ")
    assert last.endswith("the log of view tells more")


def test_an_old_server_is_named(tmp_path: Path) -> None:
    """Without an answer from a server that is too old, the message names the reason."""
    greeting = f"INFO {_INFO % '2.9.1'}\r\n".encode()
    listener = Listener(greeting)
    env = {**os.environ, "CARAVAN_NATS_URL": listener.url, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*CARAVAN, "job", "status"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    listener.close()
    assert done.returncode == 1
    assert "2.9.1" in done.stderr and "2.15" in done.stderr, done.stderr
