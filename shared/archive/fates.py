"""Fates of allocations: from events that name rows to facts that name allocations, a column at a time.

Decides when an allocation ends: when it gives up what it holds, by its client status or because it was evicted. Must
not know what else an event says (facts.py).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsDisplaced, AllocationsReported
from schemas.base import Event
from schemas.plans import GroupPlacement, PlanCommitted
from shared.archive.sheets import Sheet
from shared.core.columns import Rows
from shared.core.ids import ALLOC_SALT, alloc_id, make_key, shown_ids
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

    def __init__(self, state: State, sheets: dict[str, Sheet]) -> None:
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
        if isinstance(event, PlanCommitted):
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
                tasks=bytes(detail.tasks).decode(),
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
            job_id=_texts([table.groups.job_ids[ref] for ref in refs.tolist()]),
            group_name=_texts([table.groups.names[ref] for ref in refs.tolist()]),
            node_id=self._node_ids(table.node[rows]),
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
        ids = self._node_ids(where)
        told = {"job_id": job_id, "group_name": placement.group}
        keys = np.arange(first, first + count)
        previous = _texts([alloc_id(key) if key else None for key in placement.previous])
        again = np.asarray(placement.reschedules, dtype=np.int64) if placement.reschedules else 0
        self._placements.extend(
            count,
            seq=seq,
            n=n,
            t_ns=t_ns,
            key=keys,
            id=_texts(shown_ids(keys, ALLOC_SALT)),
            version=placement.version,
            name_index=expand_runs(placement.names),
            previous_id=previous if len(previous) else None,
            reschedules=again,
            node_id=np.repeat(ids, counts),
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
            node_id=ids,
            **told,
        )

    def _node_ids(self, rows: NDArray[np.integer]) -> NDArray[np.object_]:
        ids = self._state.fleet.ids
        return _texts([ids[row] for row in rows.tolist()])


def _texts(values: Sequence[str | None]) -> NDArray[np.object_]:
    return np.array(values, dtype=object)
