"""Inputs that are followed, with a handler that obeys: what the role hears, of which run, and what ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.inputs import followed_inputs
from services.agent.inputs.input_handler import InputContext
from services.agent.inputs.input_runner import InputRunner
from services.agent.inputs.templates.settings import template_settings
from shared.core.runtime.agent_messages import (
    InputChanged,
    PrepareTask,
    TaskInput,
    TaskLaunch,
    TaskNoted,
    TaskPrepared,
    WatchInputs,
)
from shared.errors import ConfigInvalid
from tests.bounds import level

ALLOC = "a" * 36


class Handler:
    """Makes what the test puts into `contents`."""

    kind = "live"
    event_kind = "Live Failure"
    begin_kind = ""
    stage = 0
    timeout_s: float | None = None

    def __init__(self) -> None:
        self.prepares = b"first"
        self.contents: dict[str, asyncio.Queue[bytes | str]] = {}
        self.alive: list[str] = []

    async def prepare(self, _about: InputContext, _wanted: TaskInput) -> bytes:
        return self.prepares

    async def watch(self, about: InputContext, wanted: TaskInput) -> AsyncIterator[bytes]:
        self.alive.append(wanted.name)
        try:
            while True:
                match await self.contents.setdefault(wanted.name, asyncio.Queue()).get():
                    case bytes(content):
                        yield content
                    case "end":
                        return
                    case "note":
                        about.note("Live", "said")
                    case _:
                        raise RuntimeError("bug")
        finally:
            self.alive.remove(wanted.name)

    def put(self, name: str, what: bytes | str) -> None:
        self.contents.setdefault(name, asyncio.Queue()).put_nowait(what)


class Story:
    """A runner, and what it told."""

    def __init__(self, home: DataDir) -> None:
        self.handler = Handler()
        directories = AllocDirs(home.top, memory=False)
        self.runner = InputRunner(home, directories, {self.handler.kind: self.handler})
        self.told: list[Any] = []

    def digest(self, content: bytes) -> str:
        return self.runner._digests.of(content)

    def watch(
        self,
        *names: str,
        run: int = 1,
        digests: dict[str, str] | None = None,
        launch: TaskLaunch | None = None,
    ) -> None:
        effect = WatchInputs(
            key=7,
            alloc_id=ALLOC,
            task="main",
            run=run,
            launch=launch or TaskLaunch(),
            inputs=tuple(live(name) for name in names),
            digests=digests or {},
        )
        self.runner.watch(effect, self.told.append)

    async def prepare(self, name: str, run: int = 1) -> dict[str, str]:
        effect = PrepareTask(
            key=7,
            alloc_id=ALLOC,
            task="main",
            run=run,
            launch=TaskLaunch(),
            inputs=(live(name),),
        )
        given: asyncio.Queue[Any] = asyncio.Queue()
        self.runner.prepare(effect, given.put_nowait)
        answer = await given.get()
        assert isinstance(answer, TaskPrepared)
        return answer.digests

    def changes(self) -> list[tuple[int, str, str]]:
        return [(o.run, o.input, o.digest) for o in self.told if isinstance(o, InputChanged)]


def live(name: str, kind: str = "live") -> TaskInput:
    return TaskInput(name=name, kind=kind)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[DataDir]:
    found = DataDir(tmp_path / "data", "n1")
    yield found
    found.close()


def test_only_another_digest_is_said(home: DataDir) -> None:
    """Compared with what the role knows, and then with what was said last."""

    async def tell() -> tuple[list[tuple[int, str, str]], list[str]]:
        story = Story(home)
        known = await story.prepare("i")
        story.watch("i", digests=known)
        for content in (b"first", b"second", b"second", b"first", b"third"):
            story.handler.put("i", content)
        await level(lambda: len(story.changes()) == 3)
        await story.runner.close()
        assert story.handler.alive == []
        return story.changes(), [story.digest(one) for one in (b"second", b"first", b"third")]

    changes, expected = asyncio.run(tell())
    assert changes == [(1, "i", digest) for digest in expected]


def test_a_change_that_another_run_did_not_hear_is_said_to_it(home: DataDir) -> None:
    """What is in place differs from what the role knows at the beginning of the run."""

    async def tell() -> Story:
        story = Story(home)
        known = await story.prepare("i")
        story.watch("i", digests=known)
        story.handler.put("i", b"second")
        await level(story.changes)
        story.watch("i", run=2, digests=known)
        story.watch("i", run=3, digests={"i": story.digest(b"second")})
        await story.runner.close()
        return story

    story = asyncio.run(tell())
    second = story.digest(b"second")
    assert story.changes() == [(1, "i", second), (2, "i", second)]


def test_another_set_ends_what_is_not_in_it(home: DataDir) -> None:
    """What is in both continues; events speak of the run of now; an allocation that is over is not followed."""

    async def tell() -> None:
        story = Story(home)
        story.watch("a", "b")
        await level(lambda: sorted(story.handler.alive) == ["a", "b"])
        story.watch("b", "c", run=2)
        await level(lambda: sorted(story.handler.alive) == ["b", "c"])
        story.handler.put("b", "note")
        await level(lambda: story.told)
        assert story.told == [
            TaskNoted(key=7, task="main", run=2, kind="Live", message="said"),
        ]
        story.watch(run=2)
        await level(lambda: story.handler.alive == [])
        story.watch("a")
        await level(lambda: story.handler.alive == ["a"])
        story.runner.forget(ALLOC)
        await level(lambda: story.handler.alive == [])
        await story.runner.close()

    asyncio.run(tell())


def test_one_that_ended_or_has_another_launch_is_begun_again(home: DataDir) -> None:
    """Never two at a time for one input."""

    async def tell() -> None:
        story = Story(home)
        story.watch("a")
        await level(lambda: story.handler.alive == ["a"])
        story.handler.put("a", "end")
        await level(lambda: story.handler.alive == [])
        story.watch("a")
        await level(lambda: story.handler.alive == ["a"])
        story.watch("a", launch=TaskLaunch(env={"A": "1"}))
        assert story.handler.alive == ["a"]
        story.handler.put("a", b"new")
        await level(story.changes)
        assert story.handler.alive == ["a"]
        await story.runner.close()

    asyncio.run(tell())


def test_a_handler_that_raises_is_begun_again(
    home: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause; an input of a kind that nothing follows is left alone."""
    monkeypatch.setattr(followed_inputs, "FIRST_PAUSE_S", 0.001)

    async def tell() -> Story:
        story = Story(home)
        effect = WatchInputs(
            key=7,
            alloc_id=ALLOC,
            task="main",
            run=1,
            launch=TaskLaunch(),
            inputs=(live("a"), live("p", "payload"), live("s", "strange")),
        )
        story.runner.watch(effect, story.told.append)
        story.handler.put("a", "raise")
        story.handler.put("a", b"after")
        await level(story.changes)
        await story.runner.close()
        return story

    story = asyncio.run(tell())
    assert story.changes() == [(1, "a", story.digest(b"after"))]


