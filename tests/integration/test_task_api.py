"""The task API on a real node: a socket of each run that has its token, its bounds, and what a task may try."""

import asyncio
import json
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.agent.drivers.driver import DriverRun
from services.agent.drivers.exec.settings import ExecSettings, TaskUser
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.identities.token_times import TokenTimes, keep_times, token_mark
from services.agent.task_api import sockets
from services.agent.task_api.http_messages import HEAD_BYTES_MAX
from services.agent.task_api.reads import TaskReads
from services.agent.task_api.socket_file import make_socket, remove_socket
from services.agent.task_api.sockets import CONNECTIONS_MAX, TaskSockets
from shared.core.state.ids import alloc_id
from tests.bounds import WAIT_S, level
from tests.fixed_services import FixedServices
from tests.fixed_tokens import FixedTokens
from tests.fixed_variables import FixedVariables
from tests.integration.agent_node import job, projection, sh
from tests.integration.exec_node import NEEDED, need
from tests.integration.test_agent_adoption import started_and_orphaned
from tests.integration.test_agent_directories import node_at
from tests.integration.test_exec_agent import drivers, shell

pytestmark = pytest.mark.asyncio
HEALTH = "/v1/agent/health"
VARIABLE = "/v1/var/nomad/jobs/j"
#: What a task with Python asks, over the place that its environment names, or below its own directory.
ASK = """
import os, socket
place = os.environ["NOMAD_UNIX_ADDR"].removeprefix("unix://")
if os.environ.get("SHORT"):
    assert place == os.environ["NOMAD_SECRETS_DIR"] + "/api.sock"
    place = "secrets/api.sock"
asked = socket.socket(socket.AF_UNIX)
asked.connect(place)
line = "GET /v1/var/nomad/jobs/j HTTP/1.1\\r\\nAuthorization: Bearer %s\\r\\nConnection: close\\r\\n\\r\\n"
asked.sendall((line % os.environ["NOMAD_TOKEN"]).encode())
found = b""
while part := asked.recv(65536):
    found += part
print(found.decode().partition("\\r\\n\\r\\n")[2], flush=True)
"""


class TaskClient:
    """A connection to the socket in a folder. A path below a descriptor is never too long for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> "TaskClient":
        """Connect."""
        fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            place = f"/proc/self/fd/{fd}/api.sock"
            self.reader, self.writer = await asyncio.open_unix_connection(place)
        finally:
            os.close(fd)
        return self

    def send(self, path: str, token: str = "", **headers: str) -> None:
        """Send a request."""
        said = {"X-Nomad-Token": token, **headers} if token else headers
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {text}" for name, text in said.items())]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def answer(self) -> tuple[int, Any]:
        """Read an answer: its status, and its JSON or text."""
        async with asyncio.timeout(WAIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(one.split(": ", 1) for one in head.split("\r\n")[1:] if one)
            body = await self.reader.readexactly(int(headers["Content-Length"]))
        is_json = headers["Content-Type"] == "application/json"
        return int(head.split(" ")[1]), json.loads(body) if is_json else body.decode()

    async def ended(self) -> bytes:
        """Read to the end of the connection."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()

    def close(self) -> None:
        """End it."""
        self.writer.close()


async def asked(folder: Path, path: str, token: str = "") -> tuple[int, Any]:
    """Ask once."""
    client = await TaskClient(folder).open()
    try:
        client.send(path, token)
        return await client.answer()
    finally:
        client.close()


def can_connect(folder: Path) -> bool:
    """Say whether the socket in a folder is served."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.connect(f"/proc/self/fd/{fd}/api.sock")
        except OSError:
            return False
        finally:
            os.close(fd)
    return True


def secrets_of(top: Path, key: int = 1) -> Path:
    return top / "alloc" / alloc_id(key) / "main" / "secrets"


def files_with(top: Path, text: str) -> list[str]:
    """Names of the files that hold a text."""
    files = [one for one in top.rglob("*") if one.is_file()]
    return [one.name for one in files if text.encode() in one.read_bytes()]


async def send_only(folder: Path, request: bytes) -> None:
    """Send requests and take no answer. Raises OSError: the connection was ended."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as greedy:
        greedy.connect(f"/proc/self/fd/{fd}/api.sock")
        os.close(fd)
        greedy.setblocking(False)
        async with asyncio.timeout(WAIT_S):
            while True:
                await asyncio.get_running_loop().sock_sendall(greedy, request)


