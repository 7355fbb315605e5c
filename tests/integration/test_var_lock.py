"""`caravan var lock` with real commands: when they run, what they get, and how they end."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.cli.main import main
from services.cli.runtime import bus_client
from services.cli.variable import keeper, lock
from shared import variable_client
from shared.variable_client import VariableClient, new_lock_id
from tests.bounds import level
from tests.variable_door import FakeDoor

PATH = "app/job"
Meanwhile = Callable[[], Awaitable[None]]


class Stage:
    """A keeper that commands talk to, the folder that they run in, and what happens while one runs."""

    def __init__(self, folder: Path) -> None:
        self.door = FakeDoor()
        self.door.ttl_min_ns = 1
        self.folder = folder
        self._meanwhile: Meanwhile | None = None

    def with_bus(self, work: Callable[[Any], Awaitable[Any]], **_: object) -> Any:
        """Run the work of a command, and beside it what the test has to happen."""

        async def run() -> Any:
            beside = asyncio.create_task(self._meanwhile()) if self._meanwhile else None
            done = await work(SimpleNamespace(request_bytes=self.ask))
            if beside is not None:
                await beside
            return done

        return asyncio.run(run())

    async def ask(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """Ask the keeper, whatever a test has put in its place."""
        return await self.door.ask(subject, body, timeout_s)

    def lock(self, *words: str, meanwhile: Meanwhile | None = None) -> int:
        """Run `var lock`; returns its exit code."""
        self._meanwhile = meanwhile
        return main(["var", "lock", PATH, *words])

    def script(self, text: str, *options: str, meanwhile: Meanwhile | None = None) -> int:
        """Run a script under the lock."""
        return self.lock(*options, "--", "sh", "-c", text, meanwhile=meanwhile)

    def read(self, name: str) -> str:
        """What the command wrote into a file; empty: nothing."""
        file = self.folder / name
        return file.read_text() if file.exists() else ""

    def take(self) -> None:
        """Let another lock hold the path."""
        asyncio.run(VariableClient(self.door.ask).lock(PATH, new_lock_id(), ttl_ns=9, delay_ns=0))
        self.door.asked.clear()

    async def written(self, name: str) -> str:
        """Wait until the command has written a line into a file."""
        await level(lambda: self.read(name).endswith("\n"), f"the command writes {name}")
        return self.read(name).strip()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A keeper; pauses take next to no time, and no terminal is in the way."""
    made = Stage(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keeper, "with_bus", made.with_bus)
    monkeypatch.setattr(bus_client, "announce_target", lambda _note: None)
    monkeypatch.setattr(variable_client, "RETRY_S", 0.001)
    monkeypatch.setattr(lock, "PAUSE_S", 0.01)
    monkeypatch.setattr(lock, "RENEWALS", 1_000)
    monkeypatch.setattr(lock, "RENEW_AGAIN_S", 0.01)
    monkeypatch.setattr(lock, "END_POLL_S", 0.01)
    monkeypatch.setattr(lock, "_is_foreground", lambda: False)
    return made


def is_there(pid: str) -> bool:
    """Whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_command_runs_while_the_lock_is_held(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code and output are its own; its environment has the id and path of the lock, which nothing else shows."""

    async def meanwhile() -> None:
        (told,) = (await stage.written("env")).splitlines()
        assert told == f"{stage.door.locks[PATH].lock_id} {PATH}"
        await level(lambda: len(stage.door.sent("renew")) > 2, "the lock is renewed")
        (stage.folder / "go").touch()

    text = (
        f'echo "${keeper.LOCK_ID_ENV} ${keeper.LOCK_PATH_ENV}" > env; '
        "until [ -e go ]; do sleep 0.01; done; echo done; exit 3"
    )
    assert stage.script(text, meanwhile=meanwhile) == 3
    told = capfd.readouterr()
    assert told.out == "done\n"
    assert stage.read("env").split()[0] not in told.out + told.err
    assert not stage.door.locks


def test_a_signal_that_ended_the_command_is_told_as_in_a_shell(stage: Stage) -> None:
    """128 and its number; the lock is given back."""
    assert stage.script("kill -KILL $$") == 128 + signal.SIGKILL
    assert len(stage.door.sent("release")) == 1
    assert not stage.door.locks