def test_a_preparation_begins_what_is_followed_again(home: DataDir) -> None:
    """It may have been made of other data; what it made is known to the role."""

    async def tell() -> Story:
        story = Story(home)
        story.watch("a")
        await level(lambda: story.handler.alive == ["a"])
        story.handler.put("a", b"one")
        await level(story.changes)
        story.handler.prepares = b"two"
        known = await story.prepare("a", run=2)
        story.watch("a", run=2, digests=known)
        story.handler.put("a", b"two")
        story.handler.put("a", b"three")
        await level(lambda: len(story.changes()) == 2)
        assert story.handler.alive == ["a"]
        await story.runner.close()
        return story

    story = asyncio.run(tell())
    assert story.changes() == [
        (1, "a", story.digest(b"one")),
        (2, "a", story.digest(b"three")),
    ]


@pytest.mark.parametrize(
    ("given", "asked_ns", "found"),
    [
        ({}, (-1, -1), (0.2, 4.0)),
        ({"WAIT_MIN": "5", "WAIT_MAX": "240"}, (-1, -1), (5.0, 240.0)),
        ({}, (1_000_000_000, 9_000_000_000), (1.0, 9.0)),
        ({}, (10_000_000_000, -1), (10.0, 10.0)),
        ({}, (-1, 100_000_000), (0.1, 0.1)),
        ({}, (0, 0), (0.0, 0.0)),
        ({"WAIT_BOUNDS_MIN": "2", "WAIT_BOUNDS_MAX": "8"}, (0, 60_000_000_000), (2.0, 8.0)),
        ({"WAIT_BOUNDS_MIN": "2"}, (-1, -1), (0.2, 4.0)),
    ],
)
def test_a_template_waits_as_it_says_within_bounds(
    given: dict[str, str], asked_ns: tuple[int, int], found: tuple[float, float]
) -> None:
    """Its own values are kept within the operator's bounds (S45); without own ones the operator's hold."""
    environ = {f"CARAVAN_AGENT_TEMPLATE_{name}": text for name, text in given.items()}
    assert template_settings(environ).wait(*asked_ns) == found


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"WAIT_MIN": "5"}, "WAIT_MIN must not exceed CARAVAN_AGENT_TEMPLATE_WAIT_MAX"),
        ({"WAIT_MIN": "-1"}, "WAIT_MIN must be a number of seconds"),
        ({"WAIT_MAX": "nan"}, "WAIT_MAX must be a number of seconds"),
        ({"WAIT_MAX": "soon"}, "settings"),
        ({"WAIT_BOUNDS_MIN": "9", "WAIT_BOUNDS_MAX": "8"}, "WAIT_BOUNDS_MIN must not exceed"),
    ],
)
def test_a_wait_that_cannot_be_stops_the_agent(given: dict[str, str], part: str) -> None:
    """With the name of the setting."""
    environ = {f"CARAVAN_AGENT_TEMPLATE_{name}": text for name, text in given.items()}
    with pytest.raises(ConfigInvalid, match=part):
        template_settings(environ)
