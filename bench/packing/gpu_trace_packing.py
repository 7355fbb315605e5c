"""P21, packing quality: pods of a production GPU trace, placed one by one up to 130 % of its GPUs.

    caravan bench p21 --data DIR [--variant NAME] [--policy fragmentation|fgd|binpack|spread]

The figure is GPU allocated over GPU capacity, when the pods that arrived request 100 % and 130 % of it, mean over the
seeds. No pod leaves or moves, and a pod that fits some node is placed. Every seed is also packed by Fragmentation
Gradient Descent, which is given the whole list's shapes beforehand; our policy learns them as they arrive. A ledger
that shares no code with the policies checks every placement against capacity and every refusal against every node.
"""

import sys
import zlib
from collections.abc import Callable
from statistics import fmean
from time import perf_counter
from typing import Final

import msgspec
import numpy as np

from bench.harness.outcome import InProcessOutcome
from bench.packing.gpu_trace import GpuTrace, read
from bench.packing.packers import Packer, packer
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk

RUNS: Final = 10
_FULL_PCT: Final = 100
_LAST_PCT: Final = 130


class PackedSeed(msgspec.Struct, frozen=True, kw_only=True):
    """One seed under one policy."""

    at_100_pct: float
    at_130_pct: float
    run_s: float
    pods: int
    refused: int
    #: of every placement in order.
    digest: int
    checks: dict[str, bool]


class PackingLedger:
    """Books kept apart from the policies: instance lists by node, in plain arithmetic."""

    def __init__(self, trace: GpuTrace) -> None:
        self._machines = trace.machines
        self._cpu = [one.cpu_milli for one in trace.machines]
        self._memory = [one.memory_mib for one in trace.machines]
        self._gpus = [[WHOLE] * one.gpus for one in trace.machines]
        self._refused: set[GpuAsk] = set()
        self.within_capacity = True
        self.none_refused_that_fitted = True

    def place(self, ask: GpuAsk, row: int, instances: tuple[int, ...]) -> None:
        """Book a placement; over capacity, a wrong model or a wrong number of instances is remembered forever."""
        self._cpu[row] -= ask.cpu_milli
        self._memory[row] -= ask.memory_mib
        gpus = self._gpus[row]
        proper = len(set(instances)) == ask.gpus and all(0 <= at < len(gpus) for at in instances)
        if not proper or (ask.gpus and not ask.models >> self._machines[row].model & 1):
            self.within_capacity = False
            return
        for at in instances:
            gpus[at] -= ask.gpu_share
        least = min(self._cpu[row], self._memory[row], *gpus, 0)
        self.within_capacity &= least == 0

    def refuse(self, ask: GpuAsk) -> None:
        """Inspect every node for one that would have had room; nothing leaves, so once a shape is enough."""
        if ask in self._refused:
            return
        self._refused.add(ask)
        for row, gpus in enumerate(self._gpus):
            if self._cpu[row] < ask.cpu_milli or self._memory[row] < ask.memory_mib:
                continue
            if ask.gpus and not ask.models >> self._machines[row].model & 1:
                continue
            if sum(free >= ask.gpu_share for free in gpus) >= ask.gpus:
                self.none_refused_that_fitted = False


def run(
    size: float, runs: int, *, data: str = "", variant: str = "default", policy: str = ""
) -> InProcessOutcome:
    """Pack every seed by `policy` and by the baseline; `size` below 1 takes that part of the nodes."""
    trace = read(data, variant, size)
    chosen = policy or "fragmentation"
    ours, theirs = [], []
    for seed in range(1, runs + 1):
        ours.append(pack(trace, seed, lambda: packer(chosen, trace)))
        theirs.append(ours[-1] if chosen == "fgd" else _baseline(trace, seed))
        print(f"seed {seed}: {_line(ours[-1])}; fgd {_line(theirs[-1])}", file=sys.stderr)
    again = pack(trace, 1, lambda: packer(chosen, trace))
    columns = {
        "at_100_pct": [one.at_100_pct for one in ours],
        "at_130_pct": [one.at_130_pct for one in ours],
        "run_s": [one.run_s for one in ours],
        "fgd_at_100_pct": [one.at_100_pct for one in theirs],
        "fgd_at_130_pct": [one.at_130_pct for one in theirs],
    }
    seeds = [
        {"seed": at + 1, **{name: values[at] for name, values in columns.items()}}
        for at in range(runs)
    ]
    means = {name: round(fmean(values), 3) for name, values in columns.items()}
    both = [*ours, *theirs]
    return InProcessOutcome(
        size={
            "nodes": len(trace.machines),
            "gpus": trace.capacity_share // WHOLE,
            "pods": round(fmean([one.pods for one in ours])),
            "refused": round(fmean([one.refused for one in ours])),
        },
        result={"variant": variant, "policy": chosen, **means, "per_seed": seeds},
        result_min={name: min(values) for name, values in columns.items()},
        result_max={name: max(values) for name, values in columns.items()},
        checks={name: all(one.checks[name] for one in both) for name in both[0].checks}
        | {"deterministic": again.digest == ours[0].digest},
        runs=runs,
    )


def pack(trace: GpuTrace, seed: int, make: Callable[[], Packer]) -> PackedSeed:
    """Draw and place until requests reach 130 %. The clock runs from the first pod, the ledger included."""
    started_s = perf_counter()
    policy = make()
    columns, ledger, capacity = trace.columns(), PackingLedger(trace), trace.capacity_share
    arrived = allocated = pods = refused = digest = 0
    at_full = -1
    for ask in trace.draw(seed):
        arrived += ask.total_share
        pods += 1
        choice = policy.choose(columns, ask)
        if choice is None:
            refused += 1
            ledger.refuse(ask)
        else:
            taken = columns.take(ask, choice.row, choice.instance)
            policy.placed(choice)
            ledger.place(ask, choice.row, taken)
            allocated += ask.total_share
            digest = zlib.crc32(np.array([pods, choice.row, *taken], "<i8").tobytes(), digest)
        if at_full < 0 and arrived * 100 >= capacity * _FULL_PCT:
            at_full = allocated
        if arrived * 100 >= capacity * _LAST_PCT:
            break
    return PackedSeed(
        at_100_pct=round(100 * at_full / capacity, 3),
        at_130_pct=round(100 * allocated / capacity, 3),
        run_s=round(perf_counter() - started_s, 3),
        pods=pods,
        refused=refused,
        digest=digest,
        checks={
            "within_capacity": ledger.within_capacity,
            "none_refused_that_fitted": ledger.none_refused_that_fitted,
        },
    )


def _baseline(trace: GpuTrace, seed: int) -> PackedSeed:
    return pack(trace, seed, lambda: packer("fgd", trace))


def _line(packed: PackedSeed) -> str:
    return (
        f"{packed.at_100_pct:.3f} % at 100, {packed.at_130_pct:.3f} % at 130, {packed.run_s:.1f} s"
    )
