"""What a task reads of variables: asked of the keeper for itself, again when the view says so, and kept in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from schemas.variables import VariableAnswer, VariableAnswers, VariableAsk
from services.agent.inputs.templates.followed_values import LINGER_S, SILENCE_S, DataUnusable
from services.agent.inputs.templates.variable_directory import (
    BEHIND_S,
    GONE_S,
    GRACE_S,
    RESEND_S,
    VariableDirectory,
    VariableReader,
)
from shared.protocol import subjects
from shared.protocol.variable_items import encode_items
from shared.sealed_box import seal
from tests.fixed_variables import CLUSTER, NODE, VariableCluster

PATH = "nomad/jobs/web"
OTHER = "nomad/jobs"
MAIN = VariableReader("a" * 36, "main")
SIDE = VariableReader("a" * 36, "side")


class World(VariableCluster):
    """A directory, its time, and the cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.cluster_id = CLUSTER
        self.directory = VariableDirectory(NODE, lambda: self.cluster_id, lambda: self.now_s)

    async def look(self, times: int = 6) -> None:
        """Looks and answers, without time."""
        for _ in range(times):
            await asyncio.sleep(0)
            await self.directory.look(self.client)
            self.answer()
        for _ in range(times):
            await asyncio.sleep(0)

    async def passes(self, seconds: float) -> None:
        """Time passes, with looks at each quarter of a second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(self.now_s + 0.25, end_s)
            await self.look(2)

    async def known(self, path: str = PATH, reader: VariableReader = MAIN) -> dict[str, Any]:
        """Revision, items and version of a variable that is there, once it was read."""
        task = asyncio.ensure_future(self.directory.variable(reader, path))
        await self.look()
        found = await asyncio.wait_for(task, None) if task.done() else None
        if found is None:
            task.cancel()
            return {}
        one = found.variable
        items = None if one is None else dict(one.items)
        return {"version": found.version, "items": items, "revision": one and one.modify_index}

    def waits(self, seen: int, path: str = PATH, reader: VariableReader = MAIN) -> Any:
        """A question that waits for a change."""
        return asyncio.ensure_future(self.directory.changed(reader, {path: seen}))


def play(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def told() -> None:
        await story(World())

    asyncio.run(told())


def test_items_are_asked_for_one_task_and_opened() -> None:
    """One question names the allocation, the task and all paths, with a key of its own each time."""

    async def story(world: World) -> None:
        revision = world.put(PATH, password="marker", user="u")
        world.put(OTHER, a="b")
        tasks = [
            asyncio.ensure_future(world.directory.variable(MAIN, path)) for path in (PATH, OTHER)
        ]
        await world.look()
        found = await tasks[0]
        assert found.variable is not None
        assert dict(found.variable.items) == {"password": "marker", "user": "u"}
        assert (found.variable.modify_index, found.variable.create_index) == (revision, 5)
        assert "marker" not in repr(found)
        (ask,) = world.asks
        assert (ask.alloc_id, ask.task, ask.paths) == (*MAIN, (PATH, OTHER))
        await world.known(PATH, SIDE)
        assert [(one.task, one.paths) for one in world.asks[1:]] == [("side", (PATH,))]
        assert world.asks[0].public != world.asks[1].public

    play(story)


def test_what_one_task_may_read_is_not_given_to_another() -> None:
    """Each task is asked for, whatever is known for another task or allocation; versions are never the same."""

    async def story(world: World) -> None:
        world.put(PATH, k="v")
        first = await world.known()
        world.refused[(*SIDE, PATH)] = "forbidden"
        task = asyncio.ensure_future(world.directory.variable(SIDE, PATH))
        await world.passes(GRACE_S + 1)
        with pytest.raises(DataUnusable, match=f"variable {PATH} cannot be read: forbidden"):
            await task
        moved = VariableReader("b" * 36, "main")
        other = await world.known(PATH, moved)
        assert other["items"] == first["items"] and other["version"] != first["version"]

    play(story)


def test_a_new_revision_is_read_and_wakes_those_who_saw_the_old_one() -> None:
    """The view says which revision there is; without another one nothing is asked again."""

    async def story(world: World) -> None:
        world.put(PATH, k="1")
        first = await world.known()
        waits = world.waits(first["version"])
        await world.passes(SILENCE_S)
        assert (len(world.asks), waits.done()) == (1, False)
        world.seq += 5
        world.publish(PATH)
        await world.look()
        assert len(world.asks) == 1, "the same revision"
        world.put(PATH, k="2")
        await world.look()
        assert waits.done()
        assert (await world.known())["items"] == {"k": "2"}
        assert len(world.asks) == 2

    play(story)


def test_a_variable_that_is_not_there_is_known_and_followed() -> None:
    """It comes, goes and comes again: each is another version."""

    async def story(world: World) -> None:
        found = await world.known()
        assert (found["items"], found["revision"]) == (None, None)
        for expected in ({"k": "1"}, None, {"k": "2"}):
            waits = world.waits(found["version"])
            await asyncio.sleep(0)
            if expected is None:
                world.delete(PATH)
            else:
                world.put(PATH, **expected)
            await world.look()
            assert waits.done()
            found = await world.known()
            assert found["items"] == expected

    play(story)


def test_a_keeper_that_is_away_is_asked_again() -> None:
    """Every second, without limit, with another key each time; what is known stays meanwhile."""

    async def story(world: World) -> None:
        world.is_silent = True
        task = asyncio.ensure_future(world.directory.variable(MAIN, PATH))
        await world.look()
        await world.passes(10 * RESEND_S)
        assert (len(world.asks), task.done()) == (11, False)
        assert len({one.public for one in world.asks}) == 11
        world.put(PATH, k="1")
        world.is_silent = False
        await world.passes(RESEND_S)
        first = (await task).version
        world.is_silent = True
        world.put(PATH, k="2")
        await world.passes(3 * RESEND_S)
        assert (await world.known())["version"] == first
        waits = world.waits(first)
        world.is_silent = False
        await world.passes(RESEND_S)
        assert waits.done()
        assert (await world.known())["items"] == {"k": "2"}

    play(story)


def test_a_keeper_that_cannot_answer_yet_is_asked_again_soon() -> None:
    """It may learn of an allocation later than its node: a start waits no second for that; long waits ask rarely."""

    async def story(world: World) -> None:
        world.put(PATH, k="1")
        world.refusal = "unavailable"
        task = asyncio.ensure_future(world.directory.variable(MAIN, PATH))
        await world.look()
        (asked,) = world.asks
        world.now_s += BEHIND_S
        await world.look()
        assert len(world.asks) == 2, asked
        await world.passes(2 * RESEND_S)
        before = len(world.asks)
        await world.passes(10 * RESEND_S)
        assert len(world.asks) == before + 10
        world.refusal = ""
        await world.passes(RESEND_S)
        assert (await task).variable is not None

    play(story)


def test_an_answer_to_an_earlier_question_counts() -> None:
    """Each question has a key of its own, so a slow answer counts; a late copy of it changes nothing."""

    async def story(world: World) -> None:
        world.put(PATH, k="1")
        task = asyncio.ensure_future(world.directory.variable(MAIN, PATH))
        await asyncio.sleep(0)
        for _ in range(3):
            await world.directory.look(world.client)
            world.now_s += RESEND_S
        slow, world._waiting = world._waiting, []
        asks = [one for one in slow if one[0] == subjects.node_variables(NODE)]
        assert len(asks) == 3
        world._waiting = [asks[0]]
        world.answer()
        found = await task
        world.kept[PATH] = (world.seq + 100, {"k": "other"})
        world._waiting = [asks[0]]
        world.answer()
        assert (await world.directory.variable(MAIN, PATH)).version == found.version
        world.now_s += LINGER_S
        await world.look()

    play(story)


def test_a_keeper_behind_the_view_is_asked_again_soon() -> None:
    """An older revision does not count, nor that a path does not exist which the view shows, unless it stays so."""

    async def story(world: World) -> None:
        old = world.put(PATH, k="1")
        first = await world.known()
        waits = world.waits(first["version"])
        await asyncio.sleep(0)
        world.put(PATH, k="2")
        newest = world.kept[PATH]
        for behind in ((old, {"k": "1"}), None):
            if behind is None:
                del world.kept[PATH]
            else:
                world.kept[PATH] = behind
            await world.passes(0.5)
            assert (await world.known())["version"] == first["version"]
        world.kept[PATH] = newest
        await world.passes(1)
        assert waits.done()
        second = await world.known()
        assert second["items"] == {"k": "2"}
        waits = world.waits(second["version"])
        await asyncio.sleep(0)
        world.delete(PATH, is_published=False)
        world.stats["reconnects"] += 1
        world.stands.clear()
        await world.passes(0.5)
        assert (await world.known())["version"] == second["version"]
        await world.passes(GONE_S + RESEND_S)
        assert waits.done()
        assert (await world.known())["items"] is None

    play(story)


def test_a_view_behind_the_keeper_changes_nothing() -> None:
    """A value of before the revision that is known neither counts nor is asked about."""

    async def story(world: World) -> None:
        world.put(PATH, k="1")
        before = world.stands[subjects.view_variable(PATH)]
        world.delete(PATH)
        gone = world.stands[subjects.view_variable(PATH)]
        world.put(PATH, is_published=False, k="2")
        first = await world.known()
        asked = len(world.asks)
        for data in (before, gone):
            world.push(PATH, data)
        await world.look()
        assert ((await world.known())["version"], len(world.asks)) == (first["version"], asked)

    play(story)


def test_a_lost_message_is_made_good() -> None:
    """A revision that was published while the agent did not hear it is read again after a silence or a reconnect."""

    async def story(world: World) -> None:
        for number, heals in enumerate((lambda: None, world.stats.clear)):
            world.put(PATH, k=f"{number}a")
            first = await world.known()
            world.put(PATH, is_published=False, k=f"{number}b")
            kept, world.listeners = world.listeners, {}
            world.publish(PATH)
            world.listeners = kept
            heals()
            world.stats["reconnects"] = number
            waits = world.waits(first["version"])
            await world.passes(SILENCE_S if number == 0 else 1)
            assert waits.done()
            assert (await world.known())["items"] == {"k": f"{number}b"}

    play(story)


def test_a_refusal_counts_when_it_stays() -> None:
    """The keeper may learn of an allocation later than its node; a later question asks again."""

    async def story(world: World) -> None:
        world.put(PATH, k="1")
        world.refusal = "forbidden"
        task = asyncio.ensure_future(world.directory.variable(MAIN, PATH))
        await world.passes(GRACE_S / 2)
        world.refusal = ""
        await world.passes(RESEND_S)
        assert (await task).variable is not None
        world.refusal = "forbidden"
        seen = (await world.known())["version"]
        waits = world.waits(seen)
        world.put(PATH, k="2")
        await world.passes(GRACE_S + RESEND_S)
        assert waits.done(), "that it may not be read any more is a change"
        again = asyncio.ensure_future(world.directory.variable(MAIN, PATH))
        await world.passes(GRACE_S + RESEND_S)
        with pytest.raises(DataUnusable, match="forbidden: not here"):
            await again
        world.refusal = ""
        assert (await world.known())["items"] == {"k": "2"}

    play(story)


def test_what_cannot_be_opened_is_ignored() -> None:
    """A box of another revision, path, cluster or key, no JSON, too few answers: asked again, and counted."""

    async def story(world: World) -> None:
        revision = world.put(PATH, k="1")
        plain = encode_items({"k": "forged"})

        def forged(public: bytes) -> list[bytes]:
            def one(path: str = PATH, sealed: bytes = b"") -> VariableAnswers:
                answer = VariableAnswer(path=path, revision=revision, sealed=sealed)
                return VariableAnswers(answers=(answer,))

            contexts = [
                ("get", CLUSTER, PATH, str(revision - 1)),
                ("get", CLUSTER, OTHER, str(revision)),
                ("get", "c2", PATH, str(revision)),
            ]
            own = (*contexts[0][:3], str(revision))
            boxes = [seal(plain, public, one) for one in contexts]
            boxes += [b"", seal(plain, bytes(31) + b"\x09", own), seal(b"[]", public, own)]
            bodies = [msgspec.json.encode(one(sealed=box)) for box in boxes]
            bodies.append(msgspec.json.encode(one(OTHER, seal(plain, public, own))))
            bodies.append(msgspec.json.encode(VariableAnswers()))
            return [*bodies, b"\xff", b"[" * 100_000, b"{"]

        task = asyncio.ensure_future(world.directory.variable(MAIN, PATH))
        await asyncio.sleep(0)
        await world.directory.look(world.client)
        ((_, data, done),) = [one for one in world._waiting if b"alloc_id" in one[1]]
        bodies = forged(msgspec.json.decode(data, type=VariableAsk).public)
        for body in bodies:
            done(b"", body)
        assert world.directory.ignored == len(bodies)
        assert not task.done()
        world._waiting.clear()
        await world.passes(RESEND_S)
        assert (await world.known())["items"] == {"k": "1"}

    play(story)


def test_items_are_dropped_after_their_last_use() -> None:
    """Not while a question waits. Nothing is asked that nothing waits for, and the path is followed no longer."""

    async def story(world: World) -> None:
        world.put(PATH, k="1")
        first = await world.known()
        waits = world.waits(first["version"])
        await world.passes(LINGER_S + 1)
        assert len(world.directory._held) == 1
        waits.cancel()
        await asyncio.sleep(0)
        asked = len(world.asks)
        world.put(PATH, k="2")
        await world.passes(LINGER_S + 1)
        assert (world.directory._held, len(world.asks)) == ({}, asked)
        await world.passes(LINGER_S + 1)
        assert {subject for subject, _ in world.listeners.values()} == {""}
        assert (await world.known())["version"] != first["version"]

    play(story)


def test_nothing_is_asked_without_a_cluster_or_a_bus() -> None:
    """The context of an answer names the cluster, which a new agent has not heard of yet."""

    async def story(world: World) -> None:
        world.put(PATH, k="1")
        world.cluster_id = ""
        task = asyncio.ensure_future(world.directory.variable(MAIN, PATH))
        await world.passes(2)
        world.cluster_id, world.is_connected = CLUSTER, False
        await world.passes(2)
        assert (world.asks, task.done()) == ([], False)
        world.is_connected = True
        await world.passes(1)
        assert (await task).variable is not None

    play(story)


def test_a_long_path_has_a_subject() -> None:
    """Slashes take three bytes of a token: the subject of a path that has too many has its hash instead."""

    async def story(world: World) -> None:
        path = "/".join("a" * 64)
        subject = subjects.view_variable(path)
        assert subject.startswith("view.variable.~") and subject != subjects.view_variable(
            "/".join("b" * 64)
        )
        world.put(path, k="1")
        assert (await world.known(path))["items"] == {"k": "1"}

    play(story)
