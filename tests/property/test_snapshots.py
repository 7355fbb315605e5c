"""A state that was written and read again is the same state, and continues as the same: over whole simulated storms."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bench.harness.generated_log import GeneratedLog
from schemas.base import JobId
from schemas.envelope import LeaseHeld, LogRecord
from schemas.jobs import IntakeAdvanced
from schemas.nodes import NodeSpec
from shared.core.runtime import snapshots
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.state.snapshots.codecs import ByteReader, MsgpackCodec
from shared.core.state.snapshots.table_codecs import (
    LATER_TABLES,
    OLDER_RELEASES,
    OLDER_SHAPES,
    TABLE_CODECS,
)
from shared.core.state.state import TABLES
from shared.errors import SnapshotUnusable, StateDiverged
from shared.sim.world.world import SimulatedWorld
from tests.golden.replay_log import read_log

#: The last one has variables.
SEEDS = (3, 8, 5)
LEASE = LeaseHeld(holder="a", cluster_id="c")
ASIDES = SnapshotExtras(since_ns=((JobId("job"), 5),), marks=((1, 2), (3, 4)))
#: What a table may forget and make again.
CACHES = {"_matches", "_made_at", "_kinds", "_eligible", "_tried", "_hashes", "_jobs"}
CACHES |= {"_submissions", "_marks", "_rare", "__orig_class__"}
#: The time of the record that is applied, set with each: the state's own, which is compared.
CACHES |= {"log_ns"}


@cache
def storm(seed: int) -> list[Record]:
    """Everything that one simulated world wrote."""
    world = SimulatedWorld(seed)
    assert not world.run().invariant
    written = world.context.bus.log.records
    return [Record(seq, subject, data) for seq, (subject, data) in enumerate(written, 1)]


def written(replica: Replica, checkpoint: Any, step: int = 5_000) -> tuple[bytes, dict[str, bytes]]:
    """Write a set of a replica that stands behind a checkpoint."""
    writing = snapshots.SnapshotSetWriter(replica, checkpoint, lease=LEASE, asides=ASIDES)
    while not writing.write_chunks(step):
        pass
    parts = {name: b"".join(some) for name, some in writing.parts.items()}
    return snapshots.encode_manifest(writing.manifest()), parts


def at_checkpoints(
    records: Sequence[Record], tables: frozenset[str] = TABLES
) -> list[tuple[Record, bytes, dict[str, bytes], dict[str, str]]]:
    """Replay; at each checkpoint the record, a set, and the tables' hashes."""
    replica, found = Replica(tables), []
    for record in records:
        decoded = replica.apply(record)
        if decoded is not None and decoded.kind == "checkpoint":
            found.append((record, *written(replica, decoded), replica.state.hashes()))
    return found


def restored(
    manifest: bytes, parts: dict[str, bytes], record: Record, tables: frozenset[str] = TABLES
) -> Restored:
    """Read a set."""
    return snapshots.restore_replica(snapshots.read_manifest(manifest), parts, record, tables)


