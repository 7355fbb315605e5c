"""The agent with driver exec: a killed agent's tasks, the story of a task that took too much, java and qemu."""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.agent.drivers.driver import Driver
from services.agent.drivers.exec.isolated_drivers import isolated_drivers
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.executor.data_dir import DataDir
from shared.core.state.ids import alloc_id
from tests import not_tested
from tests.bounds import level
from tests.integration.agent_node import NODE, Node, job, projection
from tests.integration.exec_node import NEEDED, need
from tests.integration.test_agent_adoption import an_agent


@pytest.fixture(autouse=True)
def _isolation(tmp_path: Path) -> None:
    need(*NEEDED)
    # Tasks of another user walk to their directory through these.
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)


def shell(script: str, **more: Any) -> dict[str, Any]:
    """A task of driver exec that runs a shell script."""
    config = {"command": "/bin/sh", "args": ["-c", script]}
    resources = {"CPU": 100, "MemoryMB": 32}
    return {"Name": "main", "Driver": "exec", "Config": config, "Resources": resources, **more}


def drivers(settings: ExecSettings) -> Any:
    """What an agent makes of settings."""

    def make(home: DataDir) -> list[Driver]:
        return isolated_drivers(home.top, home.kernel_boot, settings)

    return make


async def told(top: Path, spec: dict[str, Any], status: str, **settings: Any) -> Node:
    """Run one allocation until it has a status."""
    node = Node(top, spec, more=drivers(ExecSettings(**settings)))
    node.turn()
    try:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == status)
    finally:
        await node.end_tasks()
        await node.close()
        for driver in node.edge._drivers.values():
            driver.close()  # type: ignore[attr-defined]
    return node


@contextlib.asynccontextmanager
async def killed_at_last(pid: int) -> AsyncIterator[None]:
    """Whatever goes wrong, the task does not outlive its test."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.asyncio
async def test_a_killed_agents_isolated_task_is_adopted(tmp_path: Path) -> None:
    """After kill -9 an isolated task runs on; the next agent finds it under its pid and can end it."""
    spec = job(shell("sleep 300"))
    async with an_agent(tmp_path, spec, "--isolated") as agent:
        agent.hear(projection(5, 1))
        pid = (await agent.until("running")).pid
        await agent.kill()
    assert psutil.pid_exists(pid)
    async with killed_at_last(pid), an_agent(tmp_path, spec, "--isolated") as agent:
        while not (task := await agent.until("running")).pid:
            # It is reported before it is found, too.
            agent.states.clear()
        assert (task.pid, task.events[-1].kind) == (pid, "Recovered")
        agent.hear(projection(6, 1))
        agent.hear(projection(7))
        await agent.until("complete")
    await level(lambda: not psutil.pid_exists(pid))


@pytest.mark.asyncio
async def test_an_end_while_the_agent_was_dead_is_reported(tmp_path: Path) -> None:
    """An isolated task that ended while no agent was there is reported with its code."""
    spec = job(shell("while [ ! -e /alloc/data/go ]; do sleep 0.02; done; exit 7"))
    async with an_agent(tmp_path, spec, "--isolated") as agent:
        agent.hear(projection(5, 1))
        pid = (await agent.until("running")).pid
        await agent.kill()
    data = DataDir(tmp_path, NODE)
    data.places(alloc_id(1), "main").shared.joinpath("data", "go").touch()
    data.close()
    await level(lambda: not psutil.pid_exists(pid))
    async with an_agent(tmp_path, spec, "--isolated") as agent:
        assert (await agent.until("failed")).exit_code == 7


@pytest.mark.asyncio
async def test_out_of_memory_is_in_the_tasks_story(tmp_path: Path) -> None:
    """A task that the kernel ended for lack of memory says so in its events."""
    node = await told(tmp_path, job(shell("exec tail /dev/zero")), "failed")
    assert node.task().exit_code == 137
    assert any("out of memory" in event.message.lower() for event in node.task().events), (
        node.task()
    )


@pytest.mark.asyncio
async def test_unknown_options_are_refused_on_the_node_too(tmp_path: Path) -> None:
    """An option that intake would not have let pass fails the task for good, with the nearest known name."""
    task = shell("true")
    task["Config"]["comand"] = "x"
    node = await told(tmp_path, job(task), "failed")
    assert any("did you mean command?" in event.message for event in node.task().events)


def a_class(build: Path) -> Path:
    """A program that says what it was given, and ends with 5."""
    javac = shutil.which("javac")
    if javac is None or shutil.which("java") is None:
        not_tested.missing_tool("driver java needs a JDK")
    build.mkdir()
    (build / "Hello.java").write_text(
        "public class Hello { public static void main(String[] a) throws Exception {"
        'System.out.println(System.getProperty("who") + " " + a[0] + " "'
        '+ new java.io.File("/root").exists()); System.exit(5); } }'
    )
    subprocess.run([javac, "-d", str(build), str(build / "Hello.java")], check=True)
    return build


@pytest.mark.asyncio
async def test_a_java_program_runs(tmp_path: Path) -> None:
    """A class of the task's own directory runs with its options and arguments, isolated as any other."""
    build = a_class(tmp_path / "build")
    config = {
        "class": "Hello",
        "class_path": str(build),
        "jvm_options": ["-Dwho=it", "-Xmx32m"],
        "args": ["${NOMAD_TASK_NAME}"],
    }
    task = {"Name": "main", "Driver": "java", "Config": config, "Resources": {"MemoryMB": 256}}
    node = await told(tmp_path / "node", job(task), "failed", paths=str(build))
    assert (node.task().exit_code, node.output()) == (5, "it main false\n")


def a_fake_emulator(top: Path) -> Path:
    """A program that says what it was asked for instead of being a machine."""
    program = top / "bin" / f"qemu-system-{platform.machine()}"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "QEMU emulator version 9.1.0" && exit\necho "$@"\n'
    )
    program.chmod(0o755)
    return program.parent


@pytest.mark.asyncio
async def test_a_virtual_machine_is_asked_for(tmp_path: Path) -> None:
    """The emulator gets the task's memory, image and ports, and arguments of the operator's list; others are refused.

    With a stand-in for qemu: what a real one makes of these arguments is NOT TESTED here.
    """
    place = a_fake_emulator(tmp_path)
    settings = {"paths": str(place), "qemu_args": "-nodefaults"}
    config = {"image_path": "local/disk.img", "args": ["-nodefaults"]}
    task = {"Name": "main", "Driver": "qemu", "Config": config, "Resources": {"MemoryMB": 256}}
    node = await told(tmp_path / "one", job(task, kind="batch"), "complete", **settings)
    assert "-m 256M" in node.output() and "file=local/disk.img,if=ide" in node.output()
    assert node.output().endswith("-nographic -nodefaults\n")
    for wrong, says in (
        ({"args": ["-drive", "file=/etc/shadow"]}, "QEMU_ARGS"),
        ({"image_path": "/etc/shadow"}, "QEMU_IMAGES"),
    ):
        task["Config"] = {**config, **wrong}
        node = await told(tmp_path / says, job(task, kind="batch"), "failed", **settings)
        assert any(says in event.message for event in node.task().events)
