"""The plugin `mkdir`: a volume is a directory of its id, below a folder of the node. It has no size of its own.

Parameters: `uid` and `gid` of the owner, default the agent's; `mode` in octal, default 0700. They are applied when the
volume is new; a task may change them later.
"""

import os
import shutil
import stat
from pathlib import Path

from schemas.host_volumes import VolumeSpec
from services.agent.safe_open import open_below

PLUGIN = "mkdir"
VERSION = "1"
_DEFAULT_MODE = "0700"
_ID_MAX = 2**32 - 2
_MODE_MAX = 0o7777
_KNOWN = ("gid", "mode", "uid")
_TOP_MODE = 0o711


class VolumeRefused(Exception):
    """A volume cannot be made or deleted; the text says why."""


def make_directory(top: Path, spec: VolumeSpec, *, is_new: bool) -> Path:
    """Make the directory of a volume, or find it. Raises VolumeRefused; of a new one nothing is left then."""
    uid, gid, mode = _parameters(spec)
    place = top / spec.id
    if not is_new:
        if not place.is_dir() or place.is_symlink():
            raise VolumeRefused("its directory is missing")
        return place
    try:
        top.mkdir(mode=_TOP_MODE, parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        fd = open_below(str(top), spec.id, flags=os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        _sync(top)
    except OSError as err:
        reason = f"its directory cannot be made: {err.strerror or err}"
        try:
            remove_directory(top, spec.id)
        except VolumeRefused as left:
            reason += f"; {left}"
        raise VolumeRefused(reason) from None
    return place


def remove_directory(top: Path, volume_id: str) -> None:
    """Delete the directory of a volume with what is in it; one that is gone is gone. Raises VolumeRefused."""
    place = top / volume_id
    try:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise VolumeRefused("in its place is something else than a directory")
        if below := mounts_below(str(place)):
            raise VolumeRefused(f"a file system is mounted in it: {below[0]}")
        shutil.rmtree(place)
        _sync(top)
    except FileNotFoundError:
        if os.path.lexists(place):
            raise VolumeRefused("its content changes while it is deleted") from None
    except OSError as err:
        raise VolumeRefused(f"it cannot be deleted: {err.strerror or err}") from None


def mounts_below(path: str) -> list[str]:
    """List the mounts of this process at a place and below it."""
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as lines:
        places = [line.split(" ", 5)[4] for line in lines]
    shown = [
        one.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\134", "\\") for one in places
    ]
    return [one for one in shown if one == path or one.startswith(f"{path}/")]


def _parameters(spec: VolumeSpec) -> tuple[int, int, int]:
    """Read owner and mode; -1: stays the agent's. Raises VolumeRefused."""
    unknown = sorted(set(spec.parameters).difference(_KNOWN))
    if unknown:
        raise VolumeRefused(f"parameter {unknown[0]!r} is not one of {', '.join(_KNOWN)}")
    numbers = [_number(spec, name, "-1", base=10, most=_ID_MAX) for name in ("uid", "gid")]
    mode = _number(spec, "mode", _DEFAULT_MODE, base=8, most=_MODE_MAX)
    return numbers[0], numbers[1], mode


def _number(spec: VolumeSpec, name: str, default: str, *, base: int, most: int) -> int:
    text = spec.parameters.get(name, "")
    if not text:
        return int(default, base)
    digits = "01234567" if base == 8 else "0123456789"
    if len(text) > len(str(most)) + 1 or set(text).difference(digits) or int(text, base) > most:
        what = "an octal mode" if base == 8 else "a number"
        raise VolumeRefused(f"parameter {name} is {text[:40]!r}, it must be {what}")
    return int(text, base)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
