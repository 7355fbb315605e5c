"""Programs of the node's operator in a folder: which may be run. No other user may be able to change one.

They run with the agent's rights: secrets (`inputs/secrets/plugins.py`) and drivers (`drivers/plugin/`).
"""

import contextlib
import os
import stat
from pathlib import Path

from services.agent.safe_open import HANDLE, open_below
from shared.errors import ConfigInvalid


class ProgramRefused(Exception):
    """A program that may not be run; the text says why."""


class OperatorFolder:
    """One folder. `setting` names it to the operator; an empty `folder`: there is none. Raises ConfigInvalid."""

    def __init__(self, folder: str, setting: str) -> None:
        if folder and not Path(folder).is_absolute():
            raise ConfigInvalid(f"{setting} is {folder!r}, it must be an absolute path")
        self._folder = folder
        self._setting = setting

    def names(self) -> list[str]:
        """List what is in the folder, sorted, whether it may be run or not."""
        if self._folder:
            with contextlib.suppress(OSError):
                return sorted(one.name for one in Path(self._folder).iterdir())
        return []

    def check(self, name: str) -> str:
        """Return the path of a program that may be run. Raises ProgramRefused."""
        path = f"{self._folder.rstrip('/')}/{name}"
        try:
            _check_owner(self._folder, "", Path(self._folder).stat())
            fd = open_below(self._folder, name, flags=HANDLE)
            try:
                found = os.fstat(fd)
            finally:
                os.close(fd)
        except OSError as err:
            text = f"program {name} is not in the folder of {self._setting}: {err.strerror or err}"
            raise ProgramRefused(text) from None
        if not stat.S_ISREG(found.st_mode):
            kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
            raise ProgramRefused(f"program {name} is {kind}")
        _check_owner(path, name, found)
        if not found.st_mode & 0o111:
            raise ProgramRefused(f"program {name} is not executable")
        return path


def _check_owner(path: str, name: str, found: os.stat_result) -> None:
    what = f"program {name}" if name else f"the folder {path}"
    if found.st_uid not in (0, os.geteuid()):
        raise ProgramRefused(f"{what} belongs to another user than root and the agent's")
    if found.st_mode & 0o022:
        raise ProgramRefused(f"{what} can be changed by other users")
