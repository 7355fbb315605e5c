"""Fates of allocations: from events that name rows to facts that name allocations, a column at a time.

Decides when an allocation ends: when it gives up what it holds, by its client status or because it was evicted. Must
not know what else an event says (facts.py).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsDisplaced, AllocationsReported
from schemas.base import Event, NodeId
from schemas.nodes import NodeRegistered
from schemas.plans import GroupPlacement, PlanCommitted
from shared.archive.sheets import Sheet, Words
from shared.core.columns import Rows, grown
from shared.core.ids import ALLOC_SALT, alloc_id, make_key, shown_halves
from shared.core.state import State
from shared.core.tables.allocations import (
    CLIENT_CODE,
    EVICT,
    STOP,
    TERMINAL,
    expand_runs,
)

At = tuple[int, int, int]


class Fates:
    """What becomes of allocations."""

    def __init__(self, state: State, sheets: dict[str, Sheet], words: Words) -> None:
        self._words = words
        #: by fleet row: word of its node's id.
        self._row_words = np.zeros(0, dtype=np.int32)
        self._state = state
        self._placements = sheets["placements"]
        self._changes = sheets["changes"]
        self._tasks = sheets["tasks"]
        self._usage = sheets["usage"]
        self._ordinal_seq = 0
        self._ordinal = 0

    def before(self, event: Event, at: At) -> None:
        """Take down what ends or changes, from the state before the event."""
        if isinstance(event, AllocationsReported):
            self._report(event, at)
        elif isinstance(event, AllocationsDisplaced):
            rows = np.asarray(event.rows, dtype=np.int32)
            self._change(rows, at, reason="stopped by an operator")
        elif isinstance(event, PlanCommitted):
            evicted = self._evict(event, at)
            self._stop(event, at, evicted)
            for update in event.updates:
                rows = np.asarray(update.rows, dtype=np.int32)
                self._change(rows, at, version=update.version)

    def after(self, event: Event, at: At) -> None:
        """Take down what began: placements name groups that the state knows."""
        if isinstance(event, NodeRegistered):
            self._name(event.spec.node_id)
        elif isinstance(event, PlanCommitted):
            for placement in event.placements:
                self._place(event.job_id, placement, at)

    def _report(self, event: AllocationsReported, at: At) -> None:
        table = self._state.allocations
        if event.rows:
            rows = np.asarray(event.rows, dtype=np.int32)
            codes = np.asarray(event.statuses, dtype=np.int64)
            differs = table.client[rows] != codes
            rows, codes = rows[differs], codes[differs]
            ends = TERMINAL[codes] & table.is_holding(rows)
            self._change(rows, at, client=codes, ends=ends)
        for detail in event.details:
            self._tasks.add(
                seq=at[0],
                n=at[1],
                t_ns=at[2],
                key=int(table.key[detail.row]),
                tasks=bytes(detail.tasks).decode("utf-8", "replace"),
            )

    def _evict(self, event: PlanCommitted, at: At) -> Rows:
        table = self._state.allocations
        all_rows = [row for one in event.evictions for row in one.rows]
        rows = np.asarray(all_rows, dtype=np.int32)
        if len(rows):
            reason = f"evicted for {event.job_id}"
            self._change(rows, at, desired=EVICT, ends=table.is_holding(rows), reason=reason)
        return rows

    def _stop(self, event: PlanCommitted, at: At, evicted: Rows) -> None:
        table = self._state.allocations
        for stop in event.stops:
            rows = np.asarray(stop.rows, dtype=np.int32)
            client: int = CLIENT_CODE[stop.client_status] if stop.client_status else -1
            ends = np.zeros(len(rows), dtype=np.bool_)
            if client >= 0 and TERMINAL[client]:
                ends = table.is_holding(rows) & ~np.isin(rows, evicted)
            desired = np.where(table.desired[rows] == EVICT, -1, STOP)
            self._change(rows, at, client=client, desired=desired, ends=ends, reason=stop.reason)

    def _change(
        self,
        rows: Rows,
        at: At,
        *,
        client: NDArray[np.int64] | int = -1,
        desired: NDArray[np.int64] | int = -1,
        version: int = -1,
        ends: NDArray[np.bool_] | None = None,
        reason: str = "",
    ) -> None:
        table = self._state.allocations
        seq, n, t_ns = at
        self._changes.extend(
            len(rows),
            seq=seq,
            n=n,
            t_ns=t_ns,
            key=table.key[rows],
            client=client,
            desired=desired,
            version=version,
            is_end=False if ends is None else ends,
            reason=reason or None,
        )
        if ends is not None and ends.any():
            self._let_go(rows[ends], at)

    def _let_go(self, rows: Rows, at: At) -> None:
        table = self._state.allocations
        refs = table.group[rows]
        ask = -table.groups.ask[refs]
        self._usage.extend(
            len(rows),
            seq=at[0],
            t_ns=at[2],
            allocations=-1,
            cpu_mhz=ask[:, 0],
            memory_mib=ask[:, 1],
            disk_mib=ask[:, 2],
            job_id=self._of_groups(refs, table.groups.job_ids),
            group_name=self._of_groups(refs, table.groups.names),
            node_id=self._of_rows(table.node[rows]),
        )

    def _place(self, job_id: str, placement: GroupPlacement, at: At) -> None:
        seq, n, t_ns = at
        groups = self._state.allocations.groups
        where = np.asarray(placement.rows, dtype=np.intp)
        counts = np.asarray(placement.counts, dtype=np.int64)
        count = int(counts.sum())
        ordinal = self._ordinal if self._ordinal_seq == seq else 0
        self._ordinal_seq, self._ordinal = seq, ordinal + count
        first = make_key(seq, ordinal)
        nodes = self._of_rows(where)
        told = {"job_id": self._words.code(job_id), "group_name": self._words.code(placement.group)}
        keys = np.arange(first, first + count)
        high, low = shown_halves(keys, ALLOC_SALT)
        previous = _texts([alloc_id(key) if key else None for key in placement.previous])
        again = np.asarray(placement.reschedules, dtype=np.int64) if placement.reschedules else 0
        self._placements.extend(
            count,
            seq=seq,
            n=n,
            t_ns=t_ns,
            key=keys,
            id_high=high,
            id_low=low,
            version=placement.version,
            name_index=expand_runs(placement.names),
            previous_id=previous if len(previous) else None,
            reschedules=again,
            node_id=np.repeat(nodes, counts),
            **told,
        )
        ask = groups.ask[groups.ref_of[job_id, placement.version, placement.group]]  # type: ignore[index]
        self._usage.extend(
            len(where),
            seq=seq,
            t_ns=t_ns,
            allocations=counts,
            cpu_mhz=counts * ask[0],
            memory_mib=counts * ask[1],
            disk_mib=counts * ask[2],
            node_id=nodes,
            **told,
        )

    def recall(self) -> None:
        """Learn the nodes from the state: it was replayed without us."""
        self._row_words = self._words.codes(self._state.fleet.ids)

    def _name(self, node_id: NodeId) -> None:
        row = self._state.fleet.row_of[node_id]
        self._row_words = grown(self._row_words, row + 1)
        self._row_words[row] = self._words.code(node_id)

    def _of_rows(self, rows: NDArray[np.integer]) -> NDArray[np.int32]:
        """Words of the ids of the nodes in fleet rows."""
        words: NDArray[np.int32] = self._row_words[rows]
        return words

    def _of_groups(
        self, refs: NDArray[np.integer], names: Sequence[str]
    ) -> NDArray[np.int32] | int:
        if (refs == refs[0]).all():
            return self._words.code(names[int(refs[0])])
        rows: list[int] = refs.tolist()
        return self._words.codes([names[row] for row in rows])


def _texts(values: Sequence[str | None]) -> NDArray[np.object_]:
    return np.array(values, dtype=object)
