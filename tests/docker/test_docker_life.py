"""driver docker through the death of the agent, of the engine, and of both: nothing is lost, nothing runs twice."""

import asyncio
from pathlib import Path

import docker
import pytest

from services.agent.drivers.docker import run_record
from services.agent.drivers.docker.container_spec import container_spec
from services.agent.drivers.docker.container_start import (
    ContainerStart,
    PendingStart,
    create_and_start,
)
from services.agent.drivers.docker.driver import Container
from services.agent.drivers.driver import StartRefused, TaskExit, TaskMissing
from tests.bounds import WAIT_S, level
from tests.docker.box import Box, a_box, launch, status
from tests.docker.engine import OwnEngine

pytestmark = pytest.mark.asyncio


async def next_life(box: Box) -> Box:
    """The agent is killed, and another one takes over its directory."""
    await box.forget()
    box.leave()
    return Box(box.engine, box.home.top)


async def test_a_running_container_is_adopted(engine: OwnEngine, top: Path) -> None:
    """The next life finds the same container, continues with its log where the last stopped, and sees its end."""
    async with a_box(engine, top) as box:
        script = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; exit 7"
        first = await box.start(script)
        await level(lambda: "line 3\n" in box.output())
        box2 = await next_life(box)
        found = await box2.driver.recover(box2.run())
        assert isinstance(found, Container)
        assert (found.id, found.pid) == (first.id, first.pid)
        end = await asyncio.wait_for(box2.driver.wait(found), WAIT_S)
        assert end.code == 7
        assert box2.output() == "".join(f"line {number}\n" for number in range(40))
        assert box2.containers() == []
        box.home = box2.home


async def test_an_end_nobody_watched_is_reported(engine: OwnEngine, top: Path) -> None:
    """A container that ended while the agent was away ends with its own code, and its last words are kept."""
    async with a_box(engine, top) as box:
        handle = await box.start("sleep 0.5; echo last words; exit 9")
        box2 = await next_life(box)
        await level(lambda: engine.client.containers.get(handle.id).status == "exited")
        found = await box2.driver.recover(box2.run())
        assert isinstance(found, TaskExit)
        assert found.code == 9
        assert box2.output() == "last words\n"
        assert box2.containers() == []
        assert await box2.driver.recover(box2.run()) == found, "also when it is asked again"
        box.home = box2.home


async def test_a_crash_between_create_and_start(
    engine: OwnEngine, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that was made and never started is no run: it goes, and the next start is the first."""
    async with a_box(engine, top) as box:

        def crashed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("services.agent.drivers.docker.container_start.write_claim", crashed)
            patch.setattr(docker.APIClient, "remove_container", lambda *_, **__: None)
            given = launch("sleep 300")
            plan = container_spec(box.driver._name(box.run()), given)
            order = ContainerStart(run=box.run(), launch=given, plan=plan, starting=PendingStart())
            with pytest.raises(KeyboardInterrupt):
                create_and_start(box.driver._engine.api(), box.driver._ground, order)
        assert [one.status for one in box.containers()] == ["created"]
        box2 = await next_life(box)
        assert await box2.driver.recover(box2.run()) == TaskMissing(started=False)
        assert box2.containers() == []
        handle = await box2.start()
        assert len(box2.containers()) == 1
        await box2.driver.stop(handle)
        box.home = box2.home


async def test_a_start_given_up_never_comes_alive(
    engine: OwnEngine, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is abandoned while the engine makes its container leaves none, running or not."""
    async with a_box(engine, top) as box:
        made = asyncio.Event()
        loop = asyncio.get_running_loop()
        write = run_record.write_claim

        def slow(*args: object) -> None:
            write(*args)  # type: ignore[arg-type]
            loop.call_soon_threadsafe(made.set)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.3), loop).result()

        monkeypatch.setattr("services.agent.drivers.docker.container_start.write_claim", slow)
        starting = asyncio.ensure_future(box.start())
        await made.wait()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await box.driver.abandon(box.run())
        await asyncio.sleep(0.5)
        await level(lambda: box.containers() == [])


async def test_a_container_of_another_life_of_the_machine_is_lost(
    engine: OwnEngine, top: Path
) -> None:
    """After a restart of the machine a container that it ended is lost, and not taken for one that ended by itself."""
    async with a_box(engine, top) as box:
        handle = await box.start("sleep 0.2; exit 3")
        await level(lambda: engine.client.containers.get(handle.id).status == "exited")
        box2 = await next_life(box)
        box2.driver._kernel_boot = "another"
        found = await box2.driver.recover(box2.run())
        assert isinstance(found, TaskMissing)
        assert found.started
        assert "rebooted" in found.reason
        assert box2.containers() == []
        box.home = box2.home


