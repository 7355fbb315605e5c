"""The fleet: nodes as rows, what they offer as columns, and their computed classes."""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsReported
from schemas.base import NodeId
from schemas.envelope import ENCODER
from schemas.nodes import (
    NODE_STATUSES,
    NodeConfirmedDead,
    NodeDrainChanged,
    NodeDrained,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRefused,
    NodeRegistered,
    NodesCollected,
    NodeSpec,
    NodesStatusChanged,
    Pool,
    PoolDeclared,
)
from shared.core.columns import RowHashes, RowPool, Rows, grown, hash_columns
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import OfferedResources, column_of_size
from shared.core.state.node_attributes import AttributeColumns, node_attributes
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

STATUS_CODE = {name: code for code, name in enumerate(NODE_STATUSES)}
READY = STATUS_CODE["ready"]
DOWN = STATUS_CODE["down"]
DISCONNECTED = STATUS_CODE["disconnected"]
#: Refused registrations that are remembered, the oldest leaves first.
REFUSALS_KEPT = 256


class DrainTerms(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A drain beside its deadline."""

    started_ns: int = 0
    ignore_system: bool = False
    message: str = ""
    #: the row was ineligible before.
    closed: bool = False


class DrainEnd(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A drain that is complete, on a row that is ineligible since."""

    #: the row was ineligible before, too.
    closed: bool = False
    deadline_reached: bool = False


_NO_TERMS = DrainTerms()


class FleetTable(EventConsumer):
    """Nodes. Shapes: N rows, dead ones included (`live` false); resources in the order of RESOURCES."""

    def __init__(self) -> None:
        self.row_of: dict[NodeId, int] = {}
        self.ids: list[NodeId] = []
        self.specs: list[NodeSpec] = []
        self.host_ids: list[str] = []
        self.boot_ids: list[str] = []
        #: (N, 3) MHz, MiB, MiB that allocations may use.
        self.capacity = np.zeros((0, 3), dtype=np.int64)
        self.status = np.zeros(0, dtype=np.int8)
        self.eligible = np.zeros(0, dtype=np.bool_)
        self.live = np.zeros(0, dtype=np.bool_)
        #: number of the last report seen of the current boot.
        self.reports_seen = np.zeros(0, dtype=np.int64)
        #: seq at which the row got its present node: an older plan may mean another one.
        self.row_seq = np.zeros(0, dtype=np.int64)
        self.modify_seq = np.zeros(0, dtype=np.int64)
        #: computed class: nodes of one class cannot be told apart by feasibility.
        self.class_of = np.zeros(0, dtype=np.int32)
        self.classes: dict[str, int] = {}
        self.attributes = AttributeColumns()
        #: raised whenever a node came, left or changed its attributes.
        self.generation = 0
        #: node id -> (host, boot) whose registration was refused last, so that a resend is not refused again.
        self.refused: dict[NodeId, NodeRefused] = {}
        #: what operators declared, by node id (empty: of the cluster as a whole) and name of the pool.
        self.declared: dict[tuple[str, str], Pool] = {}
        #: sums, slots, ports and cores that nodes and the cluster offer.
        self.offers = OfferedResources()
        #: of disconnected rows: log time since when.
        self.silent_ns: dict[int, int] = {}
        #: drained rows: log time from which what runs there is stopped, 0: never.
        self.drains: dict[int, int] = {}
        #: of drained rows: the rest of what is known of the drain.
        self.drain_terms: dict[int, DrainTerms] = {}
        #: rows whose drain is complete, until an operator changes their eligibility or drains them again.
        self.drained: dict[int, DrainEnd] = {}
        #: rows of which an operator says that nothing runs there any more, until the node is heard of again.
        self.confirmed_dead: dict[int, None] = {}
        #: what operators say of nodes beside their agents; None: what the agent says under this key does not count.
        self.operator_meta: dict[NodeId, dict[str, str | None]] = {}
        self._spec_hash = np.zeros(0, dtype=np.uint64)
        #: which slot is kept for which instance is history, not in the spec; 0: the row has none.
        self._slots_hash = np.zeros(0, dtype=np.uint64)
        self._pool = RowPool()
        self._hashes = RowHashes()
        #: what `ready` says, until a node changes.
        self._ready: NDArray[np.bool_] | None = None
        #: node pool -> number of registered nodes; counted when first asked for, then kept.
        self._pool_sizes: dict[str, int] | None = None

    @property
    def size(self) -> int:
        """Number of rows, dead ones included."""
        return self._pool.high

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            AllocationsReported: self._report,
            NodeRegistered: self._register,
            NodesStatusChanged: self._turn,
            NodeEligibilityChanged: self._allow,
            NodeDrainChanged: self._drain,
            NodeDrained: self._end_drain,
            NodeMetaChanged: self._say,
            NodeConfirmedDead: self._confirm_death,
            NodesCollected: self._collect,
            PoolDeclared: self._declare,
            NodeRefused: self._refuse,
        }

    def _report(self, event: AllocationsReported, seq: int) -> None:
        del seq
        if event.nodes:
            rows = np.asarray(event.nodes, dtype=np.int32)
            self.reports_seen[rows] = event.numbers
            self._hashes.touch(rows)

    def _turn(self, event: NodesStatusChanged, seq: int) -> None:
        rows = np.asarray(event.rows, dtype=np.int32)
        self.status[rows] = STATUS_CODE[event.status]
        self._heard(event.rows)
        if event.status == "ready":
            self._revive(event.rows)
        if event.since_ns:
            self.silent_ns.update(dict.fromkeys(event.rows, event.since_ns))
        self._changed(rows, seq)

    def _allow(self, event: NodeEligibilityChanged, seq: int) -> None:
        rows = np.asarray([event.row], dtype=np.int32)
        self.eligible[rows] = event.eligible
        self.drained.pop(event.row, None)
        self._changed(rows, seq)

    def _refuse(self, event: NodeRefused, seq: int) -> None:
        del seq
        self.refused.pop(event.node_id, None)
        self.refused[event.node_id] = event
        if len(self.refused) > REFUSALS_KEPT:
            del self.refused[next(iter(self.refused))]

    def ready(self) -> NDArray[np.bool_]:
        """Mask of nodes that may take new allocations. Shape: (size,). Not to be written to."""
        if self._ready is None:
            size = self.size
            mask: NDArray[np.bool_] = self.live[:size] & self.eligible[:size]
            self._ready = mask & np.equal(self.status[:size], READY)
            self._ready.setflags(write=False)
        return self._ready

    def count_pool(self, name: str) -> int:
        """Number of registered nodes of a node pool."""
        if self._pool_sizes is None:
            self._pool_sizes = dict(
                Counter(self.specs[row].node_pool for row in self.row_of.values())
            )
        return self._pool_sizes.get(name, 0)

    def is_open(self, row: int, seq: int) -> bool:
        """Tell whether a node may take new allocations, and is the one that had this row at `seq`."""
        may = bool(self.live[row] and self.eligible[row] and self.status[row] == READY)
        return may and int(self.row_seq[row]) <= seq

    def core_correction(self, held: HeldResources) -> NDArray[np.int64]:
        """What reserved cores take of the three columns beside what is asked of these. Shape: (size, 3)."""
        out = np.zeros((self.size, 3), dtype=np.int64)
        out[:, 0] = held.cores(self.size) * column_of_size(self.offers.core_mhz, self.size)
        return out

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        rows = self._hashes.digest(self._hash_rows)
        text = ENCODER.encode((rows, list(self.refused.values()), list(self.declared.items())))
        if self.silent_ns:
            text += ENCODER.encode(sorted(self.silent_ns.items()))
        if self.drains:
            text += b"drains" + ENCODER.encode(sorted(self.drains.items()))
        if self.drain_terms:
            text += b"terms" + ENCODER.encode(sorted(self.drain_terms.items()))
        if self.drained:
            text += b"drained" + ENCODER.encode(sorted(self.drained.items()))
        if self.confirmed_dead:
            text += b"dead" + ENCODER.encode(sorted(self.confirmed_dead))
        if self.operator_meta:
            text += b"meta" + ENCODER.encode(sorted(self.operator_meta.items()))
        return blake2b(text, digest_size=8).hexdigest()

    def _hash_rows(self, rows: Rows) -> NDArray[np.uint64]:
        columns = (
            self._spec_hash ^ self._slots_hash,
            self.status,
            self.eligible.view(np.int8),
            self.reports_seen,
            self.row_seq,
            self.modify_seq,
            self.class_of,
        )
        return hash_columns(rows, columns, self.live[rows])

    def _register(self, event: NodeRegistered, seq: int) -> None:
        spec = event.spec
        row = self.row_of.get(spec.node_id)
        if row is None:
            row = self._add(spec.node_id, seq)
        else:
            self._add_to_pool(self.specs[row].node_pool, -1)
        self._add_to_pool(spec.node_pool, 1)
        self.specs[row] = spec
        self.host_ids[row] = event.host_id
        self.boot_ids[row] = event.boot_id
        self.reports_seen[row] = event.number
        self.capacity[row] = (spec.cpu_mhz, spec.memory_mib, spec.disk_mib)
        self.status[row] = READY
        self._heard((row,))
        self._revive((row,))
        self._classify(row)
        identity = ENCODER.encode((spec, event.host_id, event.boot_id))
        digest = blake2b(identity, digest_size=8).digest()
        self._spec_hash[row] = int.from_bytes(digest, "little")
        self.offers.set_row(row, spec, self.declared_of(spec.node_id))
        self._slots_hash[row] = self.offers.row_hash(row)
        self.generation += 1
        self._changed(np.asarray([row], dtype=np.int32), seq)

    def _add_to_pool(self, name: str, change: int) -> None:
        if self._pool_sizes is not None:
            left = self._pool_sizes.pop(name, 0) + change
            if left:
                self._pool_sizes[name] = left

    def shown(self, row: int) -> NodeSpec:
        """The node as constraints see it: with what an operator says of it."""
        spec = self.specs[row]
        return with_operator_meta(spec, self.operator_meta.get(spec.node_id, {}))

    def _classify(self, row: int) -> None:
        spec = self.shown(row)
        self.class_of[row] = self.classes.setdefault(computed_class_key(spec), len(self.classes))
        self.attributes.set_row(row, node_attributes(spec))

    def _drain(self, event: NodeDrainChanged, seq: int) -> None:
        self._forget_drain(event.row)
        if event.draining:
            self.drains[event.row] = event.deadline_ns
            terms = DrainTerms(event.started_ns, event.ignore_system, event.message, event.closed)
            if terms != _NO_TERMS:
                self.drain_terms[event.row] = terms
        self.eligible[event.row] = not (event.draining or event.keep_ineligible)
        self._changed(np.asarray([event.row], dtype=np.int32), seq)

    def _end_drain(self, event: NodeDrained, seq: int) -> None:
        end = DrainEnd(self.terms_of(event.row).closed, event.deadline_reached)
        self._forget_drain(event.row)
        self.drained[event.row] = end
        self._changed(np.asarray([event.row], dtype=np.int32), seq)

    def _confirm_death(self, event: NodeConfirmedDead, seq: int) -> None:
        self.confirmed_dead[event.row] = None
        self._changed(np.asarray([event.row], dtype=np.int32), seq)

    def _revive(self, rows: Iterable[int]) -> None:
        if self.confirmed_dead:
            for row in rows:
                self.confirmed_dead.pop(row, None)

    def _forget_drain(self, row: int) -> None:
        self.drains.pop(row, None)
        self.drain_terms.pop(row, None)
        self.drained.pop(row, None)

    def terms_of(self, row: int) -> DrainTerms:
        """What is known of the drain of a row beside its deadline."""
        return self.drain_terms.get(row, _NO_TERMS)

    def ignores_system(self, row: int) -> bool:
        """Tell whether allocations of system jobs stay on a draining row."""
        return self.terms_of(row).ignore_system

    def _say(self, event: NodeMetaChanged, seq: int) -> None:
        self.operator_meta.pop(event.node_id, None)
        if event.meta:
            self.operator_meta[event.node_id] = event.meta
        row = self.row_of[event.node_id]
        self._classify(row)
        self.generation += 1
        self._changed(np.asarray([row], dtype=np.int32), seq)

    def declared_of(self, node_id: str) -> list[Pool]:
        """What operators declared of a node, by name."""
        found = sorted(name for node, name in self.declared if node == node_id)
        return [self.declared[node_id, name] for name in found]

    def _declare(self, event: PoolDeclared, seq: int) -> None:
        key = (event.node_id, event.pool.name)
        self.declared.pop(key, None)
        if event.pool.amount or event.pool.instances:
            self.declared[key] = event.pool
        self.generation += 1
        if not event.node_id:
            self.offers.set_cluster(event.pool)
            return
        row = self.row_of[NodeId(event.node_id)]
        self.offers.set_pools(row, (*self.specs[row].pools, *self.declared_of(event.node_id)))
        self._slots_hash[row] = self.offers.row_hash(row)
        self._changed(np.asarray([row], dtype=np.int32), seq)

    def _add(self, node_id: NodeId, seq: int) -> int:
        row = int(self._pool.take(1)[0])
        if row == len(self.ids):
            self.ids.append(node_id)
            self.specs.append(NodeSpec(node_id=node_id))
            self.host_ids.append("")
            self.boot_ids.append("")
            self._grow(row + 1)
        self.ids[row] = node_id
        self.row_of[node_id] = row
        self.live[row] = True
        self.eligible[row] = True
        self.row_seq[row] = seq
        return row

    def _grow(self, size: int) -> None:
        self.capacity = grown(self.capacity, size)
        self.status = grown(self.status, size)
        self.eligible = grown(self.eligible, size)
        self.live = grown(self.live, size)
        self.reports_seen = grown(self.reports_seen, size)
        self.row_seq = grown(self.row_seq, size)
        self.modify_seq = grown(self.modify_seq, size)
        self.class_of = grown(self.class_of, size)
        self._spec_hash = grown(self._spec_hash, size)
        self._slots_hash = grown(self._slots_hash, size)

    def _heard(self, rows: Iterable[int]) -> None:
        if self.silent_ns:
            for row in rows:
                self.silent_ns.pop(row, None)

    def _changed(self, rows: Rows, seq: int) -> None:
        self._ready = None
        self.modify_seq[rows] = seq
        self._hashes.touch(rows)

    def _collect(self, event: NodesCollected, seq: int) -> None:
        rows = np.asarray(event.rows, dtype=np.int32)
        for row in event.rows:
            node_id = self.ids[row]
            del self.row_of[node_id]
            self._add_to_pool(self.specs[row].node_pool, -1)
            self._forget_drain(row)
            self.confirmed_dead.pop(row, None)
            self.operator_meta.pop(node_id, None)
            for key in [key for key in self.declared if key[0] == node_id]:
                del self.declared[key]
            self.attributes.clear_row(row)
            self.offers.clear_row(row)
            self._slots_hash[row] = 0
        self.generation += 1
        self.live[rows] = False
        self.capacity[rows] = 0
        self._changed(rows, seq)
        self._pool.free(rows)


def with_operator_meta(spec: NodeSpec, said: dict[str, str | None]) -> NodeSpec:
    """A node's spec with what an operator says of it."""
    if not said:
        return spec
    meta = {key: value for key, value in {**spec.meta, **said}.items() if value is not None}
    return msgspec.structs.replace(spec, meta=dict(sorted(meta.items())))


def computed_class_key(spec: NodeSpec) -> str:
    """Text that two nodes share when no constraint without `unique` can tell them apart, as in Nomad."""
    # Sorted: an agent that names the same attributes in another order is of the same class.
    attributes = {k: v for k, v in sorted(spec.attributes.items()) if not k.startswith("unique.")}
    meta = {k: v for k, v in sorted(spec.meta.items()) if not k.startswith("unique.")}
    shape = (spec.datacenter, spec.node_pool, spec.node_class, attributes, meta)
    return blake2b(ENCODER.encode(shape), digest_size=16).hexdigest()
