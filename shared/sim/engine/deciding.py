"""What a worker decides, counted: how much virtual time it takes, and what each decision was about.

Decides nothing itself: it hands on to the core. Beside it: `cluster.py`, which lets a worker be busy for so long.
"""

from collections.abc import Callable

import msgspec

from shared.core import place as core
from shared.core.place import Assignment, Proposal, Snapshot
from shared.sim.engine.times import ServiceTimes


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One evaluation that a worker decided. `cpu_ns` is measured, and nothing in the run depends on it."""

    at_ns: int
    placed: int
    stopped: int
    evicted: int
    is_blocked: bool
    #: virtual.
    took_ns: int
    cpu_ns: int


class Decided(msgspec.Struct, frozen=True, gc=False):
    """One evaluation from its last lease to its end in the log, virtual. `load`: leases outstanding at its own."""

    at_ns: int
    took_ns: int
    load: int


class Deciding:
    """Decisions of one worker; `noted` hears of each."""

    def __init__(
        self,
        times: ServiceTimes,
        noted: Callable[[Decision], None],
        now_ns: Callable[[], int],
        cpu_ns: Callable[[], int] | None,
    ) -> None:
        self._times = times
        self._noted = noted
        self._now_ns = now_ns
        self._cpu_ns = cpu_ns
        self._spent_ns = 0

    def __call__(
        self, snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
    ) -> Proposal:
        """Decide as the core does."""
        clock = self._cpu_ns
        began = clock() if clock is not None else 0
        proposal = core.place(snapshot, assignment, seed=seed, lane=lane, lanes=lanes)
        cpu_ns = clock() - began if clock is not None else 0
        placed = sum(sum(one.counts) for one in proposal.placements)
        took_ns = self._times.decide_ns + placed * self._times.placement_ns
        self._spent_ns += took_ns
        decision = Decision(
            self._now_ns(),
            placed,
            sum(len(one.rows) for one in proposal.stops),
            sum(len(one.rows) for one in proposal.evictions),
            any(one.blocked is not None for one in proposal.follow_ups),
            took_ns,
            cpu_ns,
        )
        self._noted(decision)
        return proposal

    def spent_ns(self) -> int:
        """Return the virtual time of what was decided since the last call."""
        spent, self._spent_ns = self._spent_ns, 0
        return spent
