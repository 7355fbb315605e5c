"""A real agent gives a task its secrets: where the job refers to them, and nowhere else."""

import json
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from services.agent.drivers.launch_values import with_values
from services.agent.inputs.artifacts.handler import ArtifactHandler
from services.agent.inputs.artifacts.settings import ArtifactSettings
from shared.core.runtime.agent_messages import TaskLaunch
from shared.core.state.ids import alloc_id
from shared.jobspec.secret_references import SecretReference
from tests.bounds import level
from tests.fixed_variables import FixedVariables
from tests.integration.agent_node import Node, job, projection, sh
from tests.integration.exec_node import a_cell, need
from tests.integration.followed_node import Directory
from tests.integration.test_agent_adoption import an_agent
from tests.integration.test_agent_directories import node_at
from tests.integration.test_artifacts import Store, store

__all__ = ["store"]
pytestmark = pytest.mark.asyncio
MARKER = "marker-${NOMAD_TASK_NAME}-77&e1"
PASSWORD = "${secret.db.password}"
VARIABLE = {"Name": "db", "Provider": "nomad", "Path": "nomad/jobs/j"}
PROGRAM = {"Name": "db", "Provider": "toy", "Path": "prod/db"}
SHOWN = 'printf %s "$P|$1|$T"'
AGAIN = {"Attempts": 100, "Interval": 600_000_000_000, "Delay": 10_000_000, "Mode": "fail"}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """The data directory; programs for secrets are beside it."""
    found = tmp_path / "node"
    found.mkdir()
    (tmp_path / "plugins").mkdir(mode=0o755)
    return found


def variables(**items: str) -> FixedVariables:
    found = FixedVariables()
    found.put("nomad/jobs/j", **(items or {"password": MARKER}))
    return found


def program(top: Path) -> Path:
    """A program whose secret is the count of its calls; returns the file that has it."""
    count = top.parent / "count"
    path = top.parent / "plugins" / "toy"
    path.write_text(
        f'#!/bin/sh\necho x >> {count}\necho "{{\\"result\\": {{\\"password\\": \\"$(wc -l < {count})\\"}}}}"\n'
    )
    path.chmod(0o755)
    return count


