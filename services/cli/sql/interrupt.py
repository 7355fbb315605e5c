"""Work of a library that does not look at signals, in a thread, so that Ctrl-C reaches it.

The first Ctrl-C asks the library to stop and waits for that; a second one ends the process, since the library holds
what a clean end would wait for.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: How often an interruption is repeated: one that comes before the work has begun is forgotten.
_AGAIN_S = 0.1
_EXIT = 130


def interruptible(work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run work; on Ctrl-C interrupt it, and raise KeyboardInterrupt when it has ended. Raises what the work raises."""
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as err:  # noqa: BLE001 - the caller raises it.
            errors.append(err)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="question", daemon=True)
    try:
        # Ctrl-C may come while it starts, when the work has begun already.
        thread.start()
        done.wait()
    except KeyboardInterrupt:
        _end(done, interrupt)
        raise
    if errors:
        raise errors[0]
    return results[0]


def _end(done: threading.Event, interrupt: Callable[[], None]) -> None:
    try:
        while not done.wait(_AGAIN_S):
            interrupt()
    except KeyboardInterrupt:
        sys.stdout.flush()
        os._exit(_EXIT)
