"""P20 at a tenth: a fork of a log that was placed once goes as the log does, and every decision comes out again."""

import pytest

from bench.log import what_if

pytestmark = pytest.mark.bench


def test_a_hundred_thousand_are_decided_again_and_otherwise() -> None:
    """P20: divergence 0, the unchanged fork is the record, the changed one is compared whole and is the same twice."""
    found = what_if.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.result["decisions"] == 100 and found.result["divergent"] == 0
