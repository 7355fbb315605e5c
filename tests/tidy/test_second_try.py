"""A second try: only for a few failures, only of tests that start real processes, and never in silence."""

from types import SimpleNamespace
from typing import Any

from tests import second_try


def failed(nodeid: str, longrepr: str = "why\nmore") -> Any:
    """What pytest's terminal reporter keeps of a failed phase."""
    return SimpleNamespace(nodeid=nodeid, duration=1.0, longrepr=longrepr)


def test_a_few_failures_of_real_processes_are_tried() -> None:
    """An error of a fixture counts as a failure of its test, and both phases of one test are one try."""
    stats = {
        "failed": [failed("tests/bus/test_a.py::t"), failed("tests/faults/test_b.py::t")],
        "error": [failed("tests/bus/test_a.py::t")],
    }
    assert second_try.candidates(stats) == ["tests/bus/test_a.py::t", "tests/faults/test_b.py::t"]


def test_a_pure_failure_or_too_many_get_no_second_try() -> None:
    """One pure failure makes the run red whatever else passes; so do more failures than a few."""
    real = [failed(f"tests/bus/test_a.py::t{number}") for number in range(second_try.MOST)]
    assert len(second_try.candidates({"failed": real})) == second_try.MOST
    assert second_try.candidates({"failed": [*real[1:], failed("tests/unit/test_c.py::t")]}) == []
    assert second_try.candidates({"failed": [*real, failed("tests/bus/test_a.py::more")]}) == []
    assert second_try.candidates({"error": [failed("tests/bus/test_broken.py")]}) == []


def test_what_passes_alone_is_unsteady_and_named() -> None:
    """It no longer fails the run, and the first line of its failure is told; what fails twice stays a failure."""
    steady, unsteady = "tests/bus/test_a.py::steady", "tests/bus/test_a.py::unsteady"
    stats = {"failed": [failed(unsteady)], "error": [failed(unsteady)]}
    assert second_try.try_again(stats, lambda _: True)
    assert second_try.lines(stats) == [f"unsteady: {unsteady}, why"]
    assert "failed" not in stats
    assert "error" not in stats

    stats = {"failed": [failed(unsteady), failed(steady)]}
    assert not second_try.try_again(stats, lambda name: name == unsteady)
    assert [report.nodeid for report in stats["failed"]] == [steady]
    assert [report.nodeid for report in stats[second_try.UNSTEADY]] == [unsteady]
