"""Two long computations in parallel, the first in a forked process; one after the other on a single CPU."""

import os
import pickle
from collections.abc import Callable
from typing import TypeVar

from services.cli.runtime.output import CliError

A = TypeVar("A")
B = TypeVar("B")


def run_in_parallel(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """Return both results. Raises what either raises; errors of the first as CliError."""
    if (os.cpu_count() or 1) < 2:
        return one(), other()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _child(one, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as stream:
            found = other()
            data = stream.read()
    finally:
        # A child that writes to a closed pipe ends.
        os.waitpid(child, 0)
    if not data:
        raise CliError("failed", "worker process exited without a result")
    is_fine, value = pickle.loads(data)  # noqa: S301 - written by our own fork.
    if not is_fine:
        raise CliError("failed", value)
    return value, found


def _child(work: Callable[[], object], writing: int) -> None:
    """Compute, send the result, and exit without cleanup of the parent's state."""
    code = 1
    try:
        try:
            result: tuple[bool, object] = (True, work())
        except Exception as err:  # noqa: BLE001 - sent to the parent, which raises it.
            result = (False, f"{type(err).__name__}: {err}")
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(result, stream, protocol=5)
        code = 0
    finally:
        os._exit(code)
