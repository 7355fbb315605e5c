"""Secrets are fetched from variables and by programs of the operator: once, bounded, without a value in a reason."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio

from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.secrets import plugins
from services.agent.inputs.secrets.handler import WAITING_EVENT, SecretHandler
from services.agent.inputs.secrets.plugins import PluginFailed, SecretPlugins
from services.agent.inputs.templates import missing_data
from shared.core.runtime.agent_messages import TaskInput, TaskLaunch, TaskNames
from shared.core.runtime.input_specs import SecretInput
from shared.errors import ConfigInvalid
from shared.jobspec.secret_references import SecretReference
from tests.bounds import level
from tests.fixed_variables import FixedVariables

pytestmark = pytest.mark.asyncio
JOB = "nomad/jobs/web"
MARKER = "marker-5c3e"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "plugins"
    found.mkdir(mode=0o755)
    return found


def program(folder: Path, script: str, name: str = "toy", mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


async def fetch(folder: Path, script: str = "", **env: str) -> dict[str, str]:
    """Call a program."""
    if script:
        program(folder, script)
    return await SecretPlugins(str(folder)).fetch("toy", "prod/db", env)


async def failure(folder: Path, script: str = "", **env: str) -> PluginFailed:
    with pytest.raises(PluginFailed) as err:
        await fetch(folder, script, **env)
    return err.value


# ---- programs ----


async def test_a_program_gets_the_path_and_a_small_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the block gives it and Nomad's variables, nothing of the agent's; its answer is the secret."""
    monkeypatch.setenv("AGENT_ONLY", "x")
    script = (
        f'echo "$@" > {tmp_path}/args; env > {tmp_path}/env; echo \'{{"result": {{"k": "v"}}}}\''
    )
    assert await fetch(folder, script, AWS_REGION="eu", NOMAD_JOB_ID="web") == {"k": "v"}
    assert (tmp_path / "args").read_text() == "fetch prod/db\n"
    seen = dict(one.split("=", 1) for one in (tmp_path / "env").read_text().splitlines())
    assert {name: seen[name] for name in ("AWS_REGION", "NOMAD_JOB_ID", "CPI_OPERATION")} == {
        "AWS_REGION": "eu",
        "NOMAD_JOB_ID": "web",
        "CPI_OPERATION": "fetch",
    }
    assert "AGENT_ONLY" not in seen


@pytest.mark.parametrize(
    ("script", "reason", "recoverable"),
    [
        ('echo \'{"error": "no  such secret"}\'', "program toy: no such secret", True),
        ("exit 3", "program toy ended with 3", True),
        (f"echo {MARKER} >&2; exit 3", "program toy ended with 3", True),
        (f"echo '{MARKER}'", "program toy gave no JSON of the form", True),
        (f'echo \'{{"result": {{"k": ["{MARKER}"]}}}}\'', "program toy gave no JSON", True),
        ("echo '{}'", "program toy gave neither a result nor an error", True),
        ("echo '{\"result\": {}}'", "program toy gave neither a result nor an error", True),
        ("exec head -c 70000 /dev/zero", "program toy gave more than 65536 bytes", False),
    ],
)
async def test_a_program_that_gives_no_secret_says_why(
    folder: Path, script: str, reason: str, *, recoverable: bool
) -> None:
    """Its own words for an error, and nothing else that it printed (S68)."""
    failed = await failure(folder, script)
    assert str(failed).startswith(reason)
    assert failed.recoverable is recoverable
    assert MARKER not in str(failed)


