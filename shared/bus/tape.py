"""A role's steps on tape: what it was given and when, so that it can be played again, alone, and measured.

A role is a function of its inputs: whoever plays a tape sees the same effects as the one who recorded it. Decides
only how that is written down. Switched on by `CARAVAN_TAPE` for a role in real life, played by `bench/tapes.py`.
Tapes are Python pickles, to be played by the release that wrote them and by nobody who does not trust their origin.
"""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from shared.core import role as r
from shared.core.role import Role
from shared.errors import ConfigInvalid


class Taped:
    """A role like the one it holds, whose steps are written to a file; the role itself is the first entry."""

    def __init__(self, role: Role, path: Path) -> None:
        self._role = role
        # It holds whatever the jobs hold: nobody else may read it.
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        pickle.dump(role, self._file)

    def __getattr__(self, name: str) -> Any:
        """All but the step is the role's own."""
        return getattr(self._role, name)

    def step(self, inputs: list[r.Input], now_ns: int) -> list[r.Effect]:
        """Write down what comes in, then step."""
        pickle.dump((inputs, now_ns), self._file)
        # A role that is killed shall leave what it was killed by.
        self._file.flush()
        return self._role.step(inputs, now_ns)

    def close(self) -> None:
        """End the tape; the end of the process does that, too."""
        self._file.close()


def taped(role: Role, folder: str) -> Role:
    """Let a role write `<name>-<instance>.tape` into `folder`; without one it goes on as it is.

    Raises ConfigInvalid for a folder that cannot be written into.
    """
    if not folder:
        return role
    path = Path(folder) / f"{role.name}-{role.instance}.tape"
    try:
        return cast("Role", Taped(role, path))
    except OSError as err:
        raise ConfigInvalid(f"CARAVAN_TAPE: cannot write {path}: {err.strerror}") from err


def played(path: Path) -> tuple[Role, Iterator[tuple[list[r.Input], int]]]:
    """Open a tape: the role as it was before its first step, and its steps. A step that was cut off ends the tape."""
    file = path.open("rb")
    return cast("Role", pickle.load(file)), _steps(file)  # noqa: S301 - our own file, by our own hand.


def _steps(file: Any) -> Iterator[tuple[list[r.Input], int]]:
    with file:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301 - as above.
            except (EOFError, pickle.UnpicklingError):
                return
