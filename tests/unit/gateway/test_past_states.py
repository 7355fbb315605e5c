"""Past states of a gateway equal those of one replay at any moment in any order, and so do events in words."""

import asyncio
import random

import pytest

from schemas.envelope import RECORD_DECODER
from services.gateway.change_index import ChangeIndex
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
    monkeypatch.setattr(past_states, "DESCRIBED_MAX", 30)
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


def taken(records: list[Record], every: int, kept: KeptSnapshots) -> dict[int, dict[str, str]]:
    """Replay, and keep a snapshot after every so many records: hashes of the tables by seq."""
    past, hashes = HistoricalState(), {}
    changes = ChangeIndex(past.state)
    for record in records:
        decoded = past.apply(record)
        if decoded is not None:
            changes.after(decoded, record.seq)
        if record.seq % every == 0:
            made = take_snapshot(
                past.replica,
                changes.tables(),
                asides=past.asides(),
                lease=past.answers.lease,
                replay_s=float(every),
                others=kept.around(record.seq),
            )
            hashes[record.seq] = past.state.hashes()
            kept.put(made)
    return hashes


def test_tables_that_did_not_change_are_kept_once(records: list[Record]) -> None:
    """Two snapshots share each table that no record in between is about; too many are thinned evenly."""
    kept = KeptSnapshots(4)
    taken(records[:120], 1, kept)
    assert len(kept) == 4
    gaps = [later - earlier for earlier, later in zip([0, *kept.seqs], kept.seqs, strict=False)]
    assert max(gaps) <= 3 * min(gaps[:-1])
    kept = KeptSnapshots(len(records))
    taken(records, 1, kept)
    found = kept.around(0)
    shared = 0
    for seq in kept.seqs[1:]:
        before, one = kept.around(seq - 1)
        for name, data in one.tables.items():
            is_same = one.indexes[name] == before.indexes[name]
            assert (data is before.tables[name]) == is_same
            assert is_same or one.indexes[name] == seq
            shared += is_same
    assert shared > len(found) > 0


def test_states_from_one_snapshot_go_on_apart(records: list[Record]) -> None:
    """What begins at a snapshot comes to the replayed end, and changes nothing of the snapshot and its other states."""
    kept = KeptSnapshots(len(records))
    hashes = taken(records, 10, kept)
    end = follow(HistoricalState(), records).state.hashes()
    assert len(hashes) > 30
    for seq in hashes:
        (one, *_) = kept.around(seq)
        moved, still = HistoricalState(), HistoricalState()
        moved.begin_at(one.restored())
        still.begin_at(one.restored())
        assert follow(moved, records).state.hashes() == end
        assert still.state.hashes() == hashes[seq]
    for seq, wanted in hashes.items():
        assert kept.around(seq)[0].restored().replica.state.hashes() == wanted


def follow(past: HistoricalState, records: list[Record]) -> HistoricalState:
    """Apply what a state has not."""
    for record in records[past.replica.seq :]:
        past.apply(record)
    return past
