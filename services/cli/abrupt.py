"""Ctrl-C while the program is still being loaded: it ends without a word, as a program without a handler does.

Decides only that. Python's own handler would print a traceback out of whatever is being imported. `main` imports this
before anything slow and calls `over` when all is loaded; who took SIGINT otherwise (a parent that ignores it) keeps it.
"""

import contextlib
import signal

_IS_PYTHONS = signal.getsignal(signal.SIGINT) is signal.default_int_handler

if _IS_PYTHONS:
    # Not in the main thread: nobody's Ctrl-C arrives there.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def over() -> None:
    """Let Ctrl-C be a KeyboardInterrupt again."""
    if _IS_PYTHONS and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.default_int_handler)
