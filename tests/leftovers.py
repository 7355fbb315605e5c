"""What a test run leaves behind: processes and mounts, each with the test that left it.

Every process that a test starts inherits the name of this run and, from pytest, the name of the test. A process that
was given another environment, a task for instance, is known by the run's own folder: in its working directory, its
command line or its open files. A namespace lives as long as a process or a mount holds it, and a listening socket as
long as its process: where neither is left, none of those is. Linux only: it reads /proc.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bounds import WAIT_S

#: Environment variable with the name of the run; workers and all that they start inherit it.
RUN = "CARAVAN_TEST_RUN"
PROC = Path("/proc")
#: After Ctrl-C, in seconds: who presses it waits.
INTERRUPTED_S = 2.0

_TEST = re.compile(rb"PYTEST_CURRENT_TEST=(.*?)(?: \([a-z]+\))?\0")


@dataclass(frozen=True, slots=True)
class Left:
    """One thing that is still there. `pid` is 0 for a mount."""

    what: str
    test: str
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.what}, left by {self.test}"


def mounts() -> frozenset[str]:
    """Places where something is mounted, as this process sees them."""
    lines = (PROC / "self" / "mountinfo").read_text().splitlines()
    return frozenset(line.split(" ")[4] for line in lines)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _links(process: Path) -> list[str]:
    """Where a process is and what it has open."""
    links = [process / "cwd", process / "root"]
    with contextlib.suppress(OSError):
        links += sorted((process / "fd").iterdir())
    found = []
    for link in links:
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return found


def _is_alive(process: Path) -> bool:
    """Whether it is more than a zombie, which waits for its parent and holds nothing."""
    state = _read(process / "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] not in {b"Z", b"X"}


def _parent(process: Path) -> int:
    fields = _read(process / "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def processes(run: str, folder: str) -> list[Left]:
    """Processes of a run, those with its name in their environment or with something of its folder open."""
    tag = f"{RUN}={run}".encode()
    own = os.getpid()
    found = []
    for process in sorted(PROC.glob("[0-9]*"), key=lambda path: int(path.name)):
        pid = int(process.name)
        if pid == own or not _is_alive(process):
            continue
        environment = _read(process / "environ") + b"\0"
        command = _read(process / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        of_folder = [text for text in (command, *_links(process)) if folder and folder in text]
        if tag not in environment.split(b"\0") and not of_folder:
            continue
        if "multiprocessing.resource_tracker" in command and _parent(process) == own:
            # Python's own helper of a pool: it ends with this process.
            continue
        named = _TEST.search(environment)
        test = (
            named[1].decode(errors="replace") if named else f"a test of {(of_folder or [run])[0]}"
        )
        found.append(Left(f"process {pid} ({command[:120]})", test, pid))
    return found


def look(run: str, folder: str, before: frozenset[str]) -> list[Left]:
    """All that is there now and was not before the run, mounts that have the run's folder in their place first."""
    added = [place for place in sorted(mounts() - before) if folder and folder in place]
    return [
        *(Left(f"mount {place}", f"a test of {place}") for place in added),
        *processes(run, folder),
    ]


def settle(look_now: Callable[[], list[Left]], patience_s: float = WAIT_S) -> list[Left]:
    """Look until nothing is left, or until patience is at its end; returns what is left then.

    What ends by itself after its test, a watcher that writes down an exit for instance, has that long.
    """
    deadline = time.monotonic() + patience_s
    while (left := look_now()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def end(left: list[Left]) -> None:
    """Kill the processes that were found, by their ids."""
    for one in left:
        if one.pid:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)


def of_run(config: pytest.Config, before: frozenset[str], *, is_interrupted: bool) -> list[Left]:
    """What a run left behind when it had ended; its processes are killed."""
    run = os.environ[RUN]
    folder = str(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    left = settle(lambda: look(run, folder, before), INTERRUPTED_S if is_interrupted else WAIT_S)
    end(left)
    return left


def report(left: Left) -> pytest.TestReport:
    """Tell it as an error of the test that left it."""
    test = left.test if "::" in left.test else "tests/leftovers.py::unknown"
    location = (test.split("::", 1)[0], None, test)
    return pytest.TestReport(test, location, {}, "failed", str(left), "teardown")
