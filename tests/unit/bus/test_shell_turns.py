"""Turns of a shell that has no bus, as an agent's may have none: what is awaited, what fails, and when timers fire."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from shared.bus.connection.nats_client import Login, connect
from shared.bus.process.runner import loop_factory
from shared.bus.shell.shell import RoleStopped, Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.bus.shell.wall_clock import WallClock
from shared.core.runtime import messages as r
from shared.core.runtime.role import Input
from tests.bounds import WAIT_S, level

#: An address without a listener.
NOWHERE = Login(url="nats://127.0.0.1:1", user="u", password="p")
HOUR_NS = 3_600_000_000_000


class Do(msgspec.Struct, frozen=True):
    """An effect of this role alone."""

    name: str


class Player:
    """A role that plays, at each step, the next list of effects; it remembers what it was given."""

    name = "player"
    instance = "one"
    leader_key = ""
    next_seq = 1

    def __init__(self, *steps: list[Any]) -> None:
        self.seen: list[Any] = []
        self.now_ns = 0
        self.steps = [[], *steps]

    def sources(self) -> tuple[r.Source, ...]:
        return ()

    def step(self, inputs: list[Input], now_ns: int) -> list[r.Effect]:
        self.seen += inputs
        self.now_ns = now_ns
        if inputs == [r.Timer("raise", 1)]:
            raise ZeroDivisionError
        return self.steps.pop(0) if self.steps else []

    def metrics(self) -> dict[str, float]:
        return {}


def shell_of(
    role: Player, perform: Callable[[Do], Awaitable[None] | None], clock: WallClock | None = None
) -> Shell:
    settings = ShellSettings(login=NOWHERE, in_core=False)
    return Shell(role, settings, performers={Do: perform}, clock=clock)


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a story in a fresh loop, bounded in time."""
    asyncio.run(asyncio.wait_for(story, WAIT_S))


def poke(shell: Shell, name: str = "poke") -> None:
    shell.inject([r.Timer(name, 1)])


def test_a_step_is_performed_to_its_end_though_the_shell_shall_stop() -> None:
    """Every effect of a step is performed, each behind the one before it that is awaited, before the shell ends."""
    done: list[str] = []

    async def story() -> None:
        gate = asyncio.Event()

        async def slowly(name: str) -> None:
            await gate.wait()
            await asyncio.sleep(0)
            done.append(name)

        def perform(effect: Do) -> Awaitable[None] | None:
            if effect.name.startswith("slow"):
                return slowly(effect.name)
            done.append(effect.name)
            return None

        names = ("a", "slow1", "b", "slow2", "c", "slow3", "d")
        shell = shell_of(Player([Do(name) for name in names]), perform)
        stop = asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        await asyncio.sleep(0)
        poke(shell)
        await level(lambda: done)
        stop.set()
        await asyncio.sleep(0)
        gate.set()
        await running
        assert done == list(names)

    run(story())


def test_no_step_is_taken_while_an_effect_is_awaited() -> None:
    """What comes meanwhile is taken in the step after, and a timer that was due meanwhile fires then."""

    async def story() -> None:
        gate = asyncio.Event()

        async def slowly() -> None:
            await gate.wait()

        role = Player([r.SetTimer("soon", 1), Do("slow")])
        shell = shell_of(role, lambda _: slowly())
        stop = asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        await asyncio.sleep(0)
        poke(shell)
        await level(lambda: role.seen)
        for number in range(3):
            poke(shell, f"later{number}")
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert [one.name for one in role.seen] == ["poke"]
        gate.set()
        await level(lambda: len(role.seen) == 5)
        assert [one.name for one in role.seen] == ["poke", "later0", "later1", "later2", "soon"]
        stop.set()
        await running

    run(story())


@pytest.mark.parametrize(
    ("effects", "failure"),
    [
        ([Do("fails")], ValueError),
        ([Do("fails late")], ValueError),
        ([Do("waits"), Do("fails")], ValueError),
        ([Do("waits"), r.Stop("enough")], RoleStopped),
        ([r.Stop("enough")], RoleStopped),
    ],
)
@pytest.mark.parametrize("stops", [False, True])
def test_what_fails_ends_the_shell(
    effects: list[Any], failure: type[Exception], *, stops: bool
) -> None:
    """The runner of a shell gets the exception of an effect, awaited or not, even while the shell is stopping."""

    async def story() -> None:
        gate = asyncio.Event()
        begun: list[str] = []

        async def work(effect: Do) -> None:
            await gate.wait()
            if effect.name == "fails late":
                raise ValueError(effect.name)

        def perform(effect: Do) -> Awaitable[None]:
            begun.append(effect.name)
            if effect.name == "fails":
                raise ValueError(effect.name)
            return work(effect)

        shell = shell_of(Player(effects), perform)
        stop = asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        await asyncio.sleep(0)
        poke(shell)
        await level(lambda: begun or running.done())
        if stops:
            stop.set()
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(failure):
            await running

    run(story())


def test_a_step_that_raises_ends_the_shell() -> None:
    """The runner of a shell gets the exception of the role."""

    async def story() -> None:
        shell = shell_of(Player(), lambda _: None)
        running = asyncio.create_task(shell.run(asyncio.Event()))
        await asyncio.sleep(0)
        poke(shell, "raise")
        with pytest.raises(ZeroDivisionError):
            await running

    run(story())


def test_a_clock_that_was_set_forward_keeps_no_timer_waiting() -> None:
    """A timer that is set after the clock was set forward fires at its time, though an alarm stood for an older one."""

    async def story() -> None:
        ahead_ns = 0
        clock = WallClock(wall_ns=lambda: time.time_ns() + ahead_ns)
        role = Player([r.SetTimer("old", time.time_ns() + HOUR_NS // 2)])
        shell = shell_of(role, lambda _: None, clock)
        stop = asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        await asyncio.sleep(0)
        poke(shell)
        await level(lambda: role.seen)
        await asyncio.sleep(0)
        ahead_ns = HOUR_NS
        at_ns = time.time_ns() + ahead_ns + 20_000_000
        role.steps = [[r.SetTimer("new", at_ns)]]
        poke(shell)
        await level(lambda: r.Timer("new", at_ns) in role.seen)
        assert role.now_ns >= at_ns
        stop.set()
        await running

    run(story())


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()])
def test_timers_that_are_due_at_once_fire_one_by_one(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A timer in the past, and one set while its alarm still stands, both fire; on the loop of the services, too."""

    async def story() -> None:
        late = r.SetTimer("late", time.time_ns() + HOUR_NS)
        role = Player([r.SetTimer("past", 5), late, Do("a turn")], [r.SetTimer("next", 6)])
        shell = shell_of(role, lambda _: poke(shell))
        stop = asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        await asyncio.sleep(0)
        poke(shell)
        await level(lambda: {r.Timer("past", 5), r.Timer("next", 6)} <= set(role.seen))
        stop.set()
        await running

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(story(), WAIT_S))


@pytest.mark.parametrize("turns", range(1, 12))
def test_who_gives_up_connecting_leaves_nothing_behind(turns: int) -> None:
    """A connection that is cancelled at whatever point of its making ends whole: nothing of it continues trying."""

    async def story() -> None:
        making = asyncio.create_task(connect(NOWHERE))
        for _ in range(turns):
            await asyncio.sleep(0)
        making.cancel()
        await asyncio.wait([making], timeout=WAIT_S)
        assert making.done()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())
