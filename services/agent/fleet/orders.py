"""What nodes of a fleet are told: projections read into columns, and which of them are orders.

Decides by the rules of an agent: silence, an older seq, another cluster's or node's projection is no order; only a
newer projection that omits or stops an allocation ends it. A node is mostly told what it knows already and a few
allocations behind that: columns stay bytes, and only what is new in them is read. Must not know how allocations live.
Next: `lean.py`.
"""

import msgspec
import numpy as np

from schemas.projections import NodeProjection
from shared.core.wanted import wanted

_NONE = msgspec.Raw(b"[]")


class Said(msgspec.Struct):
    """A projection of which the columns were not read: see NodeProjection."""

    cluster_id: str
    seq: int
    node_id: str
    host_id: str = ""
    boot_id: str = ""
    reports_seen: int = 0
    refused: str = ""
    groups: msgspec.Raw = _NONE
    keys: msgspec.Raw = _NONE
    rows: msgspec.Raw = _NONE
    groups_at: msgspec.Raw = _NONE
    counts: msgspec.Raw = _NONE
    stops: msgspec.Raw = _NONE
    evicts: msgspec.Raw = _NONE


_DECODER = msgspec.json.Decoder(Said)
_WHOLE = msgspec.json.Decoder(NodeProjection)
_NUMBERS = msgspec.json.Decoder(list[int])
_LABELS = msgspec.json.Decoder(list[msgspec.Raw])


class Order(msgspec.Struct):
    """Allocations that shall run, and those that shall stop. Shapes: keys, rows (A,); labels (A,)."""

    keys: list[int]
    rows: list[int]
    #: JSON of the task group of each.
    labels: list[bytes]
    #: it only adds; else what is not in it shall stop.
    adds: bool = False
    #: keys and rows of those that shall stop, and of those among them that were evicted.
    stops: tuple[list[int], list[int]] = ([], [])
    evicts: tuple[list[int], list[int]] = ([], [])

    def part(self, places: list[int]) -> "Order":
        """Only the allocations at these places."""
        keys, rows = [self.keys[at] for at in places], [self.rows[at] for at in places]
        return Order(keys, rows, [self.labels[at] for at in places], adds=True)


class Ear:
    """What one node has heard."""

    __slots__ = ("last", "seq")

    def __init__(self) -> None:
        self.seq = 0
        self.last: Said | None = None


class Orders:
    """The cluster that a fleet belongs to, and what is no order of it."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.ignored = {"foreign": 0, "older": 0, "undecodable": 0}

    def read(self, ear: Ear, node_id: str, data: bytes) -> Said | None:
        """Read a projection; None: it is no word to this node."""
        try:
            said = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.ignored["undecodable"] += 1
            return None
        if said.node_id != node_id or self.cluster_id not in ("", said.cluster_id):
            self.ignored["foreign"] += 1
            return None
        if said.seq < ear.seq:
            self.ignored["older"] += 1
            return None
        return said

    def order(self, ear: Ear, said: Said, data: bytes) -> Order | None:
        """Return what a projection wants; None: nothing that the last one did not, or nothing that can be read."""
        last = ear.last
        if last is not None and _columns(said) == _columns(last):
            order = None
        else:
            order = _added(last, said) if last is not None else None
            try:
                order = order or _whole(data)
            except (msgspec.MsgspecError, ValueError, OverflowError):
                self.ignored["undecodable"] += 1
                return None
        self.cluster_id = said.cluster_id
        ear.seq, ear.last = said.seq, said
        return order


def _columns(said: Said) -> tuple[msgspec.Raw, ...]:
    return (
        *(said.keys, said.rows, said.groups, said.groups_at, said.counts),
        *(said.stops, said.evicts),
    )


def _added(last: Said, said: Said) -> Order | None:
    """Read what stands behind the last order, where each allocation is a run and a group of its own."""
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
    return Order(keys, rows, labels, adds=True)


def _whole(data: bytes) -> Order:
    """Read all of it. Raises MsgspecError, ValueError, OverflowError: it does not hold together."""
    said = _WHOLE.decode(data)
    found = wanted(said)
    names = [msgspec.json.encode(group) for group in said.groups]
    labels = [names[at] for at in found.groups_at.tolist()]
    keys, rows = found.keys.tolist(), found.rows.tolist()
    if found.runs.all():
        return Order(keys, rows, labels)
    runs = np.flatnonzero(found.runs).tolist()
    ends = np.flatnonzero(~found.runs).tolist()
    return Order(
        [keys[at] for at in runs],
        [rows[at] for at in runs],
        [labels[at] for at in runs],
        stops=([keys[at] for at in ends], [rows[at] for at in ends]),
        evicts=([keys[at] for at in said.evicts], [rows[at] for at in said.evicts]),
    )
