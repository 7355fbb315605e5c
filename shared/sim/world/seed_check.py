"""Many seeds in a row: the result of `caravan sim check`.

It reports failed seeds, and faults and invariants that were never exercised. With a mutant it stops at the first seed
that finds it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from shared.sim.environment.message_faults import FAULTS
from shared.sim.oracle.invariants import INVARIANTS
from shared.sim.world.world import SimulatedWorld, WorldOutcome

#: A run of fewer seeds may leave a fault unexercised.
PROOF_SEEDS_MIN = 50


class SeedFailure(msgspec.Struct, frozen=True):
    """A seed that broke an invariant, and the length of the log then. `detail`: a text for people."""

    seed: int
    seq: int
    invariant: str
    detail: str = ""


class SeedCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `--json`. With a mutant, `found`: whether a seed found it, `seed`: which."""

    seeds: int
    first_seed: int
    failed: tuple[SeedFailure, ...]
    transactions: int
    faults: dict[str, int]
    checks: dict[str, int]
    seeds_per_s: float
    mutant: str = ""
    found: bool = False
    seed: int = 0

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return self.found if self.mutant else not self.failed


def run_seeds(
    seeds: int,
    first_seed: int = 1,
    mutant: str = "",
    progress: Callable[[WorldOutcome], None] | None = None,
    *,
    processes: int = 1,
    clock_ns: Callable[[], int] | None = None,
) -> SeedCheckResult:
    """Run `seeds` worlds from `first_seed`; with a mutant, until one finds it.

    `progress` is called with every outcome, in the order of seeds; a single seed has its trace. `clock_ns`
    measures the speed. Raises KeyError for an unknown mutant.
    """
    began_ns = clock_ns() if clock_ns is not None else 0
    outcomes: list[WorldOutcome] = []
    for outcome in _outcomes(range(first_seed, first_seed + seeds), mutant, processes):
        outcomes.append(outcome)
        if progress is not None:
            progress(outcome)
        if mutant and outcome.invariant:
            break
    took_ns = clock_ns() - began_ns if clock_ns is not None else 0
    return _result(outcomes, seeds, first_seed, mutant=mutant, took_ns=took_ns)


def _outcomes(seeds: range, mutant: str, processes: int) -> Iterator[WorldOutcome]:
    if len(seeds) == 1:
        yield SimulatedWorld(seeds[0], trace=True, mutant=mutant).run()
        return
    if processes < 2:
        for seed in seeds:
            yield run_seed(seed, mutant)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        chunk = max(1, min(8, len(seeds) // processes))
        try:
            yield from pool.map(run_seed, seeds, [mutant] * len(seeds), chunksize=chunk)
        finally:
            pool.shutdown(cancel_futures=True)


def run_seed(seed: int, mutant: str = "") -> WorldOutcome:
    """Run one world without a trace."""
    return SimulatedWorld(seed, mutant=mutant).run()


def _result(
    outcomes: list[WorldOutcome], seeds: int, first_seed: int, *, mutant: str, took_ns: int
) -> SeedCheckResult:
    faults = {kind: sum(one.faults.get(kind, 0) for one in outcomes) for kind in FAULTS}
    checks = {name: sum(one.checks.get(name, 0) for one in outcomes) for name in INVARIANTS}
    broken = [SeedFailure(o.seed, o.seq, o.invariant, o.detail) for o in outcomes if o.invariant]
    if not mutant and seeds >= PROOF_SEEDS_MIN:
        never = [name for name, count in {**faults, **checks}.items() if not count]
        broken += [SeedFailure(first_seed, 0, f"{name} was never exercised") for name in never]
    found = bool(mutant and broken)
    return SeedCheckResult(
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
