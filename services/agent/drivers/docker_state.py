"""What a run keeps of its container, beside it in `runs/<n>/`: that it may have been started, and how it ended.

Decides what an engine's state of an ended container means. Must not know the engine.
"""

import contextlib
import os
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from services.agent.drivers.driver import Exit

_SIGNAL_BASE = 128
_CLAIM, _END = "container", "exit"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A container that was, or is about to be, started."""

    container: str
    kernel_boot: str


def write_claim(directory: Path, claim: Claim) -> None:
    """Keep a claim; it is there before the container runs."""
    _replace(directory / _CLAIM, msgspec.json.encode(claim))


def read_claim(directory: Path) -> Claim | None:
    """Read a run's claim; None: it was never started."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory / _CLAIM).read_bytes(), type=Claim)
    return None


def write_end(directory: Path, end: Exit) -> None:
    """Keep an end, on disk when this returns; a full disk costs only a later life its knowledge."""
    with contextlib.suppress(OSError):
        _replace(directory / _END, msgspec.json.encode(end), sync=True)


def read_end(directory: Path) -> Exit | None:
    """Read a run's end; None: it has none that is known."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory / _END).read_bytes(), type=Exit)
    return None


def _replace(path: Path, data: bytes, *, sync: bool = False) -> None:
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)


def exit_of_state(state: dict[str, Any]) -> Exit:
    """Read how a container ended: a code above 128 names a signal, out of memory is called so."""
    code = int(state["ExitCode"])
    number = code - _SIGNAL_BASE
    killed = number if 0 < number < signal.NSIG else 0
    reason = str(state.get("Error") or "")
    if state.get("OOMKilled") and code != 0:
        reason = "OOM Killed: it needed more memory than its limit"
    return Exit(code=code, signal=killed, reason=reason)


def ended_before_boot(state: dict[str, Any]) -> bool:
    """Say whether a container had ended before this machine was started: then its code is its own."""
    text = str(state.get("FinishedAt") or "")[:19]
    try:
        finished = datetime.fromisoformat(f"{text}+00:00").timestamp()
    except ValueError:
        return False
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    # The year 1 is the engine's word for never.
    return 0 < finished < booted
