"""The package `caravan_client`: its page runs, its parts work on a real cluster, and bad input has a clear error."""

import ast
import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from caravan_client import (
    OVER,
    CaravanError,
    Client,
    JobFailed,
    NoAnswer,
    Record,
    Refused,
    connect,
    connect_sync,
    token,
)
from caravan_client.messages import Verdict
from caravan_client.queries import Queries

from schemas.queries import NOUNS
from tests.bounds import LONG_S, WAIT_S

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients" / "python"
PAGE = PACKAGE / "README.md"
pytestmark = pytest.mark.bus


def task(command: str) -> dict[str, object]:
    return {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", command]},
        "Resources": {"CPU": 20, "MemoryMB": 16},
    }


def service(name: str, command: str = "echo hello; exec sleep 3600") -> dict[str, object]:
    return {
        "ID": name,
        "Update": {"MinHealthyTime": 100_000_000},
        "TaskGroups": [{"Name": "web", "Count": 1, "Tasks": [task(command)]}],
    }


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    async with await connect(url) as one:
        yield one


def test_the_page_does_what_it_says(bus: str) -> None:
    """Every program of the page runs as it stands, one after the other, and prints what it promises."""
    programs = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    shown = []
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "CARAVAN_NATS_URL": bus, "PYTHONPATH": str(PACKAGE)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert len(shown) == 3
    assert shown[0] == "running 2\n"
    assert "hello" in shown[1] and "0 b'from here'" in shown[1] and "['lease']" in shown[1]
    assert shown[2] == "stopped\n"


def test_the_package_imports_nothing_of_the_tree() -> None:
    """It stands on nats-py, msgspec and the standard library alone, so that it can be installed alone."""
    found = set()
    for path in (PACKAGE / "caravan_client").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found |= {name.split(".", maxsplit=1)[0] for name in names}
    assert found - set(sys.stdlib_module_names) == {"caravan_client", "msgspec", "nats"}


@pytest.mark.asyncio
async def test_a_job_lives_through_all_verbs(bus: str) -> None:
    """Submit, validate, scale, revert, stop and start change what the queries and the log then say."""
    async with client(bus) as caravan:
        first = await caravan.jobs.submit(service("verbs"), submission_id="verbs-1")
        assert await caravan.jobs.submit(service("verbs"), submission_id="verbs-1") == first
        await caravan.jobs.wait(first, timeout_s=WAIT_S)
        with pytest.raises(Refused, match="modify index"):
            await caravan.jobs.submit(service("verbs"), modify_index=0)
        scaled = await caravan.jobs.scale("verbs", 2)
        job = await caravan.jobs.wait(scaled, timeout_s=WAIT_S)
        assert (job.version, job.groups["web"].running) == (1, 2)
        back = await caravan.jobs.revert("verbs", version=0)
        await caravan.jobs.wait(back, timeout_s=WAIT_S)
        answer = await caravan.query.job("verbs", min_seq=back.seq)
        assert [one.desired_status for one in answer.allocations].count("run") == 1
        stopped = await caravan.jobs.stop("verbs")
        await caravan.jobs.wait(stopped, until=OVER, timeout_s=WAIT_S)
        started = await caravan.jobs.start("verbs")
        await caravan.jobs.wait(started, timeout_s=WAIT_S)
        await caravan.jobs.stop("verbs", purge=True)
        records = [one async for one in caravan.log.records(first.seq, stopped.seq)]
    seqs = [one.seq for one in records]
    assert seqs == list(range(first.seq, stopped.seq + 1))
    kinds = {str(event["type"]) for one in records for event in one.events}
    assert {"job.registered", "plan.committed", "job.stopped"} <= kinds


