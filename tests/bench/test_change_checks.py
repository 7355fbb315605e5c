"""What the benchmarks of change over time check: an update that goes wrong and a launch that comes twice are found."""

import pytest

from bench.change.cron_minute import cron_spec, launch_checks
from bench.change.rolling_update import UpdateAudit
from schemas.allocations import AllocationsHealthChanged, AllocationsReported
from schemas.base import EvalKey, JobId
from schemas.jobs import GroupSpec, JobRegistered
from schemas.plans import GroupPlacement, Origin, PlanCommitted, Stops
from shared.cron.instants import next_launch
from tests.unit.core.state.written_log import START_NS, WrittenLog

SECOND = 1_000_000_000


class UpdateStory:
    """Two allocations of a service run; its second version comes."""

    def __init__(self) -> None:
        self.log = WrittenLog()
        self.log.nodes(1)
        self.number = 0
        self.register(0)
        self.plan(0, placed=2)
        self.run(0, 1)
        self.heal(0, 1)
        self.register(1)

    def register(self, version: int) -> None:
        """Register a version."""
        self.log.tx(
            JobRegistered(
                submission_id=f"s{version}",
                digest=f"d{version}",
                job_id=JobId("shop"),
                version=version,
                groups=(GroupSpec(name="g", count=2, cpu_mhz=1, digest=f"g{version}"),),
            )
        )

    def plan(self, version: int, *, placed: int = 0, stopped: tuple[int, ...] = ()) -> None:
        """Commit a plan."""
        self.number += 1
        places = GroupPlacement(
            group="g", version=version, rows=(0,), counts=(placed,), names=(0, placed)
        )
        self.log.tx(
            PlanCommitted(
                key=EvalKey(0),
                job_id=JobId("shop"),
                origin=Origin(worker="w", number=self.number, snapshot_seq=self.log.seq),
                placements=(places,) if placed else (),
                stops=(Stops(rows=stopped),) if stopped else (),
            )
        )

    def run(self, *rows: int) -> None:
        """Report rows as running."""
        self.log.tx(AllocationsReported(rows=rows, statuses=(1,) * len(rows)))

    def heal(self, *rows: int, after_s: float = 0) -> None:
        """Report rows as healthy."""
        healed = AllocationsHealthChanged(rows=rows, healths=(1,) * len(rows))
        self.log.tx(healed, t_ns=START_NS + int(after_s * SECOND))

    def audited(self) -> UpdateAudit:
        """Look at every record."""
        audit = UpdateAudit()
        for record in self.log.records:
            audit.take(record)
        return audit


def test_an_update_in_steps_is_seen_as_it_was() -> None:
    """One of two is replaced, and is healthy 3 s after its plan."""
    story = UpdateStory()
    story.plan(1, placed=1, stopped=(0,))
    story.run(2)
    story.heal(2, after_s=3)
    audit = story.audited()
    assert (audit.healthy_min, audit.placed, audit.plans) == (1, 1, 1)
    assert audit.health_min_ns == audit.health_ns(0.99) == 3 * SECOND


def test_a_floor_that_was_broken_for_one_record_is_found() -> None:
    """Both old ones stop before a new one is healthy; that both are healthy in the end does not hide it."""
    story = UpdateStory()
    story.plan(1, placed=2, stopped=(0, 1))
    story.run(2, 3)
    story.heal(2, 3, after_s=2)
    assert story.audited().healthy_min == 0


def test_health_before_its_time_is_found() -> None:
    """The earliest of all counts."""
    story = UpdateStory()
    story.plan(1, placed=2)
    story.run(2, 3)
    story.heal(2, after_s=2)
    story.log.tx(AllocationsHealthChanged(rows=(3,), healths=(1,)), t_ns=START_NS + 2 * SECOND)
    assert story.audited().health_min_ns == 2 * SECOND
    story = UpdateStory()
    story.plan(1, placed=2)
    story.heal(2, after_s=0.5)
    story.heal(3, after_s=2)
    assert story.audited().health_min_ns == SECOND // 2


@pytest.mark.parametrize(
    ("launched", "once", "on_time"),
    [
        ([("a/periodic-5", 5, 6), ("b/periodic-7", 7, 7)], True, True),
        ([("a/periodic-5", 5, 6)], False, True),
        ([("a/periodic-5", 5, 6), ("b/periodic-7", 7, 7), ("a/periodic-5", 5, 8)], False, True),
        ([("a/periodic-5", 5, 6), ("b/periodic-8", 8, 8)], False, True),
        ([("a/periodic-5", 5, 4), ("b/periodic-7", 7, 7)], True, False),
    ],
)
def test_lost_doubled_and_early_launches_are_found(
    launched: list[tuple[str, int, int]], *, once: bool, on_time: bool
) -> None:
    """Each parent has one child for each of its instants. Times here: s."""
    seen = [(child, at * SECOND, seen_s * SECOND) for child, at, seen_s in launched]
    found = launch_checks(seen, {"a": (5 * SECOND,), "b": (7 * SECOND,)})
    assert found == {"each_launched_once": once, "none_early": on_time}


@pytest.mark.parametrize("second", [1_700_000_000, 1_704_067_199, 1_709_164_800])
def test_a_spec_of_one_instant_means_that_second_alone(second: int) -> None:
    """The 29th of February too; nothing follows it."""
    instant = second * SECOND
    specs = (cron_spec(instant),)
    assert next_launch(specs, "UTC", instant - 100 * SECOND) == instant
    assert next_launch(specs, "UTC", instant) == 0
