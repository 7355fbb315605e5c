"""Questions to a view: the role sees and answers them without their headers, also after a loss of the bus."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from services.cli.local.run_role import AGENT
from services.view.role import View
from services.view.subscriptions import subscribe_without_headers
from shared.bus.connection.nats_client import BusClient, header_block
from shared.bus.server.accounts import ROLES
from shared.bus.shell.shell import Shell
from shared.core.runtime import messages as r
from shared.core.runtime.role import Role
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.bus.toys import Bus, Toy, append, run, until
from tests.faults.poison import HEADERS
from tests.faults.raw_frames import RawSender
from tests.tidy.test_walls import HEAVY, imported
from tests.unit.core.state.written_log import WrittenLog

pytestmark = pytest.mark.bus

QUERY = r.Listen("query", subjects.QUERIES, queue="view")
CARRIERS = {"query": subscribe_without_headers}


@contextlib.asynccontextmanager
async def carried(bus: Bus, role: Role) -> AsyncIterator[Shell]:
    """A shell as the view's process has it."""
    shell = Shell(role, bus.settings("view", start_timeout_s=WAIT_S), carriers=CARRIERS)
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
    return json.loads((await asker.request_raw(subjects.query(noun), body, timeout_s=WAIT_S))[1])


def test_the_view_answers(bus: Bus) -> None:
    """An asker of PUBLIC gets the role's answer, its refusals and the list of dead letters."""

    async def story() -> None:
        await bus.bootstrap()
        log = WrittenLog()
        log.jobs("web", count=3)
        await write(bus, log)
        view = View(instance="v1", reads_dead_letters=True)
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
            # Without a reply subject, the error becomes a dead letter.
            asker.send(subjects.query("job"), b"\x00")
            dead = await ask(asker, "dead")
            while not dead["total"]:
                dead = await ask(asker, "dead")
            assert dead["messages"][0]["subject"] == subjects.query("job")

    run(story())


@pytest.mark.parametrize("headers", [b"", header_block(nats_msg_id="m-1")])
@pytest.mark.parametrize("data", [b"{}", b"", b"\x00\xff", b'{"a":1}' * 1000])
def test_a_carried_message_is_the_same_message(bus: Bus, headers: bytes, data: bytes) -> None:
    """The role gets what the shell itself would have heard: subject, body and reply, but no header."""

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
        heard_raw = [msgspec.structs.replace(one, msg_id="") for one in raw.of(r.Message)]
        assert heard_raw == through.of(r.Message)
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


@pytest.mark.parametrize("role", [one for one in (*ROLES, AGENT) if one != "gateway"])
def test_only_the_gateway_pays_for_faststream(role: str) -> None:
    """No other service's process imports FastStream or pydantic."""
    assert not imported(f"services.{role}.__main__") & {"faststream", "pydantic", "fast_depends"}


def test_a_gateway_starts_without_faststream() -> None:
    """What is loaded before a gateway answers is light; its stream of the bus is FastStream's."""
    assert not imported("services.gateway.edge.server") & set(HEAVY)
    assert "faststream" in imported("services.gateway.edge.bus.stream") & set(HEAVY)


def test_a_header_block_that_cannot_be_read_changes_nothing(bus: Bus) -> None:
    """Each question is delivered once, without its headers."""

    async def story() -> None:
        await bus.bootstrap()
        heard: list[tuple[bytes, ...]] = []
        async with bus.client("view") as own, RawSender(bus.login("public")) as asker:
            await subscribe_without_headers(own, QUERY, lambda *one: heard.append(one))
            await own.flush()
            for block in HEADERS:
                await asker.send(subjects.query("job").encode(), b"{}", headers=block)
            await until(lambda: len(heard) == len(HEADERS))
        assert {headers for _, _, headers, _ in heard} == {b""}

    run(story())
