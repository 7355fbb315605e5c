"""The shell on a real server: what it promises in shared/core/runtime/role.py, each promise by a story."""

import asyncio
import time

import msgspec
import pytest

from shared.bus.jetstream import streams
from shared.bus.log.stored_records import read_batch
from shared.bus.shell.shell import STEP_INPUTS_MAX, RoleStopped, Shell
from shared.bus.shell.wall_clock import WallClock
from shared.core.runtime import messages as r
from shared.core.runtime.role import Input
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bus.toys import Applier, Bus, Toy, run, until

pytestmark = pytest.mark.bus

PLAN = subjects.command("plan")
TX = subjects.log(1, "tx")
WORK = r.Work("plan", "CMD", PLAN, "plan", 4)


async def fill(bus: Bus, count: int, size: int = 10) -> None:
    """Write records 1..count as the applier may."""
    async with bus.client("plan_applier") as writer:
        for number in range(1, count + 1):
            await writer.request_raw(TX, b"%0*d" % (size, number))


def test_replay_is_whole_and_says_when_it_caught_up(bus: Bus) -> None:
    """Every record arrives once, in order, and CaughtUp names the end that was known, between it and the tail."""

    async def story() -> None:
        await bus.bootstrap()
        await fill(bus, 1500)
        toy = Toy(r.Replay())
        async with bus.shell(toy):
            await until(lambda: toy.of(r.CaughtUp))
            await fill(bus, 50)
            await until(lambda: toy.next_seq == 1551)
        assert [one.seq for one in toy.of(r.Record)] == list(range(1, 1551))
        assert toy.of(r.CaughtUp) == [r.CaughtUp(1500)]
        assert toy.seen.index(r.CaughtUp(1500)) == 1501
        first = toy.seen[0]
        assert isinstance(first, r.Reconnected) and first.bus
        assert (first.fsync, first.replicas) == (True, 1)

    run(story())


def test_a_flood_gathers_in_no_inbox(bus: Bus) -> None:
    """What is more than a step takes is taken in further steps before anything else is read."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Replay())
        async with bus.shell(toy) as shell:
            await until(lambda: toy.of(r.CaughtUp))
            flood = [r.Timer("flood", number) for number in range(3 * STEP_INPUTS_MAX + 1)]
            shell.inject(flood)
            await asyncio.sleep(0)
            assert shell.metrics()["caravan_shell_waiting_inputs"] <= STEP_INPUTS_MAX
            await until(lambda: len(toy.of(r.Timer)) >= len(flood))
        assert toy.of(r.Timer) == flood

    run(story())


def test_rewind_delivers_again_and_catches_up_again(bus: Bus) -> None:
    """After Rewind the log comes again from that seq on, with another CaughtUp."""

    async def story() -> None:
        await bus.bootstrap()
        await fill(bus, 20)
        toy = Toy(r.Replay())
        async with bus.shell(toy) as shell:
            await until(lambda: toy.of(r.CaughtUp))
            toy.seen.clear()
            toy.play(shell, r.Rewind(8))
            await until(lambda: toy.of(r.CaughtUp))
        assert [one.seq for one in toy.of(r.Record)] == list(range(8, 21))

    run(story())


def test_an_append_is_fenced(bus: Bus) -> None:
    """An append at the head is durable at the next seq; one that expects an older head is refused."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Replay())
        async with bus.shell(toy) as shell:
            toy.play(shell, r.Append("tx", b"one", 0, "a"))
            await until(lambda: toy.of(r.Appended))
            toy.play(shell, r.Append("tx", b"two", 0, "b"))
            await until(lambda: toy.of(r.AppendRefused))
            await until(lambda: toy.next_seq == 2)
        assert toy.of(r.Appended) == [r.Appended(1)]
        assert not toy.of(r.AppendRefused)[0].full
        assert toy.datas(r.Record) == [b"one"]

    run(story())


def test_the_retry_of_an_append_finds_itself(bus: Bus) -> None:
    """A record that is in the log already, its answer lost, is Appended and stands there once."""

    async def story() -> None:
        await bus.bootstrap()
        append = r.Append("tx", b"mine", 0, "same-id")
        for _ in range(2):
            toy = Toy(r.Replay())
            async with bus.shell(toy) as shell:
                await until(lambda toy=toy: toy.of(r.CaughtUp))
                toy.play(shell, append)
                await until(lambda toy=toy: toy.of(r.Appended))
            assert toy.of(r.Appended) == [r.Appended(1)]
        async with bus.client() as admin:
            assert len(await read_batch(admin, "LOG_1", 1)) == 1

    run(story())


