"""Questions carried by FastStream: the role sees and answers what it would without it, also after a loss of the bus."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
import structlog

from services.view import early
from services.view.edge import carry
from services.view.role import View
from shared.bus import subjects
from shared.bus.connect import BusClient, header_block
from shared.bus.frames import Handler
from shared.bus.shell import Shell
from shared.core import role as r
from tests.bus.toys import Bus, Toy, append, run, until
from tests.tidy.test_walls import HEAVY, imported
from tests.unit.written_log import WrittenLog

pytestmark = pytest.mark.bus

QUERY = r.Listen("query", subjects.QUERIES, queue="view")
CARRIERS = {"query": carry}


@contextlib.asynccontextmanager
async def carried(bus: Bus, role: r.Role) -> AsyncIterator[Shell]:
    """A shell as the view's process has it."""
    shell = Shell(role, bus.settings("view", start_timeout_s=5.0), carriers=CARRIERS)
    stop = asyncio.Event()
    running = asyncio.create_task(shell.run(stop))
    try:
        await until(lambda: shell.is_ready or running.done())
        yield shell
    finally:
        stop.set()
        await running


async def heard(shell: Shell, toy: Toy, connects: int = 1) -> None:
    """Wait until the server knows the subscriptions."""
    await until(lambda: len(toy.of(r.Reconnected)) >= connects, f"connect {connects}")
    assert shell._link is not None
    await shell._link.bus.flush()


async def write(bus: Bus, log: WrittenLog) -> None:
    async with bus.client("plan_applier") as writer:
        for record in log.records:
            await append(writer, record.data, msg_id=str(record.seq), subject=record.subject)


async def ask(asker: BusClient, noun: str, body: bytes = b"{}") -> dict:
    return json.loads((await asker.request_raw(subjects.query(noun), body, timeout_s=5.0))[1])


def test_the_view_answers_through_faststream(bus: Bus) -> None:
    """An asker of PUBLIC gets the role's answer, its refusals and the list of dead letters."""

    async def story() -> None:
        await bus.bootstrap()
        log = WrittenLog()
        log.jobs("web", count=3)
        await write(bus, log)
        view = View(instance="v1", follow_dead=True)
        async with carried(bus, view) as shell, bus.client("public") as asker:
            await until(lambda: view.next_seq == log.seq + 1)
            assert shell._link is not None
            await shell._link.bus.flush()
            job = await ask(asker, "job", b'{"id":"web"}')
            assert (job["seq"], job["job"]["id"], job["groups"]["g"]["desired"]) == (3, "web", 3)
            assert (await ask(asker, "job", b'{"id":"none"}'))["error"]["code"] == "not_found"
            assert (await ask(asker, "job", b"\xff{"))["error"]["code"] == "invalid"
            assert (await ask(asker, "jobs", b""))["total"] == 1
            assert (await ask(asker, "dead"))["total"] == 0
            # Nobody waits for an answer to this one, so what is wrong with it goes to the dead letters.
            asker.send(subjects.query("job"), b"\x00")
            dead = await ask(asker, "dead")
            while not dead["total"]:
                dead = await ask(asker, "dead")
            assert dead["messages"][0]["subject"] == subjects.query("job")

    run(story())


@pytest.mark.parametrize("headers", [b"", header_block(nats_msg_id="m-1")])
@pytest.mark.parametrize("data", [b"{}", b"", b"\x00\xff", b'{"a":1}' * 1000])
def test_a_carried_message_is_the_same_message(bus: Bus, headers: bytes, data: bytes) -> None:
    """FastStream hands over what the shell itself would have heard: subject, body, id, and that somebody asks."""

    async def story() -> None:
        await bus.bootstrap()
        raw, through = Toy(QUERY, instance="raw"), Toy(QUERY, instance="through")
        raw_shell = bus.shell(raw, bus.settings("view"))
        async with bus.client("public") as asker:
            for toy, driven in ((raw, raw_shell), (through, carried(bus, through))):
                async with driven as shell:
                    await heard(shell, toy)
                    asker.send(subjects.query("job"), data, b"_INBOX.me", headers)
                    asker.send(subjects.query("job"), data, b"", headers)
                    await until(lambda toy=toy: len(toy.of(r.Message)) == 2)
        assert raw.of(r.Message) == through.of(r.Message)
        assert [one.reply for one in through.of(r.Message)] == [True, False]

    run(story())


