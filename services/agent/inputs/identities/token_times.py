"""When a task's token was received and how long it lives: kept beside the records of the task's runs.

An agent that starts again finds the running task with its token and renews it when its time comes. The token itself is
not kept: its mark, a digest of a text that cannot be guessed, tells tokens apart.
"""

import contextlib
import os
import time
from hashlib import sha256
from pathlib import Path

import msgspec

from services.agent.safe_open import open_below, open_regular, replace_below
from shared.core.runtime.input_specs import IDENTITY

_BYTES_MAX = 4_096


def boot_time_s() -> float:
    """Return the time since the machine came up, sleep included: a correction of the clock does not change it.

    After a boot no run is found again, so that no older record is read.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class TokenTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of one token. `life_s` 0: it does not expire."""

    mark: str
    received_s: float
    life_s: int

    def left_s(self, now_s: float) -> float:
        """How long the token is still worth something; a time before it was received is of another boot."""
        return self.life_s - (now_s - self.received_s) if now_s >= self.received_s else 0.0


def token_mark(token: str) -> str:
    """Return what a digest of a token is taken of."""
    return sha256(token.encode()).hexdigest()


def keep_times(top: Path, runs: Path, name: str, times: TokenTimes) -> None:
    """Keep the times of an identity's token in the directory of a task's runs. Raises OSError."""
    data = msgspec.json.encode(times)
    replace_below(top, _path(runs, name), data, mode=0o600, owner=(-1, -1))


def kept_times(top: Path, runs: Path, name: str) -> TokenTimes | None:
    """Read what an earlier life of the agent kept; None: nothing that can be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        directory = open_below(top, runs)
        try:
            fd = open_regular(_path(runs, name).name, directory, os.O_RDONLY)
        finally:
            os.close(directory)
        with os.fdopen(fd, "rb") as file:
            return msgspec.json.decode(file.read(_BYTES_MAX), type=TokenTimes)
    return None


def _path(runs: Path, name: str) -> Path:
    return runs / f"{IDENTITY}-{name}.json"
