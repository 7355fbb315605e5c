"""Moves what a helper made into a task's directory, by directory handles alone.

The tree is not trusted: all of it is looked through first, and a link that leads out, a device or a file with two names
refuses it whole. Then directories merge, and a file takes the place of what had its name. A link that a task swaps in
on the way fails the move; a directory that it moves away stays its own.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from services.agent.inputs.artifacts.fetch_order import FetchRefused
from services.agent.inputs.artifacts.inner_links import is_inner_link
from services.agent.safe_open import open_below, open_within

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_DRAFT = ".caravan-draft"


def move_in(top: Path, source: Path, destination: Path, *, owner: tuple[int, int] | None) -> None:
    """Merge the content of `source` into `destination`, both below `top`. `owner` None: owners stay as they are.

    Raises FetchRefused for a tree that is refused, OSError where a task put something in the way.
    """
    from_fd = open_below(top, source)
    try:
        check_tree(from_fd)
        to_fd = open_below(top, destination, make_mode=0o755)
        try:
            if owner is not None:
                os.fchown(to_fd, *owner)
            _merge(from_fd, to_fd, owner)
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def check_tree(fd: int) -> None:
    """Look through the tree of an open directory. Raises FetchRefused for what leads out of it or is no plain file."""
    for _ in _checked(fd, ()):
        pass


def _checked(fd: int, above: tuple[str, ...]) -> Iterator[None]:
    """Look through a tree. Raises FetchRefused."""
    for name in os.listdir(fd):
        parts = (*above, name)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            inner = open_within(fd, name)
            try:
                yield from _checked(inner, parts)
            finally:
                os.close(inner)
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=fd)
            if not is_inner_link(parts, target):
                text = f"link {'/'.join(parts)[:80]!r} leads out of its tree, to {target[:80]!r}"
                raise FetchRefused(text)
        elif not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise FetchRefused(f"{'/'.join(parts)[:80]!r} is not a regular file, or has hard links")
        yield


def _merge(from_fd: int, to_fd: int, owner: tuple[int, int] | None) -> None:
    for name in sorted(os.listdir(from_fd)):
        mode = os.stat(name, dir_fd=from_fd, follow_symlinks=False).st_mode
        _make_way(to_fd, name, is_directory=stat.S_ISDIR(mode))
        if stat.S_ISDIR(mode):
            _merge_directory(from_fd, to_fd, name, owner)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=from_fd), name, dir_fd=to_fd)
            if owner is not None:
                os.chown(name, *owner, dir_fd=to_fd, follow_symlinks=False)
        else:
            _move_file(from_fd, to_fd, name, owner)


def _make_way(fd: int, name: str, *, is_directory: bool) -> None:
    """Remove what cannot be merged with; a file is replaced by the rename itself."""
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found) and not is_directory:
        shutil.rmtree(name, dir_fd=fd)
    elif not stat.S_ISDIR(found) and (is_directory or not stat.S_ISREG(found)):
        os.unlink(name, dir_fd=fd)


def _merge_directory(from_fd: int, to_fd: int, name: str, owner: tuple[int, int] | None) -> None:
    inner = open_within(from_fd, name)
    try:
        target = open_within(to_fd, name, make_mode=0o755)
        try:
            os.fchmod(target, os.fstat(inner).st_mode & 0o777)
            if owner is not None:
                os.fchown(target, *owner)
            _merge(inner, target, owner)
        finally:
            os.close(target)
    finally:
        os.close(inner)


def _move_file(from_fd: int, to_fd: int, name: str, owner: tuple[int, int] | None) -> None:
    """Give a file its owner, then its name; another file system (`secrets/` in memory) gets a copy."""
    fd = os.open(name, _READ, dir_fd=from_fd)
    with os.fdopen(fd, "rb") as content:
        if owner is not None:
            os.fchown(fd, *owner)
        if os.fstat(from_fd).st_dev == os.fstat(to_fd).st_dev:
            os.rename(name, name, src_dir_fd=from_fd, dst_dir_fd=to_fd)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            copy = os.open(_DRAFT, flags, 0o600, dir_fd=to_fd)
        except FileExistsError:
            os.unlink(_DRAFT, dir_fd=to_fd)
            copy = os.open(_DRAFT, flags, 0o600, dir_fd=to_fd)
        with os.fdopen(copy, "wb") as target:
            shutil.copyfileobj(content, target)
            os.fchmod(copy, os.fstat(fd).st_mode & 0o777)
            if owner is not None:
                os.fchown(copy, *owner)
        os.rename(_DRAFT, name, src_dir_fd=to_fd, dst_dir_fd=to_fd)