async def test_a_container_removed_by_somebody(engine: OwnEngine, top: Path) -> None:
    """A container that is removed outside of Caravan ends its run without an exit code, now or in the next life."""
    async with a_box(engine, top) as box:
        handle = await box.start()
        waiting = asyncio.ensure_future(box.driver.wait(handle))
        engine.client.containers.get(handle.id).remove(force=True)
        end = await asyncio.wait_for(waiting, WAIT_S)
        assert end.code in {None, 137}
        second = await box.start(number=2)
        box2 = await next_life(box)
        engine.client.containers.get(second.id).remove(force=True)
        found = await box2.driver.recover(box2.run(2))
        assert isinstance(found, TaskMissing)
        assert found.started
        box.home = box2.home


async def test_strays_are_swept(engine: OwnEngine, top: Path) -> None:
    """Containers of this home that no run knows are removed; those of others are not touched."""
    async with a_box(engine, top) as box, a_box(engine, top / "other") as other:
        mine, theirs = await box.start(), await other.start()
        await box.start(number=2)
        box.driver._known.discard(box.driver._name(box.run(2)))
        assert await box.driver._sweep() == 1
        assert [one.id for one in box.containers()] == [mine.id]
        assert [one.id for one in other.containers()] == [theirs.id]


async def test_the_engine_goes_and_comes_back(engine: OwnEngine, top: Path) -> None:
    """An engine that is killed and started again ends no run; what ended meanwhile is seen then, with its code."""
    async with a_box(engine, top) as box:
        stays = await box.start("while :; do echo on; sleep 0.2; done", number=1)
        ends = await box.driver.start(box.run(task="ends"), launch("echo bye; sleep 2; exit 6"))
        waits = [asyncio.ensure_future(box.driver.wait(one)) for one in (stays, ends)]
        await level(lambda: "on" in box.output())
        engine.kill()
        try:
            await level(lambda: not status(ends.pid))
            with pytest.raises(StartRefused, match="not reachable") as caught:
                await box.start(number=9)
            assert caught.value.recoverable
            assert not any(one.done() for one in waits)
            assert box.driver.fingerprint() == {}
        finally:
            await asyncio.to_thread(engine.start)
        end = await asyncio.wait_for(waits[1], WAIT_S)
        assert end.code == 6
        assert "bye" in box.output(task="ends")
        assert not waits[0].done()
        count = box.output().count("on")
        await level(lambda: box.output().count("on") > count)
        await box.driver.stop(stays)
        assert (await asyncio.wait_for(waits[0], WAIT_S)).signal == 9


async def test_an_engine_that_is_away_when_the_agent_comes(engine: OwnEngine, top: Path) -> None:
    """A run whose engine does not answer is not lost: it is adopted when the engine is back."""
    async with a_box(engine, top) as box:
        first = await box.start("sleep 300")
        engine.kill()
        try:
            box2 = await next_life(box)
            found = await box2.driver.recover(box2.run())
            assert isinstance(found, Container)
            waiting = asyncio.ensure_future(box2.driver.wait(found))
        finally:
            await asyncio.to_thread(engine.start)
        await level(lambda: found.pid == first.pid)
        await box2.driver.stop(found)
        assert (await asyncio.wait_for(waiting, WAIT_S)).signal == 9
        box.home = box2.home


async def test_a_hanging_engine_costs_its_own_tasks_alone(engine: OwnEngine, top: Path) -> None:
    """An engine that answers nothing neither ends a run nor holds up the loop."""
    async with a_box(engine, top) as box:
        box.driver._engine._call_s = 1.0
        handle = await box.start()
        waiting = asyncio.ensure_future(box.driver.wait(handle))
        engine.freeze()
        try:
            with pytest.raises(StartRefused, match=r"did not answer|not reachable"):
                await asyncio.wait_for(box.start(number=2), WAIT_S)
            assert not waiting.done()
        finally:
            engine.thaw()
        await level(lambda: len(box.containers()) >= 1)
        box.driver._engine._call_s = 30.0
        await box.driver.stop(handle)
        assert (await asyncio.wait_for(waiting, WAIT_S)).signal == 9
        await box.driver.abandon(box.run(2))
