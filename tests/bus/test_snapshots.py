"""Snapshots on a real bus: a view writes them, every role begins at one, and what is wrong with one is passed over."""

from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from schemas.envelope import LeaseHeld
from services.cli.runtime import log_position
from services.eval_broker.role import EvalBroker
from services.heartbeat.role import HeartbeatMonitor
from services.intake.role import Intake
from services.plan_applier.role import PlanApplier
from services.scheduler.role import Scheduler
from services.view.role import View
from services.view.snapshot_writer import NEWEST_KEPT, SnapshotSchedule
from shared.bus.connection.nats_client import BusClient, header_block
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import direct_get_batch
from shared.bus.log import snapshots
from shared.bus.log.stored_records import read_batch
from shared.core.runtime import messages as r
from shared.core.runtime.chain import seal
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.runtime.role import Input
from shared.core.runtime.snapshots import SnapshotManifest, SnapshotSetWriter, encode_manifest
from shared.core.state.state import TABLES
from shared.protocol import subjects
from shared.query.historical_state import HistoricalState
from shared.sim.world.world import SimulatedWorld
from tests.bus.toys import Bus, append, run, until

pytestmark = pytest.mark.bus
EVERY = 20
OFF = SnapshotSchedule()


@cache
def storm(seed: int) -> tuple[tuple[str, bytes], ...]:
    """What one simulated world wrote, up to its last checkpoint: subjects and bytes."""
    world = SimulatedWorld(seed)
    assert not world.run().invariant
    records = world.context.bus.log.records
    proven = [at for at, (subject, _) in enumerate(records) if subject.endswith("checkpoint")]
    return tuple(records[: proven[-1] + 1])


@cache
def end_of(seed: int) -> Replica:
    """A replica that replayed a storm from its first record."""
    replica = Replica()
    for seq, (subject, data) in enumerate(storm(seed), 1):
        replica.apply(r.Record(seq, subject, data))
    return replica


async def write(bus: Bus, records: tuple[tuple[str, bytes], ...], first: int = 1) -> None:
    """Append records as the log's one writer."""
    async with bus.client("plan_applier") as writer:
        for seq, (subject, data) in enumerate(records, first):
            await append(writer, data, msg_id=f"m{seq}", subject=subject)


def is_done(view: View, next_seq: int = 0) -> bool:
    """Tell whether a view neither makes nor stores nor purges anything."""
    own = view._snapshots
    is_at_rest = not own._is_busy and not own._queue and not own.is_holding
    return is_at_rest and view.next_seq >= next_seq


def set_of(seed: int) -> tuple[SnapshotManifest, dict[str, bytes]]:
    """A set at the second checkpoint of another storm."""
    replica, proven, record = Replica(), 0, None
    for seq, (subject, data) in enumerate(storm(seed), 1):
        record = replica.apply(r.Record(seq, subject, data))
        proven += record is not None and record.kind == "checkpoint"
        if proven == 2:
            break
    assert record is not None
    writing = SnapshotSetWriter(
        replica, record, lease=LeaseHeld(holder="", cluster_id=""), asides=SnapshotExtras()
    )
    while not writing.write_chunks(1):
        pass
    return writing.manifest(), {name: b"".join(some) for name, some in writing.parts.items()}


