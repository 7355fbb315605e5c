"""What a run keeps of its container, beside it in `runs/<n>/`: that it may have been started.

How it ended: `../end_record.py`.

Decides the meaning of the engine's state of an ended container. Independent of the engine.
"""

import contextlib
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from services.agent.drivers.driver import TaskExit, exit_from_code
from services.agent.drivers.end_record import replace_file

OOM_TEXT = "OOM Killed: memory limit exceeded"
OOM_CHILD_TEXT = "a child process was killed at the memory limit"
#: What the engine says of a container that was killed.
_KILLED = 128 + signal.SIGKILL
_CLAIM = "container"


class ContainerClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A container that was, or is about to be, started."""

    container: str
    kernel_boot: str


def write_claim(directory: Path, claim: ContainerClaim) -> None:
    """Keep a claim; it is there before the container runs."""
    replace_file(directory / _CLAIM, msgspec.json.encode(claim))


def read_claim(directory: Path) -> ContainerClaim | None:
    """Read a run's claim; None: it was never started."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory / _CLAIM).read_bytes(), type=ContainerClaim)
    return None


def container_exit(state: dict[str, Any], sent: frozenset[int]) -> TaskExit:
    """Read how a container ended. `sent`: the signals that it was sent.

    The engine gives a signal as an exit code: 137 is one where it was sent, or where the kernel killed for memory.
    """
    code = int(state["ExitCode"])
    reason = str(state.get("Error") or "")
    signals = sent
    if state.get("OOMKilled"):
        is_own = code == _KILLED and signal.SIGKILL not in sent
        reason = OOM_TEXT if is_own else OOM_CHILD_TEXT if code != 0 else reason
        signals = sent | {signal.SIGKILL} if is_own else sent
    return exit_from_code(code, reason, signals=signals)


def ended_before_boot(state: dict[str, Any]) -> bool:
    """Return whether a container had ended before this machine was started: then its code is its own."""
    text = str(state.get("FinishedAt") or "")[:19]
    try:
        finished = datetime.fromisoformat(f"{text}+00:00").timestamp()
    except ValueError:
        return False
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    # The engine writes the year 1 for never.
    return 0 < finished < booted
