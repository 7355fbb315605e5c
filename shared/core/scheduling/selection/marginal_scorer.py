"""Marginal scorer: the scores of one candidate's next allocations, one at a time."""

from functools import lru_cache

from shared.core.scheduling.scoring.pow10 import POW10, SCALE, STEPS_LOG2
from shared.core.scheduling.scoring.scores import CPU, MEMORY
from shared.core.scheduling.selection.candidates import CandidateRows, Demand


@lru_cache(maxsize=1)
def _powers() -> list[int]:
    """The table of powers as a list: a lookup costs a fifth of NumPy's."""
    powers: list[int] = POW10.tolist()
    return powers


class MarginalScorer:
    """Sum and number of the scorers of one candidate's k-th allocation."""

    def __init__(self, demand: Demand, candidates: CandidateRows) -> None:
        self._ask_cpu, self._ask_memory = demand.ask[CPU], demand.ask[MEMORY]
        self._binpack = demand.algorithm == "binpack"
        self._desired = max(demand.desired_count, 1)
        self._candidates = candidates
        self._powers = _powers()
        #: candidate -> its columns as plain numbers.
        self._seen: dict[int, tuple[int, int, int, int, int, int, int]] = {}

    def score(self, head: int, index: int) -> tuple[int, int]:
        """Score allocation number `index` (from 0) on a candidate."""
        seen = self._seen.get(head)
        if seen is None:
            seen = self._seen[head] = self._read(head)
        free_cpu, free_memory, cpu, memory, collisions, total, scorers = seen
        nth, table = index + 1, self._powers
        # A candidate has room, so the free fraction lies between 0 and 1.
        powers = (
            table[((free_cpu - nth * self._ask_cpu) << STEPS_LOG2) // cpu]
            + table[((free_memory - nth * self._ask_memory) << STEPS_LOG2) // memory]
        )
        total += (20 * SCALE - powers if self._binpack else powers - 2 * SCALE) // 18
        if collisions >= 0 and collisions + index > 0:
            same = collisions + index + 1
            total += -SCALE * same // self._desired if same < self._desired else -SCALE
            scorers += 1
        return total, scorers

    def _read(self, head: int) -> tuple[int, int, int, int, int, int, int]:
        """Columns of a candidate; collisions -1: the scorer is off. Sum and number of the constant scorers."""
        candidates = self._candidates
        affinity = 0 if candidates.affinity is None else int(candidates.affinity[head])
        penalty = candidates.penalised is not None and bool(candidates.penalised[head])
        return (
            int(candidates.free_cpu_mhz[head]),
            int(candidates.free_memory_mib[head]),
            int(candidates.capacity_cpu_mhz[head]),
            int(candidates.capacity_memory_mib[head]),
            -1 if candidates.collisions is None else int(candidates.collisions[head]),
            affinity - SCALE * penalty,
            1 + (affinity != 0) + penalty,
        )