@pytest.mark.asyncio
async def test_files_output_and_commands_of_a_task(bus: str) -> None:
    """Long output, files and a command with input come whole; an unknown file is refused by code."""
    lines = 40_000
    command = f"seq {lines}; echo kept > local/kept.txt; exec sleep 3600"
    async with client(bus) as caravan:
        verdict = await caravan.jobs.submit(service("output", command))
        await caravan.jobs.wait(verdict, timeout_s=WAIT_S)
        alloc = "output.web[0]"
        said = b"".join([piece async for piece in caravan.tasks.logs(alloc, "main")])
        assert said == b"".join(b"%d\n" % n for n in range(1, lines + 1))
        assert await caravan.tasks.read_file(alloc, "main/local/kept.txt") == b"kept\n"
        names = [one.name for one in await caravan.tasks.list_files(alloc, "main/local")]
        assert names == ["kept.txt"]
        given = b"x" * 200_000
        done = await caravan.tasks.run(alloc, "main", ["/usr/bin/wc", "-c"], stdin=given)
        assert (done.exit_code, done.stdout.strip()) == (0, b"200000")
        failed = await caravan.tasks.run(alloc, "main", ["/bin/sh", "-c", "echo no >&2; exit 3"])
        assert failed == (3, b"", b"no\n")
        with pytest.raises(Refused) as caught:
            await caravan.tasks.read_file(alloc, "main/local/none.txt")
        assert caught.value.code == "not_found"
        await caravan.jobs.stop("output", purge=True)


@pytest.mark.asyncio
async def test_what_fails_says_so(bus: str) -> None:
    """A job with faults, an unknown job, a failing version and an operator's wrong id raise what the page names."""
    async with client(bus) as caravan:
        with pytest.raises(Refused) as caught:
            await caravan.jobs.submit({"ID": "bad", "TaskGroups": []})
        assert (caught.value.code, caught.value.path) == ("invalid", "Job.TaskGroups")
        with pytest.raises(Refused, match="no job"):
            await caravan.query.job("nothing-of-this-name")
        with pytest.raises(Refused) as caught:
            await caravan.operations.promote("00000000")
        assert caught.value.code == "not_found"
        with pytest.raises(NoAnswer):
            await caravan.connection.ask_bytes("log.1.tx", b"{}", timeout_s=0.5)
        job = {
            "ID": "broken",
            "Type": "batch",
            "TaskGroups": [
                {
                    "Name": "web",
                    "Tasks": [task("exit 9")],
                    "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
                    "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
                }
            ],
        }
        with pytest.raises(JobFailed, match="broken"):
            await caravan.jobs.wait(await caravan.jobs.submit(job), timeout_s=WAIT_S)


async def submit_some(caravan: Client) -> list[Verdict]:
    return [await caravan.jobs.submit(service(f"followed-{n}")) for n in range(3)]


@pytest.mark.asyncio
async def test_the_log_is_followed_from_any_seq(bus: str) -> None:
    """A follower that begins at a seq gets each later record once, in order."""
    async with client(bus) as caravan:
        begin = (await caravan.query.cluster()).seq + 1
        seen: list[Record] = []
        submitting = asyncio.create_task(submit_some(caravan))
        async with asyncio.timeout(WAIT_S):
            async for record in caravan.log.records(begin, follow=True):
                seen.append(record)
                if submitting.done() and record.seq >= submitting.result()[-1].seq:
                    break
        verdicts = submitting.result()
        for one in verdicts:
            await caravan.jobs.stop(one.job_id, purge=True)
    assert [one.seq for one in seen] == list(range(begin, begin + len(seen)))


def test_without_a_loop(bus: str) -> None:
    """The synchronous client submits, follows and iterates like the other, and closes."""
    with connect_sync(bus) as caravan:
        verdict = caravan.jobs.submit(service("sync"))
        assert caravan.jobs.wait(verdict, timeout_s=WAIT_S).rollout.status == "running"
        assert next(iter(caravan.jobs.follow("sync"))).job_id == "sync"
        assert b"".join(caravan.tasks.logs("sync.web[0]", "main")) == b"hello\n"
        with pytest.raises(Refused):
            caravan.query.alloc("sync.web[7]")
        caravan.jobs.stop("sync", purge=True)


def test_an_address_without_a_login_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing address, an address without a user and a closed port have an error each."""
    monkeypatch.delenv("CARAVAN_NATS_URL", raising=False)
    with pytest.raises(CaravanError, match="no address"):
        connect_sync()
    with pytest.raises(CaravanError, match="no user"):
        connect_sync("nats://127.0.0.1:1")
    with pytest.raises(NoAnswer, match="cannot connect"):
        connect_sync("nats://public:x@127.0.0.1:1", timeout_s=1.0)


def test_every_query_has_a_method_and_every_id_a_token() -> None:
    """The generated half covers each noun; tokens are those of docs/any-language.md."""
    assert set(NOUNS) <= set(dir(Queries))
    assert token("café/menu a~b") == "caf~C3~A9~2Fmenu~20a~7Eb"