class Counted:
    """A role, and what it was given of the log."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name, self.instance, self.leader_key = inner.name, inner.instance, inner.leader_key
        self.first = 0
        self.read = 0
        self.began_at = 0

    @property
    def next_seq(self) -> int:
        found: int = self.inner.next_seq
        return found

    def sources(self) -> tuple[r.Source, ...]:
        found: tuple[r.Source, ...] = self.inner.sources()
        return found

    def step(self, inputs: list[Input], now_ns: int) -> list[r.Effect]:
        for one in inputs:
            if isinstance(one, r.Record):
                self.first = self.first or one.seq
                self.read += 1
            elif isinstance(one, Restored):
                self.began_at = one.replica.seq
        found: list[r.Effect] = self.inner.step(inputs, now_ns)
        return found

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = self.inner.metrics()
        return found

    @property
    def replica(self) -> Replica:
        found: Replica = getattr(self.inner, "_replica", None) or self.inner.replica
        return found


async def sets(bus: Bus, user: str = "admin") -> dict[int, bytes]:
    """Every manifest that is stored, by seq."""
    async with bus.client(user) as client:
        found = await direct_get_batch(client, "SNAP", 1, subject=subjects.SNAPSHOT_SETS)
    return {subjects.snapshot_seq(one.subject): one.data for one in found}


async def grown(bus: Bus, seed: int = 3, when: SnapshotSchedule | None = None) -> list[int]:
    """Write a storm into a new log while a view follows and writes snapshots; the seqs of those kept, oldest first."""
    await bus.bootstrap()
    records = storm(seed)
    view = View(instance="writer", snapshots=when or SnapshotSchedule(records=EVERY, spread=0))
    ends = [at for at, (subject, _) in enumerate(records, 1) if subject.endswith("checkpoint")]
    async with bus.shell(view, "view") as shell:
        await until(lambda: shell.is_ready, "the view has caught up")
        for first, last in pairwise([0, *ends]):
            await write(bus, records[first:last], first + 1)
            await until(partial(is_done, view, last + 1), "it rests")
        assert view.metrics()["caravan_view_snapshots_written_total"] > NEWEST_KEPT
    return sorted(await sets(bus))


async def began(bus: Bus, made: Callable[[], Any], user: str, **settings: Any) -> Counted:
    """Start a role, wait until it has caught up, end it."""
    one = Counted(made())
    own = msgspec.structs.replace(bus.settings(user), **settings)
    async with bus.shell(one, own) as shell:
        await until(lambda: shell.is_ready and one.next_seq > 1, f"{user} has caught up")
        end = (await log_end(bus)) + 1
        await until(lambda: one.next_seq >= end, f"{user} is at the end")
    return one


async def log_end(bus: Bus) -> int:
    """Seq of the log's last record."""
    async with bus.client() as client:
        found = await streams.info(client, "LOG_1")
    assert found is not None
    return found.state.last_seq


ROLES: dict[str, Callable[[], Any]] = {
    "intake": lambda: Intake(instance="i"),
    "eval_broker": lambda: EvalBroker(instance="e"),
    "scheduler": lambda: Scheduler(instance="s"),
    "heartbeat": lambda: HeartbeatMonitor(instance="h"),
    "view": lambda: View(instance="v"),
}


def test_every_role_begins_at_the_newest_and_reads_only_the_rest(bus: Bus) -> None:
    """The beginning of a log with snapshots is not read; every table is what a full replay makes of it."""

    async def story() -> None:
        kept = await grown(bus)
        assert len(kept) == NEWEST_KEPT
        whole = end_of(3)
        for user, made in ROLES.items():
            one = await began(bus, made, user)
            assert one.began_at == kept[-1], user
            assert one.read == whole.seq - kept[-1], user
            assert one.first in (0, kept[-1] + 1), user
            told = whole.state.hashes()
            assert one.replica.state.hashes().items() <= told.items(), user
            assert one.replica.seq == whole.seq, user

    run(story())


def test_an_applier_that_began_at_a_snapshot_goes_on_with_the_chain(bus: Bus) -> None:
    """What it writes links to the snapshot's head: a replay from the first record accepts it, and agrees."""

    async def story() -> None:
        kept = await grown(bus)
        cluster_id = end_of(3).chain.cluster_id
        applier = PlanApplier(instance="p", cluster_id=cluster_id, require_fsync=False)
        one = Counted(applier)
        async with bus.shell(one) as shell:
            await until(lambda: shell.is_ready, "it has caught up")
            await until(lambda: one.replica.chain.holder == "p", "it holds the lease")
            # Its state is ahead of the log while it appends: the start of the bus is the last that it writes.
            await until(lambda: one.replica.state.policy.bus and not applier._pending, "it rests")
        assert one.began_at == kept[-1]
        assert one.read <= one.replica.seq - kept[-1]
        told = Replica()
        async with bus.client() as client:
            for record in await read_batch(client, "LOG_1", 1):
                # What it appended last may have come back after its end.
                if told.seq < one.replica.seq:
                    told.apply(record)
        assert told.chain.holder == "p"
        assert told.chain.head == one.replica.chain.head
        assert told.chain.foreign == one.replica.chain.foreign
        assert told.state.hashes() == one.replica.state.hashes()

    run(story())