def test_one_view_of_many_answers(bus: Bus) -> None:
    """Each question reaches one member of the queue group, and both members get some."""

    async def story() -> None:
        await bus.bootstrap()
        one, two = Toy(QUERY, instance="one"), Toy(QUERY, instance="two")
        async with (
            carried(bus, one) as first,
            carried(bus, two) as second,
            bus.client("public") as asker,
        ):
            await heard(first, one)
            await heard(second, two)
            for number in range(200):
                asker.send(subjects.query("job"), b"%d" % number)
            await until(lambda: len(one.datas()) + len(two.datas()) == 200)
            await asker.flush()
        assert sorted(one.datas() + two.datas(), key=int) == [b"%d" % n for n in range(200)]
        assert one.datas()
        assert two.datas()

    run(story())


@pytest.mark.parametrize("closed", [False, True])
def test_questions_are_heard_after_the_bus_was_away(bus: Bus, *, closed: bool) -> None:
    """A restarted bus, and a client that gave up and was built anew, are heard again, each question once."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(QUERY)
        async with carried(bus, toy) as shell:
            await heard(shell, toy)
            if closed:
                assert shell._link is not None
                await shell._link.bus.close()
            else:
                bus.server.kill()
                bus.server.start()
            await heard(shell, toy, connects=2)
            async with bus.client("public") as asker:
                asker.send(subjects.query("job"), b"again")
                await until(toy.datas)
                asker.send(subjects.query("job"), b"last")
                await until(lambda: b"last" in toy.datas())
        assert toy.datas() == [b"again", b"last"]

    run(story())


def test_faststream_is_quiet(bus: Bus) -> None:
    """Nothing of FastStream's own is logged above DEBUG, not even about a body that nobody can read."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(QUERY)
        async with carried(bus, toy) as shell, bus.client("public") as asker:
            await heard(shell, toy)
            asker.send(subjects.query("job"), b"\xff")
            await until(toy.datas)

    with structlog.testing.capture_logs() as lines:
        run(story())
    assert [one for one in lines if one["log_level"] not in ("debug", "info")] == []
    spoken = [one for one in lines if one["log_level"] == "debug"]
    assert any("Received" in str(one["event"]) for one in spoken)
    assert not any("Received" in str(one["event"]) for one in lines if one not in spoken)


def test_a_question_that_cannot_be_handed_over_ends_the_process(bus: Bus) -> None:
    """What goes wrong in the hand-over is not swallowed: it fails the shell, as it would without FastStream."""

    async def story() -> None:
        await bus.bootstrap()
        async with bus.client("view") as own, bus.client("public") as asker:
            failures: list[BaseException] = []
            own.on_failure = failures.append

            def broken(*_: bytes) -> None:
                raise ZeroDivisionError

            await carry(own, QUERY, broken)
            await own.flush()
            asker.send(subjects.query("job"), b"{}")
            await until(lambda: failures)
            assert isinstance(failures[0], ZeroDivisionError)

    run(story())


@pytest.mark.parametrize(
    "role", ["eval_broker", "heartbeat", "intake", "plan_applier", "scheduler", "agent"]
)
def test_only_the_view_pays_for_faststream(role: str) -> None:
    """No other service's process imports FastStream or pydantic."""
    assert not imported(f"services.{role}.__main__") & {"faststream", "pydantic", "fast_depends"}


def test_a_view_starts_without_faststream() -> None:
    """What is loaded before a view answers is as little as with the other roles; the edge itself is FastStream's."""
    assert not imported("services.view.__main__") & set(HEAVY)
    assert "faststream" in imported("services.view.edge") & set(HEAVY)


def test_faststream_takes_over_without_a_gap(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are heard from the first moment, and while FastStream takes over none is lost or heard twice."""
    monkeypatch.setattr(early, "LOADED_AFTER_S", 0.0)
    carriers: list[str] = []

    async def through(client: BusClient, source: r.Listen, deliver: Handler) -> None:
        await carry(client, source, deliver)
        carriers.append("faststream")

    monkeypatch.setattr(early, "_load", lambda: through)

    async def story() -> None:
        await bus.bootstrap()
        heard: list[bytes] = []
        async with bus.client("view") as own, bus.client("public") as asker:
            await early.carry(own, QUERY, lambda *message: heard.append(message[3]))
            await own.flush()
            asked = 0
            while early._takeovers or asked < 500:
                asker.send(subjects.query("job"), b"%d" % asked)
                asked += 1
                await asyncio.sleep(0)
                if asked == 1:
                    await until(lambda: heard)
            await until(lambda: len(heard) >= asked)
            asker.send(subjects.query("job"), b"last")
            await until(lambda: b"last" in heard)
        assert sorted(heard[:-1], key=int) == [b"%d" % number for number in range(asked)]

    run(story())
    assert carriers == ["faststream"]
