"""Ctrl-C while Python still imports ends the process silently instead of with a traceback.

A parent that ignores SIGINT keeps its setting.
"""

import contextlib
import os
import signal
from types import FrameType

_HAD_DEFAULT_HANDLER = signal.getsignal(signal.SIGINT) is signal.default_int_handler

if _HAD_DEFAULT_HANDLER:
    # ValueError: not in the main thread, which alone receives signals.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def restore_keyboard_interrupt() -> None:
    """Make Ctrl-C a KeyboardInterrupt again."""
    if _HAD_DEFAULT_HANDLER and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.default_int_handler)


def is_deferred(number: int, frame: FrameType | None) -> bool:
    """Tell whether a handler was called where its exception would be lost; the signal is sent again a moment later.

    That is the callback of a weak reference, which Python runs in the middle of anything.
    """
    if frame is None or not frame.f_code.co_filename.endswith(("_weakrefset.py", "weakref.py")):
        return False
    import threading

    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
    return True
