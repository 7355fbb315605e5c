"""Projections of a fleet's nodes, read into columns, and which of them are orders.

The rules are those of an agent: silence, an older seq, and a projection of another cluster or node are not orders; only
a newer projection that omits or stops an allocation ends it. A projection mostly repeats the last one and appends a few
allocations: columns stay bytes, and only the new part is decoded.
"""

import msgspec
import numpy as np

from schemas.projections import NodeProjection
from shared.core.runtime.desired_allocs import read_columns

_NONE = msgspec.Raw(b"[]")


class RawProjection(msgspec.Struct):
    """A projection with undecoded columns: see NodeProjection."""

    cluster_id: str
    seq: int
    node_id: str
    host_id: str = ""
    boot_id: str = ""
    reports_seen: int = 0
    epoch: int = 0
    refused: str = ""
    groups: msgspec.Raw = _NONE
    keys: msgspec.Raw = _NONE
    rows: msgspec.Raw = _NONE
    groups_at: msgspec.Raw = _NONE
    counts: msgspec.Raw = _NONE
    stops: msgspec.Raw = _NONE
    evicts: msgspec.Raw = _NONE


_DECODER = msgspec.json.Decoder(RawProjection)
_WHOLE = msgspec.json.Decoder(NodeProjection)
_NUMBERS = msgspec.json.Decoder(list[int])
_LABELS = msgspec.json.Decoder(list[msgspec.Raw])


class NodeOrder(msgspec.Struct):
    """Allocations to run, and those to stop. Shapes: keys, rows (A,); labels (A,)."""

    keys: list[int]
    rows: list[int]
    #: JSON of the task group of each.
    labels: list[bytes]
    #: only adds allocations; otherwise those not in it are to stop.
    adds: bool = False
    #: keys and rows of those to stop, and of the evicted among them.
    stops: tuple[list[int], list[int]] = ([], [])
    evicts: tuple[list[int], list[int]] = ([], [])

    def part(self, places: list[int]) -> "NodeOrder":
        """Return only the allocations at these positions."""
        keys, rows = [self.keys[at] for at in places], [self.rows[at] for at in places]
        return NodeOrder(keys, rows, [self.labels[at] for at in places], adds=True)


class ProjectionCursor:
    """The last projection that one node has read."""

    __slots__ = ("last", "seq")

    def __init__(self) -> None:
        self.seq = 0
        self.last: RawProjection | None = None


class ProjectionReader:
    """Reads projections of the fleet's cluster, and counts ignored ones."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.ignored = {"foreign": 0, "older": 0, "undecodable": 0}

    def read(self, ear: ProjectionCursor, node_id: str, data: bytes) -> RawProjection | None:
        """Read a projection; None: it is not for this node."""
        try:
            said = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.ignored["undecodable"] += 1
            return None
        if said.node_id != node_id or self.cluster_id not in ("", said.cluster_id):
            self.ignored["foreign"] += 1
            return None
        if said.seq < ear.seq:
            self.ignored["older"] += 1
            return None
        return said

    def order(self, ear: ProjectionCursor, said: RawProjection, data: bytes) -> NodeOrder | None:
        """Return the order in a projection; None: it equals the last one, or is invalid."""
        last = ear.last
        if last is not None and _columns(said) == _columns(last):
            order = None
        else:
            order = _added(last, said) if last is not None else None
            try:
                order = order or _whole(data)
            except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
                self.ignored["undecodable"] += 1
                return None
        self.cluster_id = said.cluster_id
        ear.seq, ear.last = said.seq, said
        return order


def _columns(said: RawProjection) -> tuple[msgspec.Raw, ...]:
    return (
        *(said.keys, said.rows, said.groups, said.groups_at, said.counts),
        *(said.stops, said.evicts),
    )


def _added(last: RawProjection, said: RawProjection) -> NodeOrder | None:
    """Decode the part after the last order, where each allocation is a run and a group of its own."""
    odd = (said.groups_at, said.counts, last.groups_at, last.counts)
    if any(column != _NONE for column in odd):
        return None
    if (said.stops, said.evicts) != (last.stops, last.evicts):
        return None
    tails = []
    for old, new in ((last.keys, said.keys), (last.rows, said.rows), (last.groups, said.groups)):
        before = bytes(old)
        after = bytes(new)
        if before == b"[]" or not after.startswith(before[:-1] + b","):
            return None
        tails.append(b"[" + after[len(before) :])
    keys, rows = _NUMBERS.decode(tails[0]), _NUMBERS.decode(tails[1])
    labels = [bytes(one) for one in _LABELS.decode(tails[2])]
    if not len(keys) == len(rows) == len(labels):
        return None
    return NodeOrder(keys, rows, labels, adds=True)


def _whole(data: bytes) -> NodeOrder:
    """Decode all of it. Raises MsgspecError, ValueError, OverflowError: it is inconsistent."""
    said = _WHOLE.decode(data)
    found = read_columns(said)
    names = [msgspec.json.encode(group) for group in said.groups]
    labels = [names[at] for at in found.groups_at.tolist()]
    keys, rows = found.keys.tolist(), found.rows.tolist()
    if found.runs.all():
        return NodeOrder(keys, rows, labels)
    runs = np.flatnonzero(found.runs).tolist()
    ends = np.flatnonzero(~found.runs).tolist()
    return NodeOrder(
        [keys[at] for at in runs],
        [rows[at] for at in runs],
        [labels[at] for at in runs],
        stops=([keys[at] for at in ends], [rows[at] for at in ends]),
        evicts=([keys[at] for at in said.evicts], [rows[at] for at in said.evicts]),
    )