# ---- a whole agent ----


async def test_a_task_reads_its_variable(tmp_path: Path) -> None:
    """By the address and the token in its environment, as long as it runs; then the socket is gone."""
    variables = FixedVariables()
    variables.put("nomad/jobs/j", at="here")
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": sys.executable, "args": ["-c", ASK + "import time; time.sleep(300)"]},
        "Env": {"SHORT": "1"},
        "Identity": {"Env": True},
    }
    async with node_at(tmp_path, job(task), tokens=FixedTokens(), variables=variables) as node:
        node.hear(projection(5, 1))
        await level(lambda: node.output().endswith("\n"), lambda: node.states)
        found = json.loads(node.output())
        assert (found["Path"], found["Items"]) == ("nomad/jobs/j", {"at": "here"})
        there = (secrets_of(tmp_path) / "api.sock").lstat()
        assert stat.S_ISSOCK(there.st_mode)
        assert (stat.S_IMODE(there.st_mode), there.st_uid) == (0o600, os.geteuid())
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        assert not (secrets_of(tmp_path) / "api.sock").exists()
        assert {reader.alloc_id for reader, _ in variables.asked} == {alloc_id(1)}


async def test_tokens_of_others_are_none(tmp_path: Path) -> None:
    """Of another task's socket, of an allocation that ended, of another identity, and none at all."""
    named = {"Name": "named", "Audience": ["x"], "Env": True}
    spec = job(sh("sleep 300", Identity={"Env": True}, Identities=[named]))
    tokens = FixedTokens()
    async with node_at(tmp_path, spec, tokens=tokens, variables=FixedVariables()) as node:
        node.hear(projection(5, 1, 2))
        await node.until(lambda: node.status(1) == node.status(2) == "running")
        given = {key: node.identities._held[alloc_id(key)] for key in (1, 2)}
        mine, other = (given[key]["main", "default"].token or "" for key in (1, 2))
        folder = secrets_of(tmp_path)
        assert (await asked(folder, HEALTH, mine))[0] == 200
        wrong = (other, given[1]["main", "named"].token or "", mine + "x", "eyJ.eyJ.")
        for token in wrong:
            status, text = await asked(folder, HEALTH, token)
            assert (status, text) == (403, "this is not the token of the task. Permission denied")
        assert (await asked(folder, HEALTH))[0] == 401
        node.hear(projection(6, 1))
        await node.until(lambda: node.status(2) == "complete")
        assert (await asked(folder, HEALTH, other))[0] == 403
        assert not can_connect(secrets_of(tmp_path, 2))


async def test_a_task_without_its_token_has_no_socket(tmp_path: Path) -> None:
    """A block without `env` and `file`, and identities of other names."""
    named = {"Name": "named", "Audience": ["x"], "Env": True, "File": True}
    spec = job(sh("sleep 300", Identity={}, Identities=[named]))
    async with node_at(tmp_path, spec, tokens=FixedTokens()) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        assert [one.name for one in secrets_of(tmp_path).iterdir()] == ["nomad_named.jwt"]


async def test_each_run_has_a_socket(tmp_path: Path) -> None:
    """A restart ends that of the run before, and makes another one for the same token."""
    again = {"Attempts": 5, "Delay": 1, "Interval": 10**12, "Mode": "fail"}
    script = (
        "test -S secrets/api.sock || exit 9; test -e local/go && sleep 300; touch local/go; exit 1"
    )
    spec = job(sh(script, Identity={"Env": True}), RestartPolicy=again)
    tokens = FixedTokens()
    async with node_at(tmp_path, spec, tokens=tokens) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running" and node.task().restarts == 1)
        await level(lambda: can_connect(secrets_of(tmp_path)))
        assert (await asked(secrets_of(tmp_path), HEALTH, "token.default.1"))[0] == 200
        assert tokens.signed_count == 1


