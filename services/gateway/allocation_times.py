"""How long allocations waited for a place and took to start: columns that grow with the log. A follower of the role.

Decides what is measured. An allocation is asked for since its job has evaluations that did not end, placed by a plan,
and running by the first report that says so. Bounded: the oldest ones leave.
"""

import msgspec
import numpy as np

from schemas.allocations import AllocationsReported
from schemas.base import JobId
from schemas.envelope import LogRecord
from schemas.plans import PlanCommitted
from shared.core.columns import Int64s, Rows, grown
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, RUNNING
from shared.query.evaluation_index import EvaluationIndex

#: Allocations kept at least; at twice as many the older half leaves.
KEPT = 250_000
#: Upper edges of the bins, ms: 1, 2, 5 of each power of ten up to 14 hours; what is longer is in the last bin.
EDGES_MS = tuple(m * 10**e for e in range(8) for m in (1, 2, 5))
QUANTILES = (0.5, 0.9, 0.99)
_MS = 1_000_000


class DelayDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """One delay over allocations. `bins`: counts by `EDGES_MS`, and one more."""

    count: int
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    bins: list[int] = []


class AllocationDelays(msgspec.Struct, frozen=True, kw_only=True):
    """Delays of the allocations placed by records `first_seq` to `seq`."""

    first_seq: int
    seq: int
    edges_ms: tuple[int, ...] = EDGES_MS
    #: from request to place, from place to the first report that it runs, and both together.
    placed: DelayDistribution
    started: DelayDistribution
    running: DelayDistribution


class AllocationTimes:
    """When the newest allocations were asked for, placed and running."""

    def __init__(self, histories: EvaluationIndex) -> None:
        self._histories = histories
        self._count = 0
        #: records before it are not included.
        self.first_seq = 1
        self._seq = np.zeros(0, dtype=np.int64)
        self._asked = np.zeros(0, dtype=np.int64)
        self._placed = np.zeros(0, dtype=np.int64)
        self._running = np.zeros(0, dtype=np.int64)
        #: row -> place in the columns; below 0: not known.
        self._place_of = np.zeros(0, dtype=np.int64)
        #: since when the jobs of the record being applied are evaluated.
        self._since: dict[JobId, int] = {}

    # ---- as a follower ----

    def begin(self, state: State, seq: int) -> None:
        """Begin at a state: when its allocations were placed is not known."""
        del state
        self._count, self.first_seq = 0, seq + 1
        self._place_of = np.zeros(0, dtype=np.int64)

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        """Note since when the jobs of plans are evaluated: the record may end that."""
        del state, seq
        self._since = {
            one.job_id: self._histories.since_ns(one.job_id) or record.t_ns
            for one in record.events
            if type(one) is PlanCommitted
        }

    def after(self, state: State, record: LogRecord, seq: int) -> None:
        """Take in placements and reports."""
        for event in record.events:
            if type(event) is PlanCommitted:
                total = sum(sum(one.counts) for one in event.placements)
                rows = state.allocations.rows_of(event.job_id)
                if total and len(rows) >= total:
                    self._add(rows[-total:], seq, self._since[event.job_id], record.t_ns)
            elif type(event) is AllocationsReported and event.rows:
                codes = np.asarray(event.statuses)
                runs = np.asarray(event.rows, dtype=np.int32)
                self._run(runs[(codes == RUNNING) | (codes == COMPLETE)], record.t_ns)

    def _add(self, rows: Rows, seq: int, asked_ns: int, placed_ns: int) -> None:
        if self._count >= 2 * KEPT:
            self._leave()
        at = slice(self._count, self._count + len(rows))
        self._count = at.stop
        for name in ("_seq", "_asked", "_placed", "_running"):
            setattr(self, name, grown(getattr(self, name), self._count))
        self._seq[at], self._asked[at], self._placed[at], self._running[at] = (
            seq,
            asked_ns,
            placed_ns,
            0,
        )
        size = len(self._place_of)
        self._place_of = grown(self._place_of, int(rows.max()) + 1)
        self._place_of[size:] = -1
        self._place_of[rows] = np.arange(at.start, at.stop)

    def _leave(self) -> None:
        """Drop the oldest but KEPT."""
        gone = self._count - KEPT
        self.first_seq = int(self._seq[gone - 1]) + 1
        for name in ("_seq", "_asked", "_placed", "_running"):
            setattr(self, name, getattr(self, name)[gone : self._count].copy())
        self._count = KEPT
        self._place_of -= gone

    def _run(self, rows: Rows, t_ns: int) -> None:
        known = self._place_of[rows[rows < len(self._place_of)]]
        known = known[known >= 0]
        self._running[known[self._running[known] == 0]] = t_ns

    # ---- reading ----

    def delays(self, seq: int, t_ns: int) -> AllocationDelays:
        """The distributions as they were behind a record, written at `t_ns`."""
        count = int(np.searchsorted(self._seq[: self._count], seq, "right"))
        asked, placed, running = (one[:count] for one in (self._asked, self._placed, self._running))
        runs = (running > 0) & (running <= t_ns)
        return AllocationDelays(
            first_seq=self.first_seq,
            seq=seq,
            placed=distribution(placed - asked),
            started=distribution((running - placed)[runs]),
            running=distribution((running - asked)[runs]),
        )


def distribution(delays_ns: Int64s) -> DelayDistribution:
    """Summarize delays. Shape: (N,)."""
    count = len(delays_ns)
    if not count:
        return DelayDistribution(count=0, bins=[0] * (len(EDGES_MS) + 1))
    ordered = np.sort(np.maximum(delays_ns, 0))
    edges = np.asarray(EDGES_MS, dtype=np.int64) * _MS
    bins = np.bincount(np.searchsorted(edges, ordered, "left"), minlength=len(edges) + 1)
    p50, p90, p99 = (float(ordered[min(int(count * one), count - 1)]) / _MS for one in QUANTILES)
    return DelayDistribution(
        count=count,
        mean_ms=float(int(ordered.sum()) // count) / _MS,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        max_ms=float(ordered[-1]) / _MS,
        bins=bins.tolist(),
    )
