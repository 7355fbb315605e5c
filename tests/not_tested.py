"""The one way to leave a test out: loudly, and with CARAVAN_FULL=1 only where no installation would help."""

import os
from collections import defaultdict
from typing import NoReturn

import pytest


def is_full() -> bool:
    """Return whether this run is of the full tier: CARAVAN_FULL=1, as `just full` sets it."""
    return os.environ.get("CARAVAN_FULL") == "1"


def missing_tool(why: str) -> NoReturn:
    """Leave a test out because a program is missing; with CARAVAN_FULL=1 fail instead."""
    fail_in_full(why)
    pytest.skip(f"NOT TESTED: {why}")


def fail_in_full(why: str) -> None:
    """With CARAVAN_FULL=1 fail where a program is missing, also when the rest of the test could continue without it."""
    if is_full():
        pytest.fail(
            f"a tool is missing, and CARAVAN_FULL=1 skips nothing for that: {why}", pytrace=False
        )


def missing_feature(why: str) -> NoReturn:
    """Leave a test out because this kernel, or a file that is no part of the tree, does not allow it."""
    pytest.skip(f"NOT TESTED: {why}")


def summary(skipped: list[pytest.TestReport]) -> str:
    """Say in one line what was skipped, each reason once with the number of its tests."""
    if not skipped:
        return "not tested: nothing was skipped"
    counts: dict[str, int] = defaultdict(int)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        counts[reason.removeprefix("Skipped: ").removeprefix("NOT TESTED: ")] += 1
    parts = [f"{count} x {reason}" for reason, count in counts.items()]
    return f"not tested: {len(skipped)} tests were skipped: {'; '.join(parts)}"
