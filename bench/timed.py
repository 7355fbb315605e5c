"""A scheduler worker that writes down what CPU time each of its decisions took: `python -m bench.timed`.

As `caravan run scheduler` in all else. Its nth decision is its plan number n, whose fate stands in the log: so whoever
reads both knows what work came to nothing. A role has no clock, so the product cannot know. Next: `p17.py`.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.harness import Harness
from services.cli.children import Child
from services.scheduler.role import Scheduler
from shared.bus.instances import log_settings, new_instance
from shared.bus.runner import run_role, run_settings
from shared.core.place import Assignment, Proposal, Snapshot, place

_FOLDER = "CARAVAN_BENCH_TIMES"
_END = ".decisions"


class Timed:
    """Decides as `place` does, and notes the time."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(
        self, snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
    ) -> Proposal:
        """Decide. A decision that raises makes no plan, and is not noted."""
        began_ns = time.thread_time_ns()
        proposal = place(snapshot, assignment, seed=seed, lane=lane, lanes=lanes)
        os.write(self._fd, (time.thread_time_ns() - began_ns).to_bytes(8, "little"))
        return proposal


class TimedHarness(Harness):
    """A cluster whose workers note their times."""

    def _child(self, role: str, name: str, **more: str) -> Child:
        if role != "scheduler":
            return super()._child(role, name, **more)
        child = super()._child(role, name, **{_FOLDER: str(self.data_dir / "logs")}, **more)
        child._command = (sys.executable, "-m", "bench.timed")  # noqa: SLF001 - as no user starts it.
        return child


def decisions(cluster: Harness) -> dict[str, NDArray[np.int64]]:
    """CPU ns of each decision so far, by worker, in order of plan numbers."""
    found = (cluster.data_dir / "logs").glob(f"*{_END}")
    return {one.name.removesuffix(_END): np.fromfile(one, dtype="<i8") for one in found}


def main() -> int:
    """Run until a signal; returns the exit code."""
    settings = run_settings()
    log_settings("scheduler", settings, level=settings.log_level)
    instance = new_instance("scheduler")
    path = Path(os.environ[_FOLDER]) / f"{instance}{_END}"
    return run_role(Scheduler(instance=instance, decide=Timed(path)), settings)


if __name__ == "__main__":
    sys.exit(main())
