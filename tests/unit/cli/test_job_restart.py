"""`job restart`: how large batches are, and which options are refused before anything is asked."""

import pytest

from services.cli.job.restart import batch_count
from services.cli.runtime.output import CliError


@pytest.mark.parametrize(
    ("text", "total", "count"),
    [("1", 10, 1), ("20", 10, 20), ("25%", 10, 3), ("1%", 10, 1), ("100%", 7, 7), ("50%", 0, 1)],
)
def test_a_percentage_of_a_batch_rounds_up(text: str, total: int, count: int) -> None:
    """Never to none."""
    assert batch_count(text, total) == count


@pytest.mark.parametrize("text", ["", "0", "0%", "-1", "x", "101%", "%", "1.5", "9" * 5000])
def test_a_batch_size_that_is_none_is_refused(text: str) -> None:
    """One clear line."""
    with pytest.raises(CliError):
        batch_count(text, 10)
