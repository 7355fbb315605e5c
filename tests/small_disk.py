"""A small file system of its own for a test, where this machine lets tests mount one."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

_BLOCK = b"x" * 4096


@contextlib.contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[bool]:
    """Mount a file system at a new folder; False: mounting is not permitted."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(filler: Path) -> None:
    """Write a file until there is no room."""
    with contextlib.suppress(OSError), filler.open("wb") as out:
        while True:
            out.write(_BLOCK)
            out.flush()
