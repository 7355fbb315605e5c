"""A set of tables at one checkpoint: writing it piece by piece, and reading it with proof.

Decides what a set says about itself and when it is fit to begin at. Where it is stored: shared/bus/log/snapshots.py.
What proves a set is the log: the tables that were read must have the hashes of the checkpoint that the log holds at the
set's seq, and that record must link to the set's own head. Everything else (another format, release, shape or cluster,
a hash that does not match) is a reason to skip it, never to stop.
"""

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from schemas.envelope import CORE_VERSION, ENCODER, LeaseHeld, LogRecord
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.state.snapshots.codecs import (
    ByteReader,
    DeferredChunks,
    MsgpackCodec,
    SnapshotChunk,
)
from shared.core.state.snapshots.table_codecs import (
    LATER_TABLES,
    OLDER_RELEASES,
    OLDER_SHAPES,
    TABLE_CODECS,
)
from shared.errors import LogError, SnapshotUnusable

#: Raised when a set of an older release could be misread by this one.
FORMAT = 1
#: The part that is not a table.
EXTRAS_PART = "asides"


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True):
    """One table of a set, or the asides."""

    table: str
    #: names the part: of its bytes, 32 hex digits.
    hash: str
    size: int
    #: fingerprint of its fields: a release with another one cannot read it.
    shape: str = ""


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a set; stored last, so that a set without one is ignored."""

    format: int
    release: str
    cluster_id: str
    #: of the checkpoint; the state stands after it.
    seq: int
    #: log time there.
    t_ns: int
    #: what the checkpoint links to.
    prev: str
    epoch: int
    holder: str
    #: records before the checkpoint.
    foreign: int
    accepted: int
    state_seq: int
    state_t_ns: int
    lease: LeaseHeld
    parts: tuple[SnapshotPart, ...]


class _Header(msgspec.Struct, frozen=True):
    """What every format to come keeps."""

    format: int
    release: str = ""
    cluster_id: str = ""
    seq: int = 0


_MANIFEST = msgspec.json.Decoder(SnapshotManifest)
_HEADER = msgspec.json.Decoder(_Header)
_ASIDES = MsgpackCodec(SnapshotExtras)


class SnapshotSetWriter:
    """A set under way. The replica must stay as it is, at the checkpoint that it just compared, until it is taken."""

    def __init__(
        self, replica: Replica, checkpoint: LogRecord, *, lease: LeaseHeld, asides: SnapshotExtras
    ) -> None:
        self._replica = replica
        self._checkpoint = checkpoint
        self._lease = lease
        self._shapes: dict[str, str] = {}
        self._hashes: dict[str, str] = {}
        self._head = self._manifest()
        #: all that changes was written down: what is left to be made needs no state.
        self.is_captured = False
        #: the bytes of each part, as far as they are made.
        self.parts: dict[str, list[bytes]] = {}
        self._pieces = self._run(asides)
        # What was touched since must not be part of what is written.
        replica.state.hashes()

    def write_chunks(self, size: int) -> bool:
        """Make pieces until they have so many bytes, at least one; True when all are made."""
        while size > 0:
            piece = next(self._pieces, None)
            if piece is None:
                return True
            size -= len(piece)
        return False

    def _run(self, asides: SnapshotExtras) -> Iterator[bytes]:
        tables = self._replica.state.tables()
        sources: list[tuple[str, Callable[[], Iterator[SnapshotChunk]]]] = [
            (EXTRAS_PART, lambda: _ASIDES.pieces(asides, -1))
        ]
        for name, table in tables.items():
            shape = TABLE_CODECS[name]
            self._shapes[name] = shape.fingerprint()
            sources.append((name, lambda shape=shape, table=table: shape.taken(table)))  # type: ignore[misc]
        taken: dict[str, list[SnapshotChunk]] = {}
        for name, pieces in sources:
            kept = taken.setdefault(name, [])
            for piece in pieces():
                kept.append(piece)
                yield piece if isinstance(piece, bytes) else b""
        self.is_captured = True
        for name, kept in taken.items():
            yield from self._made(name, kept)

    def _made(self, name: str, kept: list[SnapshotChunk]) -> Iterator[bytes]:
        """Hash what was taken of a table, and make what was left for later."""
        digest = blake2b(digest_size=16)
        made = self.parts.setdefault(name, [])
        for one in kept:
            for piece in one if isinstance(one, DeferredChunks) else (one,):
                digest.update(piece)
                made.append(piece)
                yield piece
        self._hashes[name] = digest.hexdigest()

    def manifest(self) -> SnapshotManifest:
        """Describe the set; once all pieces are made."""
        parts = tuple(
            SnapshotPart(
                table=name,
                hash=digest,
                size=sum(map(len, self.parts[name])),
                shape=self._shapes.get(name, ""),
            )
            for name, digest in self._hashes.items()
        )
        return msgspec.structs.replace(self._head, parts=parts)

    def _manifest(self) -> SnapshotManifest:
        """Say where the state stands now."""
        chain, state = self._replica.chain, self._replica.state
        return SnapshotManifest(
            format=FORMAT,
            release=CORE_VERSION,
            cluster_id=chain.cluster_id,
            seq=self._replica.seq,
            t_ns=chain.t_ns,
            prev=self._checkpoint.prev,
            epoch=chain.epoch,
            holder=chain.holder,
            foreign=chain.foreign,
            accepted=chain.accepted - 1,
            state_seq=state.seq,
            state_t_ns=state.t_ns,
            lease=self._lease,
            parts=(),
        )


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """Return the manifest as JSON."""
    return ENCODER.encode(manifest)


def read_manifest(data: bytes, *, cluster_id: str = "") -> SnapshotManifest:
    """Read what a set says about itself; `cluster_id` empty: of whichever. Raises SnapshotUnusable."""
    try:
        header = _HEADER.decode(data)
        if header.format != FORMAT:
            raise SnapshotUnusable(f"format {header.format}, this release reads {FORMAT}")
        if header.release not in {*OLDER_RELEASES, CORE_VERSION}:
            raise SnapshotUnusable(f"written by release {header.release}, this is {CORE_VERSION}")
        if cluster_id and header.cluster_id != cluster_id:
            raise SnapshotUnusable(f"of cluster {header.cluster_id}, this is {cluster_id}")
        return _MANIFEST.decode(data)
    except (ValueError, RecursionError) as err:
        raise SnapshotUnusable(f"invalid manifest: {err}") from err


def parts_for(manifest: SnapshotManifest, tables: frozenset[str]) -> list[SnapshotPart]:
    """Name the parts that hold these tables, and the asides. Raises SnapshotUnusable where one is missing.

    A table that the writer's release did not have is left out: it is empty, which the checkpoint proves.
    """
    found = {part.table: part for part in manifest.parts}
    names = sorted({*tables, "policy", EXTRAS_PART} - (LATER_TABLES - found.keys()))
    if missing := [name for name in names if name not in found]:
        raise SnapshotUnusable(f"has no {', '.join(missing)}")
    return [found[name] for name in names]


def restore_replica(
    manifest: SnapshotManifest,
    parts: Mapping[str, bytes],
    checkpoint: Record,
    tables: frozenset[str],
) -> Restored:
    """Make a replica that stands behind `checkpoint`, the record that the log holds at the set's seq.

    `parts`: bytes by table. Raises SnapshotUnusable.
    """
    replica = Replica(tables)
    _seed(replica, manifest)
    asides = SnapshotExtras()
    for part in parts_for(manifest, tables):
        data = parts.get(part.table, b"")
        found = blake2b(data, digest_size=16).hexdigest()
        if found != part.hash:
            raise SnapshotUnusable(f"{part.table} has hash {found}, the manifest says {part.hash}")
        if part.table == EXTRAS_PART:
            asides = decode_part(part.table, _ASIDES.read, data)
            continue
        shape = TABLE_CODECS[part.table]
        if part.shape not in {shape.fingerprint(), *OLDER_SHAPES.get(part.table, ())}:
            raise SnapshotUnusable(f"{part.table} has another shape than in this release")
        replica.state.put(part.table, decode_part(part.table, shape.read, data))
    try:
        record = replica.apply(checkpoint)
    except LogError as err:
        raise SnapshotUnusable(f"does not agree with the log: {err}") from err
    if record is None or record.kind != "checkpoint":
        raise SnapshotUnusable(f"the log has no checkpoint at {manifest.seq}")
    return Restored(replica=replica, asides=asides, lease=manifest.lease)


def _seed(replica: Replica, manifest: SnapshotManifest) -> None:
    """Put the chain where it was before the checkpoint."""
    chain, state = replica.chain, replica.state
    chain.next_seq = manifest.seq
    chain.head = manifest.prev
    chain.epoch = manifest.epoch
    chain.t_ns = manifest.t_ns
    chain.foreign = manifest.foreign
    chain.accepted = manifest.accepted
    chain.cluster_id = manifest.cluster_id
    chain.holder = manifest.holder
    state.seq, state.t_ns = manifest.state_seq, manifest.state_t_ns


def decode_part(table: str, read: Callable[[ByteReader], Any], data: bytes) -> Any:
    """Read one part to its end. Raises SnapshotUnusable."""
    cursor = ByteReader(data)
    try:
        found = read(cursor)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as err:
        raise SnapshotUnusable(f"{table} cannot be decoded: {err}") from err
    if not cursor.is_at_end:
        raise SnapshotUnusable(f"{table} has bytes behind its end")
    return found
