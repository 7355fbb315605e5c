"""raw_exec with real processes: start, environment, logs, signals, ends, and nothing left behind."""

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.agent.drivers.process import starter_client
from shared.core.state.ids import alloc_id
from tests.bounds import level
from tests.command_output import run_command
from tests.integration.agent_node import Node, job, projection, sh


@contextlib.asynccontextmanager
async def a_node(top: Path, spec: dict[str, Any]) -> AsyncIterator[Node]:
    """A node; whatever still runs on it at the end is killed."""
    node = Node(top, spec)
    node.turn()
    try:
        yield node
    finally:
        await node.end_tasks()
        await node.close()


def strangers(top: Path) -> list[int]:
    """Processes that work below a directory, or were started with it in their command line."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        texts = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
        if any(str(top) in text for text in texts) and process.pid != os.getpid():
            found.append(process.pid)
    return found


def group_exists(group: int) -> bool:
    """Say whether a process group has members, zombies included."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def run(top: Path, spec: dict[str, Any], status: str) -> Node:
    """Run one allocation until it has a status; then end all."""
    async with a_node(top, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == status)
        return node


@pytest.mark.asyncio
async def test_a_task_runs_and_stops(tmp_path: Path) -> None:
    """A wanted task runs under its pid, writes to its log, and ends by its kill signal when it is omitted."""
    script = 'trap "echo bye; exit 0" INT; echo hello; while :; do sleep 0.1; done'
    async with a_node(tmp_path, job(sh(script))) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        assert psutil.pid_exists(node.task().pid)
        await level(lambda: "hello" in node.output())
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        assert node.output() == "hello\nbye\n"
        assert node.task().exit_code == 0
    await level(lambda: not strangers(tmp_path))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("script", "status", "code", "number"),
    [
        ("exit 0", "complete", 0, 0),
        ("exit 3", "failed", 3, 0),
        ("kill -TERM $$", "failed", 143, 15),
        ("kill -KILL $$", "failed", 137, 9),
    ],
)
async def test_an_end_is_reported_as_it_was(
    tmp_path: Path, script: str, status: str, code: int, number: int
) -> None:
    """Exit codes and signals of a batch task arrive as they were."""
    node = await run(tmp_path, job(sh(script), kind="batch"), status)
    assert (node.task().exit_code, node.task().signal) == (code, number)


