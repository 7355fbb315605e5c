"""Rolling the log on a real bus: everybody follows, nothing is lost, and a second generation is read as one log."""

from functools import partial
from typing import Any

import msgspec
import pytest

from schemas.envelope import CommandBatch
from schemas.policy import RollLog
from services.heartbeat.role import HeartbeatMonitor
from services.plan_applier.role import PlanApplier
from services.plan_applier.tenure import AppendState
from services.view.role import View
from services.view.snapshot_writer import SnapshotSchedule
from shared.bus.connection.nats_client import BusClient, header_block
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import direct_get_batch
from shared.bus.jetstream.sender_proof import mark_of
from shared.bus.log import generations
from shared.core.runtime import messages as r
from shared.core.runtime.replica import Replica
from shared.protocol import subjects
from tests.bus.toys import Bus, run, until

pytestmark = pytest.mark.bus


def applier(name: str = "p1") -> PlanApplier:
    return PlanApplier(instance=name, cluster_id="rolled", require_fsync=False)


def order(bus: BusClient, generation: int) -> None:
    """Ask the applier for a roll, as the view does."""
    command = RollLog(request_id=f"r{generation}", generation=generation)
    batch = CommandBatch(sender="view", commands=(command,))
    subject = subjects.command("operator")
    assert bus.send(subject, msgspec.json.encode(batch), headers=mark_of(subject))


async def ordered(bus: BusClient, role: PlanApplier, generation: int) -> None:
    """Ask until a generation is over, as the view does."""

    def is_over() -> bool:
        if role.replica.state.policy.generation <= generation:
            order(bus, generation)
        return (
            role.replica.state.policy.generation > generation
            and role._append_state.state is AppendState.IDLE
        )

    await until(is_over, f"generation {generation} is over")


async def whole(bus: Bus) -> Replica:
    """Replay what the public may read."""
    told = Replica()
    async with Client(bus.server.client_url) as client:
        async for record in client.read_log():
            told.apply(record)
    return told


def is_durable(role: PlanApplier, generation: int) -> bool:
    """Tell whether a generation has begun, and the log says so."""
    return (
        role.replica.state.policy.generation == generation
        and role._append_state.state is AppendState.IDLE
    )


def is_in(role: Any, generation: int, seq: int = 0) -> bool:
    """Tell whether a role has read what stands behind the roll, and what stands at a seq."""
    replica = getattr(role, "_replica", None) or role.replica
    return bool(replica.state.policy.generation >= generation and replica.seq >= seq)


def test_everybody_follows_a_roll(bus: Bus) -> None:
    """Applier, standby, view and heartbeat continue in the next stream, seq included; a fresh reader reads one log."""

    async def story() -> None:
        await bus.bootstrap()
        one, other, view, beat = (
            applier(),
            applier("p2"),
            View(instance="v", snapshots=SnapshotSchedule()),
            HeartbeatMonitor(instance="h"),
        )
        async with (
            bus.shell(one),
            bus.shell(other),
            bus.shell(view, "view"),
            bus.shell(beat, "heartbeat"),
            bus.client() as admin,
        ):
            await until(
                lambda: one.is_active or other.is_active, "one instance holds the write lease"
            )
            active = one if one.is_active else other
            for generation in (1, 2):
                await ordered(admin, active, generation)
                end = active.replica.seq
                for role in (one, other, view, beat):
                    followed = partial(is_in, role, generation + 1, end)
                    await until(followed, f"{role.name} is in generation {generation + 1}")
            found = await generations.list_generations(admin)
            assert [one.number for one in found] == [1, 2, 3]
            firsts = [one.first_seq for one in found]
            assert firsts[0] == 1
            for before, first in zip(found, firsts[1:], strict=False):
                assert before.state.last_seq + 1 == first == before.end + 1
        told = await whole(bus)
        assert told.state.policy.generation == 3
        assert told.seq == active.replica.seq and told.chain.head == active.replica.chain.head

    run(story())


def test_two_orders_at_once_roll_once(bus: Bus) -> None:
    """A request names the generation to close: a second one finds it closed."""

    async def story() -> None:
        await bus.bootstrap()
        one = applier()
        async with bus.shell(one), bus.client() as admin:
            await until(lambda: one.is_active, "it has the write lease")
            for _ in range(5):
                order(admin, 1)
            await ordered(admin, one, 1)
            order(admin, 1)
            before = one.replica.seq
            order(admin, 2)
            await until(partial(is_durable, one, 3), "the next one")
            assert one.replica.seq > before
        assert [one.number for one in await chain_of(bus)] == [1, 2, 3]

    run(story())


async def chain_of(bus: Bus) -> list[generations.Generation]:
    async with bus.client() as admin:
        return await generations.list_generations(admin)


