"""How long a job waited: the time in which something of it did."""

import pytest

from services.cli.job.timeline import TimelineInterval, waited_time_s


def wait(from_s: float, held_s: float, group: str = "g") -> TimelineInterval:
    """One reason of a group."""
    return TimelineInterval(
        lane="waiting",
        name=group,
        state="capacity",
        detail="",
        from_seq=1,
        to_seq=0,
        from_ns=int(from_s * 1e9),
        held_s=held_s,
    )


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        ([], 0),
        ([wait(10, 55), wait(10, 55, "other")], 55),
        ([wait(10, 5), wait(15, 5)], 10),
        ([wait(20, 5), wait(10, 5)], 10),
        ([wait(10, 20), wait(12, 3, "other"), wait(28, 4, "other")], 22),
    ],
)
def test_groups_that_wait_together_wait_once(waits: list[TimelineInterval], seconds: float) -> None:
    """Reasons of one group follow one another and add up; those of two groups may overlap."""
    assert waited_time_s(waits) == pytest.approx(seconds)
