"""`python -m bench.tapes FILE...`: play recorded steps of roles again, each alone, and say what they cost.

A tape comes from a role that ran with `CARAVAN_TAPE` set to a folder. The same inputs in the same batches, without a
bus and without the other processes: what is left is the role's own work, and it repeats to a few per cent. The digest
is of all effects: a change that shall only be faster leaves it as it was.
"""

import argparse
import gc
import pickle
import sys
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from shared.bus.runner import collect_rarely
from shared.bus.tape import played
from shared.core import role as r


class Played(msgspec.Struct, frozen=True):
    """One play of a tape."""

    role: str
    steps: int
    inputs: int
    cpu_s: float
    effects: str


def play(path: Path) -> Played:
    """Play a tape once, from a role that has read nothing."""
    role, steps = played(path)
    tape: list[Any] = list(steps)
    digest, inputs = blake2b(digest_size=8), 0
    out: list[list[r.Effect]] = []
    gc.collect()
    collect_rarely()
    began = time.process_time()
    for given, now_ns in tape:
        out.append(role.step(given, now_ns))
    took = time.process_time() - began
    for (given, _), effects in zip(tape, out, strict=True):
        inputs += len(given)
        digest.update(pickle.dumps([(type(one).__name__, one) for one in effects]))
    return Played(role.name, len(tape), inputs, took, digest.hexdigest())


def main() -> int:
    """Play each tape some times; print a line for each, in the order given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tapes", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--runs", type=int, default=3, help="play each so often; the fastest counts"
    )
    parser.add_argument("--per", type=int, default=0, help="divide by so many jobs")
    options = parser.parse_args()
    for path in options.tapes:
        plays = [play(path) for _ in range(options.runs)]
        best = min(plays, key=lambda one: one.cpu_s)
        per = f"  {1e6 * best.cpu_s / options.per:7.1f} us a job" if options.per else ""
        print(
            f"{best.role:13} {best.steps:6} steps {best.inputs:7} inputs  {best.cpu_s:6.3f} CPU-s{per}"
            f"  effects {best.effects}"
        )
        if any(one.effects != best.effects for one in plays):
            print(f"{best.role}: the same tape gave other effects", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
