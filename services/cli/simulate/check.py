"""`caravan sim check`."""

import os
import time

import msgspec

from services.cli.runtime.output import CliError, CommandOutput, result_from
from services.cli.runtime.progress import ProgressBar
from shared.sim.world.mutants import MUTANTS
from shared.sim.world.seed_check import run_seeds
from shared.sim.world.world import WorldOutcome

#: Last transitions printed of a failed single seed.
TRACE_LINES = 60


class FailedSeed(msgspec.Struct, frozen=True):
    """A seed that broke an invariant, and the length of the log then."""

    seed: int
    seq: int
    invariant: str


class SimCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """`sim check --json`. With a mutant, `found`: whether a seed found it, `seed`: which."""

    seeds: int
    first_seed: int
    failed: tuple[FailedSeed, ...]
    transactions: int
    faults: dict[str, int]
    checks: dict[str, int]
    seeds_per_s: float
    mutant: str
    found: bool
    seed: int


def check(out: CommandOutput, *, seeds: int, seed: int, mutant: str, processes: int) -> int:
    """Run worlds from `seed` on and print the outcome."""
    if seeds < 1:
        raise CliError("usage", "--seeds must be at least 1")
    if mutant and mutant not in MUTANTS:
        raise CliError(
            "usage", f"unknown mutant {mutant!r}; expected one of: {', '.join(sorted(MUTANTS))}"
        )
    done = 0

    def progress(outcome: WorldOutcome) -> None:
        nonlocal done
        done += 1
        for line in outcome.trace[-TRACE_LINES:] if outcome.invariant else ():
            out.progress(line)
        if outcome.invariant:
            out.progress(
                f"seed {outcome.seed}: {outcome.invariant} at seq {outcome.seq}: {outcome.detail}"
            )
        bar.update(done)

    with ProgressBar("simulating", seeds, "seeds") as bar:
        result = run_seeds(
            seeds,
            seed,
            mutant,
            progress,
            processes=min(processes or os.cpu_count() or 1, seeds),
            clock_ns=time.monotonic_ns,
        )
    failed = tuple(result_from(FailedSeed, one) for one in result.failed)
    out.result(result_from(SimCheckResult, result, failed=failed))
    out.fields(
        [
            ("Seeds", f"{result.seeds} from {result.first_seed}"),
            ("Transactions", str(result.transactions)),
            ("Speed", f"{result.seeds_per_s} seeds/s"),
            ("Failed", str(len(result.failed))),
        ]
    )
    out.table("FAULT|TIMES>", sorted(result.faults.items()), "Faults")
    out.table("INVARIANT|CHECKS>", sorted(result.checks.items()), "Invariants")
    if mutant:
        text = f"found by seed {result.seed}" if result.found else "NOT FOUND"
        out.line(f"\nmutant {mutant}: {text}", "green" if result.found else "red")
    for failure in () if mutant else result.failed:
        out.line(f"seed {failure.seed}, seq {failure.seq}: {failure.invariant}", "red")
    return 0 if result.ok else 1
