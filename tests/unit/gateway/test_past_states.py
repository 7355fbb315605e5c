"""Past states of a gateway equal those of one replay at any moment in any order, and so do events in words."""

import asyncio
import random

import pytest

from schemas.envelope import RECORD_DECODER
from services.gateway.edge import past_states
from services.gateway.edge.kept_snapshots import KeptSnapshots, take_snapshot
from services.gateway.edge.live_feed import RecordLine, record_lines
from services.gateway.edge.past_states import LINES_KEPT, PastStates
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.query.historical_state import HistoricalState
from shared.sim.world.world import SimulatedWorld

SNAPSHOTS = 5


class CountedLog:
    """The log of a world, no stored snapshot of it, and counts of what was asked."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.restores = 0

    @property
    def log(self) -> "CountedLog":
        return self

    async def first_seq(self) -> int:
        return 1

    async def read(self, seq: int, records: int = 40) -> list[Record]:
        await asyncio.sleep(0)
        return self.records[seq - 1 : seq - 1 + records]

    async def restore(self, last_seq: int) -> None:
        del last_seq
        self.restores += 1
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """The log of a simulated world."""
    simulated = SimulatedWorld(1)
    assert not simulated.run().invariant
    written = simulated.context.bus.log.records
    return [Record(at, subject, data) for at, (subject, data) in enumerate(written, 1)]


@pytest.fixture(scope="module")
def replayed(records: list[Record]) -> dict[int, tuple[dict[str, str], list[RecordLine]]]:
    """By seq: the hashes of all tables behind it, and the events of its record in words."""
    past, found = HistoricalState(), {}
    for record in records:
        lines = (
            record_lines(past.state, RECORD_DECODER.decode(record.data), record.seq)
            if is_framed(record.data)
            else []
        )
        past.apply(record)
        found[record.seq] = (past.state.hashes(), lines)
    return found


@pytest.mark.parametrize("snapshot_s", [0.0, 1e9])
def test_any_moment_is_the_replayed_one(
    records: list[Record],
    replayed: dict[int, tuple[dict[str, str], list[RecordLine]]],
    monkeypatch: pytest.MonkeyPatch,
    snapshot_s: float,
) -> None:
    """States and events at moments in any order equal those of one replay, with and without snapshots in memory."""
    monkeypatch.setattr(past_states, "_SNAPSHOT_S", snapshot_s)
    monkeypatch.setattr(past_states, "MOVE_MAX", 60)
    snapshots = KeptSnapshots(SNAPSHOTS)
    past = PastStates(CountedLog(records), snapshots)
    drawn = random.Random(7)

    async def story() -> None:
        for _ in range(40):
            seq = drawn.randint(1, len(records))
            first = max(1, seq - drawn.choice([0, 10, LINES_KEPT - 1, LINES_KEPT, 120]))
            hashes, lines = await asyncio.gather(
                past.read(seq, lambda one: one.state.hashes()), past.events(first, seq)
            )
            assert hashes == replayed[seq][0]
            assert lines == [one for at in range(first, seq + 1) for one in replayed[at][1]]

    asyncio.run(story())
    assert len(snapshots) == (SNAPSHOTS if not snapshot_s else 0)


def test_requests_for_one_moment_wait_for_one_state(records: list[Record]) -> None:
    """What a page asks at once begins one state; the next moment, and its events, begin none."""
    log = CountedLog(records)
    past = PastStates(log)

    async def page(seq: int) -> None:
        reads = [past.read(seq, lambda one: one.state.seq) for _ in range(3)]
        await asyncio.gather(*reads, past.events(seq - 24, seq))

    async def story() -> None:
        await page(200)
        assert log.restores == 1
        for seq in range(201, 230):
            await page(seq)

    asyncio.run(story())
    assert log.restores == 1


def test_a_step_back_begins_at_a_snapshot_in_memory(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments before all kept states begin at what an earlier replay left, and ask for no stored snapshot."""
    monkeypatch.setattr(past_states, "_SNAPSHOT_S", 0.0)
    log = CountedLog(records)
    past = PastStates(log)

    async def story() -> None:
        last = len(records)
        await past.read(last, lambda one: one.state.seq)
        for back in range(1, 6):
            await past.read(last - back * LINES_KEPT, lambda one: one.state.seq)

    asyncio.run(story())
    assert log.restores == 1


def test_equal_tables_are_kept_once(records: list[Record]) -> None:
    """A snapshot shares the bytes of each table that the one before has, and too many are thinned evenly."""
    past, kept = HistoricalState(), KeptSnapshots(4)
    for record in records[:120]:
        past.apply(record)
        before = kept.newest(record.seq)
        made = take_snapshot(past.replica, past.asides(), past.answers.lease, before)
        for name, data in made.tables.items():
            if before is not None and before.digests[name] == made.digests[name]:
                assert data is before.tables[name]
        assert kept.restored(made).replica.state.hashes() == past.state.hashes()
        kept.put(made)
    assert len(kept) == 4
    gaps = [later - earlier for earlier, later in zip([0, *kept.seqs], kept.seqs, strict=False)]
    assert max(gaps) <= 3 * min(gaps[:-1])
