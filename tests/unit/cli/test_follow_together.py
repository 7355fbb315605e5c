"""When a rollout of several jobs that is followed waits, and when it continues."""

import time
from typing import Any

import pytest

from schemas.projections import DeploymentWait
from schemas.rollout_answers import RolloutAnswer, RolloutLine, RolloutMemberLine
from services.cli.rollout.monitor import outcome_of

SECOND = 1_000_000_000


def waits(why: str, for_s: int = 0) -> tuple[DeploymentWait, ...]:
    since_ns = time.time_ns() - for_s * SECOND
    return (DeploymentWait(group="web", why=why, reason=why, since_ns=since_ns),)


def rollout(*members: dict[str, Any]) -> RolloutAnswer:
    # Times are relative to the moment of the test, not to that of its collection.
    lines = [
        RolloutMemberLine(
            job=f"j{n}",
            version=1,
            status=one["status"],
            reason="it waits" if "waits" in one else "",
            waits=waits(*one["waits"]) if "waits" in one else (),
        )
        for n, one in enumerate(members)
    ]
    line = RolloutLine(
        id="a" * 36, key=1, create_seq=1, modify_seq=1, name="r", order="together", status="running"
    )
    return RolloutAnswer(rollout=line, members=tuple(lines), seq=1, cluster_id="c")


@pytest.mark.parametrize(
    ("members", "outcome"),
    [
        # A gate that holds the only open job for longer than one look takes.
        (({"status": "successful"}, {"status": "waiting", "waits": ("held", 60)}), "waiting"),
        # It may have let it continue by now.
        (({"status": "successful"}, {"status": "waiting", "waits": ("held", 2)}), ""),
        # Others continue.
        (({"status": "running"}, {"status": "waiting", "waits": ("held", 60)}), ""),
        (
            (
                {"status": "running", "waits": ("health", 0)},
                {"status": "waiting", "waits": ("held", 60)},
            ),
            "",
        ),
        (({"status": "running", "waits": ("promotion", 0)},), "waiting"),
    ],
)
def test_a_rollout_that_a_gate_holds_waits(members: tuple[Any, ...], outcome: str) -> None:
    """`job run --together` ends with 2 where `job run` of the one job would."""
    assert outcome_of(rollout(*members)) == outcome
