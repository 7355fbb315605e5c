"""What the shell does when the bus goes away, comes back empty, or another instance takes over."""

import asyncio
import time

import msgspec
import pytest

from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.log import generations
from shared.bus.log.log_replay import LogReplay
from shared.bus.log.stored_records import read_batch
from shared.bus.shell.input_queue import InputQueue
from shared.bus.shell.shell import Shell
from shared.core.runtime import messages as r
from shared.core.runtime.agent_messages import Answer, Ask
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bus.toys import Applier, Bus, Toy, append, run, until

pytestmark = pytest.mark.bus

PLAN = subjects.command("plan")
TX = subjects.log(1, "tx")


async def restart(bus: Bus) -> None:
    """Kill the server as a crash would, and start it again over the same directory."""
    await asyncio.to_thread(bus.server.kill)
    await asyncio.to_thread(bus.server.start)


async def keep_sending(bus: Bus, wanted: list[bytes], seen: set[bytes]) -> None:
    """Send each command until the log shows it, as every role does."""
    async with bus.client("scheduler") as sender:
        while missing := [data for data in wanted if data not in seen]:
            for data in missing:
                sender.send(PLAN, data)
            await asyncio.sleep(0.1)


def test_a_killed_server_loses_and_doubles_nothing(bus: Bus) -> None:
    """After kill -9 under load and a restart the log holds every command once, and memory streams are made again."""

    async def story() -> None:
        await bus.bootstrap()
        applier = Applier("a")
        wanted = [b"%d" % number for number in range(3000)]
        async with bus.shell(applier) as shell:
            sending = asyncio.create_task(keep_sending(bus, wanted, applier.written))
            await until(lambda: len(applier.written) > 300)
            await restart(bus)
            await sending
            assert applier.reconnects == 2
            assert shell.metrics()["caravan_shell_connects_total"] == 2
        assert sorted(b",".join(applier.log).split(b",")) == sorted(wanted)
        async with bus.client() as admin:
            stored = await read_batch(admin, "LOG_1", 1, 3001)
            assert [one.data for one in stored] == applier.log
            for one in streams.ENSURED:
                assert await streams.info(admin, one.name) is not None

    run(story())


def test_a_lost_answer_is_looked_up(bus: Bus) -> None:
    """An append whose answer never came is retried under its id and found in the log, not written twice."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Replay())
        async with bus.shell(toy) as shell:
            await until(lambda: shell.is_ready)
            link = shell._link
            assert link is not None
            real, lost = link.bus._answered, []
            # The first answer is swallowed, as a broken connection would.
            link.bus._handlers[1] = lambda *answer: (
                lost.append(answer) if not lost else real(*answer)
            )
            toy.play(shell, r.Append("tx", b"once", 0, "id-1"))
            await until(lambda: lost)
            # The answer may come before the record itself.
            await until(lambda: toy.of(r.Appended) and toy.of(r.Record))
        assert toy.of(r.Appended) == [r.Appended(1)]
        assert toy.datas(r.Record) == [b"once"]

    run(story())


def test_an_append_into_nowhere_is_unknown(bus: Bus) -> None:
    """While the bus is away an append is answered AppendUnknown, and never appears in the log afterwards."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Replay())
        async with bus.shell(toy) as shell:
            await until(lambda: shell.is_ready)
            await asyncio.to_thread(bus.server.kill)
            await until(lambda: not shell.is_ready)
            toy.play(shell, r.Append("tx", b"zombie", 0, "z"), r.Send(PLAN, b"gone"))
            await until(lambda: toy.of(r.AppendUnknown))
            assert shell.metrics()["caravan_shell_sends_dropped_total"] == 1
            await asyncio.to_thread(bus.server.start)
            await until(lambda: len(toy.of(r.Reconnected)) == 2)
            await until(lambda: shell.is_ready)
            async with bus.client() as admin:
                assert await read_batch(admin, "LOG_1", 1) == []
        assert not toy.of(r.Appended)

    run(story())


def test_the_standby_takes_over_a_crashed_leader(bus: Bus) -> None:
    """A leader that falls silent is followed, though it lets go of nothing; so is a leader that stops."""

    async def story() -> None:
        await bus.bootstrap()
        one, two = Applier("one"), Applier("two")
        async with bus.shell(two) as standby:
            await until(lambda: two.leads)
            shell = Shell(one, bus.settings())
            running = asyncio.create_task(shell.run(asyncio.Event()))
            await until(lambda: shell.is_ready)
            assert not one.leads
            # A crash: no goodbye, no more renewals.
            assert standby._leadership is not None
            silenced = standby._leadership._running
            assert silenced is not None
            silenced.cancel()
            await until(lambda: one.leads)
            # It let go of nothing, and its connection is there: the key died of its age.
            assert standby._leadership.held and standby.is_ready
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            async with bus.shell(Applier("three")) as third:
                await until(lambda: third._role.leads)  # type: ignore[attr-defined]

    run(story())