async def test_a_killed_agents_socket_is_made_anew(tmp_path: Path) -> None:
    """Kill -9: it is not served until the next agent adopts the task, whose token it knows by its mark alone."""
    spec = job(sh("sleep 300", Identity={"File": True}))
    pid = await started_and_orphaned(tmp_path, spec)
    folder = secrets_of(tmp_path)
    token = (folder / "nomad_token").read_text()
    assert (folder / "api.sock").exists() and not can_connect(folder)
    tokens = FixedTokens()
    async with node_at(tmp_path, spec, tokens=tokens) as node:
        node.hear(projection(7, 1))
        await node.until(lambda: node.status() == "running" and node.task().pid == pid)
        assert (await asked(folder, HEALTH, token))[0] == 200
        assert (await asked(folder, HEALTH, token + "x"))[0] == 403
        assert tokens.asked == []
        assert files_with(tmp_path, token) == ["nomad_token"]


async def test_what_a_task_puts_in_the_place_of_its_socket_is_its_own_loss(tmp_path: Path) -> None:
    """An event says that there is no task API; the task runs, and nothing outside of its directory is touched."""
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("mine")
    again = {"Attempts": 5, "Delay": 1, "Interval": 10**12, "Mode": "fail"}
    script = (
        "test -e local/go && sleep 300; touch local/go; rm -r secrets/api.sock;"
        " mkdir secrets/api.sock; exit 1"
    )
    spec = job(sh(script, Identity={"Env": True}), RestartPolicy=again)
    async with node_at(tmp_path, spec, tokens=FixedTokens()) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running" and node.task().restarts == 1)
        said = [one.message for one in node.task().events if one.kind == "Task API"]
        assert said == ["secrets/api.sock is not served: Is a directory"]
        assert outside.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_a_task_of_another_user_asks_over_its_socket(tmp_path: Path) -> None:
    """Driver exec: at the path that the task sees, which belongs to its user alone."""
    need(*NEEDED)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    script = 'echo "$NOMAD_UNIX_ADDR"; stat -c "%F %u %a" "$NOMAD_SECRETS_DIR/api.sock"; sleep 300'
    more = drivers(ExecSettings())
    spec = job(shell(script, Identity={"Env": True}))
    async with node_at(tmp_path, spec, tokens=FixedTokens(), more=more) as node:
        node.hear(projection(5, 1))
        await level(lambda: node.output().count("\n") == 2, lambda: node.states)
        user = ExecSettings().user_of("")
        assert isinstance(user, TaskUser)
        assert node.output() == f"unix:///secrets/api.sock\nsocket {user.uid} 600\n"


# ---- its bounds ----


class OneTask:
    """A task that runs, with its socket."""

    token = "eyJ.a.b"

    def __init__(self, top: Path) -> None:
        self.home = DataDir(top, "n1")
        places = self.home.places(alloc_id(1), "main")
        for one in places.directories():
            one.mkdir(parents=True)
        times = TokenTimes(mark=token_mark(self.token), received_s=1.0, life_s=0)
        keep_times(self.home.top, places.runs, "default", times)
        self.run = DriverRun(alloc_id=alloc_id(1), task="main", number=1, key=1, places=places)
        self.variables = FixedVariables()
        self.variables.put("nomad/jobs/j", a="1")
        self.folder = places.task / "secrets"
        reads = TaskReads(self.variables, FixedServices())
        self.sockets = TaskSockets(self.home.top, lambda _driver, _user: (-1, -1), reads)

    async def start(self) -> None:
        """Serve it."""
        await self.sockets.start(self.run, driver="raw_exec", user="", names=("j", "g"))

    async def close(self) -> None:
        """End."""
        await self.sockets.close()
        self.home.close()


