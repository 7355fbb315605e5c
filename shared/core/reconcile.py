"""Reconcile: what a job wants against what there is, as buckets of rows and a list of wants.

Decides, for service and batch jobs (`reconcile_system.py` for the others), which allocations stop, which go on under a
new version, which are lost, and how many must be placed under which names. Must not know nodes' room or scores:
place.py finds the nodes.

Order, after Nomad's reconciler: everything of a stopped job or a removed group stops; what runs on a node that is
down is lost and replaced; what is only out of sight (`absent.py`) is replaced and not stopped, and when it comes back
one of the two goes (`rivals.py`); failed ones are replaced when their reschedule time has come; another digest
replaces, the same digest of another version goes on in place; then the count decides, highest names leaving first.
Source: reference semantics of Nomad 2.5 (scheduler/reconciler).
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from schemas.plans import InPlace, Stops
from shared.core.absent import is_gone
from shared.core.columns import Rows
from shared.core.displaced import DRAINED, STOPPED, is_drained, is_marked
from shared.core.rivals import ScoreOf, leaving
from shared.core.state import State
from shared.core.tables.allocations import (
    COMPLETE,
    EVICT,
    FAILED,
    RUN,
    RUNNING,
    STOP,
    TERMINAL,
    UNKNOWN,
)
from shared.core.tables.jobs import Job

Mask = NDArray[np.bool_]
_Number = TypeVar("_Number", bound=np.generic)
_NONE: Rows = np.empty(0, dtype=np.int32)


class Want(msgspec.Struct, frozen=True, eq=False):
    """Allocations of one group to place. Shapes: names, previous, reschedules, avoid (count,).

    `previous` is the key that each replaces (0: none) and `avoid` the node row it just failed on (-1: none).
    Replacements come first; where there are none, or none failed, these columns are None.
    """

    group: GroupSpec
    count: int
    names: NDArray[np.int64]
    #: rows of the group that stay on their nodes: what anti-affinity counts.
    staying: Rows
    previous: NDArray[np.int64] | None = None
    reschedules: NDArray[np.int64] | None = None
    avoid: NDArray[np.int64] | None = None
    #: (N,) how many each node shall take, where every node is meant (system jobs); then names come after the nodes.
    per_node: NDArray[np.int64] | None = None
    #: with `per_node`: rows whose names are taken on their nodes, and rows that are replaced.
    taken: Rows = _NONE
    replaced: Rows = _NONE
    #: which of them replace an evicted one.
    evicted: NDArray[np.bool_] | None = None


class Reconciled(msgspec.Struct, frozen=True, eq=False):
    """What a plan for the job must do."""

    stops: tuple[Stops, ...]
    updates: tuple[InPlace, ...]
    wants: tuple[Want, ...]


_NOTHING = Reconciled((), (), ())


class Pass:
    """One comparison: rows go into buckets."""

    def __init__(
        self, state: State, job: Job | None, mask_of: Callable[[GroupSpec], Mask], score_of: ScoreOf
    ) -> None:
        self.state = state
        self.job = job
        self.mask_of = mask_of
        self.score_of = score_of
        self.stops: list[Stops] = []
        self.updates: list[InPlace] = []
        self.wants: list[Want] = []

    @property
    def is_live(self) -> bool:
        """Tell whether the job wants anything."""
        return self.job is not None and not self.job.stopped

    def stop(self, rows: Rows, reason: str, client_status: str = "") -> None:
        """Put rows into a stop bucket."""
        if len(rows):
            names = tuple(rows.tolist())
            self.stops.append(Stops(rows=names, reason=reason, client_status=client_status))

    def stop_running(self, rows: Rows, reason: str) -> None:
        """Stop those of the rows that are to run and did not end."""
        table = self.state.allocations
        self.stop(rows[(table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]], reason)

    def displace(self, rows: Rows, alive: Mask, job: Job) -> Mask:
        """Stop what an operator wants gone from where it is. Shapes: rows, alive, result (R,)."""
        state = self.state
        if not state.allocations.displaced and not state.fleet.drains:
            return np.zeros(len(rows), dtype=bool)
        marked = alive & is_marked(state, rows)
        drained = alive & ~marked & is_drained(state, rows, job.job_type)
        self.stop(rows[marked], STOPPED)
        self.stop(rows[drained], DRAINED)
        return marked | drained

    def lose(self, rows: Rows) -> tuple[Rows, Mask]:
        """Bucket what runs where nobody will hear of it again as lost.

        Returns the rows that matter further on, and which of them are lost: these are replaced, unless they were to
        stop anyway.
        """
        table = self.state.allocations
        lost = is_gone(self.state, rows) & ~TERMINAL[table.client[rows]]
        self.stop(rows[lost], "node is down", "lost")
        matters = ~lost | (table.desired[rows] != STOP) if self.is_live else ~lost
        return rows[matters], lost[matters]

    def compare(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask) -> None:
        """Bucket the rows of one group that is in the job. Shapes: rows, lost (R,)."""
        table = self.state.allocations
        stops = np.equal(table.desired[rows], STOP)
        if np.count_nonzero(stops):
            # What is on its way out is of no account, nor is what went.
            rows, lost = rows[~stops], lost[~stops]
        if self._is_calm(job, group, rows):
            self._replace(group, rows, lost)
            return
        evicted = self._unreplaced(rows[table.desired[rows] == EVICT])
        wanted = table.desired[rows] == RUN
        rows, lost = rows[wanted], lost[wanted]
        client, nodes = table.client[rows], table.node[rows]
        ended, failed = TERMINAL[client], client == FAILED
        alive = ~ended & ~lost
        same, current = self.versions(job, group, rows)
        moved = self.displace(rows, alive, job)
        if not current[alive].all():
            # A new version may forbid the node that an allocation runs on.
            same &= current | ~alive | self.mask_of(group)[nodes]
        same &= ~moved
        # A failed one of the present digest waits for its time or for ever; under another it makes room.
        waits = failed & same & ~self._is_due(rows, failed)
        is_batch = job.job_type == "batch"
        done = (client == COMPLETE) & current if is_batch else np.zeros(len(rows), dtype=bool)
        # What is out of sight keeps its place only until another one has taken it.
        away = alive & same & (client == UNKNOWN) & group.disconnect.replace
        keep = self._one_of_each(group, rows, (alive & same & ~away) | waits, done)
        kept = self._cap(rows, keep, group.count - int(done.sum()))
        open_ = self._still_open(group, rows, away, done)
        self.update(job, group, rows[(kept | open_) & alive & ~current])
        self.stop(rows[alive & ~same & ~moved], "job changed")
        self.stop(rows[failed & ~waits], "replaced")
        missing = group.count - int(kept.sum()) - int(done.sum())
        replaced = lost | (alive & ~same) | (failed & ~waits) | open_
        if len(evicted):
            evicted = evicted[~np.isin(table.index[evicted], table.index[rows])]
        again = np.concatenate((rows[replaced], evicted))
        if away.any():
            again = again[~np.isin(table.index[again], table.index[rows[kept | done]])]
        again = self._newest(again)
        self.want(group, missing, rows[kept | done], again)

    def _replace(self, group: GroupSpec, rows: Rows, lost: Mask) -> None:
        """Replace what is lost of a calm group, as far as it is still wanted. Shapes: rows, lost (R,)."""
        index = self.state.allocations.index[rows]
        kept, gone = rows[~lost], rows[lost]
        missing = group.count - len(kept)
        if missing < 0 or int(np.bincount(index).max()) > 1:
            # Too many of them, or some of one name.
            keep = self._one_of_each(group, rows, ~lost, np.zeros(len(rows), dtype=bool))
            kept = rows[self._cap(rows, keep, group.count)]
            missing, gone = group.count - len(kept), self._newest(gone)
        self.want(group, missing, kept, gone)

    def _is_calm(self, job: Job, group: GroupSpec, rows: Rows) -> bool:
        """Tell whether nothing happened to any of these rows but to its node: by far the most groups, most of the time.

        What `compare` does for one of these is the rule with all that is empty left out; a property test compares both.
        """
        state, table = self.state, self.state.allocations
        if table.displaced or state.fleet.drains or not len(rows):
            return False
        refs, client = table.group[rows], table.client[rows]
        ref = int(refs[0])
        groups = table.groups
        return (
            groups.versions[ref] == job.version
            and groups.digests[ref] == group.digest
            and not np.count_nonzero(refs != ref)
            # All are to run, and all are pending or running: the first codes of each column.
            and not np.count_nonzero(table.desired[rows] != RUN)
            and not np.count_nonzero(client > RUNNING)
        )

    def _one_of_each(self, group: GroupSpec, rows: Rows, keep: Mask, done: Mask) -> Mask:
        """Keep one allocation of a name, and none of a name whose work is done; the others stop."""
        index = self.state.allocations.index[rows]
        over = leaving(self.state, group, rows, keep, score_of=self.score_of)
        if done.any():
            over |= keep & np.isin(index, index[done])
        if over.any():
            self.stop(rows[over], "another one of its name stays")
            keep = keep & ~over
        return keep

    def _still_open(self, group: GroupSpec, rows: Rows, away: Mask, done: Mask) -> Mask:
        """Which of those out of sight are still wanted; the others stop, their place is no more."""
        if not away.any():
            return away
        index = self.state.allocations.index[rows]
        over = away & ((index >= group.count) | np.isin(index, index[done]))
        self.stop(rows[over], "not needed")
        return away & ~over

    def _newest(self, rows: Rows) -> Rows:
        """Of each name the newest row."""
        table = self.state.allocations
        if len(rows) < 2 or len(np.unique(table.index[rows])) == len(rows):
            return rows
        by_age = rows[np.argsort(-table.key[rows], kind="stable")]
        _, firsts = np.unique(table.index[by_age], return_index=True)
        return by_age[np.sort(firsts)]

    def want(self, group: GroupSpec, missing: int, staying: Rows, replaced: Rows) -> None:
        """Ask for allocations: replacements first, under their old names where those are below the count."""
        if missing <= 0:
            return
        if not (len(staying) or len(replaced)):
            self.wants.append(Want(group, missing, np.arange(missing, dtype=np.int64), _NONE))
            return
        table = self.state.allocations
        if len(replaced):
            replaced = replaced[np.lexsort((replaced, table.index[replaced]))][:missing]
        names = self._names(group, missing, staying, replaced)
        ended = TERMINAL[table.client[staying]]
        if np.count_nonzero(ended):
            staying = staying[~ended]
        if not len(replaced):
            self.wants.append(Want(group, missing, names, staying))
            return
        evicted = table.desired[replaced] == EVICT
        failed = (table.client[replaced] == FAILED) & ~evicted
        more = missing - len(replaced)
        avoid = None
        if np.count_nonzero(failed):
            avoid = np.where(failed, table.node[replaced], -1).astype(np.int64)
        want = Want(
            group,
            missing,
            names,
            staying,
            previous=_longer(table.key[replaced], more),
            reschedules=_longer(table.reschedules[replaced].astype(np.int64) + failed, more),
            avoid=None if avoid is None else _longer(avoid, more, -1),
            evicted=_longer(evicted, more) if np.count_nonzero(evicted) else None,
        )
        self.wants.append(want)

    def _unreplaced(self, evicted: Rows) -> Rows:
        """Which evicted rows of a group no later allocation of the job stands for; of one name the newest."""
        if not len(evicted):
            return evicted
        table = self.state.allocations
        job_id = table.groups.job_ids[int(table.group[evicted[0]])]
        followed = {table.previous.get(row, 0) for row in table.rows_of(job_id).tolist()}
        newest: dict[int, int] = {}
        for row in sorted(evicted.tolist(), key=lambda row: int(table.key[row])):
            newest[int(table.index[row])] = row
        open_ = [row for row in newest.values() if int(table.key[row]) not in followed]
        return np.sort(np.asarray(open_, dtype=np.int32))

    def _names(
        self, group: GroupSpec, missing: int, staying: Rows, replaced: Rows
    ) -> NDArray[np.int64]:
        """Name what is missing. Shape: (missing,)."""
        if not len(staying) and not len(replaced):
            return np.arange(missing, dtype=np.int64)
        index = self.state.allocations.index
        taken = np.zeros(group.count, dtype=bool)
        held = index[staying]
        taken[held[held < group.count]] = True
        names = np.full(missing, -1, dtype=np.int64)
        for position, name in enumerate(index[replaced].tolist()):
            if name < group.count and not taken[name]:
                names[position] = name
                taken[name] = True
        if -1 in names:
            unnamed = (names < 0).nonzero()[0]
            names[unnamed] = (~taken).nonzero()[0][: len(unnamed)]
        return names

    def versions(self, job: Job, group: GroupSpec, rows: Rows) -> tuple[Mask, Mask]:
        """Which rows run what the group says now, and which run it under the newest version."""
        groups = self.state.allocations.groups
        refs, inverse = np.unique(self.state.allocations.group[rows], return_inverse=True)
        same = [groups.digests[ref] == group.digest for ref in refs.tolist()]
        current = [groups.versions[ref] == job.version for ref in refs.tolist()]
        return np.array(same, dtype=bool)[inverse], np.array(current, dtype=bool)[inverse]

    def _is_due(self, rows: Rows, failed: Mask) -> Mask:
        """Which failed rows may be replaced now, by log time."""
        due = np.zeros(len(rows), dtype=bool)
        at_ns = self.state.allocations.reschedule_at_ns
        for position in np.flatnonzero(failed).tolist():
            due[position] = 0 < at_ns.get(int(rows[position]), 0) <= self.state.t_ns
        return due

    def _cap(self, rows: Rows, keep: Mask, count: int) -> Mask:
        """Keep at most `count`, lowest names first; the rest stops."""
        excess = int(keep.sum()) - max(count, 0)
        if excess <= 0:
            return keep
        positions = np.flatnonzero(keep)
        names = self.state.allocations.index[rows[positions]]
        by_name = positions[np.lexsort((rows[positions], names))]
        highest = by_name[len(by_name) - excess :]
        kept = keep.copy()
        kept[highest] = False
        self.stop(rows[np.sort(highest)], "not needed")
        return kept

    def update(self, job: Job, group: GroupSpec, rows: Rows) -> None:
        """Let rows go on under the newest version."""
        if len(rows):
            names = tuple(rows.tolist())
            self.updates.append(InPlace(rows=names, group=group.name, version=job.version))

    def result(self) -> Reconciled:
        """Everything bucketed so far."""
        return Reconciled(tuple(self.stops), tuple(self.updates), tuple(self.wants))


def reconcile(
    state: State,
    job: Job | None,
    rows: Rows,
    *,
    mask_of: Callable[[GroupSpec], Mask],
    score_of: ScoreOf,
) -> Reconciled:
    """Compare a service or batch job with its allocation rows; what is stopped or forgotten may be of any type.

    `mask_of` gives a group's feasible nodes, ready or not; `score_of` what one more of it would score on nodes.
    """
    if not len(rows):
        return _NOTHING if job is None or job.stopped else Reconciled((), (), _fresh(job))
    out = Pass(state, job, mask_of, score_of)
    walk(out, rows, out.compare)
    return out.result()


def _fresh(job: Job) -> tuple[Want, ...]:
    """What a job wants of which there is nothing yet: what nearly every evaluation of small jobs is."""
    return tuple(
        [
            Want(group, group.count, np.arange(group.count, dtype=np.int64), _NONE)
            for group in job.groups
            if group.count > 0
        ]
    )


def walk(out: Pass, rows: Rows, compare: Callable[[Job, GroupSpec, Rows, Mask], None]) -> None:
    """Bucket what is lost, stopped with its job, or of a removed group; `compare` does what is left, by group."""
    rows, lost = out.lose(rows)
    job = out.job
    if job is None or job.stopped:
        out.stop_running(rows[~lost], "job stopped")
        return
    table = out.state.allocations
    position = {group.name: index for index, group in enumerate(job.groups)}
    of_row = table.group[rows]
    refs = np.unique(of_row)
    names = [position.get(table.groups.names[ref], -1) for ref in refs.tolist()]
    group_of = np.array(names, dtype=np.int64)[np.searchsorted(refs, of_row)]
    if -1 in names:
        out.stop_running(rows[(group_of < 0) & ~lost], "group removed")
    for index, group in enumerate(job.groups):
        mine = group_of == index
        compare(job, group, rows[mine], lost[mine])


def _longer(column: NDArray[_Number], more: int, value: int = 0) -> NDArray[_Number]:
    """Append `more` values."""
    return np.concatenate((column, np.full(more, value, dtype=column.dtype))) if more else column