def test_a_deaf_leader_knows_that_it_is_none(bus: Bus) -> None:
    """A leader that cannot renew for one and a half seconds gets LeadershipLost before the key is free for others."""

    async def story() -> None:
        await bus.bootstrap()
        applier = Applier("one")
        async with bus.shell(applier):
            await until(lambda: applier.leads)
            await asyncio.to_thread(bus.server.kill)
            await until(lambda: not applier.leads)
            await asyncio.to_thread(bus.server.start)
            await until(lambda: applier.leads)

    run(story())


def test_the_key_of_one_who_is_gone_is_taken(bus: Bus) -> None:
    """A key that never dies is no hindrance when its holder does not answer any more."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(leader_key="plan_applier")
        async with bus.client() as admin:
            await streams.ensure(admin, 1)
            await admin.request_raw(subjects.leader("plan_applier"), b"ghost")
            async with bus.shell(toy):
                await until(lambda: toy.of(r.LeadershipWon))

    run(story())


def test_the_key_of_one_who_is_there_is_left_alone(bus: Bus) -> None:
    """A listener under the holder's name keeps the key; without one the key is taken before its TTL ends."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(leader_key="plan_applier")
        asked: list[bytes] = []

        def hear(subject: bytes, _reply: bytes, _headers: bytes, _data: bytes) -> None:
            asked.append(subject)

        async with bus.client() as admin:
            await streams.ensure(admin, 1)
            listening = await admin.listen(subjects.presence("plan_applier", "other"), hear)
            await admin.request_raw(subjects.leader("plan_applier"), b"other")
            async with bus.shell(toy):
                await until(lambda: len(asked) >= 3)
                assert not toy.of(r.LeadershipWon)
                admin.forget(listening)
                await until(lambda: toy.of(r.LeadershipWon))

    run(story())


def test_a_resigned_leader_pauses(bus: Bus) -> None:
    """Resign frees the key at once for others, and the same instance wins it back only after its pause."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(leader_key="plan_applier")
        async with bus.shell(toy) as shell, bus.client() as admin:
            await until(lambda: toy.of(r.LeadershipWon))
            toy.play(shell, r.Resign())
            resigned_at = time.monotonic()
            await until(lambda: len(toy.of(r.LeadershipWon)) == 2)
            assert time.monotonic() - resigned_at >= 0.9
            assert (await streams.info(admin, "KV_LEADER")).state.messages == 1  # type: ignore[union-attr]

    run(story())


def test_a_deleted_consumer_is_made_again(bus: Bus) -> None:
    """A replay whose consumer vanished continues behind the last record, without a hole or a repeat."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Replay())
        async with bus.shell(toy) as shell, bus.client() as admin:
            await until(lambda: shell.is_ready)
            await admin.request_raw(TX, b"1")
            await until(lambda: toy.next_seq == 2)
            assert shell._replay is not None
            tail = shell._replay._tail
            assert tail is not None
            await admin.ask(f"$JS.API.CONSUMER.DELETE.LOG_1.{tail._consumer}", b"")
            await admin.request_raw(TX, b"2")
            await until(lambda: toy.next_seq == 3)
            assert tail.made == 2
        assert [one.seq for one in toy.of(r.Record)] == [1, 2]

    run(story())


def test_a_client_closed_for_good_is_replaced(bus: Bus) -> None:
    """A protocol error, which makes the client give up, is followed by a new client and the rest of the log."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Replay(), r.Listen("signs", subjects.PRESENCES))
        sign = subjects.presence("view", "v")
        async with bus.shell(toy) as shell, bus.client() as admin:
            await until(lambda: shell.is_ready)
            await admin.request_raw(TX, b"1")
            await until(lambda: toy.next_seq == 2)
            assert shell._link is not None
            broken = shell._link.bus
            broken._write(b"NONSENSE\r\n")
            await until(lambda: broken.is_closed)
            await admin.request_raw(TX, b"2")
            await until(lambda: toy.next_seq == 3)
            assert len(toy.of(r.Reconnected)) == 2
            await shell._link.bus.flush()
            admin.send(sign, b"x")
            await until(lambda: toy.of(r.Message))
        assert [one.seq for one in toy.of(r.Record)] == [1, 2]

    run(story())


def test_another_log_stops_the_shell(bus: Bus) -> None:
    """Who has replayed and finds the log missing, or another one in its place, stops."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Replay())
        shell = Shell(toy, bus.settings())
        running = asyncio.create_task(shell.run(asyncio.Event()))
        async with bus.client() as admin:
            await admin.request_raw(TX, b"1")
            await until(lambda: toy.next_seq == 2)
            await admin.ask("$JS.API.STREAM.DELETE.LOG_1", b"")
            await streams.bootstrap(admin)
        await restart(bus)
        with pytest.raises(BusUnavailable, match="LOG_1 was replaced"):
            await running

    run(story())