@pytest.mark.parametrize("step", ["before", "ready", "rolled"])
def test_an_applier_that_dies_in_a_roll_loses_nothing(bus: Bus, step: str) -> None:
    """Killed before the stream, with the stream ready, or behind the record: the next continues, and rolls again."""

    async def story() -> None:
        await bus.bootstrap()
        one = applier()
        async with bus.shell(one) as shell, bus.client() as admin:
            await until(lambda: one.is_active, "it has the write lease")
            await until(lambda: one.replica.seq > 2 and not one._since_checkpoint, "a checkpoint")
            performed = shell._perform

            def dies(effect: Any) -> None:
                """The process is gone at this very step: nothing that it wanted is done any more."""
                for kind in performed:
                    performed[kind] = lambda _: None
                del effect

            if step == "before":
                performed[r.Roll] = dies
            else:
                append = performed[r.Append]

                def appends(effect: r.Append) -> None:
                    if (step == "ready" and effect.kind == "roll") or (
                        step == "rolled" and effect.kind == "checkpoint"
                    ):
                        dies(effect)
                    else:
                        append(effect)

                performed[r.Append] = appends
            order(admin, 1)
            await until(lambda: performed[r.Send](None) is None if is_dead(performed) else False)
        other = applier("p2")
        async with bus.shell(other), bus.client() as admin:
            await until(lambda: other.is_active, "the next one has the write lease")
            await ordered(admin, other, 1)
            assert other.replica.state.policy.generation >= 2
            end = other.replica.seq
        told = await whole(bus)
        assert told.seq >= end and told.state.policy.generation >= 2
        assert told.chain.foreign == 0

    run(story())


def is_dead(performed: dict[type, Any]) -> bool:
    """Tell whether a shell performs nothing any more."""
    return bool(performed[r.Send].__name__ == "<lambda>")


def test_a_roll_without_room_for_it_is_refused(bus: Bus) -> None:
    """Where the server has no room for another generation the log continues unchanged, and the reason is in the log."""

    async def story() -> None:
        await bus.bootstrap(log_bytes_max=40 << 30)
        one = applier()
        async with bus.shell(one), bus.client() as admin:
            await until(lambda: one.is_active and one.replica.room.bytes_max, "it knows its room")
            await until(lambda: one.replica.seq > 2 and not one._since_checkpoint, "it rests")
            end = one.replica.seq
            order(admin, 1)
            await until(lambda: one.replica.seq > end, "a refusal")
            told = await whole(bus)
            assert told.state.policy.generation == 1
            assert await streams.info(admin, "LOG_2") is None
            texts = [one.data for one in await direct_get_batch(admin, "LOG_1", end + 1)]
        assert any(b"insufficient storage" in text for text in texts), texts

    run(story())


def test_a_full_log_is_rolled(bus: Bus) -> None:
    """What is left of a full generation is enough for its end; behind that there is room again."""

    async def story() -> None:
        await bus.bootstrap(log_bytes_max=200_000)
        one = applier()
        async with bus.shell(one), bus.client() as admin:
            await until(lambda: one.is_active and one.replica.room.bytes_max, "it knows its room")
            await until(lambda: one.replica.seq > 2 and not one._since_checkpoint, "a checkpoint")
            at = one.replica.seq
            room = one.replica.room
            headers = {"nats_expected_stream": "LOG_1"}
            while not room.is_full:
                at += 1
                size = 20_000 if room._bytes < 160_000 else 500
                head = header_block(nats_msg_id=f"x{at}", **headers)
                await admin.request_raw(subjects.log(1, "tx"), b"x" * size, headers=head)
                await until(partial(is_in, one, 1, at), "it was read")
            await ordered(admin, one, 1)
            await until(lambda: not room.refuses_new_work, "there is room again")
        told = await whole(bus)
        assert told.state.policy.generation == 2 and told.checked

    run(story())


def test_what_stands_behind_a_roll_in_the_old_stream_is_nothing(bus: Bus) -> None:
    """A message in a closed stream is never read, whenever it came."""

    async def story() -> None:
        await bus.bootstrap()
        one = applier()
        async with bus.shell(one), bus.client() as admin:
            await until(lambda: one.is_active, "it has the write lease")
            await ordered(admin, one, 1)
            headers = header_block(nats_msg_id="late", nats_expected_stream="LOG_1")
            await admin.request_raw(subjects.log(1, "tx"), b"late", headers=headers)
            end = one.replica.seq
            order(admin, 2)
            await until(partial(is_durable, one, 3), "the next one")
            assert one.replica.seq > end and one.replica.chain.foreign == 0
        told = await whole(bus)
        assert told.chain.foreign == 0 and told.seq >= end

    run(story())