def plain(value: Any, rows: int) -> Any:
    """Turn whatever a table holds into what `==` can compare; columns end where rows are in use."""
    if isinstance(value, np.ndarray):
        return (value[: rows or None].astype(object).tolist(), str(value.dtype))
    if isinstance(value, dict):
        return [(key, plain(one, 0)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [plain(one, 0) for one in value]
    if hasattr(value, "__dict__") and not isinstance(value, msgspec.Struct):
        pool = getattr(value, "_pool", None)
        size = pool.high if pool is not None else rows
        own = {name: one for name, one in vars(value).items() if name not in CACHES}
        return {name: plain(one, size) for name, one in own.items()}
    return value


def whole(replica: Replica) -> dict[str, Any]:
    """Everything that a replica's tables hold, hashed or not."""
    found = {name: plain(table, 0) for name, table in replica.state.tables().items()}
    # The row of a job that has one may stand for itself.
    found["allocations"]["by_job"] = [
        (job_id, replica.state.allocations.rows_of(job_id).tolist())
        for job_id in replica.state.allocations.by_job
    ]
    # Only the children of one parent have an order: the parents are looked up by their ids.
    found["launches"]["children"].sort()
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_state_read_again_goes_on_as_the_same(seed: int) -> None:
    """From every checkpoint of a storm on, all later checkpoints hold and the end is the same in every attribute."""
    records = storm(seed)
    told = Replica()
    for record in records:
        told.apply(record)
    proven = at_checkpoints(records)
    assert len(proven) >= 5
    for nth, (record, manifest, parts, hashes) in enumerate(proven):
        again = restored(manifest, parts, record)
        assert again.asides == ASIDES
        assert again.replica.state.hashes() == hashes
        for later in records[record.seq :]:
            again.replica.apply(later)
        assert again.replica.checked == len(proven) - nth
        assert vars(again.replica.chain) == vars(told.chain)
        assert (again.replica.state.seq, again.replica.state.t_ns) == (
            told.state.seq,
            told.state.t_ns,
        )
        assert whole(again.replica) == whole(told)


def test_a_set_of_everything_serves_a_reader_of_few_tables() -> None:
    """A reader takes the tables that it has, and no bytes of any other."""
    records = storm(SEEDS[0])
    record, manifest, parts, _ = at_checkpoints(records)[3]
    few = frozenset({"jobs", "policy"})
    named = {part.table for part in snapshots.parts_for(snapshots.read_manifest(manifest), few)}
    assert named == {"jobs", "policy", "asides"}
    replica = Replica(few)
    replica.begin_at(restored(manifest, {name: parts[name] for name in named}, record, few).replica)
    for later in records[record.seq :]:
        replica.apply(later)
    assert replica.checked_seq > record.seq


def test_what_knows_a_table_sees_what_was_read() -> None:
    """Beginning at a set keeps the objects: who holds a table, or the state, holds what was read."""
    records = storm(SEEDS[0])
    record, manifest, parts, _ = at_checkpoints(records)[-1]
    replica = Replica()
    state, jobs = replica.state, replica.state.jobs
    replica.begin_at(restored(manifest, parts, record).replica)
    assert replica.state is state
    assert replica.state.jobs is jobs
    assert jobs.by_id
    assert replica.next_seq == record.seq + 1


def test_the_same_state_is_the_same_bytes() -> None:
    """Two replicas write equal parts, whatever they lived through, and however it is cut."""
    records = storm(SEEDS[0])
    first, manifest, parts, _ = at_checkpoints(records)[1]
    again = restored(manifest, parts, first).replica
    other = at_checkpoints(records)[3]
    decoded = None
    for record in records[first.seq : other[0].seq]:
        decoded = again.apply(record)
    assert decoded is not None
    mine = written(again, decoded, step=1)
    assert mine[1] == other[2]
    assert snapshots.read_manifest(mine[0]) == snapshots.read_manifest(other[1])


def _flipped(parts: dict[str, bytes]) -> dict[str, bytes]:
    data = bytearray(parts["allocations"])
    data[len(data) // 2] ^= 1
    return {**parts, "allocations": bytes(data)}


DAMAGE: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "a flipped bit": _flipped,
    "a missing part": lambda parts: {k: v for k, v in parts.items() if k != "jobs"},
    "a torn part": lambda parts: {**parts, "fleet": parts["fleet"][:-7]},
}


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_damage_is_found_by_the_hash(name: str) -> None:
    """A part whose bytes are not those that were written makes the set unfit."""
    record, manifest, parts, _ = at_checkpoints(storm(SEEDS[0]))[1]
    with pytest.raises(SnapshotUnusable, match="has hash"):
        restored(manifest, DAMAGE[name](parts), record)


def test_every_cut_of_a_table_is_unfit_and_nothing_worse() -> None:
    """Bytes that end early, or continue, are refused with the reader's own error: never another, never silence."""
    _, manifest, parts, _ = at_checkpoints(storm(SEEDS[0]))[1]
    assert manifest
    for table, shape in TABLE_CODECS.items():
        data = parts[table]
        for end in range(0, len(data), max(1, len(data) // 50)):
            with pytest.raises(SnapshotUnusable):
                snapshots.decode_part(table, shape.read, data[:end])
        with pytest.raises(SnapshotUnusable, match="behind its end"):
            snapshots.decode_part(table, shape.read, data + b"x")


def test_the_log_has_the_last_word() -> None:
    """A set whose hashes hold, and whose tables are not those of the checkpoint in the log, is unfit."""
    records = storm(SEEDS[0])
    proven = at_checkpoints(records)
    (record, manifest, _, _), other = proven[1], proven[-1]
    own = snapshots.read_manifest(manifest)
    lying = msgspec.structs.replace(own, parts=snapshots.read_manifest(other[1]).parts)
    with pytest.raises(SnapshotUnusable, match="does not agree with the log"):
        snapshots.restore_replica(lying, other[2], record, TABLES)


def test_a_set_of_another_log_is_unfit() -> None:
    """What the log holds at the set's seq must be the checkpoint that the set was made at."""
    records = storm(SEEDS[0])
    record, manifest, parts, _ = at_checkpoints(records)[1]
    before = records[record.seq - 2]
    for wrong in (
        Record(record.seq, before.subject, before.data),
        Record(record.seq + 1, record.subject, record.data),
        Record(record.seq, record.subject, record.data[:-3]),
    ):
        with pytest.raises(SnapshotUnusable):
            restored(manifest, parts, wrong)
    linked = msgspec.structs.replace(snapshots.read_manifest(manifest), prev="0" * 32)
    with pytest.raises(SnapshotUnusable, match="our head is"):
        snapshots.restore_replica(linked, parts, record, TABLES)


def test_what_this_release_cannot_read_is_said() -> None:
    """Another format, release, cluster or shape, and what is no manifest at all, are distinguished."""
    record, data, parts, _ = at_checkpoints(storm(SEEDS[0]))[1]
    own = snapshots.read_manifest(data)

    def changed(**what: object) -> bytes:
        return snapshots.encode_manifest(msgspec.structs.replace(own, **what))

    with pytest.raises(SnapshotUnusable, match="format 2"):
        snapshots.read_manifest(changed(format=2))
    with pytest.raises(SnapshotUnusable, match=r"release 9\.0"):
        snapshots.read_manifest(changed(release="9.0"))
    with pytest.raises(SnapshotUnusable, match="of cluster other"):
        snapshots.read_manifest(changed(cluster_id="other"), cluster_id=own.cluster_id)
    for bad in (b"", b"[]", b"\xff", b'{"format":1}', b"{" * 5000):
        with pytest.raises(SnapshotUnusable):
            snapshots.read_manifest(bad)
    shaped = tuple(msgspec.structs.replace(part, shape="0") for part in own.parts)
    with pytest.raises(SnapshotUnusable, match="another shape"):
        restored(changed(parts=shaped), parts, record)
    with pytest.raises(SnapshotUnusable, match="has no allocations"):
        restored(changed(parts=tuple(p for p in own.parts if p.table != "allocations")), {}, record)


def test_an_attribute_that_nobody_thought_of_is_an_error() -> None:
    """A table with a new attribute cannot be written before its shape says whether it is written or derived."""
    replica = Replica()
    for record in storm(SEEDS[0])[:40]:
        replica.apply(record)
    for name, table in replica.state.tables().items():
        assert list(TABLE_CODECS[name].pieces(table))
        vars(table)["fresh"] = 1
        with pytest.raises(SnapshotUnusable, match="fresh"):
            list(TABLE_CODECS[name].pieces(table))
        del vars(table)["fresh"]


def test_empty_tables_are_tables() -> None:
    """A state in which nothing has happened yet is written and read like any other."""
    for name, table in Replica().state.tables().items():
        again = snapshots.decode_part(
            name, TABLE_CODECS[name].read, b"".join(TABLE_CODECS[name].pieces(table))
        )
        assert again.digest() == table.digest()
        assert plain(again, 0) == plain(table, 0)


def test_every_table_has_a_shape() -> None:
    """No table of the state is left out of a set."""
    assert set(TABLE_CODECS) == TABLES


def test_a_cursor_never_reads_past_its_end() -> None:
    """A length that is no length is refused, however large."""
    with pytest.raises(ValueError, match="are expected"):
        MsgpackCodec(int).read(ByteReader((1 << 60).to_bytes(8, "little") + b"x"))


def test_a_replica_that_has_read_takes_nothing() -> None:
    """Only who has applied nothing may begin at a set."""
    records = storm(SEEDS[0])
    record, manifest, parts, _ = at_checkpoints(records)[0]
    replica = Replica()
    replica.apply(records[0])
    with pytest.raises(AssertionError):
        replica.begin_at(restored(manifest, parts, record).replica)


def test_a_text_of_one_character_keeps_its_hash() -> None:
    """A default that a log writes out is written out after a restore: a decoder may make it the same object."""
    log = GeneratedLog()
    log.nodes([NodeSpec(node_id="n1", name="n1", cpu_mhz=1000, memory_mib=1000, disk_mib=1000)])
    limit = {"LTarget": "${node.class}", "Operand": "=", "RTarget": "x"}
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    group = {"Name": "g", "Count": 1, "Constraints": [limit], "Tasks": [task]}
    log.job({"ID": "j", "Name": "j", "Type": "service", "TaskGroups": [group]})
    replica, decoded = Replica(), None
    for record in log.close():
        decoded = replica.apply(record)
    assert decoded is not None
    assert b'"operator":"="' in log.records[-3].data + log.records[-4].data
    writing = snapshots.SnapshotSetWriter(replica, decoded, lease=LEASE, asides=ASIDES)
    while not writing.write_chunks(1):
        pass
    parts = {name: b"".join(some) for name, some in writing.parts.items()}
    found = snapshots.restore_replica(writing.manifest(), parts, log.records[-1], replica.tables)
    assert found.replica.state.hashes() == replica.state.hashes()
    table, ours = found.replica.state.jobs, replica.state.jobs
    assert list(table.by_id) == list(ours.by_id) and table.by_id == ours.by_id
    assert {**table.submissions} == ours.submissions
    assert dict(found.replica.state.evaluations.by_key) == replica.state.evaluations.by_key


def test_a_set_of_an_older_release_is_read() -> None:
    """A format whose entries lack fields that have a default is read, and so is a set without the later tables."""
    # A log of that release has nothing in the tables that came later.
    log = Path(__file__).parents[1] / "golden" / "logs" / "v1-0.1.0-seed-2.jsonl.gz"
    record, data, parts, hashes = at_checkpoints(read_log(log))[1]
    own = snapshots.read_manifest(data)
    older = tuple(
        msgspec.structs.replace(part, shape=min(OLDER_SHAPES.get(part.table, {part.shape})))
        for part in own.parts
        if part.table not in LATER_TABLES
    )
    manifest = msgspec.structs.replace(own, release=min(OLDER_RELEASES), parts=older)
    again = restored(snapshots.encode_manifest(manifest), parts, record)
    assert again.replica.state.hashes() == hashes


def test_a_checkpoint_without_a_table_holds_while_the_table_is_empty() -> None:
    """A log of a release without the table replays; a table that has entries must stand in the checkpoint."""
    replica = Replica()
    hashes = replica.state.hashes()
    without = {name: value for name, value in hashes.items() if name != "jobs"}
    fields = {"kind": "checkpoint", "schema": 1, "core": "0.1.0", "epoch": 1, "prev": "", "t_ns": 1}
    checkpoint = LogRecord(**fields, tables=without)
    replica.compare(checkpoint, 1)
    replica.state.evolve(IntakeAdvanced(jobs_seq=1), 2)
    with pytest.raises(StateDiverged, match="table jobs"):
        replica.compare(checkpoint, 3)
