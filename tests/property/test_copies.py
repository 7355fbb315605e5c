"""A copy of a replica is the same state and shares nothing that changes: over whole simulated storms."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica, copy_replica
from shared.core.state.snapshots.copies import copied
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from tests.property.test_snapshots import SEEDS, at_checkpoints, restored, storm, whole

STEP = 25


def written(replica: Replica) -> dict[str, bytes]:
    """Every byte that a snapshot of a replica would have."""
    tables = replica.state.tables()
    return {name: b"".join(TABLE_CODECS[name].pieces(table)) for name, table in tables.items()}


def containers(value: Any) -> Iterator[int]:
    """Name everything that can be written to."""
    if isinstance(value, np.ndarray):
        yield value.__array_interface__["data"][0] if value.size else id(value)
        return
    if isinstance(value, msgspec.Struct | tuple):
        return
    if isinstance(value, dict):
        parts: list[Any] = list(dict.values(value))
    elif isinstance(value, list | set):
        parts = list(value)
    elif type(value).__module__.startswith("shared.core."):
        parts = list(vars(value).values())
    else:
        return
    yield id(value)
    for one in parts:
        yield from containers(one)


def assert_apart(first: Replica, second: Replica) -> None:
    """Two replicas share no container."""
    kept = [
        {found for table in one.state.tables().values() for found in containers(table)}
        for one in (first, second)
    ]
    assert kept[0]
    assert not kept[0] & kept[1]


def follow(replica: Replica, records: list[Record]) -> Replica:
    """Apply what a replica has not."""
    for record in records[replica.seq :]:
        replica.apply(record)
    return replica


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_stays_and_goes_on_by_itself(seed: int) -> None:
    """A copy is equal in every attribute; neither side sees what the other applies; both come to the same end."""
    records = storm(seed)
    replica, taken = Replica(), []
    for record in records:
        replica.apply(record)
        if record.seq % STEP == 0:
            copy = copy_replica(replica)
            assert whole(copy) == whole(replica)
            assert_apart(copy, replica)
            taken.append((copy, written(replica), replica.state.hashes()))
    hashes = replica.state.hashes()
    end = whole(replica)
    assert len(taken) > 5
    for copy, data, known in taken:
        assert written(copy) == data
        assert copy.state.hashes() == known
    for copy, _, _ in taken[::7]:
        before = written(copy)
        twin = follow(copy_replica(copy), records)
        assert twin.state.hashes() == hashes
        assert whole(twin) == end
        assert written(copy) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_of_what_was_read_goes_on_by_itself(seed: int) -> None:
    """Entries that were not decoded yet are copied, too: the copy is decoded alone."""
    records = storm(seed)
    told = follow(Replica(), records)
    record, manifest, parts, hashes = at_checkpoints(records)[2]
    read = restored(manifest, parts, record).replica
    copy = copy_replica(read)
    assert_apart(copy, read)
    assert whole(follow(copy, records)) == whole(told)
    assert read.state.hashes() == hashes
    assert written(read) == written(follow(Replica(), records[: record.seq]))


def test_a_replica_of_some_tables_is_copied_from_one_of_all() -> None:
    """The copy follows the tables that were asked for, and stands where the other does."""
    records = storm(SEEDS[0])
    whole_one = follow(Replica(), records[:200])
    part = copy_replica(whole_one, frozenset({"jobs"}))
    follow(part, records)
    told = follow(Replica(frozenset({"jobs"})), records)
    assert part.state.hashes() == told.state.hashes()
    assert part.seq == told.seq


def test_what_no_table_consists_of_is_refused() -> None:
    """A type that may change in ways unknown here is no part of a copy."""
    with pytest.raises(TypeError, match="bytearray"):
        copied([bytearray(b"1")])
