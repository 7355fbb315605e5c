"""Where the data of a disk lies until its allocation has it: `moves/<allocation>/` of the data directory.

Decides what is there at each moment, so that an agent that is killed leaves no half data: `work/` is unfinished, and
removed; `whole/` is complete, and moved in part by part; `mark` says that all of it is done, and how it went. No task
can reach the directory.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from services.agent.inputs.artifacts.fetch_order import FetchRefused
from services.agent.inputs.artifacts.move_in import check_tree
from services.agent.inputs.disks.unpack_order import DiskRefused, FileOwner
from services.agent.safe_open import DIRECTORY, make_below, open_below, open_within
from shared.protocol.id_tokens import id_token

#: Of the data directory; `executor/alloc_dirs.py` removes what is of allocations that are gone.
MOVES = "moves"
_MARK_BYTES_MAX = 4_096
_LINE = msgspec.json.Decoder(FileOwner)


class DiskStaging:
    """Of one allocation. Methods run in a thread, one at a time, and raise OSError."""

    def __init__(self, top: Path, alloc_id: str) -> None:
        self._top = top
        self.place = top / MOVES / id_token(alloc_id)
        self.work = self.place / "work"
        self._whole = self.place / "whole"
        self._mark = self.place / "mark"

    def outcome(self) -> str | None:
        """Return how it went; None: it is not done."""
        try:
            return self._mark.read_bytes()[:_MARK_BYTES_MAX].decode(errors="replace")
        except FileNotFoundError:
            return None

    def begin(self) -> None:
        """Make an empty place for unfinished data."""
        self.clear()
        make_below(self._top, self.place, 0o700)
        self.work.mkdir(mode=0o700)

    def clear(self) -> None:
        """Remove unfinished data."""
        shutil.rmtree(self.work, ignore_errors=True)

    def is_whole(self) -> bool:
        """Say whether complete data waits to be moved in, of this life of the agent or an earlier one."""
        return self._whole.is_dir()

    def complete(self) -> None:
        """Check what a helper made in `work/out`, give it its owners, and call it complete. Raises DiskRefused."""
        work = open_below(self._top, self.work)
        try:
            out = open_within(work, "out")
            try:
                _check_parts(out)
                _set_owners(work, out)
            finally:
                os.close(out)
        finally:
            os.close(work)
        (self.work / "out").rename(self._whole)

    def move_in(self, parts: dict[str, Path]) -> None:
        """Move the parts of complete data to their places, where these are empty; what is moved already is left out.

        `parts`: name in the archive -> directory of the allocation, which exists.
        """
        whole = open_below(self._top, self._whole)
        try:
            for name, target in parts.items():
                # What a task wrote there stays; and what is not in the archive leaves the place empty.
                with contextlib.suppress(OSError):
                    _move(self._top, whole, name, target)
        finally:
            os.close(whole)

    def finish(self, outcome: str) -> None:
        """Note how it went, and remove the rest."""
        make_below(self._top, self.place, 0o700)
        draft = self.place / "draft"
        draft.write_bytes(outcome.encode()[:_MARK_BYTES_MAX])
        draft.rename(self._mark)
        self.clear()
        shutil.rmtree(self._whole, ignore_errors=True)


def _check_parts(out: int) -> None:
    """Look through each part by itself, so that no link leads from one into another. Raises DiskRefused."""
    try:
        for above in os.listdir(out):
            first = open_within(out, above)
            try:
                for name in os.listdir(first):
                    part = open_within(first, name)
                    try:
                        check_tree(part)
                    finally:
                        os.close(part)
            finally:
                os.close(first)
    except (FetchRefused, OSError) as err:
        raise DiskRefused(f"the archive is refused: {err}") from err


def _set_owners(work: int, out: int) -> None:
    """Set owners and modes of directories as the archive says. No process but the agent's is in the tree any more."""
    fd = os.open("owners", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=work)
    is_root = os.geteuid() == 0
    with os.fdopen(fd, "rb") as lines:
        for one in _owners(lines):
            above, _, name = os.fsdecode(one.path).rpartition("/")
            directory = open_within(out, above) if above else os.dup(out)
            try:
                if is_root:
                    os.chown(name, one.uid, one.gid, dir_fd=directory, follow_symlinks=False)
                with contextlib.suppress(NotADirectoryError):
                    _set_mode(directory, name, one.mode)
            finally:
                os.close(directory)


def _owners(lines: Iterator[bytes]) -> Iterator[FileOwner]:
    """Read the helper's list; names without a part of their own are not moved. Raises DiskRefused."""
    try:
        for line in lines:
            one = _LINE.decode(line)
            if one.path:
                yield one
    except msgspec.MsgspecError as err:
        raise DiskRefused("the list of owners cannot be read") from err


def _set_mode(directory: int, name: str, mode: int) -> None:
    try:
        fd = os.open(name, DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as err:
        # A link or a file, which has its mode.
        raise NotADirectoryError(err.errno, err.strerror) from err
    try:
        os.fchmod(fd, mode & 0o777 | 0o700)
    finally:
        os.close(fd)


def _move(top: Path, whole: int, name: str, target: Path) -> None:
    above, _, last = name.rpartition("/")
    source = open_within(whole, above)
    try:
        os.close(open_within(source, last))
        place = open_below(top, target.parent)
        try:
            # Onto an empty directory at most.
            os.rename(last, target.name, src_dir_fd=source, dst_dir_fd=place)
        finally:
            os.close(place)
    finally:
        os.close(source)
