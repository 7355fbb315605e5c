"""P22, compaction: how few nodes, left over after removing others at random, hold a whole load.

    caravan bench p22 [--data DIR] [--variant NAME]

A seed orders the nodes; the figure is the least number of first nodes on which the load fits, placed as it arrives: the
90th percentile of 11 seeds. Two loads: the million containers of P1 on 5,000 nodes in five classes, by `binpack`; and,
where the trace is available, its whole list of pods on two copies of its fleet (on one it does not fit), shuffled, by
`fragmentation`. There one pod in 500 may stay out, as in the published measure (Verma et al., "Evaluating job
packing in warehouse-scale computing", 2014); otherwise one late pod of eight GPUs would decide. Best known: for the
first load the capacity of the kept nodes, which no packing beats; for the second the best of several offline
packings, which sort all pods beforehand.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from bench.harness.outcome import InProcessOutcome
from bench.packing.gpu_trace import GpuTrace, read
from bench.packing.packed_nodes import ASK, CAPACITY, CLASSES, COUNT, JOBS, NODES, pack_groups
from bench.packing.packers import FragmentationGradient, OnlineFragmentation, Packer
from shared.core.columns import Int64s
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk
from shared.core.scheduling.packing.hole_values import STEPS, hole_values
from shared.core.splitmix import splitmix64, splitmix64_array

RUNS: Final = 11
_COPIES: Final = 2
#: One pod in so many may find no room.
_PICKY: Final = 500
_PERCENTILE: Final = 90
#: The goal: at most so much above the best known.
_WITHIN_PCT: Final = 2


def run(size: float, runs: int, *, data: str = "", variant: str = "default") -> InProcessOutcome:
    """Seek the least number of nodes by seed; `size` scales load and nodes; no `data`: no trace."""
    needed: dict[str, list[int]] = {"c1m": []}
    known: dict[str, list[int]] = {"c1m": []}
    trace = _doubled(read(data, variant, size)) if data else None
    if trace is not None:
        needed["openb"], known["openb"] = [], []
    for seed in range(1, runs + 1):
        bound, found = _c1m(size, seed)
        known["c1m"].append(bound)
        needed["c1m"].append(found)
        if trace is not None:
            best, found = _openb(trace, seed, size)
            known["openb"].append(best)
            needed["openb"].append(found)
        shown = ", ".join(f"{name} {needed[name][-1]} ({known[name][-1]})" for name in needed)
        print(f"seed {seed}: {shown}", file=sys.stderr)
    return InProcessOutcome(
        size={"nodes": max(int(NODES * size), 50)}
        | ({"openb_nodes": len(trace.machines)} if trace else {}),
        result={
            "workloads": {
                name: {"nodes_needed": _high(needed[name]), "best_known": _high(known[name])}
                for name in needed
            }
        },
        result_min={name: min(values) for name, values in needed.items()},
        result_max={name: max(values) for name, values in needed.items()},
        checks={
            f"{name}_within_2_pct": _high(needed[name]) * 100
            <= _high(known[name]) * (100 + _WITHIN_PCT)
            for name in needed
        },
        runs=runs,
    )


def _high(values: Sequence[int]) -> int:
    """The 90th percentile: the least value that so many are not above."""
    return sorted(values)[-(-len(values) * _PERCENTILE // 100) - 1]


def fewest_that_fit(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return a number of nodes that fits while one less does not; `high` + 1: not even `high` fits.

    `low` is a bound that nothing below fits, at most `high`. Steps double from there, then the gap is halved.
    """
    below, at, step = low - 1, low, 1
    while not fits(at):
        if at == high:
            return high + 1
        below, at, step = at, min(at + step, high), step * 2
    while at - below > 1:
        middle = (at + below) // 2
        if fits(middle):
            at = middle
        else:
            below = middle
    return at


# ---- the million containers ----