@pytest.mark.asyncio
async def test_a_task_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    """A task whose whole group ignores its kill signal is killed after kill_timeout, children included."""
    script = 'trap "" INT TERM; (trap "" INT TERM; sleep 300) & echo up; wait; sleep 300'
    spec = job(sh(script, KillSignal="SIGTERM", KillTimeout=200_000_000))
    async with a_node(tmp_path, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        await level(lambda: "up" in node.output())
        group = node.task().pid
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        assert node.task().signal == signal.SIGKILL
        await level(lambda: not group_exists(group))


@pytest.mark.asyncio
@pytest.mark.parametrize("written", ["sigterm", "TERM", "15"])
async def test_a_kill_signal_is_sent_as_it_was_written(tmp_path: Path, written: str) -> None:
    """A kill signal is sent whatever way its name was written."""
    script = 'trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.1; done'
    async with a_node(tmp_path, job(sh(script, KillSignal=written))) as node:
        node.hear(projection(5, 1))
        await level(lambda: "up" in node.output())
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        assert (node.output(), node.task().exit_code) == ("up\nbye\n", 0)


@pytest.mark.asyncio
async def test_a_signal_that_cannot_be_sent_is_an_event(tmp_path: Path) -> None:
    """A job that an older release took with an unknown kill signal: its task says that none was sent, and is killed."""
    spec = job(sh("sleep 300", KillSignal="SIGFOO", KillTimeout=100_000_000))
    async with a_node(tmp_path, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        told = {event.kind: event.message for event in node.task().events}
        assert told["Failed Signaling"].startswith("SIGFOO was not sent: unknown signal 'SIGFOO'")
        assert node.task().signal == signal.SIGKILL


@pytest.mark.asyncio
async def test_what_a_task_leaves_behind_is_killed(tmp_path: Path) -> None:
    """A process left in the background by a task that exits does not outlive it."""
    node = await run(tmp_path, job(sh("sleep 300 & exit 0"), kind="batch"), "complete")
    assert node.task().exit_code == 0
    await level(lambda: not strangers(tmp_path))


@pytest.mark.asyncio
async def test_the_environment_is_nomads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nomad's variables and directories are there, references are resolved, the agent's own secrets are not."""
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://user:secret@127.0.0.1")
    task = sh(
        "env; echo cwd=$PWD; echo text=${NOMAD_TASK_DIR}; touch $NOMAD_ALLOC_DIR/data/x",
        Env={"MINE": "${NOMAD_JOB_NAME}-${node.unique.name}", "DIR": "${NOMAD_SECRETS_DIR}/k"},
        Meta={"my-key": "v"},
        Resources={"CPU": 150, "MemoryMB": 64},
    )
    node = await run(tmp_path, job(task, kind="batch"), "complete")
    seen = dict(line.split("=", 1) for line in node.output().splitlines() if "=" in line)
    top = tmp_path / "alloc" / seen["NOMAD_ALLOC_ID"]
    assert seen["NOMAD_ALLOC_DIR"] == str(top / "alloc")
    assert seen["text"] == seen["NOMAD_TASK_DIR"] == str(top / "main" / "local")
    assert seen["cwd"] == str(top / "main")
    assert seen["DIR"] == str(top / "main" / "secrets" / "k")
    assert seen["MINE"] == "jay-one"
    assert seen["NOMAD_ALLOC_NAME"] == "j.g[1]"
    assert (seen["NOMAD_CPU_LIMIT"], seen["NOMAD_MEMORY_LIMIT"]) == ("150", "64")
    assert (seen["NOMAD_META_owner"], seen["NOMAD_META_MY_KEY"]) == ("me", "v")
    assert (top / "alloc" / "data" / "x").exists()
    assert (top / "main" / "secrets").stat().st_mode & 0o777 == 0o700
    assert "secret@" not in node.output()


#: Names that no shell can hold or that scripts use themselves, and values that a shell would change.
HARD_TO_CARRY = {
    **{name: f"mine {name}" for name in ("task", "run", "boot", "me", "_", "IFS", "PS4", "ENV")},
    "discovery.hosts": "a b",
    "x-y": "1",
    "ünï": "é",
    "lines": "a\nb\n",
    "empty": "",
    "BASH_FUNC_x%%": "() { :; }",
    "LD_PRELOAD": "/no/such.so",
    "PYTHONPATH": "/no/such",
}
_PRINT_ENVIRONMENT = "import os; [print(ascii(pair)) for pair in os.environb.items()]"


@pytest.mark.asyncio
async def test_the_environment_arrives_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every name and value reaches the task and commands beside it, bytes that are not UTF-8 included."""
    monkeypatch.setitem(os.environ, "HOME", "/srv/\udcff")
    wanted = {**HARD_TO_CARRY, "HOME": "/srv/\udcff"}
    python = (sys.executable, "-I", "-S", "-c", _PRINT_ENVIRONMENT)
    script = f"{_PRINT_ENVIRONMENT}; import sys, time; sys.stdout.flush(); time.sleep(300)"
    config = {"command": python[0], "args": [*python[1:-1], script]}
    task = {"Name": "main", "Driver": "raw_exec", "Config": config, "Env": HARD_TO_CARRY}
    async with a_node(tmp_path, job(task)) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() in {"running", "failed"})
        expected = {ascii((os.fsencode(name), os.fsencode(wanted[name]))) for name in wanted}
        await level(lambda: expected <= {*node.output().splitlines()})
        driver, handle, _ = node.edge.runs()[0]
        said = await run_command(driver, handle, python, 60)
        assert expected <= {*said.stdout.decode().splitlines()}


@pytest.mark.asyncio
async def test_references_to_what_is_inherited_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's PATH may add to the agent's, and metadata may refer to the node and the allocation."""
    monkeypatch.setenv("PATH", f"/no/such:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", "/srv/me")
    task = sh(
        "env",
        Env={"PATH": "${PATH}:/opt/own", "AT": "${HOME}/x", "KEPT": "${NO_SUCH} ${no.such}"},
        Meta={"where": "${node.unique.name}-${NOMAD_GROUP_NAME} ${NOMAD_TASK_DIR}"},
    )
    node = await run(tmp_path, job(task, kind="batch"), "complete")
    seen = dict(line.split("=", 1) for line in node.output().splitlines() if "=" in line)
    assert seen["PATH"] == f"{os.environ['PATH']}:/opt/own"
    assert seen["AT"] == "/srv/me/x"
    assert seen["KEPT"] == "${NO_SUCH} ${no.such}"
    assert seen["NOMAD_META_where"] == f"one-g {seen['NOMAD_TASK_DIR']}"
    assert seen["NOMAD_META_WHERE"] == seen["NOMAD_META_where"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"Config": {"command": "no-such-program"}}, "not found on this node"),
        ({"Config": {"command": "/etc/passwd"}}, "not found on this node"),
        ({"Config": {}}, "command"),
        ({"Config": {"comand": "x"}}, "did you mean command?"),
        ({"Config": {"command": "sleep", "args": "300"}}, "args"),
        ({"Driver": "docker"}, "not available"),
        ({"User": "nobody"}, "not as 'nobody'"),
    ],
)
async def test_a_start_that_cannot_work_fails_at_once(
    tmp_path: Path, task: dict[str, Any], says: str
) -> None:
    """A start that no retry would mend fails the task with its reason, whatever the restart policy says."""
    spec = job({**sh("sleep 300"), **task}, RestartPolicy={"Attempts": 9, "Delay": 10**12})
    node = await run(tmp_path, spec, "failed")
    assert says in "".join(event.message for event in node.task().events)
    assert node.task().restarts == 0


@pytest.mark.asyncio
async def test_a_hanging_start_costs_its_task_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that stops in the middle is given up and killed; one beside it comes alive."""
    monkeypatch.setattr(starter_client, "START_TIMEOUT_S", 5.0)
    hang = (
        "import time; from services.agent.drivers.isolation import stages; "
        "real_output = stages._output; stages._output = lambda order, path: "
        "time.sleep(30) if order.task.endswith('/bad') else real_output(order, path); "
    )
    monkeypatch.setattr(starter_client, "_SERVE", hang + starter_client._SERVE)
    async with a_node(tmp_path, job(sh("sleep 300", "good"), sh("sleep 300", "bad"))) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert "no answer within" in node.task(name="bad").events[0].message
        assert any(event.kind == "Started" for event in node.task(name="good").events)
        await node.until(lambda: node.task(name="good").state == "dead")
    await level(lambda: not strangers(tmp_path))


@pytest.mark.asyncio
@pytest.mark.parametrize("swap", ["pipe", "link"])
async def test_a_log_that_is_no_file_is_not_opened(tmp_path: Path, swap: str) -> None:
    """A pipe or a link in the place of a task's log is neither waited for nor written through."""
    async with a_node(tmp_path, job(sh("echo text"))) as node:
        log = node.home.places(alloc_id(1), "main").stdout
        log.parent.mkdir(parents=True)
        target = tmp_path / "target"
        target.touch()
        if swap == "pipe":
            os.mkfifo(log)
        else:
            log.symlink_to(target)
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert "not a regular file" in node.task().events[0].message
        assert not target.read_text()


@pytest.mark.asyncio
async def test_a_failed_task_ends_its_siblings(tmp_path: Path) -> None:
    """When one task of an allocation fails for good, the others are ended."""
    spec = job(sh("exit 1", "bad"), sh("sleep 300", "good"))
    async with a_node(tmp_path, spec) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: 1 in node.states and node.task(name="good").state == "dead")
        assert node.status() == "failed"
        assert not node.task(name="good").failed