@pytest_asyncio.fixture
async def task(tmp_path: Path) -> AsyncIterator[OneTask]:
    made = OneTask(tmp_path / "data")
    await made.start()
    yield made
    await made.close()


async def test_a_connection_takes_one_request_after_another(task: OneTask) -> None:
    """A refusal ends it as little as an answer; an end that was asked for comes with the answer."""
    client = await TaskClient(task.folder).open()
    for token, status in ((task.token, 200), ("other", 403), ("", 401), (task.token, 200)):
        client.send(VARIABLE, token)
        assert (await client.answer())[0] == status
    client.send(VARIABLE, task.token, Connection="close")
    assert (await client.answer())[0] == 200
    assert await client.ended() == b""
    client.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX * 2, 431),
        (b"PUT /v1/var/a HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100_000, 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    ],
)
async def test_what_is_too_large_ends_its_connection(
    task: OneTask, sent: bytes, status: int
) -> None:
    """Before it is read; the next connection is answered."""
    client = await TaskClient(task.folder).open()
    client.writer.write(sent)
    assert (await client.answer())[0] == status
    client.writer.write_eof()
    assert await client.ended() == b""
    client.close()
    assert (await asked(task.folder, HEALTH, task.token))[0] == 200


async def test_a_slow_request_is_cut(task: OneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a head, or an answer that is not taken, holds a connection for a time only; others are served."""
    monkeypatch.setattr(sockets, "REQUEST_S", 0.05)
    slow = [await TaskClient(task.folder).open() for _ in range(CONNECTIONS_MAX)]
    for one in slow:
        one.writer.write(b"GET / HTTP/1.1\r\nX-No")
    assert (await asked(task.folder, HEALTH, task.token))[0] == 200
    for one in slow:
        assert (await one.answer())[0] == 408
        one.close()


async def test_answers_that_are_not_taken_end_their_connection(
    task: OneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that only asks holds no more than one answer of each connection."""
    monkeypatch.setattr(sockets, "WRITE_S", 0.05)
    monkeypatch.setattr(sockets, "PACE_PER_S", 1e9)
    task.variables.put("nomad/jobs/j", a="x" * 60_000)
    client = await TaskClient(task.folder).open()
    request = f"GET {VARIABLE} HTTP/1.1\r\nX-Nomad-Token: {task.token}\r\n\r\n".encode()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await send_only(task.folder, request)
    client.send(HEALTH, task.token)
    assert (await client.answer())[0] == 200
    client.close()


async def test_more_connections_wait_for_their_turn(task: OneTask) -> None:
    """A task that opens many is served by its eight; those of another task are not its matter."""
    held = [await TaskClient(task.folder).open() for _ in range(CONNECTIONS_MAX)]
    for one in held:
        one.send(HEALTH, task.token)
        assert (await one.answer())[0] == 200
    late = await TaskClient(task.folder).open()
    late.send(HEALTH, task.token)
    waits = asyncio.ensure_future(late.answer())
    for one in held:
        one.send(HEALTH, task.token)
        assert (await one.answer())[0] == 200
    assert not waits.done()
    held[0].close()
    assert (await waits)[0] == 200
    for one in (*held, late):
        one.close()


async def test_requests_keep_a_pace(task: OneTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes beyond the burst waits: a loop of a task does not take the agent's time."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def counted(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(0)

    monkeypatch.setattr(sockets, "BURST", 3)
    monkeypatch.setattr(sockets.asyncio, "sleep", counted)
    pace = sockets._Pace(lambda: 100.0)
    for _ in range(6):
        await pace.hold()
    assert pauses == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.12])
    pauses.clear()
    now = iter([100.0, *[110.0] * 9])
    pace = sockets._Pace(lambda: next(now))
    for _ in range(6):
        await pace.hold()
    assert pauses == pytest.approx([0.02, 0.04, 0.06])


