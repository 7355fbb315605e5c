"""Identities of tasks in a whole cluster: signed by the keeper, renewed, and kept over kills of keeper and agent."""

import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bus.up import Up

pytestmark = pytest.mark.bus


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.end()


def job(folder: Path, name: str, **identities: Any) -> str:
    """The file of a job whose task says its tokens at each start."""
    script = (
        'echo "$NOMAD_TOKEN $NOMAD_TOKEN_vault" >> "$NOMAD_ALLOC_DIR/data/said"; exec sleep 10000'
    )
    task: dict[str, Any] = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        **identities,
    }
    path = folder / f"{name}.json"
    group = {"Name": "g", "Count": 1, "Tasks": [task]}
    path.write_text(json.dumps({"Job": {"ID": name, "Datacenters": ["*"], "TaskGroups": [group]}}))
    return str(path)


def said(up: Up) -> list[list[str]]:
    """The tokens of each start."""
    return [
        line.split()
        for file in up.data_dir.rglob("data/said")
        for line in file.read_text().splitlines()
    ]


def claims(token: str) -> dict[str, Any]:
    """What a token says, without a look at its signature."""
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def pid_of(up: Up, job_id: str) -> int:
    (alloc,) = up.allocs(job_id, "running")
    shown = up.run("alloc", "status", alloc["id"])[1]
    return int(shown["tasks"]["t"]["pid"])


def test_a_task_has_its_identities(up: Up, tmp_path: Path) -> None:
    """With the claims of its job; the tokens are in no file but where the task put them and its own."""
    vault = {
        "Name": "vault",
        "Audience": ["vault.io"],
        "Env": True,
        "File": True,
        "TTL": 3600 * 10**9,
    }
    both = {"Identity": {"Env": True, "File": True}, "Identities": [vault]}
    up.documented("job", "run", "--detach", job(tmp_path, "shop", **both))
    up.until(lambda: said(up), "it runs")
    ((default, named),) = said(up)
    first, second = claims(default), claims(named)
    assert first["sub"] == "global:default:shop:g:t:default"
    assert (first["aud"], "exp" in first) == ("nomadproject.io", False)
    assert (second["aud"], second["exp"] - second["iat"]) == ("vault.io", 3600)
    assert second["nomad_job_id"] == "shop" and second["nomad_task"] == "t"
    (file,) = up.data_dir.rglob("nomad_vault.jwt")
    assert file.read_text() == named and file.stat().st_mode & 0o777 == 0o600
    own = {"said", "nomad_vault.jwt", "nomad_token"}
    files = [one for one in up.data_dir.parent.rglob("*") if one.is_file() and one.name not in own]
    shown = [
        one for one in files for token in (default, named) if token.encode() in one.read_bytes()
    ]
    assert len(files) > 10 and shown == []


def test_a_task_outlives_its_keeper_and_its_agent(up: Up, tmp_path: Path) -> None:
    """A renewal restarts the task; a killed agent finds the token of the task still valid."""
    vault = {"Name": "vault", "Audience": ["v"], "Env": True, "ChangeMode": "restart"}
    up.documented(
        "job", "run", "--detach", job(tmp_path, "short", Identities=[{**vault, "TTL": 4 * 10**9}])
    )
    up.until(lambda: said(up), "it runs")
    os.kill(up.said["services"]["keeper"], signal.SIGKILL)
    before = len(said(up))
    up.until(lambda: len(said(up)) >= before + 2, "it is renewed twice")
    assert all(one != other for one, other in zip(said(up), said(up)[1:], strict=False))
    up.documented("job", "stop", "short")
    up.until(lambda: not up.allocs("short", "running"), "it is over")
    count = len(said(up))
    up.documented(
        "job", "run", "--detach", job(tmp_path, "long", Identities=[{**vault, "TTL": 3600 * 10**9}])
    )
    up.until(lambda: len(said(up)) == count + 1, "it runs")
    up.until(lambda: up.allocs("long", "running"), "it is reported")
    pid = pid_of(up, "long")
    os.kill(up.said["services"]["agent-node-1"], signal.SIGKILL)
    up.documented(
        "job",
        "run",
        "--detach",
        job(tmp_path, "after", Identities=[{**vault, "TTL": 3600 * 10**9}]),
    )
    up.until(lambda: up.allocs("after", "running"), "the next life of the agent starts tasks")
    assert pid_of(up, "long") == pid
    assert len(said(up)) == count + 2