async def store(client: BusClient, subject: str, data: bytes, *, proof: bool = True) -> None:
    """Store something in SNAP, as a view does, or as any client."""
    headers = header_block(nats_expected_stream="SNAP") if proof else b""
    _, body = await client.request_raw(subject, data, headers=headers)
    assert b'"error"' not in body, body


async def _flip(bus: Bus, seq: int) -> None:
    async with bus.client("view") as view, bus.client() as admin:
        one = (await direct_get_batch(admin, "SNAP", 1, subject=f"snap.part.{seq}.jobs.>"))[0]
        await store(view, one.subject, b"\x00" + one.data[1:])


async def _remove(bus: Bus, seq: int) -> None:
    async with bus.client() as admin:
        body = msgspec.json.encode({"filter": f"snap.part.{seq}.jobs.>"})
        await admin.ask(subjects.js_stream_purge("SNAP"), body)


async def _newer(bus: Bus, seq: int) -> None:
    manifest = msgspec.json.decode((await sets(bus))[seq])
    async with bus.client("view") as view:
        body = msgspec.json.encode({**manifest, "format": 99})
        await store(view, subjects.snapshot_set(seq), body)


async def _garbage(bus: Bus, seq: int) -> None:
    async with bus.client("view") as view:
        await store(view, subjects.snapshot_set(seq), b"\xff{")


async def _renamed(bus: Bus, seq: int) -> None:
    """A manifest under the seq of another."""
    kept = await sets(bus)
    async with bus.client("view") as view:
        await store(view, subjects.snapshot_set(seq), kept[min(kept)])


@pytest.mark.parametrize("harm", [_flip, _remove, _newer, _garbage, _renamed])
def test_a_set_that_is_not_fit_is_passed_over(bus: Bus, harm: Any) -> None:
    """A damaged, torn, foreign or newer set costs a reader nothing but a look at the one before."""

    async def story() -> None:
        kept = await grown(bus)
        await harm(bus, kept[-1])
        one = await began(bus, ROLES["intake"], "intake")
        assert one.began_at == kept[-2]
        assert one.read == end_of(3).seq - kept[-2]
        # Who does not need the damaged table does not mind; who needs it, and finds none, replays.
        for seq in kept[:-1]:
            await harm(bus, seq)
        if harm is not _renamed:
            one = await began(bus, ROLES["intake"], "intake")
            assert (one.began_at, one.first) == (0, 1)
        assert one.replica.state.hashes().items() <= end_of(3).state.hashes().items()

    run(story())


def test_a_set_of_another_cluster_is_passed_over(bus: Bus) -> None:
    """Snapshots that were left on the bus by another log are no state of this one."""

    async def story() -> None:
        await bus.bootstrap()
        await write(bus, storm(3))
        manifest, parts = set_of(8)
        async with bus.client("view") as view:
            for part in manifest.parts:
                name = subjects.snapshot_chunk(manifest.seq, part.table, part.hash, 0)
                await store(view, name, parts[part.table])
            name = subjects.snapshot_set(manifest.seq)
            await store(view, name, encode_manifest(manifest))
            assert await snapshots.restore_newest(view, TABLES) is None
        one = await began(bus, ROLES["scheduler"], "scheduler")
        assert (one.began_at, one.first) == (0, 1)
        assert one.replica.state.hashes().items() <= end_of(3).state.hashes().items()

    run(story())


def test_what_no_view_stored_is_not_there(bus: Bus) -> None:
    """A message that got into SNAP as another client's answer is ignored, whatever it contains."""

    async def story() -> None:
        kept = await grown(bus)
        manifest = msgspec.json.decode((await sets(bus))[kept[-1]])
        async with bus.client() as admin:
            body = msgspec.json.encode({**manifest, "format": 99})
            await store(admin, subjects.snapshot_set(kept[-1]), body, proof=False)
            found = await snapshots.restore_newest(admin, TABLES)
        assert found is not None
        assert found.replica.seq == kept[-2]

    run(story())


