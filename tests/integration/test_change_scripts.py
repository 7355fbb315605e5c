"""Scripts that run in a task because its template changed: each is answered once, with the reason of a failure."""

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from services.agent.drivers.driver import StartRefused
from services.agent.executor.task_command import SAID_CHARS_MAX, ChangeScripts
from services.agent.inputs.secrets.filled_inputs import Values
from shared.core.runtime.agent_messages import ChangeScriptEnded, RunChangeScript
from shared.core.state.ids import alloc_id
from shared.jobspec.secret_references import SecretReference
from tests.bounds import WAIT_S, level
from tests.integration.agent_node import job, projection, sh
from tests.integration.test_agent_raw_exec import a_node, strangers

pytestmark = pytest.mark.asyncio

LONG_NS = int(WAIT_S * 1e9)


def no_secrets(_alloc_id: str, _task: str) -> Values:
    return {}


def script(*command: str, run: int = 1, timeout_ns: int = LONG_NS) -> RunChangeScript:
    return RunChangeScript(
        key=1,
        alloc_id=alloc_id(1),
        task="main",
        run=run,
        input="template[0]",
        command=command,
        timeout_ns=timeout_ns,
    )


async def ended(runs: Any, effect: RunChangeScript) -> ChangeScriptEnded:
    """Run one script by a runner of its own; returns its one answer."""
    told: asyncio.Queue[Any] = asyncio.Queue()
    scripts = ChangeScripts(told.put_nowait, runs, no_secrets)
    scripts.run(effect)
    answer: ChangeScriptEnded = await asyncio.wait_for(told.get(), WAIT_S)
    await scripts.close()
    assert told.empty()
    assert (answer.key, answer.task, answer.run, answer.input) == (
        1,
        "main",
        effect.run,
        "template[0]",
    )
    return answer


async def test_a_script_runs_in_the_task_itself(tmp_path: Path) -> None:
    """In its environment and directory; its exit code and what it said first are the reason of a failure (S33)."""
    async with a_node(tmp_path, job(sh("sleep 600", Env={"OWN": "own"}))) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        runs = node.edge.runs
        made = "echo $OWN $NOMAD_ALLOC_INDEX > local/made"
        assert (await ended(runs, script("/bin/sh", "-c", made))).reason == ""
        path = node.home.places(alloc_id(1), "main").task / "local" / "made"
        assert path.read_text() == "own 1\n"
        loud = "echo broken; yes | head -c 100000 >&2; exit 3"
        reason = (await ended(runs, script("/bin/sh", "-c", loud))).reason
        assert reason.startswith("exit code 3: ") and "broken" in reason
        assert len(reason) <= len("exit code 3: ") + SAID_CHARS_MAX
        assert "no/such" in (await ended(runs, script("/no/such"))).reason
        assert (await ended(runs, script("x", run=2))).reason == "task 'main' is not running"


async def test_a_script_over_its_time_is_killed(tmp_path: Path) -> None:
    """With all that it started; the reason names the timeout."""
    async with a_node(tmp_path, job(sh("sleep 600"))) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        slow = script("/bin/sh", "-c", "sleep 599 & sleep 599", timeout_ns=50_000_000)
        assert (await ended(node.edge.runs, slow)).reason == "no end within the timeout of 0.05 s"

        def left() -> list[str]:
            commands: list[str] = []
            for pid in strangers(tmp_path):
                with contextlib.suppress(psutil.NoSuchProcess):
                    commands.append(" ".join(psutil.Process(pid).cmdline()))
            return [one for one in commands if "599" in one]

        await level(lambda: not left(), left)
        assert node.status() == "running"


async def test_a_command_that_begins_too_late_is_ended() -> None:
    """A start that is cancelled half way leaves no command without an owner."""
    closed: list[str] = []
    timed_out = asyncio.Event()

    class Session:
        async def close(self) -> None:
            closed.append("closed")

    class Driver:
        async def exec_stream(self, *_: Any, **__: Any) -> Any:
            await timed_out.wait()
            return Session()

    runs: Any = lambda _: [(Driver(), "h", SimpleNamespace(task="main", number=1))]  # noqa: E731
    told: list[Any] = []
    scripts = ChangeScripts(told.append, runs, no_secrets)
    scripts.run(script("x", timeout_ns=0))
    await asyncio.sleep(0)
    timed_out.set()
    await level(lambda: told)
    assert (told[0].reason, closed) == ("no end within the timeout of 0 s", ["closed"])
    await scripts.close()


async def test_a_driver_that_runs_no_commands_says_why() -> None:
    """Whatever a driver raises is the reason of its own script."""

    class Driver:
        async def exec_stream(self, *_: Any, **__: Any) -> Any:
            raise StartRefused("this driver runs no commands", recoverable=False)

    runs = lambda _: [(Driver(), "h", SimpleNamespace(task="main", number=1))]  # noqa: E731
    assert (await ended(runs, script("x"))).reason == "this driver runs no commands"
    assert (await ended(lambda _: [], script("x"))).reason == "task 'main' is not running"


async def test_a_script_waits_for_the_secrets_that_it_names() -> None:
    """After a kill of the agent they are fetched anew: the command never runs with the text of a reference."""
    ran: list[Any] = []
    held: dict[SecretReference, str] = {}

    class Driver:
        async def exec_stream(self, _handle: Any, command: tuple[str, ...], **_: Any) -> Any:
            ran.append(command)
            raise StartRefused("seen", recoverable=False)

    runs: Any = lambda _: [(Driver(), "h", SimpleNamespace(task="main", number=1))]  # noqa: E731
    told: list[Any] = []
    scripts = ChangeScripts(told.append, runs, lambda _alloc_id, _task: held)
    scripts.run(script("x", "${secret.db.password}", timeout_ns=0))
    await level(lambda: told)
    assert (told.pop().reason, ran) == ("secret db was not fetched within the timeout of 0 s", [])
    scripts.run(script("x", "${secret.db.password}"))
    await asyncio.sleep(0)
    held[SecretReference("db", "password")] = "opened"
    await level(lambda: told)
    assert (told[0].reason, ran) == ("seen", [("x", "opened")])
    await scripts.close()
