"""Preparations on a real data directory: each is answered once, and an input that fails costs its own task alone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.digests import InputDigests
from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.input_runner import AT_ONCE, InputRunner
from shared.core.runtime.agent_messages import (
    CancelPrepare,
    PrepareTask,
    StartTask,
    TaskInput,
    TaskLaunch,
    TaskNoted,
    TaskPrepared,
    TaskPrepareFailed,
)
from shared.core.runtime.input_specs import PayloadInput


class Handler:
    """A stand-in: `spec` says what it does."""

    kind = "toy"
    event_kind = "Toy Failure"
    begin_kind = "Toys"
    stage = 0

    def __init__(self, timeout_s: float | None = 30.0) -> None:
        self.timeout_s = timeout_s
        self.made: list[str] = []
        self.side_by_side = self.most = 0
        self.cancelled: list[str] = []
        self.hangs = asyncio.Event()

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        self.side_by_side += 1
        self.most = max(self.most, self.side_by_side)
        try:
            match msgspec.json.decode(wanted.spec):
                case "hang":
                    self.hangs.set()
                    await asyncio.Event().wait()
                case "raise":
                    raise RuntimeError("bug")
                case "final":
                    raise InputFailed("bad address", recoverable=False)
                case _:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(wanted.name)
            raise
        finally:
            self.side_by_side -= 1
        self.made.append(wanted.name)
        return wanted.name.encode()


def toy(name: str, does: str = "") -> TaskInput:
    return TaskInput(name=name, kind="toy", spec=msgspec.Raw(msgspec.json.encode(does)))


def asked(*inputs: TaskInput) -> PrepareTask:
    return PrepareTask(
        key=7, alloc_id="a" * 36, task="main", run=1, launch=TaskLaunch(), inputs=inputs
    )


def answer(
    runner: InputRunner, effect: PrepareTask, *, cancel: Handler | None = None
) -> TaskPrepared | TaskPrepareFailed:
    """Prepare, and return the one answer."""
    return asyncio.run(_answer(runner, effect, cancel=cancel))


async def _answer(
    runner: InputRunner, effect: PrepareTask, *, cancel: Handler | None
) -> TaskPrepared | TaskPrepareFailed:
    given: asyncio.Queue[Any] = asyncio.Queue()
    runner.prepare(effect, given.put_nowait)
    if cancel is not None:
        await cancel.hangs.wait()
        runner.cancel(CancelPrepare(key=7, task="main", run=1))
    begun = await given.get()
    if not isinstance(begun, TaskNoted):
        # A payload says nothing when it begins.
        given.put_nowait(begun)
    found = await given.get()
    await runner.close()
    assert given.empty()
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[DataDir]:
    found = DataDir(tmp_path / "data", "n1")
    yield found
    found.close()


def runner_of(home: DataDir, handler: Handler) -> InputRunner:
    return InputRunner(home, AllocDirs(home.top, memory=False), {handler.kind: handler})


def test_all_inputs_are_there_some_at_a_time(home: DataDir) -> None:
    """Seven inputs, three at a time (S6); the answer has a digest of each."""
    handler = Handler()
    found = answer(runner_of(home, handler), asked(*(toy(f"i{n}") for n in range(7))))
    assert isinstance(found, TaskPrepared)
    assert set(found.digests) == {f"i{n}" for n in range(7)}
    assert handler.most <= AT_ONCE


def test_one_of_seven_fails_and_the_others_finish(home: DataDir) -> None:
    """The answer names the first that failed, and what is there all the same (S7)."""
    inputs = [toy(f"i{n}", "final" if n == 3 else "") for n in range(7)]
    found = answer(runner_of(home, Handler()), asked(*inputs))
    assert isinstance(found, TaskPrepareFailed)
    assert (found.input, found.reason, found.recoverable) == ("i3", "bad address", False)
    assert set(found.digests) == {"i0", "i1", "i2", "i4", "i5", "i6"}


def test_a_handler_that_hangs_is_ended_at_its_deadline(home: DataDir) -> None:
    """The failure is recoverable (S21)."""
    handler = Handler(timeout_s=0.05)
    found = answer(runner_of(home, handler), asked(toy("i", "hang")))
    assert isinstance(found, TaskPrepareFailed)
    assert (found.kind, found.recoverable) == ("Toy Failure", True)
    assert "not prepared within" in found.reason
    assert handler.cancelled == ["i"]


def test_a_handler_that_raises_costs_its_task_alone(home: DataDir) -> None:
    """Whatever it raises is a failure of the input; so is a kind that the agent does not know."""
    found = answer(runner_of(home, Handler()), asked(toy("i", "raise")))
    assert isinstance(found, TaskPrepareFailed)
    assert "bug" in found.reason
    strange = TaskInput(name="i", kind="strange")
    found = answer(runner_of(home, Handler()), asked(strange))
    assert isinstance(found, TaskPrepareFailed)
    assert (found.recoverable, "strange" in found.reason) == (False, True)


def test_a_cancelled_preparation_is_answered_once(home: DataDir) -> None:
    """Also one that waits without a bound; what it began is ended first."""
    handler = Handler(timeout_s=None)
    found = answer(runner_of(home, handler), asked(toy("i", "hang")), cancel=handler)
    assert isinstance(found, TaskPrepareFailed)
    assert handler.cancelled == ["i"]


def test_a_payload_is_written_once_below_local(home: DataDir) -> None:
    """A link that a task put in the place of `local/` fails the start for good, nothing is written through it."""
    spec = msgspec.Raw(msgspec.json.encode(PayloadInput(file="in/x", data=b"data")))
    wanted = TaskInput(name="payload", kind="payload", spec=spec)
    found = answer(runner_of(home, Handler()), asked(wanted))
    assert isinstance(found, TaskPrepared)
    local = home.places("a" * 36, "main").task / "local"
    assert (local / "in" / "x").read_bytes() == b"data"
    outside = home.top.parent / "outside"
    outside.mkdir()
    local.rename(local.with_name("old"))
    local.symlink_to(outside)
    found = answer(runner_of(home, Handler()), asked(wanted))
    assert isinstance(found, TaskPrepareFailed)
    assert found.recoverable is False
    assert list(outside.iterdir()) == []


def test_the_beginning_is_told_with_the_names(home: DataDir) -> None:
    """One event for all inputs of a kind."""
    given: list[Any] = []

    async def begin() -> None:
        runner = runner_of(home, Handler())
        runner.prepare(asked(toy("a"), toy("b")), given.append)
        await runner.close()

    asyncio.run(begin())
    assert [(one.kind, one.message) for one in given] == [("Toys", "a, b")]


def test_digests_are_keyed_by_the_data_directory(tmp_path: Path) -> None:
    """The same in each life of it, another in another one; only the owner reads the key."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert InputDigests(one).of(b"x") == InputDigests(one).of(b"x") != InputDigests(other).of(b"x")
    assert (one / "input.key").stat().st_mode & 0o777 == 0o600