def test_a_full_log_says_so(bus: Bus) -> None:
    """A log at its bound refuses with `full`, and keeps what it has."""

    async def story() -> None:
        await bus.bootstrap(log_bytes_max=3000)
        toy = Toy(r.Replay())
        async with bus.shell(toy) as shell:
            for number in range(5):
                toy.play(shell, r.Append("tx", b"x" * 900, number, f"id{number}"))
                await until(lambda n=number: len(toy.of(r.Appended) + toy.of(r.AppendRefused)) > n)
                if toy.of(r.AppendRefused):
                    break
            assert toy.of(r.AppendRefused)[0].full
            appended = len(toy.of(r.Appended))
            async with bus.client() as admin:
                assert len(await read_batch(admin, "LOG_1", 1)) == appended > 0

    run(story())


def test_credit_bounds_what_is_out(bus: Bus) -> None:
    """A Work source brings no more messages than its credit until they are answered, then the rest, in order."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(WORK)
        async with bus.shell(toy) as shell, bus.client("scheduler") as sender:
            toy.play(shell, r.Open("plan"))
            async with bus.client() as admin:
                await consumer(admin, "CMD", "plan")
            for number in range(10):
                sender.send(PLAN, b"%d" % number)
            await until(lambda: len(toy.of(r.Message)) >= 4)
            await sender.flush()
            assert len(toy.of(r.Message)) == 4
            answered = 0
            while answered < 10:
                await until(lambda n=answered: len(toy.of(r.Message)) > n)
                now = toy.of(r.Message)
                toy.play(shell, *(r.Ack(one.token) for one in now[answered:]))
                assert len(now) - answered <= 4
                answered = len(now)
        assert toy.datas() == [b"%d" % number for number in range(10)]

    run(story())


async def consumer(admin: object, stream: str, name: str) -> None:
    """Wait until a consumer exists."""
    found = b'"error"'
    while b'"error"' in found:
        found = await admin.ask(f"$JS.API.CONSUMER.INFO.{stream}.{name}", b"")  # type: ignore[attr-defined]


def test_commands_wait_for_the_next_holder(bus: Bus) -> None:
    """A message sent while the Work source is closed is delivered when it opens, and is gone then."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(WORK)
        async with (
            bus.shell(toy) as shell,
            bus.client("scheduler") as sender,
            bus.client() as admin,
        ):
            toy.play(shell, r.Open("plan"))
            await consumer(admin, "CMD", "plan")
            toy.play(shell, r.Close("plan"))
            await until(lambda: len(toy.of(r.Timer)) == 2)
            await shell_flushed(shell)
            await sender.request_raw(PLAN, b"kept")
            toy.play(shell, r.Open("plan"))
            await until(lambda: toy.of(r.Message))
            state = (await streams.info(admin, "CMD")).state  # type: ignore[union-attr]
            assert state.messages == 0
        assert toy.datas() == [b"kept"]

    run(story())


async def shell_flushed(shell: object) -> None:
    """Wait until the server has seen what the shell wrote."""
    await shell._link.bus.flush()  # type: ignore[attr-defined]


def test_nak_delivers_again_from_memory(bus: Bus) -> None:
    """A message answered by Nak comes again under its token, and its credit stays taken until then."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Work("plan", "CMD", PLAN, "plan", 1))
        async with (
            bus.shell(toy) as shell,
            bus.client("scheduler") as sender,
            bus.client() as admin,
        ):
            toy.play(shell, r.Open("plan"))
            await consumer(admin, "CMD", "plan")
            sender.send(PLAN, b"a")
            sender.send(PLAN, b"b")
            await until(lambda: toy.of(r.Message))
            toy.play(shell, r.Nak(toy.of(r.Message)[0].token, 50_000_000))
            await until(lambda: len(toy.of(r.Message)) == 2)
            assert toy.of(r.Message)[0] == toy.of(r.Message)[1]
            toy.play(shell, r.Ack(toy.of(r.Message)[0].token))
            await until(lambda: len(toy.of(r.Message)) == 3)
        assert toy.datas() == [b"a", b"a", b"b"]

    run(story())


def test_read_starts_where_it_is_told(bus: Bus) -> None:
    """A Read source delivers from its start on with stream positions and message ids; Purge drops what is below."""

    async def story() -> None:
        await bus.bootstrap()
        submit = subjects.jobs("submit")
        toy = Toy(r.Read("jobs", "JOBS", subjects.JOBS_ALL, 3))
        async with (
            bus.shell(toy, "intake") as shell,
            bus.client("public") as anyone,
            bus.client() as admin,
        ):
            for number in range(1, 8):
                await anyone.request_raw(submit, b"%d" % number)
            toy.play(shell, r.Open("jobs", 4))
            await until(lambda: len(toy.of(r.Message)) == 3)
            toy.play(shell, *(r.Ack(one.token) for one in toy.of(r.Message)), r.Purge("jobs", 6))
            await until(lambda: len(toy.of(r.Message)) == 4)
            first = 0
            while first != 6:
                first = (await streams.info(admin, "JOBS")).state.first_seq  # type: ignore[union-attr]
        assert [one.stream_seq for one in toy.of(r.Message)] == [4, 5, 6, 7]

    run(story())


def test_a_question_is_answered(bus: Bus) -> None:
    """A Listen message with `reply` is answered by its token, once."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Listen("queries", subjects.QUERIES, "view"))
        async with bus.shell(toy, "view") as shell, bus.client("public") as anyone:
            await until(lambda: shell.is_ready)
            await shell_flushed(shell)
            asked = asyncio.create_task(anyone.request_raw(subjects.query("jobs"), b"?"))
            await until(lambda: toy.of(r.Message))
            question = toy.of(r.Message)[0]
            assert question.reply
            toy.play(shell, r.Reply(question.token, b"!"), r.Reply(question.token, b"again"))
            assert (await asked)[1] == b"!"

    run(story())


