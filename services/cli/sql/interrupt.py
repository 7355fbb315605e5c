"""Work of a library that does not look at signals, in a thread, so that Ctrl-C reaches it.

The first Ctrl-C asks the library to stop and waits for that; a second one ends the process, since the library holds
what a clean end would wait for. Ctrl-C is counted by a handler and looked at between short waits: an exception that
is raised wherever the wait happens to be can leave its lock broken, and a signal that comes just before the wait
begins would not end it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: How often Ctrl-C is looked at, and an interruption repeated: one that comes before the work has begun is forgotten.
_LOOK_S = 0.1
_EXIT = 130


def interruptible(work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run work; on Ctrl-C interrupt it, and raise KeyboardInterrupt when it has ended. Raises what the work raises.

    Only the main thread can be told of Ctrl-C: call it there. Where the parent ignores SIGINT, it stays ignored.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()
    presses = 0

    def run() -> None:
        try:
            results.append(work())
        except BaseException as err:  # noqa: BLE001 - the caller raises it.
            errors.append(err)
        finally:
            done.set()

    def pressed(_number: int, _frame: object) -> None:
        nonlocal presses
        presses += 1

    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, pressed)
    try:
        threading.Thread(target=run, name="question", daemon=True).start()
        while not done.wait(_LOOK_S):
            if presses > 1:
                sys.stdout.flush()
                os._exit(_EXIT)
            if presses:
                interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    if presses:
        raise KeyboardInterrupt
    if errors:
        raise errors[0]
    return results[0]
