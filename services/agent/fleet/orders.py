"""What nodes of a fleet are told: projections read into columns, and which of them are orders.

Decides by the rules of an agent: silence, an older seq, another cluster's or node's projection is no order; only a
newer projection that omits or stops an allocation ends it. Must not know how allocations live. Next: `lean.py`.
"""

import msgspec
import numpy as np

from schemas.projections import NodeProjection
from shared.core.columns import Rows
from shared.core.wanted import Wanted, same_order, wanted
from shared.fleet.laws import Int64s

_DECODER = msgspec.json.Decoder(NodeProjection)
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)
_NO_KEYS: Int64s = np.empty(0, dtype=np.int64)


class Ear:
    """What one node has heard."""

    __slots__ = ("keys", "rows", "seq", "told")

    def __init__(self) -> None:
        self.seq = 0
        self.told: NodeProjection | None = None
        #: allocations of the last order.
        self.rows = _NO_ROWS
        self.keys = _NO_KEYS

    def omitted(self, order: Wanted) -> tuple[Rows, Int64s]:
        """Allocations that an order names no more. Shapes: (A,)."""
        if len(order.keys) >= len(self.keys):
            same = order.keys[: len(self.keys)] == self.keys
            if same.all():
                return _NO_ROWS, _NO_KEYS
        gone = ~np.isin(self.keys, order.keys)
        return self.rows[gone], self.keys[gone]


class Orders:
    """The cluster that a fleet belongs to, and what is no order of it."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.ignored = {"foreign": 0, "older": 0, "undecodable": 0}

    def read(self, ear: Ear, node_id: str, data: bytes) -> NodeProjection | None:
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
        self.cluster_id = said.cluster_id
        ear.seq = said.seq
        return said

    def order(self, ear: Ear, said: NodeProjection) -> Wanted | None:
        """Return what a projection wants; None: nothing that the last one did not."""
        if ear.told is not None and same_order(said, ear.told):
            return None
        try:
            found = wanted(said)
        except (ValueError, OverflowError):
            self.ignored["undecodable"] += 1
            return None
        ear.told = said
        return found
