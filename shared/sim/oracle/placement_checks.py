"""Where a plan may put what, judged by the log: distinct rules and nodes of data.

A plan is judged by what its snapshot could show: a node that changed since may have been full, or closed, then.
"""

from collections.abc import Iterator

from schemas import plans
from schemas.jobs import GroupSpec
from shared.core.state.state import State
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.oracle.reference_model import ReferenceAlloc, ReferenceModel

#: What decides whether a node takes more: status, closed, held, and rows whose room is kept.
_Seen = tuple[str, bool, tuple[int, ...], tuple[int, ...]]


class PlacementChecks:
    """Follows when each node last changed, and checks plans once they are applied."""

    def __init__(self, ledger: InvariantChecks, model: ReferenceModel) -> None:
        self._ledger = ledger
        self._model = model
        #: by row: what plans see of it, and the seq since which that is so.
        self._seen: dict[int, tuple[_Seen, int]] = {}
        #: by job: priority and last seq of the nodes held back for it.
        self._reserved: dict[str, tuple[int, int]] = {}
        #: seq of the last plan that was not kept whole: its worker took its room for held.
        self._cut_seq = 0
        #: by worker and number of a plan in parts: what it placed away from the data.
        self._moved: dict[tuple[str, int], list[tuple[ReferenceAlloc, int, GroupSpec]]] = {}

    def check(self, events: tuple[object, ...], state: State, seq: int) -> None:
        """Check the plans of a transaction, which is applied everywhere. Raises InvariantBroken."""
        for event in events:
            if isinstance(event, plans.PlanCommitted) and event.job_id in self._model.jobs:
                self._check_distinct(event)
                self._check_data_nodes(event)
            refused = isinstance(event, plans.PlanRefused)
            if refused or (isinstance(event, plans.PlanCommitted) and event.cut):
                self._cut_seq = seq
        self._look(state, seq)

    def _look(self, state: State, seq: int) -> None:
        kept: dict[int, list[int]] = {}
        for row in state.allocations.predecessors.rooms:
            kept.setdefault(self._model.allocs[row].node, []).append(row)
        for row, node in self._model.nodes.items():
            rooms = tuple(sorted(kept.get(row, ())))
            now: _Seen = (node.status, node.is_closed, tuple(node.used), rooms)
            if row not in self._seen or self._seen[row][0] != now:
                self._seen[row] = now, seq
        for job_id, one in state.reservations.by_job.items():
            self._reserved[job_id] = one.priority, seq

    # ---- distinct rules ----

    def _check_distinct(self, event: plans.PlanCommitted) -> None:
        """No node has more of a version than its rule allows: placed, or updated in place."""
        job = self._model.jobs[event.job_id]
        touched = {(one.version, one.group) for one in event.placements}
        touched |= {(one.version, one.group) for one in event.updates}
        for version, group in sorted(touched):
            most = _most_a_node(job.specs[version, group])
            if not most:
                continue
            on: dict[int, list[ReferenceAlloc]] = {}
            for row in sorted(self._model.wanted(job.id, group)):
                alloc = self._model.allocs[row]
                if alloc.version == version:
                    on.setdefault(alloc.node, []).append(alloc)
            crowded = [allocs for allocs in on.values() if len(allocs) > most]
            self._ledger.hold("distinct_kept", not crowded, "at most", most, "a node:", crowded)

    # ---- nodes of data ----

    def _check_data_nodes(self, event: plans.PlanCommitted) -> None:
        """What has a sticky disk goes elsewhere only where the node of its data takes no more."""
        origin = event.origin
        moved = self._moved.setdefault((origin.worker, origin.number), [])
        for placement in event.placements:
            spec = self._model.jobs[event.job_id].specs[placement.version, placement.group]
            for node, key in _replaced(placement) if spec.sticky else ():
                before = self._model.by_key[key]
                if node == before.node:
                    self._ledger.hold("data_node_kept", holds=True)
                else:
                    moved.append((before, node, spec))
        if origin.part < origin.parts - 1:
            return
        # Only the whole plan says how much room it left.
        del self._moved[origin.worker, origin.number]
        for before, node, spec in moved:
            has_data = self._model.allocs.get(before.row) is before
            wrong = has_data and self._took_more(before.node, event, spec)
            self._ledger.hold("data_node_kept", not wrong, before, "is replaced on", node, event)

    def _took_more(self, row: int, event: plans.PlanCommitted, spec: GroupSpec) -> bool:
        """Whether a node takes one more, and always did since a plan's snapshot."""
        seq, job = event.origin.snapshot_seq, self._model.jobs[event.job_id]
        reserved = any(
            of != job.id and priority >= job.priority and at >= seq
            for of, (priority, at) in self._reserved.items()
        )
        evicts = any(
            self._model.allocs[one].node == row for each in event.evictions for one in each.rows
        )
        node = self._model.nodes.get(row)
        seen, since = self._seen.get(row, (None, 0))
        if reserved or evicts or node is None or seen is None or max(since, self._cut_seq) > seq:
            return False
        rooms = [self._model.allocs[one] for one in seen[3]]
        asks = [one.ask for one in rooms if one.job_id != job.id]
        asks.append((spec.cpu_mhz, spec.memory_mib, spec.disk_mib))
        # The record of the plan may end something on the node, too: before it the node may have been full.
        most = [max(now, before) for now, before in zip(node.used, seen[2], strict=True)]
        sums = [used + sum(ask[n] for ask in asks) for n, used in enumerate(most)]
        fits = all(amount <= room for amount, room in zip(sums, node.capacity, strict=True))
        # As well, it may have registered, or been opened, in that record.
        was_open = seen[0] == "ready" and not seen[1]
        return fits and was_open and node.status == "ready" and not node.is_closed


def _most_a_node(spec: GroupSpec) -> int:
    """Return how many allocations of a group a node may have by its distinct rules; 0: any number."""
    limits = [one.limit for one in spec.distinct_properties]
    return 1 if spec.distinct_hosts else min(limits, default=0)


def _replaced(placement: plans.GroupPlacement) -> Iterator[tuple[int, int]]:
    """Yield the node of each allocation that replaces another, and the key of that."""
    nodes = [row for row, n in zip(placement.rows, placement.counts, strict=True) for _ in range(n)]
    for node, key in zip(nodes, placement.previous, strict=False):
        if key:
            yield node, key