def test_a_gap_is_read_again_then_shown(bus: Bus) -> None:
    """A hole in the log is asked for once more, and handed over as it is when it stays one."""

    async def story() -> None:
        async with bus.client() as admin:
            holed = msgspec.structs.replace(streams.log_config(), deny_delete=False)
            await admin.ask(subjects.js_stream_create("LOG_1"), msgspec.json.encode(holed))
            for number in range(1, 6):
                await admin.request_raw(TX, b"%d" % number)
            await admin.ask(subjects.js_message_delete("LOG_1"), b'{"seq":3}')
            inbox = InputQueue(asyncio.Event())
            replay = LogReplay(CurrentConnection(admin), inbox, owner="toy")
            # As a damaged replica shows it, that states all five.
            replay._chain = await generations.list_generations(admin)
            replay._end = 5
            reading = asyncio.create_task(replay._catch_up())
            await until(lambda: len(inbox) == 5)
            replay.stepped()
            await reading
        taken = inbox.take(10)
        assert [one.seq for one in taken] == [1, 2, 4, 5, 5]
        assert taken[-1] == r.CaughtUp(5)

    run(story())


def test_a_replica_that_leaves_records_out_is_corrected(bus: Bus) -> None:
    """Records that one replica does not show are read from the stream's leader, in their place."""

    async def story() -> None:
        await bus.bootstrap()
        async with bus.client() as admin:
            for number in range(1, 8):
                await append(admin, b"%d" % number, msg_id=str(number))
            inbox = InputQueue(asyncio.Event())
            replay = LogReplay(CurrentConnection(admin), inbox, owner="toy")
            replay._chain = await generations.list_generations(admin)
            replay._next = 2
            damaged = [r.Record(seq, TX, b"%d" % seq) for seq in (4, 5, 7)]
            whole = await replay._whole(damaged)
        assert [(one.seq, one.data) for one in whole] == [(n, b"%d" % n) for n in range(2, 8)]

    run(story())


def test_an_agent_works_without_a_bus(bus: Bus) -> None:
    """An agent's first step comes before any bus, its timers fire, and it connects when the bus is there."""

    async def story() -> None:
        await bus.bootstrap()
        await asyncio.to_thread(bus.server.stop)
        toy = Toy(r.Listen("projection", subjects.node("n1")))
        toy._effects.append(r.SetTimer("tick", 1))
        async with bus.shell(toy, bus.node_settings("n1")) as shell:
            await until(lambda: toy.of(r.Timer))
            assert toy.batches[0] == 0
            toy.play(
                shell, r.Send(subjects.heartbeat("n1"), b"x"), Ask(name="a", subject="q", data=b"")
            )
            await until(lambda: toy.of(Answer))
            assert toy.of(Answer) == [Answer(name="a", data=None)]
            assert not toy.of(r.Reconnected)
            await asyncio.to_thread(bus.server.start)
            await until(lambda: toy.of(r.Reconnected))

    run(story())


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_follower_of_the_log_outlives_the_bus(bus: Bus, *, is_kept: bool) -> None:
    """A follower of the log continues at its position after the server was killed and restarted."""

    async def story() -> None:
        await bus.bootstrap()
        seen: list[int] = []

        async def follow(client: Client) -> None:
            async for record in client.follow_log():
                seen.append(record.seq)  # noqa: PERF401 - it never ends

        async with Client(bus.server.client_url) as client:
            async with bus.client("plan_applier") as writer:
                await append(writer, b"1", msg_id="a")
            following = asyncio.create_task(follow(client))
            if is_kept:
                await until(lambda: seen == [1])
            for count in (2, 3):
                await restart(bus)
                async with bus.client("plan_applier") as writer:
                    await append(writer, b"x", msg_id=str(count))
                await until(lambda n=count: following.done() or seen == list(range(1, n + 1)))
                assert not following.done(), following.exception()
            following.cancel()

    run(story())
