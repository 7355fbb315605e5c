"""What the agent orders of the helper that unpacks a disk, what it answers, and the owners that it notes.

The agent sets owners and modes of directories itself: the helper may not.
"""

import msgspec

#: Last name of an archive, an empty file: readers of archives take a damaged header for the end of one.
ARCHIVE_END = "end"


class UnpackOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One archive, a tar: comes as a second descriptor. The result is `out` in the directory of the first one."""

    bytes_max: int
    files_max: int
    needs_landlock: bool = False


class UnpackAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `reason` empty: `out` is whole."""

    reason: str = ""
    files: int = 0
    bytes: int = 0


class FileOwner(msgspec.Struct, frozen=True, array_like=True):
    """A line of the file `owners` beside `out`: of a file, a directory or a link. `path`: from `out` on."""

    uid: int
    gid: int
    mode: int
    path: bytes


class DiskRefused(Exception):
    """The data cannot be had: the allocation starts with an empty disk."""