def test_a_reply_never_becomes_a_command(bus: Bus) -> None:
    """Who names one of our own subjects as reply subject gets no reply, and the stream behind it no message."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Listen("queries", subjects.QUERIES, "view"))
        async with bus.shell(toy, "view") as shell, bus.client() as admin:
            await until(lambda: shell.is_ready)
            await shell_flushed(shell)
            for trap in (TX, subjects.node("n1"), "$KV.LEADER.x"):
                admin.send(subjects.query("jobs"), b"?", trap.encode())
            await until(lambda: len(toy.of(r.Message)) == 3)
            toy.play(shell, *(r.Reply(one.token, b"forged") for one in toy.of(r.Message)))
            await until(lambda: shell.metrics()["caravan_shell_replies_refused_total"] == 3)
            await shell_flushed(shell)
            for name in ("LOG_1", "NODE", "KV_LEADER"):
                assert (await streams.info(admin, name)).state.messages == 0  # type: ignore[union-attr]

    run(story())


def test_last_values_are_fenced(bus: Bus) -> None:
    """A Put that expects another position is refused and told what stands there."""

    async def story() -> None:
        await bus.bootstrap()
        job = subjects.view_job("j/1")
        toy = Toy()
        async with bus.shell(toy, "view") as shell:
            await until(lambda: shell.is_ready)
            toy.play(shell, r.Put(job, b"new", 0))
            await until(lambda: toy.of(r.PutDone))
            toy.play(shell, r.Put(job, b"old", 0))
            await until(lambda: toy.of(r.PutRefused))
            toy.play(shell, r.Put(job, b"newer", 1, ttl_s=3600))
            await until(lambda: len(toy.of(r.PutDone)) == 2)
        assert toy.of(r.PutRefused) == [r.PutRefused(job, 1, b"new")]
        assert [one.subject_seq for one in toy.of(r.PutDone)] == [1, 2]

    run(story())


def test_a_projection_is_delivered_at_once(bus: Bus) -> None:
    """A source named projection begins with the present last value, then follows."""

    async def story() -> None:
        await bus.bootstrap()
        mine = subjects.node("n1")
        toy = Toy(r.Listen("projection", mine), instance="n1")
        async with bus.client("view") as view:
            await view.request_raw(mine, b"before")
            async with bus.shell(toy, bus.node_settings("n1")):
                await until(lambda: toy.of(r.Message))
                await view.request_raw(mine, b"after")
                await until(lambda: len(toy.of(r.Message)) == 2)
        assert toy.datas() == [b"before", b"after"]

    run(story())


def test_timers_fire_late_never_early(bus: Bus) -> None:
    """A timer fires at or after its deadline, a replaced one only at the new one, a cancelled one never."""

    async def story() -> None:
        toy = TimerToy()
        await bus.bootstrap()
        async with bus.shell(toy, "view"):
            await until(lambda: len(toy.fired) == 2)
        assert [name for name, _, _ in toy.fired] == ["b", "a"]
        assert all(now >= deadline for _, deadline, now in toy.fired)

    run(story())


class TimerToy(Toy):
    """Sets three timers at its first step and notes when they fire."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: list[tuple[str, int, int]] = []

    def step(self, inputs: list[Input], now_ns: int) -> list[r.Effect]:
        for one in inputs:
            if isinstance(one, r.Timer):
                self.fired.append((one.name, one.deadline_ns, now_ns))
            if isinstance(one, r.Reconnected):
                return [
                    r.SetTimer("a", now_ns + 10_000_000),
                    r.SetTimer("b", now_ns + 30_000_000),
                    r.SetTimer("c", now_ns + 20_000_000),
                    r.SetTimer("a", now_ns + 60_000_000),
                    r.SetTimer("c", 0),
                ]
        return []


