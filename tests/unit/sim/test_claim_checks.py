"""The oracle of claims finds planted bugs in a log."""

from typing import Any

import pytest

from schemas.base import EvalKey, Event, JobId, NodeId
from schemas.envelope import LogRecord
from schemas.jobs import GroupSpec, JobRegistered, JobsCollected, VolumeAsk
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from schemas.volumes import ClaimMade, ClaimReleased
from shared.sim.oracle.claim_checks import ClaimChecks
from shared.sim.oracle.invariants import InvariantBroken, InvariantChecks

IDS = {0: "n0", 1: "n1"}
JOB = JobRegistered(
    submission_id="s",
    digest="d",
    job_id=JobId("db"),
    version=0,
    groups=(GroupSpec(name="g", volumes=(VolumeAsk(source="data", sticky=True),)),),
)


def claim(node_id: str = "n0", index: int = 0, **fields: Any) -> ClaimMade:
    return ClaimMade(
        job_id=JobId("db"), group="g", index=index, volume="data", node_id=NodeId(node_id), **fields
    )


def placed(row: int, index: int = 0) -> PlanCommitted:
    run = GroupPlacement(group="g", version=0, rows=(row,), counts=(1,), names=(index, 1))
    origin = Origin(worker="w", number=1, snapshot_seq=1)
    return PlanCommitted(key=EvalKey(1), job_id=JobId("db"), origin=origin, placements=(run,))


def judge(*steps: tuple[Event, ...]) -> int:
    """Apply records of these events; returns how often claims were checked."""
    checks = InvariantChecks()
    found = ClaimChecks(checks)
    for seq, events in enumerate(steps, start=1):
        record = LogRecord(kind="tx", schema=1, core="", epoch=1, prev="", t_ns=seq, events=events)
        found.apply(record, IDS)
    return checks.checks["claim_kept"]


def test_an_index_that_stays_is_sound() -> None:
    """It claims where it is first placed; after a release or its job's end it may claim elsewhere."""
    released = ClaimReleased(request_id="r", job_id=JobId("db"), group="g", index=0)
    checked = judge(
        (JOB,),
        (placed(0), claim()),
        (placed(0),),
        (released,),
        (placed(1), claim("n1")),
        (JobsCollected(job_ids=(JobId("db"),)),),
        (JOB,),
        (placed(0), claim()),
    )
    assert checked > 0


@pytest.mark.parametrize(
    "steps",
    [
        ((placed(0),),),
        ((placed(0), claim()), (placed(1),)),
        ((placed(0), claim()), (placed(0), claim())),
        ((placed(0), claim(is_exclusive=True)), (placed(0, 1), claim(index=1))),
    ],
    ids=["without a claim", "beside its claim", "claimed twice", "two on an exclusive one"],
)
def test_planted_bugs_are_found(steps: tuple[tuple[Event, ...], ...]) -> None:
    """Each by the name of the invariant."""
    with pytest.raises(InvariantBroken, match="claim_kept"):
        judge((JOB,), *steps)
