"""The end of a test run: why each test failed, and what each part took.

The last lines of a log are what is read first, so reasons are repeated there, cut to what identifies them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Lines of a reason that are repeated at the end; the whole of it stands above.
REASON_LINES = 10


@dataclass(slots=True)
class Part:
    """Counts of one folder of tests, and the seconds that its tests took, summed over lanes."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


def part_of(nodeid: str) -> str:
    """Name the part of a test: the folder below tests/."""
    words = nodeid.split("/")
    return words[1] if len(words) > 2 else words[0]


def count_parts(stats: Mapping[str, Sequence[Any]]) -> dict[str, Part]:
    """Count the reports of pytest's terminal reporter by part, sorted by name."""
    parts: dict[str, Part] = defaultdict(Part)
    for outcome, reports in stats.items():
        for report in reports:
            nodeid = getattr(report, "nodeid", "")
            if not nodeid or not hasattr(report, "duration"):
                continue
            part = parts[part_of(nodeid)]
            part.seconds += report.duration
            part.passed += outcome == "passed"
            part.failed += outcome in {"failed", "error"}
            part.skipped += outcome == "skipped"
    return dict(sorted(parts.items()))


def table(parts: Mapping[str, Part]) -> list[str]:
    """Lay out one line a part. Seconds add up to more than the run took where lanes ran side by side."""
    lines = [f"{'part':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    lines += [
        f"{name:<14}{part.passed:>8}{part.failed:>8}{part.skipped:>9}{part.seconds:>9.1f}"
        for name, part in parts.items()
    ]
    return lines


def reason(report: Any) -> list[str]:
    """First lines of why a test failed: its message where it has one, else its traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines: list[str] = text.strip().splitlines()
    if len(lines) > REASON_LINES:
        return [*lines[:REASON_LINES], f"... {len(lines) - REASON_LINES} more lines above"]
    return lines


def place(report: Any) -> str:
    """File and line where a test failed, with what separates them from the reason; empty where that is not known."""
    crash = getattr(report.longrepr, "reprcrash", None)
    at = f"{crash.path}:{crash.lineno}" if hasattr(crash, "lineno") else ""
    return f"{at.rpartition('/tests/')[2]}: " if at else ""


def failures(stats: Mapping[str, Sequence[Any]]) -> list[str]:
    """Name each failed test with the first lines of its reason."""
    lines = []
    for outcome in ("error", "failed"):
        for report in stats.get(outcome, []):
            lines.append(f"{outcome.upper()} {report.nodeid} {place(report)}".rstrip(": "))
            lines += [f"    {line}" for line in reason(report)]
    return lines