def _c1m(size: float, seed: int) -> tuple[int, int]:
    """Return how many nodes the capacity of every class needs, and how many binpack does."""
    nodes, jobs = max(int(NODES * size), 50), max(int(JOBS * size), 10)
    class_of = _order(nodes, seed) % CLASSES
    in_class = -(-jobs * COUNT // min(CAPACITY[at] // ASK[at] for at in range(len(ASK))))
    kept = np.stack([np.cumsum(class_of == one) for one in range(CLASSES)])
    bound = int(np.argmax((kept >= in_class).all(axis=0))) + 1
    return bound, fewest_that_fit(lambda count: _packs(class_of[:count], jobs), bound, nodes)


def _packs(class_of: Int64s, jobs: int) -> bool:
    """Place job by job, and tell whether all found room."""
    used = np.zeros((len(class_of), 3), np.int64, order="F")
    placed_all = all(placed == COUNT for placed in pack_groups(used, class_of, jobs))
    return placed_all and bool((used <= np.array(CAPACITY, np.int64)).all())


# ---- the trace ----


def _doubled(trace: GpuTrace) -> GpuTrace:
    return GpuTrace(trace.machines * _COPIES, trace.models, trace.pods)


def _openb(trace: GpuTrace, seed: int, size: float) -> tuple[int, int]:
    """Return how many nodes the best offline packing needs, and how many our policy does as pods arrive."""
    order = _order(len(trace.machines), seed)
    pods = tuple(trace.pods[at] for at in _order(len(trace.pods), ~seed)[: _part(trace, size)])
    offered = np.cumsum([trace.machines[at].gpus for at in order])
    every = len(order)
    bound = min(int(np.searchsorted(offered, _gpus_at_least(pods))) + 1, every)

    def kept(count: int) -> GpuTrace:
        return GpuTrace(tuple(trace.machines[at] for at in order[:count]), trace.models, pods)

    spared = len(pods) // _PICKY
    found = fewest_that_fit(
        lambda count: _holds(kept(count), OnlineFragmentation, pods, spared=spared), bound, every
    )
    if found == bound:
        return bound, found
    # What is sought is below what was found: one more than that is what was found.
    return fewest_that_fit(lambda count: _any_holds(kept(count)), bound, found - 1), found


def _part(trace: GpuTrace, size: float) -> int:
    return max(int(len(trace.pods) * min(size, 1.0)), 1)


def _holds(
    trace: GpuTrace, make: Callable[[GpuTrace], Packer], pods: Iterable[GpuAsk], *, spared: int
) -> bool:
    """Place pods in their order, and tell whether all but `spared` found room."""
    policy, columns = make(trace), trace.columns()
    for pod in pods:
        choice = policy.choose(columns, pod)
        if choice is None:
            spared -= 1
            if spared < 0:
                return False
            continue
        columns.take(pod, choice.row, choice.instance)
        policy.placed(choice)
    return True


def _gpus_at_least(pods: Sequence[GpuAsk]) -> int:
    """Return how many GPUs no packing does without: whole ones, and the best packing of fractions."""
    spared = sorted((pod.total_share for pod in pods), reverse=True)[: len(pods) // _PICKY]
    sizes = Counter(pod.gpu_share * STEPS // WHOLE for pod in pods if pod.gpu_share)
    whole = sum(pod.gpus for pod in pods if pod.gpu_share == WHOLE)
    unit = 1 << 20
    values = hole_values({size: count for size, count in sizes.items() if size < STEPS}, unit)
    parts = sum(values[size] * count for size, count in sizes.items() if size < STEPS)
    return max(whole + parts // unit - -(-sum(spared) // WHOLE), 0)


def _any_holds(trace: GpuTrace) -> bool:
    """Try offline packings: big ones first, those without GPUs at either end, with all known.

    An offline packing leaves out the largest pods.
    """
    kept = sorted(trace.pods, key=_bigness)[len(trace.pods) // _PICKY :]
    early = sorted(kept, key=lambda pod: (bool(pod.gpus), *_bigness(pod)))

    def knowing(one: GpuTrace) -> Packer:
        return OnlineFragmentation(one, one.pods)

    return (
        _holds(trace, knowing, kept, spared=0)
        or _holds(trace, knowing, early, spared=0)
        or _holds(trace, FragmentationGradient, kept, spared=0)
    )


def _bigness(pod: GpuAsk) -> tuple[int, int, int]:
    return (-pod.gpus * pod.gpu_share, -pod.cpu_milli, -pod.memory_mib)


def _order(count: int, seed: int) -> Int64s:
    """Shuffle 0 to count - 1; the same seed gives the same order."""
    index = np.arange(count, dtype=np.uint64) + np.uint64(splitmix64(seed))
    return np.argsort(splitmix64_array(index), kind="stable").astype(np.int64)
