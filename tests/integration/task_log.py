"""Logs of tasks by path, for tests: the agent itself opens them below its data directory."""

import os
from pathlib import Path

from services.agent.executor import log_rotation
from services.agent.executor.log_reader import TaskLogReader
from services.agent.executor.log_rotation import OpenLog
from services.agent.safe_open import open_below
from shared.core.runtime.agent_messages import LogLimits


def open_log_of(active: Path) -> OpenLog:
    """Open the directory of a log; it stays open for the rest of the test."""
    return OpenLog(open_below(active.parent.parent, active.parent.name), active.name)


def reader(active: Path) -> TaskLogReader:
    """A reader of a log."""
    return TaskLogReader(open_log_of(active))


def rotate(active: Path, limits: LogLimits) -> int:
    """Rotate a log. Returns how many files that made."""
    log = open_log_of(active)
    try:
        return log_rotation.rotate(log, limits)
    finally:
        os.close(log.directory_fd)


def rotated_numbers(active: Path) -> list[int]:
    """Numbers of the rotated files."""
    return open_log_of(active).numbers()
