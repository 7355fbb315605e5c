"""Attack: a scheduler's login sends a plan whose columns hold extreme numbers; that plan alone is refused."""

from collections.abc import Iterator

import msgspec
import pytest

from schemas.envelope import COMMANDS_DECODER, ENCODER, CommandBatch
from schemas.evaluations import NewEvaluation
from schemas.plans import (
    Evictions,
    GroupPlacement,
    InPlace,
    PlanCommitted,
    PlanRefused,
    Stops,
    SubmitPlan,
)
from shared.core.decide.plans.columns import ALLOCS_MAX
from tests.builders import Cluster, group, join, register

#: No column takes any of them.
EXTREMES = (-3, -(2**31) - 1, -(2**63), -(2**64), 2**63, 2**64, 2**70)
#: Beyond rows and counts of this cluster, and beyond the columns of the allocation table; keys may be as large.
LARGE = (999_999_999, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1)
COLUMNS = ("rows", "counts", "names", "previous", "reschedules", "ports", "instances")
change = msgspec.structs.replace


def world() -> Cluster:
    """Two nodes, and a job of three with a dynamic port that waits."""
    made = Cluster()
    made.do(join("n1", port_min=20_000, port_max=20_010), join("n2", port_min=1, port_max=9))
    made.do(register("app", group(count=3, dynamic_ports=1)))
    made.do(register("plain", group(count=3)))
    return made


def bad_placements(good: GroupPlacement) -> Iterator[GroupPlacement]:
    """Placements with one column wrong in length or value."""
    total = sum(good.counts)
    for name in COLUMNS:
        column = getattr(good, name)
        large = () if name == "previous" else LARGE
        for value in (*EXTREMES, *large):
            for wrong in ((value,), (*column, value), (value,) * total):
                yield change(good, **{name: wrong})
    for value in (*EXTREMES, *LARGE):
        yield change(good, rows=(0,), counts=(value,), names=(0, value))
        yield change(good, rows=(0, 1), counts=(value, 1), names=(0, value + 1))
        if value != LARGE[0]:
            yield change(good, names=(value, total))
        yield change(good, names=(0, value, 0, total - value))
        yield change(good, variant=value)
        yield change(good, version=value)
    yield change(good, rows=(0,), counts=(ALLOCS_MAX + 1,), names=(0, ALLOCS_MAX + 1))
    yield change(good, names=(0,))
    yield change(good, rows=())


def bad_plans(plan: SubmitPlan) -> Iterator[SubmitPlan]:
    """Plans with one number wrong outside their placements."""
    for value in (*EXTREMES, *LARGE):
        for status in ("", "lost"):
            yield change(plan, stops=(Stops(rows=(value,), client_status=status),))
        yield change(plan, updates=(InPlace(rows=(value,), group="web", version=0),))
        yield change(plan, updates=(InPlace(rows=(), group="web", version=value),))
        for job_id in ("app", "other"):
            yield change(plan, evictions=(Evictions(job_id=job_id, rows=(value,)),))
        yield change(plan, key=value)
        yield change(plan, origin=change(plan.origin, snapshot_seq=value))
    for value in EXTREMES:
        for name in ("priority", "wait_until_ns", "previous"):
            follow_up = NewEvaluation(job_id=plan.job_id, **{name: value})
            yield change(plan, follow_ups=(follow_up,))
    yield change(plan, follow_ups=(NewEvaluation(job_id="other"),))
    yield change(plan, follow_ups=(NewEvaluation(job_id=plan.job_id, job_type="x"),))
    yield change(plan, end="nonsense")


def received(plan: SubmitPlan) -> SubmitPlan | None:
    """What the applier reads of it; None: its decoder refuses the message."""
    data = ENCODER.encode(CommandBatch(sender="thief", commands=(plan,)))
    try:
        return COMMANDS_DECODER.decode(data).commands[0]
    except msgspec.ValidationError:
        return None


def check_refused(cluster: Cluster, bad: SubmitPlan) -> bool:
    """Check that one bad plan is refused and nothing of it placed; tell whether its number was used."""
    plan = received(bad)
    if plan is None:
        return False
    (refused, *rest) = cluster.do(plan)
    assert isinstance(refused, PlanRefused), bad
    assert refused.code in {"invalid", "unknown_row", "stale", "evaluation_ended"}
    if refused.code == "unknown_row" and not bad.updates:
        assert (refused.placements, refused.evictions, rest) == ((), (), [])
    # Every replica reads the fact: its numbers are small, whatever the plan's were.
    rows = [row for one in refused.placements for row in (*one.rows, *one.counts)]
    assert all(0 <= row <= ALLOCS_MAX for row in rows)
    return True


@pytest.mark.parametrize("job_id", ["app", "plain"])
def test_extreme_columns_are_refused_and_nothing_else(job_id: str) -> None:
    """Each bad plan is refused alone: the worker's next plan, a good one, commits as if nothing had been."""
    cluster = world()
    good = cluster.plan(job_id)
    (placement,) = good.placements
    number, used = good.origin.number, 0
    wrong = [change(good, placements=(one,)) for one in bad_placements(placement)]
    for bad in (*wrong, *bad_plans(good)):
        seen = bad.origin.snapshot_seq
        seen = cluster.state.seq if seen == good.origin.snapshot_seq else seen
        origin = change(bad.origin, number=number + used, snapshot_seq=seen)
        used += check_refused(cluster, change(bad, origin=origin))
    assert used > len(wrong) // 2
    assert cluster.rows(job_id) == []
    cluster.numbers["w1"] = number + used - 1
    assert type(cluster.schedule(job_id)[0]) is PlanCommitted
    assert len(cluster.rows(job_id)) == 3
