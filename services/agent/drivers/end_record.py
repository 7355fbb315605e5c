"""How a run ended, kept beside it in `runs/<n>/` by drivers whose tasks are not processes of the starter."""

import contextlib
import os
from pathlib import Path

import msgspec

from services.agent.drivers.driver import TaskExit

_END = "exit"


def write_end(directory: Path, end: TaskExit) -> None:
    """Keep an end, on disk when this returns; a full disk costs only a later life its knowledge."""
    with contextlib.suppress(OSError):
        replace_file(directory / _END, msgspec.json.encode(end), sync=True)


def read_end(directory: Path) -> TaskExit | None:
    """Read a run's end; None: it has none that is known."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory / _END).read_bytes(), type=TaskExit)
    return None


def replace_file(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Write a file whole or not at all. Raises OSError."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)