def test_nobody_but_a_view_may_store_and_everybody_may_read(bus: Bus) -> None:
    """The server refuses other roles and the public; the public reads by direct get."""

    async def story() -> None:
        kept = await grown(bus)
        for user in ("public", "intake", "scheduler", "plan_applier"):
            errors: list[str] = []
            async with bus.client(user, errors) as client:
                client.send(subjects.snapshot_set(9_999), b"{}")
                await client.flush()
                await until(partial(len, errors), "the server says no")
                assert "permissions violation" in errors[0].lower()
                found = await snapshots.restore_newest(client, TABLES, last_seq=kept[-1] - 1)
            assert found is not None
            assert found.replica.seq == kept[-2]

    run(story())


def test_a_set_that_was_not_finished_is_none_and_goes(bus: Bus) -> None:
    """Parts without a manifest, left by a view that was killed, are not read, and the next set takes them away."""

    async def story() -> None:
        await grown(bus)
        async with bus.client("view") as view:
            name = subjects.snapshot_chunk(7, "jobs", "0" * 32, 0)
            await store(view, name, b"half")
        one = View(instance="next", snapshots=SnapshotSchedule(records=1, spread=0))
        async with bus.shell(one, "view") as shell:
            await until(lambda: shell.is_ready, "it has caught up")
            chain = one.replica.chain
            data, _ = seal(chain.draft("checkpoint", 0, tables=end_of(3).state.hashes()))
            await write(bus, ((subjects.log(1, "checkpoint"), data),), one.next_seq)
            written = "caravan_view_snapshots_written_total"
            await until(lambda: one.metrics()[written] == 1, "one more set")
            await until(lambda: is_done(one), "it is done")
        async with bus.client() as admin:
            assert not await direct_get_batch(admin, "SNAP", 1, subject=subjects.snapshot_parts(7))
        assert max(await sets(bus)) >= len(storm(3))

    run(story())


def test_switched_off_nobody_reads_and_nobody_writes(bus: Bus) -> None:
    """Without the setting a role replays from the first record, and a view stores nothing."""

    async def story() -> None:
        kept = await grown(bus)
        one = await began(bus, ROLES["view"], "view", snapshots=False)
        assert (one.began_at, one.first, one.read) == (0, 1, end_of(3).seq)
        assert sorted(await sets(bus)) == kept

    run(story())


def test_a_moment_is_reached_from_the_newest_snapshot_before_it(bus: Bus) -> None:
    """A past read from behind a snapshot answers as one read from the first record; a moment before all needs none."""

    async def story() -> None:
        kept = await grown(bus)
        user, password = bus.credentials.login("public")
        read: list[int] = []
        async with Client(bus.server.url, user=user, password=password) as client:
            plain = client.read_log

            def counting(first: int = 1, last: int = 0) -> AsyncIterator[r.Record]:
                read.append(first)
                return plain(first, last)

            client.read_log = counting  # type: ignore[method-assign]
            for at in (kept[0] - 1, kept[1], kept[1] + 3, kept[2] - 1, end_of(3).seq):
                found = await log_position.replay_to(client, str(at))
                told = HistoricalState()
                async for record in plain(1, at):
                    told.apply(record)
                assert found.state.hashes() == told.state.hashes()
                for noun in ("jobs", "evals", "allocs", "cluster", "waiting", "nodes"):
                    assert found.answer(noun, b"{}") == told.answer(noun, b"{}"), (at, noun)
                for job_id in told.state.jobs.by_id:
                    body = msgspec.json.encode({"id": job_id})
                    assert found.answer("job", body) == told.answer("job", body)
            late = await log_position.replay_to(client, "2999-01-01T00:00:00")
            assert late.replica.seq == end_of(3).seq
        assert read == [1, kept[1] + 1, kept[1] + 1, kept[1] + 1, kept[2] + 1, kept[2] + 1]

    run(story())
