"""Two long computations at once, the first in a process of its own; in turn on a machine with one processor.

Decides nothing about what is computed. The child is a copy of this process and sends back what it found.
"""

import os
import pickle
from collections.abc import Callable
from typing import TypeVar

from services.cli.output import CliError

A = TypeVar("A")
B = TypeVar("B")


def at_once(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """Return what both give. What either raises is raised here; what the first raises as a CliError."""
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
        # Whoever writes to nobody ends, too.
        os.waitpid(child, 0)
    if not data:
        raise CliError("failed", "the process of the unchanged fork ended without a word")
    is_fine, value = pickle.loads(data)  # noqa: S301 - written by our own copy.
    if not is_fine:
        raise CliError("failed", value)
    return value, found


def _child(work: Callable[[], object], writing: int) -> None:
    """Compute, send, and end without the rest of this program."""
    code = 1
    try:
        try:
            told: tuple[bool, object] = (True, work())
        except Exception as err:  # noqa: BLE001 - told to the parent, which raises it.
            told = (False, f"{type(err).__name__}: {err}")
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(told, stream, protocol=5)
        code = 0
    finally:
        os._exit(code)
