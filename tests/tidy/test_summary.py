"""The end of a test run: parts are counted, and each failure is named with its reason."""

from types import SimpleNamespace
from typing import Any

from tests import summary


def report(nodeid: str, longrepr: object = None, duration: float = 1.0) -> Any:
    """What pytest's terminal reporter keeps of one phase of a test."""
    return SimpleNamespace(nodeid=nodeid, duration=duration, longrepr=longrepr)


def test_parts_are_folders_and_every_phase_counts_its_time() -> None:
    """Set-up and teardown have no outcome of their own, yet their seconds belong to the part."""
    stats = {
        "": [report("tests/unit/a/test_x.py::t", duration=2.0)],
        "passed": [report("tests/unit/a/test_x.py::t"), report("tests/bus/test_y.py::t")],
        "failed": [report("tests/unit/b/test_z.py::t", "why")],
        "error": [report("tests/bus/test_y.py::u", "why")],
        "skipped": [report("tests/bus/test_y.py::v")],
        "warnings": [SimpleNamespace(nodeid="tests/bus/test_y.py::t")],
    }
    assert summary.count_parts(stats) == {
        "bus": summary.Part(passed=1, failed=1, skipped=1, seconds=3.0),
        "unit": summary.Part(passed=1, failed=1, skipped=0, seconds=4.0),
    }


def test_a_failure_is_named_with_the_beginning_of_its_reason() -> None:
    """The message of the exception where there is one; what is cut is counted."""
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="assert 1 == 2\n  more"))
    long = "\n".join(str(number) for number in range(summary.REASON_LINES + 3))
    stats = {
        "failed": [report("tests/a/test_x.py::t", crash)],
        "error": [report("tests/a/test_x.py::u", long)],
    }
    told = summary.failures(stats)
    assert told[0] == "ERROR tests/a/test_x.py::u"
    assert told[summary.REASON_LINES + 1] == "    ... 3 more lines above"
    assert told[summary.REASON_LINES + 2 :] == [
        "FAILED tests/a/test_x.py::t", "    assert 1 == 2", "      more"
    ]  # fmt: skip