def with_marker(top: Path, marker: str = MARKER) -> set[str]:
    """Files of the data directory, and command lines of processes, that have a value."""
    found = {
        str(path.relative_to(top))
        for path in top.rglob("*")
        if path.is_file() and marker.encode() in path.read_bytes()
    }
    lines = (" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
    return found | {line for line in lines if marker in line}


async def until_ended(node: Node) -> None:
    node.hear(projection(5, 1))
    await node.until(lambda: node.status() in {"complete", "failed"})


async def test_a_task_gets_its_secrets_and_the_role_none(top: Path, store: str) -> None:
    """In its environment, its options, a template by `env`, an artifact's header; in no file but what it wrote."""
    Store.files["/f"] = b"f"
    artifact = {"GetterSource": f"{store}/f", "GetterHeaders": {"X-Token": PASSWORD}}
    rendered = {"EmbeddedTmpl": '{{ env "P" }}' + PASSWORD, "DestPath": "local/own"}
    script = 'printf %s "$P" > local/env; printf %s "$1" > local/args; exec sleep 600'
    task = sh(
        "", Secrets=[VARIABLE], Env={"P": PASSWORD}, Artifacts=[artifact], Templates=[rendered]
    )
    task["Config"]["args"] = ["-c", script, "x", "${secret.db.shown}"]
    known = variables(password=MARKER, shown="seen ${P} by all")
    places = top / "alloc" / alloc_id(1) / "main"
    async with node_at(
        top,
        job(task),
        variables=known,
        inputs=lambda home: [ArtifactHandler(home.top, ArtifactSettings(allow="127.0.0.0/8"))],
    ) as node:
        node.hear(projection(5, 1))
        own = places / "local"
        await level(lambda: (own / "args").exists() and (own / "args").read_text() != "")
        assert (own / "env").read_text() == MARKER
        assert (own / "args").read_text() == "seen ${P} by all"
        assert (own / "own").read_text() == MARKER + PASSWORD
        assert [head["X-Token"] for _, head in Store.asked] == [MARKER]
        of_task = {f"alloc/{alloc_id(1)}/main/local/{name}" for name in ("env", "own")}
        assert with_marker(top) == of_task
        assert MARKER not in repr(node.states)
        # A task may write before its start is known.
        await level(node.edge.runs)
        driver, handle, _ = node.edge.runs()[0]
        session = await driver.exec_stream(
            handle, ("/bin/sh", "-c", 'printf %s "$P" > local/session'), tty=False
        )
        await session.write(b"")
        await session.wait()
        await session.close()
        assert (own / "session").read_text() == MARKER


async def test_a_restart_of_the_task_fetches_nothing_again(top: Path) -> None:
    """Each run has the values of the first (S68); another life of the agent fetches anew for its first start."""
    count = program(top)
    task = sh(
        'echo "$P" >> ../alloc/data/seen; sleep 0.1; exit 1',
        Secrets=[PROGRAM],
        Env={"P": PASSWORD},
        RestartPolicy=AGAIN,
    )
    seen = top / "alloc" / alloc_id(1) / "alloc" / "data" / "seen"

    def lines() -> list[str]:
        return seen.read_text().split() if seen.exists() else []

    async with an_agent(top, job(task)) as agent:
        agent.hear(projection(5, 1))
        await level(lambda: len(lines()) > 2)
        assert set(lines()) == {"1"}
        await agent.kill()
    before = len(lines())
    async with an_agent(top, job(task)) as agent:
        agent.hear(projection(6, 1))
        await level(lambda: len(lines()) > before + 2)
        await agent.kill()
    assert lines()[-1] == "2"
    assert count.read_text().split() == ["x", "x"]
    async with node_at(top, job(task)) as node:
        node.hear(projection(7, 1))
        await level(lambda: "3" in lines())


async def test_a_template_of_an_adopted_task_is_rendered_with_its_secrets(top: Path) -> None:
    """Another life of the agent fetches them for it: the file is no other one, and the task runs on."""
    program(top)
    services = Directory()
    services.put("a", "1")
    followed = {
        "EmbeddedTmpl": '{{ env "P" }} {{ range nomadService "a" }}{{ .Address }}{{ end }}',
        "DestPath": "local/x",
        "ChangeMode": "noop",
    }
    task = sh("exec sleep 600", Secrets=[PROGRAM], Env={"P": PASSWORD}, Templates=[followed])
    path = top / "alloc" / alloc_id(1) / "main" / "local" / "x"
    first = Node(top, job(task), services=services)
    first.turn()
    first.hear(projection(5, 1))
    await first.until(lambda: first.status() == "running")
    assert path.read_text() == "1 1"
    await first.close()
    async with node_at(top, job(task), services=services) as node:
        node.hear(projection(6, 1))
        await node.until(lambda: node.status() == "running")
        services.put("a", "2")
        await level(lambda: path.read_text() == "2 2", path.read_text)
        assert node.task().restarts == 0


@pytest.mark.parametrize(
    ("task", "kind", "says"),
    [
        ({"Env": {"P": "${secret.db.no}"}}, "Driver Failure", "secret db has no key 'no'"),
        (
            {
                "Env": {"P": "${secret.db.no}"},
                "Templates": [{"EmbeddedTmpl": '{{ env "P" }}', "DestPath": "local/x"}],
            },
            "Task hook failed",
            "template[0]: secret db has no key 'no'",
        ),
        (
            {"Config": {"command": "/none/${secret.db.password}"}},
            "Driver Failure",
            "/none/${secret.db.password}",
        ),
        (
            {
                "Env": {"P": PASSWORD},
                "Templates": [
                    {"EmbeddedTmpl": '{{ env "P" | sprig_fail }}', "DestPath": "local/x"}
                ],
            },
            "Template Failed",
            "local/x: its reason may hold a secret, and is not shown",
        ),
        (
            {"Artifacts": [{"GetterSource": "https://127.0.0.1/${secret.db.password}"}]},
            "Failed Artifact Download",
            "secret.db.password}",
        ),
    ],
)
async def test_what_fails_names_the_reference(
    top: Path, task: dict[str, Any], kind: str, says: str
) -> None:
    """In no event, report or journal is the value, in whatever form the reason has it."""
    one = {**sh("true", Secrets=[VARIABLE]), **task}
    word = "marker-77e1"
    async with node_at(
        top,
        job(one, kind="batch"),
        variables=variables(password=word),
        inputs=lambda home: [ArtifactHandler(home.top, ArtifactSettings())],
    ) as node:
        await until_ended(node)
        event = next(one for one in node.task().events if one.kind == kind)
        assert says in event.message, event.message
        assert word not in repr(node.states)
    assert with_marker(top, word) == set()


async def test_a_missing_program_ends_the_task_with_the_reason(top: Path) -> None:
    """At once: another try would fail the same way."""
    async with node_at(top, job(sh("true", Secrets=[PROGRAM]), kind="batch")) as node:
        await until_ended(node)
        kinds = [(one.kind, one.message) for one in node.task().events]
    assert kinds[0][0] == "Task hook failed"
    assert kinds[0][1].startswith("secret.db: program toy is not in the folder")
    assert kinds[1] == ("Not Restarting", "error is not recoverable")


async def test_a_change_script_gets_secrets(top: Path) -> None:
    """In its arguments; its words in an event have the reference."""
    script = {
        "Command": "/bin/sh",
        "Args": ["-c", 'printf %s "$0" > local/got; echo "$0"; exit 1', PASSWORD],
        "RunOnFirstRender": True,
    }
    changing = {
        "EmbeddedTmpl": "x",
        "DestPath": "local/x",
        "ChangeMode": "script",
        "ChangeScript": script,
        "Splay": 0,
    }
    # Only what may change is followed.
    changing["EmbeddedTmpl"] = '{{ range nomadService "a" }}{{ end }}'
    services = Directory()
    services.put("a", "1")
    task = sh("exec sleep 600", Secrets=[VARIABLE], Templates=[changing])
    got = top / "alloc" / alloc_id(1) / "main" / "local" / "got"
    async with node_at(top, job(task), services=services, variables=variables()) as node:
        node.hear(projection(5, 1))
        await level(lambda: got.exists() and got.read_text() == MARKER)
        await node.until(
            lambda: "exit code 1" in json.dumps([one.message for one in node.task().events])
        )
        said = [one.message for one in node.task().events if "exit code 1" in one.message]
        assert PASSWORD in said[0]
        assert MARKER not in said[0]


async def test_a_task_of_driver_exec_gets_secrets(tmp_path: Path) -> None:
    """In its variables and arguments, after all other references; no record of the run has a value."""
    need("view")
    async with a_cell(tmp_path) as cell:
        launch = with_values(
            TaskLaunch(
                config=msgspec.Raw(
                    msgspec.json.encode(
                        {"command": "/bin/sh", "args": ["-c", SHOWN, "x", PASSWORD]}
                    )
                ),
                env={"P": "${HOME} " + PASSWORD},
                cpu_mhz=100,
                memory_mib=64,
            ),
            {"T": PASSWORD},
            {SecretReference("db", "password"): MARKER},
        )
        run = cell.place()
        cell.live.append(await cell.driver.start(run, launch))
        await cell.driver.wait(cell.live[0])
        assert run.places.stdout.read_text() == f"/local {MARKER}|{MARKER}|{PASSWORD}"
        run.places.stdout.unlink()
        assert with_marker(tmp_path) == set()