class LateHandler(Handler):
    """One whose inputs come after the others, and hold variables."""

    kind = "late"
    stage = 1

    def environment(self, alloc_id: str, task: str, wanted: TaskInput) -> dict[str, str]:
        if wanted.name not in self.made:
            raise KeyError(wanted.name)
        return {"ALLOC": alloc_id[:1], "TASK": task, wanted.name: "1", "LAST": wanted.name}

    def forget(self, alloc_id: str) -> None:
        assert alloc_id
        self.made.clear()


def late(name: str) -> TaskInput:
    return TaskInput(name=name, kind="late", spec=msgspec.Raw(b'""'))


@pytest.mark.parametrize("does", ["", "final"])
def test_a_later_stage_begins_when_all_of_the_earlier_are_there(home: DataDir, does: str) -> None:
    """A template may read an artifact: it is prepared after it, and not when one of them failed."""
    first, second = Handler(), LateHandler()
    runner = InputRunner(
        home, AllocDirs(home.top, memory=False), {first.kind: first, second.kind: second}
    )
    found = answer(runner, asked(late("b"), toy("a", does), toy("c")))
    if does:
        assert isinstance(found, TaskPrepareFailed)
        assert (found.input, set(found.digests), second.made) == ("a", {"c"}, [])
    else:
        assert isinstance(found, TaskPrepared)
        assert (set(found.digests), second.made) == ({"a", "b", "c"}, ["b"])


def test_variables_of_inputs_reach_the_start_until_the_allocation_is_over(home: DataDir) -> None:
    """The later input wins; a start without what was prepared is refused by its name."""
    handler = LateHandler()
    runner = runner_of(home, handler)
    answer(runner, asked(late("b"), late("a")))
    start = StartTask(
        key=7,
        alloc_id="a" * 36,
        task="main",
        run=1,
        driver="d",
        launch=TaskLaunch(),
        inputs=(toy("t"), late("b"), late("a")),
    )
    assert runner.environment(start) == {
        "ALLOC": "a",
        "TASK": "main",
        "a": "1",
        "b": "1",
        "LAST": "a",
    }
    runner.forget("a" * 36)
    with pytest.raises(KeyError, match="b"):
        runner.environment(start)