def test_stop_ends_the_shell(bus: Bus) -> None:
    """A role's Stop ends the shell with its reason."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy()
        shell = Shell(toy, bus.settings("view"))
        toy.play(shell, r.Stop("enough"))
        with pytest.raises(RoleStopped, match="enough"):
            await shell.run(asyncio.Event())

    run(story())


def test_without_a_log_there_is_no_service(bus: Bus) -> None:
    """A role refuses a bus whose log was never bootstrapped, and names the stream."""

    async def story() -> None:
        shell = Shell(Toy(r.Replay()), bus.settings(start_timeout_s=0.1))
        with pytest.raises(BusUnavailable, match="JOBS is missing"):
            await shell.run(asyncio.Event())

    run(story())


def test_a_foreign_setting_is_refused(bus: Bus) -> None:
    """A stream with other settings is named with both values and left as it is."""

    async def story() -> None:
        await bus.bootstrap()
        async with bus.client() as admin:
            await admin.ask("$JS.API.STREAM.DELETE.DEAD", b"")
            other = msgspec.structs.replace(
                streams.DEAD, max_age=1_000_000_000, duplicate_window=10**9
            )
            await admin.ask(subjects.js_stream_create("DEAD"), msgspec.json.encode(other))
            with pytest.raises(BusUnavailable, match="max_age is 1000000000, expected 604800"):
                await streams.ensure(admin)
            found = await streams.info(admin, "DEAD")
            assert found is not None
            assert found.config is not None
            assert found.config.max_age == 10**9

    run(story())


def test_two_appliers_cannot_both_write(bus: Bus) -> None:
    """Two writers that ignore leadership lose nothing and double nothing: the log's fence orders them."""

    async def story() -> None:
        await bus.bootstrap()
        one, two = Applier("one", always=True), Applier("two", always=True)
        wanted = [b"%d" % number for number in range(400)]
        async with bus.shell(one) as first, bus.shell(two) as second:
            await until(lambda: first.is_ready and second.is_ready)
            batch = [r.Message("plan", PLAN, data, 0) for data in wanted]
            first.inject(batch)
            second.inject(reversed(batch))
            await until(lambda: len(one.written) == 400 == len(two.written))
        assert sorted(b",".join(one.log).split(b",")) == sorted(wanted)
        assert one.log == two.log
        assert one.refused + two.refused > 0

    run(story())


def test_too_large_a_message_harms_nobody(bus: Bus) -> None:
    """A message above the server's limit is dropped and counted; the server never sees it, the connection stays."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy()
        async with bus.shell(toy) as shell:
            await until(lambda: shell.is_ready)
            toy.play(shell, r.Send(PLAN, b"x" * 5_000_000))
            await until(lambda: shell.metrics()["caravan_shell_sends_dropped_total"] == 1)
            await shell_flushed(shell)
            assert shell.is_ready
        assert len(toy.of(r.Reconnected)) == 1
        async with bus.client() as admin:
            with pytest.raises(BusUnavailable, match="5000000 bytes exceed its limit"):
                await admin.request_raw(PLAN, b"x" * 5_000_000)

    run(story())


def test_a_flush_is_a_barrier(bus: Bus) -> None:
    """Who has subscribed and flushed hears everything that is published afterwards."""

    async def story() -> None:
        async with bus.client() as listener, bus.client() as speaker:
            for number in range(50):
                heard: list[bytes] = []
                subject = f"barrier.{number}"
                await listener.listen(subject, lambda *got, heard=heard: heard.append(got[3]))
                await listener.flush()
                speaker.send(subject, b"x")
                await speaker.flush()
                await listener.flush()
                assert heard == [b"x"], number

    run(story())


@pytest.mark.parametrize(
    ("set_ns", "least"), [(0, 0.0), (-3_600 * 10**9, 3_590.0), (60 * 10**9, 50.0)]
)
def test_a_clock_that_is_set_under_a_running_role_is_seen(
    bus: Bus, set_ns: int, least: float
) -> None:
    """The role hears how far its clock is from the server's, however old the log is, and although ours runs on."""

    async def story() -> None:
        await bus.bootstrap()
        toy, shift = Toy(r.Replay(space=True)), [0]
        clock = WallClock(wall_ns=lambda: time.time_ns() + shift[0])
        shell, stop = Shell(toy, bus.settings(), clock=clock), asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        await until(lambda: toy.of(r.LogSpace))
        assert abs(toy.of(r.LogSpace)[0].clock_off_ns) < 10**9
        shift[0] = set_ns
        seen = len(toy.of(r.LogSpace))
        await until(lambda: len(toy.of(r.LogSpace)) > seen + 1)
        off_s = toy.of(r.LogSpace)[-1].clock_off_ns / 1e9
        assert (abs(off_s) >= least and (off_s > 0) == (set_ns > 0)) or not set_ns
        assert abs(off_s) < least + 15
        stop.set()
        await running

    run(story())
