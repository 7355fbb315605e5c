"""The helper that unpacks a disk: one process for one archive, which gives up its rights before it reads any of it.

Forked by a process that loads all modules (inputs/forking.py); an UnpackOrder comes over its socket with descriptors of
its own empty directory and of a pipe, and it answers with an UnpackAnswer.
"""

import codecs
import os
import resource
import socket
import tarfile
from pathlib import Path
from typing import BinaryIO

import msgspec

from services.agent.drivers.isolation import landlock
from services.agent.inputs.artifacts.fetch_order import FetchRefused
from services.agent.inputs.artifacts.unpack import Unpacker
from services.agent.inputs.disks.unpack_order import (
    ARCHIVE_END,
    FileOwner,
    UnpackAnswer,
    UnpackOrder,
)
from services.agent.inputs.forking import serve
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID, give_up_rights

_MEMORY_BYTES = 2 << 30
_OPEN_FILES = 128
#: The list of owners beside the data.
_OWNERS_BYTES = 512 << 20
_ID_MAX = (1 << 32) - 2
#: Loaded while modules can still be read: names of files in archives need them.
_CODECS = ("ascii", "latin-1", "utf-8")


def main() -> None:
    """Serve the socket that is descriptor 0: one helper for each socket that comes over it."""
    os.environ.clear()
    for name in _CODECS:
        codecs.lookup(name)
    serve(socket.socket(fileno=0), _work, keeps_files=True)


def _work(agent: socket.socket, parent_pid: int) -> None:
    """Unpack one archive."""
    _, fds, _, _ = socket.recv_fds(agent, 1, 2)
    with agent.makefile("rb") as lines:
        order = msgspec.json.decode(lines.readline(), type=UnpackOrder)
    try:
        _give_up_rights(order, parent_pid, fds[0])
        with os.fdopen(fds[1], "rb") as archive:
            answer = _unpacked(order, archive)
    except FetchRefused as err:
        answer = UnpackAnswer(reason=str(err))
    except OSError as err:
        answer = UnpackAnswer(reason=err.strerror or str(err))
    except Exception as err:  # noqa: BLE001 - a reader of archives raises whatever a damaged one makes it.
        text = f"the archive cannot be unpacked: {type(err).__name__}: {err}"
        answer = UnpackAnswer(reason=text[:300])
    agent.sendall(msgspec.json.encode(answer) + b"\n")


def _give_up_rights(order: UnpackOrder, parent_pid: int, directory: int) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: _MEMORY_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_FSIZE: order.bytes_max + _OWNERS_BYTES,
    }
    user = UNPRIVILEGED_ID if os.geteuid() == 0 else -1
    give_up_rights(owner=(user, user), parent_pid=parent_pid, limits=limits)
    os.fchdir(directory)
    try:
        landlock.restrict(read=(), write=(".",))
    except OSError as err:
        if order.needs_landlock:
            raise FetchRefused(f"the operator requires Landlock: {err.strerror or err}") from err


def _unpacked(order: UnpackOrder, archive: BinaryIO) -> UnpackAnswer:
    Path("out").mkdir(mode=0o755)
    top = os.open("out", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    last = ""
    with Path("owners").open("wb") as owners:

        def note(parts: tuple[str, ...], one: tarfile.TarInfo) -> None:
            nonlocal last
            last = "/".join(parts)
            if last == ARCHIVE_END:
                return
            if not (0 <= one.uid <= _ID_MAX and 0 <= one.gid <= _ID_MAX):
                raise FetchRefused(f"{last[:80]!r} has no valid owner")
            line = FileOwner(one.uid, one.gid, one.mode & 0o777, os.fsencode(last))
            owners.write(msgspec.json.encode(line) + b"\n")

        unpacker = Unpacker(
            top,
            bytes_max=order.bytes_max,
            files_max=order.files_max,
            # It is not compressed.
            packed_bytes=order.bytes_max,
            note=note,
        )
        unpacker.unpack("tar", archive)
    if last != ARCHIVE_END:
        raise FetchRefused("the archive is not complete")
    Path("out", ARCHIVE_END).unlink()
    return UnpackAnswer(files=unpacker.entries - 1, bytes=unpacker.written)