async def test_a_task_that_goes_away_frees_its_place(
    task: OneTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocking reads of clients that ended do not hold connections to the end of their wait."""
    monkeypatch.setattr(sockets, "GONE_S", 0.01)
    for _ in range(2 * CONNECTIONS_MAX):
        client = await TaskClient(task.folder).open()
        client.send(f"{VARIABLE}?index=9999", task.token)
        await client.writer.drain()
        client.close()
    assert (await asked(task.folder, HEALTH, task.token))[0] == 200


async def test_a_fault_costs_its_own_request_alone(
    task: OneTask, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No text of it is shown, which could hold a value; the connection is good for the next one."""

    async def broken(*_about: object) -> None:
        raise ValueError("marker-of-a-value")

    monkeypatch.setattr(task.variables, "variable", broken)
    client = await TaskClient(task.folder).open()
    client.send(VARIABLE, task.token)
    assert await client.answer() == (500, "the request could not be answered")
    client.send(HEALTH, task.token)
    assert (await client.answer())[0] == 200
    client.close()
    said = capfd.readouterr()
    assert "marker-of-a-value" not in said.out + said.err


async def test_an_end_cuts_what_is_under_way(task: OneTask) -> None:
    """A blocking read ends with the run; the file goes, and nothing is left open."""
    client = await TaskClient(task.folder).open()
    client.send(f"{VARIABLE}?index=9999", task.token)
    await level(lambda: task.variables.asked)
    await task.sockets.end(task.run)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await client.answer()
    client.close()
    assert not (task.folder / "api.sock").exists()
    await task.start()
    assert (await asked(task.folder, HEALTH, task.token))[0] == 200


# ---- its file ----


def _link(folder: Path, outside: Path) -> None:
    (folder / "api.sock").symlink_to(outside)


def _dangling(folder: Path, outside: Path) -> None:
    (folder / "api.sock").symlink_to(outside.parent / "none")


def _file(folder: Path, outside: Path) -> None:
    (folder / "api.sock").hardlink_to(outside)


@pytest.mark.parametrize("trap", [_link, _dangling, _file])
async def test_a_link_in_the_place_of_the_socket_is_replaced(
    tmp_path: Path, trap: Callable[[Path, Path], None]
) -> None:
    """Never followed: what it leads to keeps its content, mode and owner, and gets no socket."""
    folder, outside = tmp_path / "data" / "secrets", tmp_path / "outside"
    folder.mkdir(parents=True)
    outside.write_text("mine")
    outside.chmod(0o640)
    trap(folder, outside)
    owner = (65_534, 65_534) if os.geteuid() == 0 else (-1, -1)
    made = make_socket(tmp_path / "data", folder, owner)
    found = (folder / "api.sock").lstat()
    assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    assert owner in ((-1, -1), (found.st_uid, found.st_gid))
    there = outside.stat()
    assert (outside.read_text(), stat.S_IMODE(there.st_mode)) == ("mine", 0o640)
    assert (there.st_uid, there.st_nlink) == (os.geteuid(), 1)
    assert not (tmp_path / "none").exists()
    made.close()
    remove_socket(tmp_path / "data", folder)
    assert list(folder.iterdir()) == []


async def test_a_folder_that_is_a_link_gets_no_socket(tmp_path: Path) -> None:
    """Another task's secrets, for instance; nor is anything removed there."""
    other, folder = tmp_path / "data" / "other", tmp_path / "data" / "secrets"
    other.mkdir(parents=True)
    folder.symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        make_socket(tmp_path / "data", folder, (-1, -1))
    assert list(other.iterdir()) == []
    made = make_socket(tmp_path / "data", other, (-1, -1))
    remove_socket(tmp_path / "data", folder)
    assert (other / "api.sock").exists()
    made.close()


async def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    """The task's file of that name stays with its end."""
    (tmp_path / "api.sock").write_text("mine")
    remove_socket(tmp_path, tmp_path)
    assert (tmp_path / "api.sock").read_text() == "mine"