@pytest.mark.asyncio
async def test_a_restart_is_a_new_run(tmp_path: Path) -> None:
    """A task that fails is started again by its policy, as often as it says, into the same log."""
    policy = {"Attempts": 2, "Delay": 1000, "Interval": 3600 * 10**9, "Mode": "fail"}
    spec = job(sh("echo run; exit 1"), RestartPolicy=policy)
    node = await run(tmp_path, spec, "failed")
    assert node.output() == "run\n" * 3
    assert node.task().restarts == 2


@pytest.mark.asyncio
async def test_a_full_journal_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that cannot be written is a reason for the task's failure, and nothing runs that it does not hold."""
    spec = job(sh("echo ran; sleep 300"))
    async with a_node(tmp_path, spec) as node:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(node.home.journal, "_write", full)
        monkeypatch.setattr("services.agent.executor.journal.replace_durably", full)
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert "No space left" in "".join(event.message for event in node.task().events)
        assert not node.output()
        assert not node.edge.runs()


@pytest.mark.asyncio
async def test_exec_and_stats_look_inside(tmp_path: Path) -> None:
    """A command beside a task has its environment and directory; statistics are not zero."""
    async with a_node(tmp_path, job(sh("sleep 300"))) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        driver, handle, _ = next(iter(node.edge._live.values()))
        said = await run_command(driver, handle, ("sh", "-c", "echo $NOMAD_JOB_NAME; pwd; exit 4"))
        lines = said.stdout.decode().split()
        assert (said.code, lines[0], Path(lines[1]).name) == (4, "jay", "main")
        assert (await driver.stats(handle)).memory_bytes > 0


@pytest.mark.asyncio
async def test_many_starts_leave_nothing(tmp_path: Path) -> None:
    """Starts and ends leave no process and no open file behind."""
    async with a_node(tmp_path, job(sh("exit 0"), kind="batch")) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "complete")
        before = psutil.Process().num_fds()
        node.hear(projection(6, *range(1, 41)))
        await node.until(lambda: all(node.status(key) == "complete" for key in range(1, 41)))
        # The last end is reported before its files are closed.
        await level(lambda: psutil.Process().num_fds() <= before)
        await level(lambda: node.edge.runs() == [])
    await level(lambda: not strangers(tmp_path))
