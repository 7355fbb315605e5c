"""Clients in six languages, written from docs/any-language.md and schemas/ alone, each through the life of a job."""

import ast
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import nats
import pytest

from shared.bus.server.nats_server import free_port
from tests.clients.conftest import SAID, inbox_prefix
from tests.clients.languages import HERE, LANGUAGES, STEP_S, Workshop
from tests.tidy.tree import files

# Fetching and building what is not cached takes the most of it.
pytestmark = [pytest.mark.bus, pytest.mark.timeout(2 * STEP_S)]
NAMES = [one.name for one in LANGUAGES]
RECORDS_MIN = 3

Ready = Callable[[str], Workshop]


async def read_log(url: str, first: int, last: int) -> list[dict[str, Any]]:
    """Read the same records as a client, one by one."""
    async with await nats.connect(url, inbox_prefix=inbox_prefix(url)) as nc:
        asked = [
            await nc.request("$JS.API.DIRECT.GET.LOG_1", b'{"seq":%d}' % seq)
            for seq in range(first, last + 1)
        ]
    return [{"seq": first + n, **json.loads(one.data)} for n, one in enumerate(asked)]


@pytest.mark.parametrize("name", NAMES)
def test_a_client_lives_through_a_job(name: str, ready: Ready, bus: str) -> None:
    """A client submits a job, sees it run, stops it, sees it over, and reads from the log what really stands there."""
    client = ready(name)
    began = time.monotonic()
    said = json.loads(client.run(client.language.client, {"CARAVAN_NATS_URL": bus}))
    SAID[name] = (
        f"ran in {time.monotonic() - began:.1f} s, made ready in {client.prepared_s:.1f} s; "
        f"submitted at {said['submitted']}, running at {said['running']}, stopped at "
        f"{said['stopped']}, {len(said['records'])} records read"
    )
    assert sorted(said) == ["records", "running", "stopped", "submitted"]
    assert said["submitted"] < said["running"] < said["stopped"]
    there = asyncio.run(read_log(bus, said["submitted"], said["stopped"]))
    assert len(there) >= RECORDS_MIN
    assert said["records"] == [{key: one[key] for key in ("seq", "kind", "sum")} for one in there]
    events = [(one["seq"], event) for one in there for event in one.get("events", ())]
    mine = [(seq, e["type"]) for seq, e in events if e.get("job_id") == f"café/menu.{name}"]
    assert mine[0] == (said["submitted"], "job.registered")
    assert "job.stopped" in [kind for seq, kind in mine if seq > said["running"]]
    reported = [seq for seq, event in events if event["type"] == "allocations.reported"]
    assert min(reported) <= said["running"] <= max(reported) <= said["stopped"]


@pytest.mark.parametrize("name", NAMES)
def test_a_client_waits_for_the_bus(name: str, ready: Ready) -> None:
    """A client that starts before the bus says so, again and again, and does not end."""
    client = ready(name)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    url = f"nats://public:secret@127.0.0.1:{free_port()}"
    with subprocess.Popen(
        client.language.client,
        cwd=client.folder,
        env={**kept, "CARAVAN_NATS_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            # The end of the client ends its stderr.
            said = (line for line in process.stderr if "waiting for the bus" in line)
            assert next(said, "") and next(said, "")
        finally:
            process.kill()


@pytest.mark.parametrize("name", NAMES)
def test_ten_lines_get_a_verdict(name: str, ready: Ready, bus: str) -> None:
    """The ten lines of the page, as they stand there, submit a job and print its verdict."""
    client = ready(name)
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    job = {"ID": f"ten-{name}", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}
    said = client.run(client.language.ten, {"CARAVAN_NATS_URL": bus, "JOB": json.dumps(job)})
    # Python prints a dict.
    verdict = ast.literal_eval(said) if name == "python" else json.loads(said)
    assert verdict["status"] == "accepted", verdict
    assert (verdict["submission_id"], verdict["job_id"]) == (f"{name}-1", f"ten-{name}")


def test_the_python_client_has_nothing_of_ours() -> None:
    """The client in Python imports the standard library and nats-py alone."""
    tree = ast.parse((HERE / "python" / "client.py").read_text(encoding="utf-8"))
    imports = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    imports |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    foreign = {one.partition(".")[0] for one in imports} - sys.stdlib_module_names
    assert foreign == {"nats"}


def test_pins_name_no_address() -> None:
    """Versions are pinned, to the byte where the format can, and where packages come from is the machine's choice."""
    lock = (HERE / "node" / "package-lock.json").read_text()
    packages = {name: one for name, one in json.loads(lock)["packages"].items() if name}
    assert [name for name, one in packages.items() if "integrity" not in one] == []
    # Cargo.lock names a registry: exact versions in Cargo.toml stand in for it.
    assert not [one for one in files() if one.endswith("Cargo.lock")]
    for name in (
        "node/package-lock.json",
        "types/package-lock.json",
        "java/pom.xml",
        "rust/Cargo.toml",
        "go/go.sum",
    ):
        assert "://" not in (HERE / name).read_text(), name
