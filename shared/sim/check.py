"""Many seeds in a row: the result of `caravan sim check`.

Decides what a run has shown: which seeds failed, and whether every fault and every invariant was exercised at all.
With a mutant it looks for the first seed that finds the planted bug. Must not know a clock: the caller's may be given.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from shared.sim.findings import INVARIANTS
from shared.sim.weather import FAULTS
from shared.sim.world import Outcome, World

#: A run of fewer seeds is a look, not a proof: it may leave a fault unexercised.
PROOF_SEEDS_MIN = 50


class Failure(msgspec.Struct, frozen=True):
    """A seed that broke an invariant, and the length of the log then. `detail` is for people."""

    seed: int
    seq: int
    invariant: str
    detail: str = ""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. With a mutant, `found` says whether and `seed` which seed found it."""

    seeds: int
    first_seed: int
    failed: tuple[Failure, ...]
    transactions: int
    faults: dict[str, int]
    checks: dict[str, int]
    seeds_per_s: float
    mutant: str = ""
    found: bool = False
    seed: int = 0

    @property
    def ok(self) -> bool:
        """Say whether the run showed what it was made for."""
        return self.found if self.mutant else not self.failed


def run_check(
    seeds: int,
    first_seed: int = 1,
    mutant: str = "",
    progress: Callable[[Outcome], None] | None = None,
    *,
    processes: int = 1,
    clock_ns: Callable[[], int] | None = None,
) -> CheckResult:
    """Run `seeds` worlds from `first_seed` on; with a mutant, until one finds it.

    `progress` hears every outcome, in the order of seeds; that of a single seed comes with its trace. `clock_ns`
    measures the speed. Raises KeyError for an unknown mutant.
    """
    began_ns = clock_ns() if clock_ns is not None else 0
    outcomes: list[Outcome] = []
    for outcome in _outcomes(range(first_seed, first_seed + seeds), mutant, processes):
        outcomes.append(outcome)
        if progress is not None:
            progress(outcome)
        if mutant and outcome.invariant:
            break
    took_ns = clock_ns() - began_ns if clock_ns is not None else 0
    return _result(outcomes, seeds, first_seed, mutant=mutant, took_ns=took_ns)


def _outcomes(seeds: range, mutant: str, processes: int) -> Iterator[Outcome]:
    if len(seeds) == 1:
        yield World(seeds[0], trace=True, mutant=mutant).run()
        return
    if processes < 2:
        for seed in seeds:
            yield one_world(seed, mutant)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        chunk = max(1, min(8, len(seeds) // processes))
        try:
            yield from pool.map(one_world, seeds, [mutant] * len(seeds), chunksize=chunk)
        finally:
            pool.shutdown(cancel_futures=True)


def one_world(seed: int, mutant: str = "") -> Outcome:
    """Run one world without a trace."""
    return World(seed, mutant=mutant).run()


def _result(
    outcomes: list[Outcome], seeds: int, first_seed: int, *, mutant: str, took_ns: int
) -> CheckResult:
    faults = {kind: sum(one.faults.get(kind, 0) for one in outcomes) for kind in FAULTS}
    checks = {name: sum(one.checks.get(name, 0) for one in outcomes) for name in INVARIANTS}
    broken = [Failure(o.seed, o.seq, o.invariant, o.detail) for o in outcomes if o.invariant]
    if not mutant and seeds >= PROOF_SEEDS_MIN:
        never = [name for name, count in {**faults, **checks}.items() if not count]
        broken += [Failure(first_seed, 0, f"{name} was never exercised") for name in never]
    found = bool(mutant and broken)
    return CheckResult(
        seeds=len(outcomes),
        first_seed=first_seed,
        failed=tuple(broken),
        transactions=sum(one.transactions for one in outcomes),
        faults=faults,
        checks=checks,
        seeds_per_s=round(len(outcomes) * 1e9 / took_ns, 2) if took_ns else 0.0,
        mutant=mutant,
        found=found,
        seed=broken[0].seed if found else 0,
    )
