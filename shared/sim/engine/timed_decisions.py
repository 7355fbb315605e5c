"""Timed decisions of scheduler workers: the core's `place`, with its virtual time and a record of each decision."""

from collections.abc import Callable

import msgspec

from shared.core.scheduling import place as core
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.sim.engine.service_times import ServiceTimes


class TimedDecision(msgspec.Struct, frozen=True, gc=False):
    """One decided evaluation. `cpu_ns` is measured; nothing in the run depends on it."""

    at_ns: int
    placed: int
    stopped: int
    evicted: int
    #: virtual.
    took_ns: int
    cpu_ns: int


class EvaluationLatency(msgspec.Struct, frozen=True, gc=False):
    """Virtual time of one evaluation from its last lease to its end in the log. `load`: leases outstanding then."""

    at_ns: int
    took_ns: int
    load: int


class TimedPlacement:
    """Decisions of one worker; `noted` is called with each."""

    def __init__(
        self,
        times: ServiceTimes,
        noted: Callable[[TimedDecision], None],
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
        decision = TimedDecision(
            self._now_ns(),
            placed,
            sum(len(one.rows) for one in proposal.stops),
            sum(len(one.rows) for one in proposal.evictions),
            took_ns,
            cpu_ns,
        )
        self._noted(decision)
        return proposal

    def spent_ns(self) -> int:
        """Return the virtual time of all decisions since the last call."""
        spent, self._spent_ns = self._spent_ns, 0
        return spent