def test_a_held_path_is_waited_for(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    """Every attempt has the same lock and a request id of its own: one that was refused is refused for good."""
    stage.take()

    async def meanwhile() -> None:
        await level(lambda: len(stage.door.sent("lock")) > 2, "it tries again")
        assert not stage.read("ran")
        sent = stage.door.sent("lock")
        assert len({one["lock_id"] for one in sent}) == 1
        assert len({one["request_id"] for one in sent}) == len(sent)
        stage.door.absent = True
        asked = len(stage.door.asked)
        await level(lambda: len(stage.door.asked) > asked + 1, "it waits for a keeper, too")
        stage.door.absent = False
        del stage.door.locks[PATH]

    assert stage.script("echo > ran", meanwhile=meanwhile) == 0
    assert stage.read("ran")
    assert capfd.readouterr().err.count("waiting for the lock: 'app/job' is held") == 1


def test_a_held_path_need_not_be_waited_for(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --early-return it is an error, and the command does not run."""
    stage.take()
    assert stage.script("echo > ran", "--early-return") == 1
    assert "is held by another lock" in capfd.readouterr().err
    assert not stage.read("ran")
    assert len(stage.door.sent("lock")) == 1
    assert PATH in stage.door.locks


def test_a_command_that_cannot_run_gives_the_lock_back(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 with the reason."""
    assert stage.lock("./none") == 1
    assert "./none: No such file" in capfd.readouterr().err
    assert not stage.door.locks


def test_a_lost_lock_ends_the_command(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    """With SIGTERM, and what it has started as well; exit 1 says why, and nothing is given back."""

    async def meanwhile() -> None:
        await stage.written("up")
        stage.door.locks.clear()

    text = "sleep 1000 & echo $! > child; trap 'echo > ended; exit 0' TERM; echo > up; wait"
    assert stage.script(text, meanwhile=meanwhile) == 1
    assert stage.read("ended")
    assert not is_there(stage.read("child").strip())
    told = capfd.readouterr().err
    assert "the lock was lost, and the command was ended: the lock does not hold 'app/job'" in told
    assert not stage.door.sent("release")


def test_what_does_not_heed_sigterm_is_killed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost lock does not wait for the command."""
    monkeypatch.setattr(lock, "END_S", 0.1)

    async def meanwhile() -> None:
        await stage.written("up")
        stage.door.locks.clear()

    text = "trap '' TERM; echo $$ > pid; echo > up; while :; do sleep 0.1; done"
    assert stage.script(text, meanwhile=meanwhile) == 1
    assert not is_there(stage.read("pid").strip())


@pytest.mark.parametrize("fault", ["absent", "silent"])
def test_a_lock_that_cannot_be_renewed_is_lost_with_its_ttl(
    stage: Stage, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No keeper answers, or its bus says nothing: the holder counts the time itself."""

    async def meanwhile() -> None:
        await stage.written("up")
        if fault == "absent":
            stage.door.absent = True
        else:
            stage.door.ask = never  # type: ignore[method-assign]

    async def never(*_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    assert stage.script("echo > up; exec sleep 1000", "--ttl", "300ms", meanwhile=meanwhile) == 1
    assert "it was not renewed within its ttl: no keeper answers" in capfd.readouterr().err


def test_a_lock_outlives_a_keeper_that_is_away_for_less_than_its_ttl(stage: Stage) -> None:
    """Renewals are sent until one is answered."""

    async def meanwhile() -> None:
        await stage.written("up")
        stage.door.absent = True
        failed = len(stage.door.sent("renew"))
        await level(lambda: len(stage.door.sent("renew")) > failed + 2, "it tries again")
        stage.door.absent = False
        renewed = len(stage.door.sent("renew"))
        await level(lambda: len(stage.door.sent("renew")) > renewed, "it renews the lock")
        (stage.folder / "go").touch()

    text = "echo > up; until [ -e go ]; do sleep 0.01; done"
    assert stage.script(text, "--ttl", "1h", meanwhile=meanwhile) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(stage: Stage, number: int) -> None:
    """The command decides what they mean; the lock is held until it has ended."""

    async def meanwhile() -> None:
        await stage.written("up")
        os.kill(os.getpid(), number)
        await stage.written("heard")
        assert stage.door.locks
        (stage.folder / "go").touch()

    text = (
        "trap 'echo > heard' INT TERM HUP; echo > up; until [ -e go ]; do sleep 0.01; done; exit 7"
    )
    assert stage.script(text, meanwhile=meanwhile) == 7
    assert not stage.door.locks


def test_ctrl_c_of_a_terminal_reaches_the_command_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the foreground the terminal has sent it to the command itself; SIGTERM is passed on there as well."""
    monkeypatch.setattr(lock, "_is_foreground", lambda: True)

    async def meanwhile() -> None:
        await stage.written("up")
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    text = "trap 'exit 7' INT; trap 'exit 8' TERM; echo > up; while :; do sleep 0.01; done"
    assert stage.script(text, meanwhile=meanwhile) == 8
    assert not stage.door.locks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_a_lock(stage: Stage, number: int) -> None:
    """The command does not run; an attempt that may be on its way is taken back."""
    stage.take()

    async def meanwhile() -> None:
        await level(lambda: stage.door.sent("lock"), "it waits for the lock")
        os.kill(os.getpid(), number)

    assert stage.script("echo > ran", meanwhile=meanwhile) == 128 + number
    assert not stage.read("ran")
    assert len(stage.door.sent("release")) == 1
    assert PATH in stage.door.locks
