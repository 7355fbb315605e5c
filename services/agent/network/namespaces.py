"""Network namespaces as files, and commands in them: the calls that a thread of its own must make.

A thread that enters a namespace never comes back to others: it ends. What it starts meanwhile is in there too.
Raises OSError for what the kernel or a program refuses, with the program's words.
"""

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.agent.drivers.isolation import kernel

T = TypeVar("T")
PROGRAMS = ("ip", "nft")
#: Programs of an administrator are not in the path of every service.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_TIMEOUT_S = 20.0
_OWN = "/proc/thread-self/ns/net"


def program(name: str) -> str:
    """Find a program; empty: it is not installed."""
    return shutil.which(name, path=_PATH) or ""


def run(*command: str, text: str = "") -> str:
    """Run a program, in the namespace of this thread. Returns its output."""
    path = program(command[0])
    if not path:
        raise FileNotFoundError(2, f"program {command[0]} is not installed")
    try:
        done = subprocess.run(
            [path, *command[1:]],
            input=text.encode(),
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            env={"PATH": _PATH, "LC_ALL": "C"},
        )
    except subprocess.SubprocessError as err:
        raise OSError(5, f"{command[0]}: {err}") from err
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())[:400]
        raise OSError(5, f"{' '.join(command[:4])}: {words or f'exit code {done.returncode}'}")
    return done.stdout.decode(errors="replace")


def in_thread(work: Callable[[], T]) -> T:
    """Do work in a thread of its own, which ends with it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def carry() -> None:
        try:
            results.append(work())
        except BaseException as err:  # noqa: BLE001 - raised again where it was asked for.
            errors.append(err)

    thread = threading.Thread(target=carry, name="namespace", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def inside(namespace: Path, work: Callable[[], T]) -> T:
    """Do work in a namespace."""

    def enter() -> T:
        fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel.setns(fd, kernel.CLONE_NEWNET)
        finally:
            os.close(fd)
        return work()

    return in_thread(enter)


def make(namespace: Path) -> None:
    """Make a namespace and keep it at a path, whatever was there; its loopback is up."""

    def leave() -> None:
        kernel.unshare(kernel.CLONE_NEWNET)
        kernel.raise_loopback()
        keep(Path(_OWN), namespace)

    in_thread(leave)


def keep(source: Path, namespace: Path) -> None:
    """Keep a namespace, named by a file of /proc, at a path."""
    release(namespace)
    namespace.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    namespace.touch(mode=0o444)
    kernel.mount(str(source), str(namespace), flags=kernel.MS_BIND)


def release(namespace: Path) -> None:
    """Do not keep a namespace any more; it ends with the last process in it."""
    while is_kept(namespace):
        kernel.unmount(str(namespace))
    with contextlib.suppress(FileNotFoundError):
        namespace.unlink()


def is_kept(namespace: Path) -> bool:
    """Say whether a namespace is kept at a path."""
    try:
        return namespace.stat().st_dev != namespace.parent.stat().st_dev
    except OSError:
        return False


def identity(path: Path) -> int:
    """Return the number of a namespace; 0: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