async def test_a_program_that_hangs_is_ended_with_all_that_it_started(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time it gets SIGTERM, and SIGKILL when it does not end (S68)."""
    monkeypatch.setattr(plugins, "FETCH_S", 0.3)
    monkeypatch.setattr(plugins, "END_S", 0.1)
    pids = tmp_path / "pids"
    script = f"trap '' TERM\nsleep 600 &\necho $! $$ > {pids}\nwhile :; do wait; done"
    failed = await failure(folder, script)
    assert str(failed) == "program toy gave no answer within 0.3 s"
    await level(lambda: not any(psutil.pid_exists(int(one)) for one in pids.read_text().split()))


async def test_a_call_that_is_cancelled_ends_the_program(folder: Path, tmp_path: Path) -> None:
    """As when its task is stopped."""
    pid = tmp_path / "pid"
    call = asyncio.create_task(fetch(folder, f"echo $$ > {pid}\nexec sleep 600"))
    await level(lambda: pid.exists() and pid.read_text())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not psutil.pid_exists(int(pid.read_text()))


async def test_programs_that_another_user_could_change_are_not_run(folder: Path) -> None:
    """By the mode of the file or of its folder, its owner, a link: named, and final; the node does not offer them."""
    path = program(folder, 'echo \'{"result": {"k": "v"}}\'')
    offers = SecretPlugins(str(folder)).attributes
    assert offers() == {"plugins.secrets.toy": "1"}
    for change, back, reason in (
        (lambda: path.chmod(0o775), lambda: path.chmod(0o755), "can be changed by other users"),
        (lambda: folder.chmod(0o777), lambda: folder.chmod(0o755), "can be changed by other users"),
        (lambda: path.chmod(0o644), lambda: path.chmod(0o755), "is not executable"),
        (
            lambda: path.rename(folder / "real") and path.symlink_to("real"),
            lambda: path.unlink() or (folder / "real").rename(path),
            "is a symbolic link",
        ),
        (lambda: path.rename(folder.parent / "away"), lambda: None, "is not in the folder"),
    ):
        change()
        failed = await failure(folder)
        assert reason in str(failed)
        assert failed.recoverable is False
        assert "plugins.secrets.toy" not in offers()
        back()
    path.mkdir()
    assert "is not a regular file" in str(await failure(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root alone")
async def test_a_program_of_another_user_is_not_run(folder: Path) -> None:
    """The agent may be root."""
    os.chown(program(folder, "true"), 65534, 65534)
    assert "belongs to another user" in str(await failure(folder))


async def test_a_job_does_not_choose_what_a_program_loads(folder: Path) -> None:
    """Variables of the loader and of interpreters are refused on the node, too."""
    failed = await failure(folder, "true", LD_PRELOAD="/alloc/x.so")
    assert "LD_PRELOAD would change what the program runs" in str(failed)
    assert failed.recoverable is False


async def test_without_a_folder_there_are_no_programs(tmp_path: Path) -> None:
    """The reason names the setting; a folder is an absolute path."""
    with pytest.raises(PluginFailed, match="CARAVAN_AGENT_SECRET_PLUGINS is not set"):
        await SecretPlugins("").fetch("toy", "x", {})
    assert SecretPlugins("").attributes() == {}
    assert SecretPlugins(str(tmp_path / "none")).attributes() == {}
    with pytest.raises(ConfigInvalid, match="SECRET_PLUGINS"):
        SecretPlugins("relative")


# ---- the handler ----


class Fetching:
    """One task, and what it hears."""

    def __init__(self, folder: Path) -> None:
        self.variables = FixedVariables()
        self.handler = SecretHandler(SecretPlugins(str(folder)), variables=self.variables)
        self.told: list[tuple[str, str]] = []

    async def prepare(self, provider: str = "nomad", path: str = JOB, alloc: str = "a") -> bytes:
        spec = SecretInput(secret="db", provider=provider, path=path)
        one = TaskInput(
            name="secret.db", kind="secret", spec=msgspec.Raw(msgspec.json.encode(spec))
        )
        launch = TaskLaunch(names=TaskNames(job="web", group="g", task="main"))
        about = InputContext(
            key=1,
            alloc_id=alloc,
            task="main",
            run=1,
            places=None,  # type: ignore[arg-type]
            launch=launch,
            note=lambda kind, text: self.told.append((kind, text)),
        )
        return await self.handler.prepare(about, one)

    async def failure(self, **fields: str) -> InputFailed:
        with pytest.raises(InputFailed) as err:
            await self.prepare(**fields)
        return err.value


@pytest_asyncio.fixture
async def fetching(folder: Path) -> AsyncIterator[Fetching]:
    yield Fetching(folder)


async def test_a_variable_is_waited_for_and_named(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is known not to exist; its items are the values of the secret."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    fetching.variables.delete(JOB)
    call = asyncio.create_task(fetching.prepare())
    await level(lambda: fetching.told == [(WAITING_EVENT, f"Missing: nomad.var.block({JOB})")])
    fetching.variables.put(JOB, password=MARKER)
    await call
    assert fetching.handler.references("a", "main") == {SecretReference("db", "password"): MARKER}


async def test_a_variable_that_is_a_lock_alone_is_waited_for(fetching: Fetching) -> None:
    """It has no values yet: a task is not started with the texts of its references."""
    fetching.variables.put(JOB)
    call = asyncio.create_task(fetching.prepare())
    await level(lambda: fetching.variables.asked)
    fetching.variables.put(JOB, password=MARKER)
    await call
    assert fetching.handler.references("a", "main") == {SecretReference("db", "password"): MARKER}


async def test_a_secret_is_fetched_once_and_forgotten_with_its_allocation(
    fetching: Fetching,
) -> None:
    """A later put changes nothing; another allocation fetches its own."""
    fetching.variables.put(JOB, password="1")
    first = await fetching.prepare()
    fetching.variables.put(JOB, password="2")
    assert await fetching.prepare() == first
    assert len(fetching.variables.asked) == 1
    await fetching.prepare(alloc="b")
    fetching.handler.forget("a")
    assert fetching.handler.references("a", "main") == {}
    assert set(fetching.handler.references("b", "main").values()) == {"2"}


async def test_two_that_need_a_secret_at_once_fetch_it_once(fetching: Fetching) -> None:
    """As followed templates of an adopted task do."""
    fetching.variables.put(JOB, password="1")
    await asyncio.gather(fetching.prepare(), fetching.prepare())
    assert len(fetching.variables.asked) == 1


async def test_a_variable_of_another_job_is_refused(fetching: Fetching) -> None:
    """Where a reference made the path, which no check at submission saw; nothing is asked."""
    failed = await fetching.failure(path="nomad/jobs/other")
    assert "may not read variable nomad/jobs/other" in str(failed)
    assert (failed.recoverable, failed.kind) == (False, "Task hook failed")
    assert fetching.variables.asked == []


async def test_a_missing_program_is_final_and_its_failure_is_not(
    fetching: Fetching, folder: Path
) -> None:
    """The restart policy says whether another try follows."""
    failed = await fetching.failure(provider="toy")
    assert "is not in the folder" in str(failed)
    assert failed.recoverable is False
    program(folder, 'echo "{\\"error\\": \\"$NOMAD_JOB_ID $NOMAD_NAMESPACE\\"}"')
    failed = await fetching.failure(provider="toy")
    assert (str(failed), failed.recoverable) == ("program toy: web default", True)
    assert not fetching.handler.holds(
        "a",
        "main",
        TaskInput(
            name="secret.db",
            kind="secret",
            spec=msgspec.Raw(
                msgspec.json.encode(SecretInput(secret="db", provider="toy", path=JOB))
            ),
        ),
    )
