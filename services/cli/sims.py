"""`caravan sim check`."""

import os
import sys
import time

import msgspec

from services.cli.output import CliError, Column, Output
from shared.sim.check import run_check
from shared.sim.mutants import MUTANTS
from shared.sim.world import Outcome

#: Of a single seed that fails, so many last transitions are shown.
TRACE_LINES = 60


def check(out: Output, *, seeds: int, seed: int, mutant: str, processes: int) -> int:
    """Run worlds from `seed` on, and say what they have shown."""
    if seeds < 1:
        raise CliError("usage", "--seeds must be at least 1")
    if mutant and mutant not in MUTANTS:
        raise CliError("usage", f"no mutant {mutant!r}; known are {', '.join(sorted(MUTANTS))}")
    done = 0

    def progress(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        for line in outcome.trace[-TRACE_LINES:] if outcome.invariant else ():
            out.progress(line)
        if outcome.invariant:
            out.progress(
                f"seed {outcome.seed}: {outcome.invariant} at seq {outcome.seq}: {outcome.detail}"
            )
        if sys.stderr.isatty():
            print(f"\r{done}/{seeds} seeds", end="", file=sys.stderr, flush=True)

    result = run_check(
        seeds,
        seed,
        mutant,
        progress,
        processes=min(processes or os.cpu_count() or 1, seeds),
        clock_ns=time.monotonic_ns,
    )
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    found = msgspec.to_builtins(result)
    for one in found["failed"]:
        one.pop("detail", None)
    out.result(found)
    out.fields(
        [
            ("Seeds", f"{result.seeds} from {result.first_seed}"),
            ("Transactions", str(result.transactions)),
            ("Speed", f"{result.seeds_per_s} seeds/s"),
            ("Failed", str(len(result.failed))),
        ]
    )
    columns = [Column("FAULT"), Column("TIMES", right=True)]
    out.table(columns, sorted(result.faults.items()), "Faults")
    columns = [Column("INVARIANT"), Column("CHECKS", right=True)]
    out.table(columns, sorted(result.checks.items()), "Invariants")
    if mutant:
        text = f"found by seed {result.seed}" if result.found else "NOT FOUND"
        out.line(f"\nmutant {mutant}: {text}", "green" if result.found else "red")
    for failure in () if mutant else result.failed:
        out.line(f"seed {failure.seed}, seq {failure.seq}: {failure.invariant}", "red")
    return 0 if result.ok else 1
