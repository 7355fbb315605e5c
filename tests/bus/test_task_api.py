"""The task API in a whole cluster: variables by the keeper's word, services by the view's, over kills of the agent."""

import base64
import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import WAIT_S
from tests.bus.up import Up

pytestmark = pytest.mark.bus


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.end()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the socket in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("localhost", timeout=WAIT_S)
        self._folder = folder

    def connect(self) -> None:
        """Connect, however long the path is."""
        fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(f"/proc/self/fd/{fd}/api.sock")
        finally:
            os.close(fd)


def ask(folder: Path, path: str, token: str) -> tuple[int, Any]:
    """Ask; status 0: no agent serves the socket."""
    made = UnixConnection(folder)
    try:
        made.request("GET", path, headers={"X-Nomad-Token": token})
        answer = made.getresponse()
        body = answer.read()
    except OSError:
        return 0, None
    finally:
        made.close()
    return answer.status, json.loads(body) if answer.status == 200 else body.decode()


def job(folder: Path) -> str:
    """The file of a job with a service, whose token is the task's, too."""
    service = {
        "Name": "door",
        "Provider": "nomad",
        "Tags": ["a"],
        "Identity": {"Audience": ["x"], "TTL": 3600 * 10**9, "File": True},
    }
    task: dict[str, Any] = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["10000"]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "Identity": {"File": True},
        "Services": [service],
    }
    path = folder / "shop.json"
    group = {"Name": "g", "Count": 1, "Tasks": [task]}
    path.write_text(
        json.dumps({"Job": {"ID": "shop", "Datacenters": ["*"], "TaskGroups": [group]}})
    )
    return str(path)


def test_a_task_asks_its_node(up: Up, tmp_path: Path) -> None:
    """What it may read, and nothing else; a killed agent's successor serves it, and its end takes the socket away."""
    for path in ("nomad/jobs/shop/g/t", "nomad/jobs/other"):
        assert up.run("var", "put", path, f"at={path}")[0] == 0
    up.documented("job", "run", "--detach", job(tmp_path))
    up.until(lambda: list(up.data_dir.rglob("nomad_token")) != [], "it has its token")
    (file,) = up.data_dir.rglob("nomad_token")
    folder, token = file.parent, file.read_text()
    up.until(lambda: ask(folder, "/v1/agent/health", token)[0] == 200, "the socket is served")
    status, found = ask(folder, "/v1/var/nomad/jobs/shop/g/t", token)
    assert (status, found["Items"]) == (200, {"at": "nomad/jobs/shop/g/t"})
    assert found["ModifyTime"] >= found["CreateTime"] > 0
    assert ask(folder, "/v1/var/nomad/jobs/shop", token)[0] == 404
    assert ask(folder, "/v1/var/nomad/jobs/other", token)[0] == 403
    assert [one["Path"] for one in ask(folder, "/v1/vars", token)[1]] == ["nomad/jobs/shop/g/t"]
    up.until(lambda: ask(folder, "/v1/service/door", token)[1] != [], "the service is listed")
    (one,) = ask(folder, "/v1/service/door", token)[1]
    assert (one["JobID"], one["Tags"]) == ("shop", ["a"])

    mine = (folder / "nomad_service_door.jwt").read_text()
    part = mine.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    assert claims["sub"] == "global:default:shop:g:door:service_door"
    assert claims["nomad_service"] == "door" and "nomad_task" not in claims
    assert ask(folder, "/v1/agent/health", mine)[0] == 403

    os.kill(up.said["services"]["agent-node-1"], signal.SIGKILL)
    up.until(lambda: ask(folder, "/v1/agent/health", token)[0] != 200, "the agent is down")
    up.until(lambda: ask(folder, "/v1/agent/health", token)[0] == 200, "the next life serves it")
    assert up.run("var", "put", "nomad/jobs/shop", "at=now")[0] == 0
    up.until(lambda: ask(folder, "/v1/var/nomad/jobs/shop", token)[0] == 200, "it reads on")
    up.documented("job", "stop", "shop")
    up.until(lambda: not (folder / "api.sock").exists(), "it went with the task")
