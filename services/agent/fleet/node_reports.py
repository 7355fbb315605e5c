"""The reports of one node of a fleet: registration and states, numbered, sent until the log has seen them.

The rules are those of services/agent/reports.py, over arrays: each report carries every unseen state, and is sent again
until the projection shows its number. While a report is unanswered, new states wait a little longer.
"""

import numpy as np

from schemas.base import NodeId
from schemas.nodes import BriefStates, NodeSpec, ReportNode
from services.agent.reports import GATHER_NS, RESEND_FIRST_NS, RESEND_MAX_NS
from shared.core.columns import Int64s, Rows, StatusCodes
from shared.fleet.simulated_allocs import SimulatedAllocs

#: How long the next report waits for the answer to the last one.
ANSWER_NS = 300_000_000
#: The most states in one report: below 400 KiB.
STATES_MAX = 10_000
#: `_spec_number` of a registration that the log has seen.
_SEEN = -1
StateChunk = tuple[Rows, Int64s]


class NodeReporter:
    """The reports of one node under one boot."""

    __slots__ = (
        "_carried",
        "_fresh",
        "_resend_ns",
        "_sent_ns",
        "_spec_number",
        "boot_id",
        "due_ns",
        "host_id",
        "node_id",
        "number",
        "spec",
    )

    def __init__(self, spec: NodeSpec, host_id: str, boot_id: str) -> None:
        self.node_id = NodeId(spec.node_id)
        self.spec = spec
        self.host_id = host_id
        self.boot_id = boot_id
        self.number = 0
        #: number that first carried the registration; 0: none yet.
        self._spec_number = 0
        self._fresh: list[StateChunk] = []
        #: by the number that first carried them.
        self._carried: list[tuple[int, StateChunk]] = []
        self._sent_ns = 0
        self._resend_ns = RESEND_FIRST_NS
        #: when the next report is due; 0: none.
        self.due_ns = 1

    @property
    def is_registered(self) -> bool:
        """Whether the log has seen this boot's registration."""
        return self._spec_number == _SEEN

    @property
    def is_unacknowledged(self) -> bool:
        """Whether a report was sent three times without an answer."""
        return self._resend_ns >= 4 * RESEND_FIRST_NS

    @property
    def unseen(self) -> int:
        """Number of states the log has not seen."""
        return sum(len(rows) for rows, _ in (*self._fresh, *(one for _, one in self._carried)))

    def register(self) -> None:
        """Register again."""
        self._spec_number = 0
        self._plan()

    def touch(self, rows: Rows, keys: Int64s) -> None:
        """Add changed states. Shapes: (A,)."""
        self._fresh.append((rows, keys))
        self._plan()

    def see(self, number: int) -> None:
        """Mark every report up to `number` as seen."""
        if 0 < self._spec_number <= number:
            self._spec_number = _SEEN
        elif not self._carried or self._carried[0][0] > number:
            return
        self._carried = [one for one in self._carried if one[0] > number]
        self._resend_ns = RESEND_FIRST_NS
        self._plan()

    def hurry(self) -> None:
        """Send again now: reports may have been lost with the connection."""
        self._sent_ns = 0
        self._resend_ns = RESEND_FIRST_NS
        self._plan()

    def _plan(self) -> None:
        waits = bool(self._carried) or self._spec_number > 0
        if self._spec_number == 0 or (self._fresh and not self._is_full()):
            self.due_ns = max(self._sent_ns + (ANSWER_NS if waits else GATHER_NS), 1)
        elif waits:
            self.due_ns = max(self._sent_ns + self._resend_ns, 1)
        else:
            self.due_ns = 0

    def _is_full(self) -> bool:
        return sum(len(rows) for _, (rows, _) in self._carried) >= STATES_MAX

    def compose(self, lives: SimulatedAllocs, now_ns: int) -> ReportNode:
        """Compose the due report."""
        if self._spec_number == 0 or (self._fresh and not self._is_full()):
            self.number += 1
            self._resend_ns = RESEND_FIRST_NS
            if self._spec_number == 0:
                self._spec_number = self.number
            self._carry()
        else:
            self._resend_ns = min(self._resend_ns * 2, RESEND_MAX_NS)
        self._sent_ns = now_ns
        self._plan()
        return ReportNode(
            node_id=self.node_id,
            host_id=self.host_id,
            boot_id=self.boot_id,
            number=self.number,
            spec=self.spec if self._spec_number > 0 else None,
            brief=self._brief(lives),
        )

    def _carry(self) -> None:
        room = STATES_MAX - sum(len(rows) for _, (rows, _) in self._carried)
        for at, (rows, keys) in enumerate(self._fresh):
            if len(rows) > room:
                self._carried.append((self.number, (rows[:room], keys[:room])))
                self._fresh = [(rows[room:], keys[room:]), *self._fresh[at + 1 :]]
                return
            room -= len(rows)
            self._carried.append((self.number, (rows, keys)))
        self._fresh = []

    def _brief(self, lives: SimulatedAllocs) -> BriefStates:
        """The current status and health of every carried state; rows reused by another allocation are left out."""
        if not self._carried:
            return BriefStates()
        rows = np.concatenate([rows for _, (rows, _) in self._carried])
        keys = np.concatenate([keys for _, (_, keys) in self._carried])
        known = lives.is_known(rows, keys)
        if not known.all():
            rows, keys = rows[known], keys[known]
        if len(self._carried) > 1:
            rows, firsts = np.unique(rows, return_index=True)
            keys = keys[firsts]
        statuses, healths = lives.status[rows], lives.health[rows]
        if (statuses != statuses[:1]).any() or (healths != healths[:1]).any():
            order = np.lexsort((healths, statuses))
            rows, keys = rows[order], keys[order]
            statuses, healths = statuses[order], healths[order]
        return BriefStates(
            keys=tuple(keys.tolist()),
            rows=tuple(rows.tolist()),
            statuses=_runs(statuses),
            healths=_runs(healths) if healths.any() else (),
        )


def _runs(codes: StatusCodes) -> tuple[int, ...]:
    """Write codes as runs: a code, how many, the next code, how many, and so on."""
    heads = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.diff(heads, append=len(codes))
    return tuple(np.stack((codes[heads].astype(np.int64), counts), axis=1).ravel().tolist())
