"""A scheduler worker that records the CPU time of each of its decisions: `python -m bench.harness.timed_worker`.

Otherwise as `caravan run scheduler`. Its nth decision is its plan number n, whose outcome is in the log: together they
give the CPU time of refused plans. A role has no clock, so the product cannot measure it.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.harness.cluster import BenchCluster
from services.cli.local.processes import SupervisedProcess
from services.scheduler.role import Scheduler
from shared.bus.process.runner import run_role
from shared.bus.process.settings import log_settings, new_instance, run_settings
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.core.scheduling.place import place

_FOLDER = "CARAVAN_BENCH_TIMES"
_END = ".decisions"


class TimedPlace:
    """Decides as `place` does, and records the time."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(
        self, snapshot: Snapshot, assignment: Assignment, *, seed: int, lane: int, lanes: int
    ) -> Proposal:
        """Decide. A decision that raises makes no plan, and is not recorded."""
        began_ns = time.thread_time_ns()
        proposal = place(snapshot, assignment, seed=seed, lane=lane, lanes=lanes)
        os.write(self._fd, (time.thread_time_ns() - began_ns).to_bytes(8, "little"))
        return proposal


class TimedCluster(BenchCluster):
    """A cluster whose workers record their times."""

    def _child(self, role: str, name: str, **more: str) -> SupervisedProcess:
        if role != "scheduler":
            return super()._child(role, name, **more)
        child = super()._child(role, name, **{_FOLDER: str(self.data_dir / "logs")}, **more)
        child._command = (sys.executable, "-m", "bench.harness.timed_worker")  # noqa: SLF001 - as no user starts it.
        return child


def decision_times(cluster: BenchCluster) -> dict[str, NDArray[np.int64]]:
    """CPU ns of each decision so far, by worker, in order of plan numbers."""
    found = (cluster.data_dir / "logs").glob(f"*{_END}")
    return {one.name.removesuffix(_END): np.fromfile(one, dtype="<i8") for one in found}


def main() -> int:
    """Run until a signal; returns the exit code."""
    settings = run_settings()
    log_settings("scheduler", settings, level=settings.log_level)
    instance = new_instance("scheduler")
    path = Path(os.environ[_FOLDER]) / f"{instance}{_END}"
    return run_role(Scheduler(instance=instance, decide=TimedPlace(path)), settings)


if __name__ == "__main__":
    sys.exit(main())
