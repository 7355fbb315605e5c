"""Variables in a whole cluster: by command line and over HTTP to the keeper and back, and what is left on disks."""

import base64
import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import WAIT_S
from tests.bus.up import Up

pytestmark = pytest.mark.bus

#: Text and name of an item, which must stand in plain in no file of the cluster.
SECRET = "marker-5f1c-of-a-text"
NAME = "marker_9d27_of_a_name"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster with a gateway and a keeper, each a process of its own."""
    running = Up(tmp_path, gateway=True)
    yield running
    running.end()


class Http:
    """Requests to the gateway with the login of the clients."""

    def __init__(self, up: Up) -> None:
        address = up.data_dir / "logs" / "gateway.url"
        up.until(address.exists, "the gateway listens")
        self._url = address.read_text().strip()
        password = (up.data_dir / "credentials" / "public").read_text().strip()
        self._login = base64.b64encode(f"public:{password}".encode()).decode()
        up.until(lambda: self("GET", "/v1/vars")[0] == 200, "the gateway has replayed the log")

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and decoded body; a text where it is no JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data=data, method=method)
        request.add_header("Authorization", f"Basic {self._login}")
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                status, raw = answer.status, answer.read()
        except urllib.error.HTTPError as err:
            status, raw = err.code, err.read()
        try:
            return status, json.loads(raw) if raw else None
        except ValueError:
            return status, raw.decode()


def put(up: Up, path: str, *more: str, text: str = SECRET) -> int:
    """Put one item by standard input; returns the revision."""
    done = subprocess.run(
        up._command("var", "put", path, f"{NAME}=-", *more, "--json"),
        env=up.env,
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert NAME.encode() not in done.stdout + done.stderr
    return int(json.loads(done.stdout)["modify_index"])


def test_a_life_of_variables(up: Up, tmp_path: Path) -> None:
    """Put, get, check-and-set, list, a keeper that is killed, and delete: on the command line."""
    revision = put(up, "app/db")
    found = up.documented("var", "get", "app/db")
    assert found["items"] == {NAME: SECRET} and found["modify_index"] == revision
    code, refused = up.run("var", "put", "app/db", "a=b")
    assert code == 1 and refused["error"]["code"] == "conflict"
    newer = put(up, "app/db", "--check-index", str(revision), text="second")
    assert newer > revision
    listed = up.documented("var", "list", "app/")["variables"]
    assert [(one["path"], one["revision"], one["items"]) for one in listed] == [
        ("app/db", newer, 1)
    ]
    os.kill(up.said["services"]["keeper"], signal.SIGKILL)
    # Commands wait for the keeper that takes over.
    assert up.run("var", "get", "app/db")[1]["items"] == {NAME: "second"}
    last = put(up, "app/db", "--force", "--shred-old", text="third")
    file = tmp_path / "app.json"
    up.documented("var", "get", "app/db", "--out", str(file))
    assert json.loads(file.read_bytes())["Items"] == {NAME: "third"}
    code, refused = up.run("var", "purge", "app/db", "--check-index", str(newer))
    assert code == 1 and refused["error"]["code"] == "conflict"
    up.documented("var", "purge", "app/db", "--check-index", str(last))
    code, refused = up.run("var", "get", "app/db")
    assert code == 1 and refused["error"]["code"] == "not_found"
    up.until(lambda: shredded(up) == 2, "the log says that both lives are shredded")
    assert put(up, "app/db", "--check-index", "0") > last


def shredded(up: Up) -> int:
    """How many lives are shredded, by the log."""
    statement = "SELECT count(*) AS n FROM variables WHERE shredded_seq IS NOT NULL"
    code, answer = up.run("sql", statement)
    assert code == 0, answer
    return int(answer["rows"][0]["n"])


class Locked:
    """Processes `caravan var lock`, whose commands say when they begin and end, and end when they may."""

    def __init__(self, up: Up, folder: Path) -> None:
        self._up = up
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *options: str, last: str = "") -> subprocess.Popen[bytes]:
        """Start one. `last`: what its command does at the end, once `may_end` was called."""
        order, go = shlex.quote(str(self._folder / "order")), self._folder / f"go-{name}"
        text = (
            f"echo begin {name} >> {order}; until [ -e {shlex.quote(str(go))} ]; do sleep 0.05; done; "
            f"{last or 'true'}; echo end {name} $? >> {order}"
        )
        words = self._up._command("var", "lock", "app/job", *options, "--", "sh", "-c", text)
        with (self._folder / f"stderr-{name}").open("wb") as told:
            made = subprocess.Popen(words, env=self._up.env, stdout=told, stderr=told)
        self._running.append(made)
        return made

    def may_end(self, name: str) -> None:
        """Let the command of one end."""
        (self._folder / f"go-{name}").touch()

    def told(self, name: str) -> str:
        """Output of one."""
        return (self._folder / f"stderr-{name}").read_text()

    def order(self) -> list[str]:
        """What the commands said, in order."""
        file = self._folder / "order"
        return file.read_text().splitlines() if file.exists() else []

    def end(self) -> None:
        """End what still runs."""
        for one in self._running:
            if one.poll() is None:
                one.terminate()
                one.wait(WAIT_S)


@pytest.fixture
def locked(up: Up, tmp_path: Path) -> Iterator[Locked]:
    """Commands under the lock of one path."""
    made = Locked(up, tmp_path)
    yield made
    for name in "abcd":
        made.may_end(name)
    made.end()


def test_commands_under_one_lock_run_one_after_the_other(up: Up, locked: Locked) -> None:
    """Also where the holder is killed: its lock ends with its ttl, and what it writes later is refused."""
    first = locked.start("a")
    up.until(lambda: locked.order() == ["begin a"], "the first command runs")
    second = locked.start("b")
    up.until(lambda: "waiting for the lock" in locked.told("b"), "the second one waits")
    locked.may_end("b")
    assert locked.order() == ["begin a"]
    locked.may_end("a")
    assert (first.wait(WAIT_S), second.wait(WAIT_S)) == (0, 0), locked.told("a") + locked.told("b")
    assert locked.order() == ["begin a", "end a 0", "begin b", "end b 0"]
    late = f"{shlex.quote(sys.executable)} -m services.cli var put app/job a=b --force"
    killed = locked.start("c", "--ttl", "10s", "--delay", "0s", last=late)
    up.until(lambda: locked.order()[-1] == "begin c", "the third command runs")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(WAIT_S)
    fourth = locked.start("d", last=late)
    up.until(lambda: locked.order()[-1] == "begin d", "the lock of the killed one has expired")
    locked.may_end("c")
    up.until(lambda: locked.order()[-1] == "end c 1", "its command was refused a put")
    assert up.run("var", "get", "app/job")[1]["error"]["code"] == "not_found"
    locked.may_end("d")
    assert fourth.wait(WAIT_S) == 0, locked.told("d")
    assert up.documented("var", "get", "app/job")["items"] == {"a": "b"}
    assert locked.order()[-1] == "end d 0"


def test_nomads_http_api(up: Up) -> None:
    """The same variables over HTTP: what one door stores, the other reads."""
    http = Http(up)
    status, made = http("PUT", "/v1/var/app/web?cas=0", {"Items": {NAME: SECRET}})
    assert (status, made["Items"] if status == 200 else made) == (200, {NAME: SECRET})
    found = up.documented("var", "get", "app/web")
    assert (found["items"], found["modify_index"]) == (made["Items"], made["ModifyIndex"])
    revision = put(up, "app/web", "--force", text="second")
    status, conflict = http("PUT", "/v1/var/app/web?cas=0", {"Items": {"a": "b"}})
    assert (status, conflict["Items"]) == (409, {NAME: "second"})
    status, whole = http("GET", f"/v1/var/app/web?index={revision - 1}")
    assert (status, whole["CreateIndex"], whole["ModifyIndex"]) == (
        200,
        made["CreateIndex"],
        revision,
    )
    status, listed = http("GET", "/v1/vars?prefix=app/")
    assert [one["Path"] for one in listed] == ["app/web"] and "Items" not in listed[0]
    assert http("DELETE", f"/v1/var/app/web?cas={revision}") == (204, None)
    assert http("GET", "/v1/var/app/web") == (404, "variable not found")
    assert http("GET", "/v1/vars") == (200, [])


def test_nothing_stands_in_plain_on_a_disk(up: Up) -> None:
    """Neither text nor name of an item is in a file of the cluster, its logs and key store included."""
    http = Http(up)
    put(up, "app/db")
    assert http("PUT", "/v1/var/app/web", {"Items": {NAME: SECRET}})[0] == 200
    assert http("GET", "/v1/var/app/db")[1]["Items"] == {NAME: SECRET}
    put(up, "app/db", "--force", "--shred-old")
    files = [one for one in up.data_dir.parent.rglob("*") if one.is_file()]
    assert len(files) > 10
    marks = (SECRET.encode(), NAME.encode())
    shown = [one for one in files if any(mark in one.read_bytes() for mark in marks)]
    assert shown == []
