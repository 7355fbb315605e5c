"""The data of an ended allocation as a tar, made while it is read.

Decides what of it moves to another node: `alloc/data`, and `local/` of its tasks; never `secrets/`, logs or `tmp/`.
Directories are entered step by step without following links; links are sent as they are, and the reader judges them.
Sockets, pipes and devices have no content and are left out, as is what is mounted there. A file with several names is
sent with each. Runs in a thread.
"""

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from services.agent.inputs.disks.unpack_order import ARCHIVE_END
from services.agent.safe_open import is_swapped, open_below, open_within
from shared.errors import CommandInvalid
from shared.protocol.id_tokens import id_token

#: Bytes that are read at a time.
CHUNK_BYTES = 256 * 1024
#: Deeper directories end the archive with an error: the reader has the same limit.
DEPTH_MAX = 64
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BLOCKS = bytes(2 * tarfile.BLOCKSIZE)


def read_disk(top: Path, alloc_id: str, tasks: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the archive in pieces. `tasks`: names of their directories. Raises CommandInvalid, OSError."""
    try:
        alloc = open_below(top, f"alloc/{id_token(alloc_id)}")
    except (OSError, ValueError) as err:
        text = f"directory of allocation {alloc_id[:40]!r} not found on this node"
        raise CommandInvalid("not_found", text, "previous") from err
    try:
        device = os.fstat(alloc).st_dev
        for name in ("alloc/data", *(f"{task}/local" for task in tasks)):
            fd = _opened(alloc, name)
            if fd < 0:
                continue
            try:
                yield _header(name, os.fstat(fd))
                yield from _directory(fd, name, device)
            finally:
                os.close(fd)
        yield tarfile.TarInfo(ARCHIVE_END).tobuf(tarfile.GNU_FORMAT)
        yield _BLOCKS
    finally:
        os.close(alloc)


def _opened(alloc: int, name: str) -> int:
    """Open a part; -1: its task never started, or put something else in the place. Raises OSError."""
    try:
        return open_within(alloc, name)
    except OSError as err:
        if is_swapped(err) or err.errno == errno.ENOENT:
            return -1
        raise


def _directory(fd: int, above: str, device: int) -> Iterator[bytes]:
    if above.count("/") > DEPTH_MAX:
        raise CommandInvalid("failed", f"{above[:80]!r} is too deep")
    for name in sorted(os.listdir(fd)):
        found, shown = os.stat(name, dir_fd=fd, follow_symlinks=False), f"{above}/{name}"
        if stat.S_ISLNK(found.st_mode):
            yield _header(shown, found, target=os.readlink(name, dir_fd=fd))
        elif found.st_dev != device:
            continue
        elif stat.S_ISDIR(found.st_mode):
            inner = open_within(fd, name)
            try:
                yield _header(shown, found)
                yield from _directory(inner, shown, device)
            finally:
                os.close(inner)
        elif stat.S_ISREG(found.st_mode):
            yield from _file(os.open(name, _READ, dir_fd=fd), shown)


def _file(fd: int, shown: str) -> Iterator[bytes]:
    """Yield a file as it was when it was opened; closes it. Raises CommandInvalid where it became shorter."""
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CommandInvalid("failed", f"{shown[:80]!r} changed while it was read")
        yield _header(shown, found)
        left = found.st_size
        while left:
            part = os.read(fd, min(left, CHUNK_BYTES))
            if not part:
                raise CommandInvalid("failed", f"{shown[:80]!r} became shorter while it was read")
            left -= len(part)
            yield part
        yield bytes(-found.st_size % tarfile.BLOCKSIZE)
    finally:
        os.close(fd)


def _header(name: str, found: os.stat_result, *, target: str = "") -> bytes:
    one = tarfile.TarInfo(name)
    one.mode, one.uid, one.gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
    one.mtime = int(found.st_mtime)
    if target:
        one.type, one.linkname = tarfile.SYMTYPE, target
    elif stat.S_ISDIR(found.st_mode):
        one.type = tarfile.DIRTYPE
    else:
        one.size = found.st_size
    return one.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")
