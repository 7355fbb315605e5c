"""Health in the reports of nodes: in columns too, for the version that it is about, and malformed."""

from typing import Any

import pytest

from schemas.nodes import AllocReport, BriefStates
from schemas.plans import InPlace
from shared.core.state.tables.allocations import RUNNING
from tests.unit.core.decide.test_deployments import MINUTE, Rollout, paced


def test_brief_reports_carry_health() -> None:
    """Health comes in columns too; what failed without a word about health is unhealthy in its deployment."""
    rollout = Rollout()
    rollout.submit(paced(count=4))
    rows = rollout.place(count=4)
    keys = tuple(int(rollout.state.allocations.key[row]) for row in rows)
    brief = BriefStates(keys=keys, rows=tuple(rows), statuses=(1, 3, 3, 1), healths=(1, 2, 0, 2))
    rollout.report("n1", brief=brief)
    assert rollout.state.allocations.health[rows].tolist() == [1, 1, 0, 2]
    found = rollout.deployment.groups[0]
    assert (found.healthy, found.unhealthy) == (2, 1)
    rollout.report(
        "n1",
        brief=BriefStates(keys=keys[2:3], rows=tuple(rows[2:3]), statuses=(1, 1), healths=(1, 1)),
    )
    assert rollout.deployment.groups[0].healthy == 3


@pytest.mark.parametrize("in_brief", [False, True])
def test_health_counts_for_the_version_that_it_is_about(*, in_brief: bool) -> None:
    """A word about version 0 that comes behind the update in place to version 1 does not count for its deployment."""
    rollout = Rollout()
    rollout.submit(paced(count=1))
    (row,) = rollout.place()
    key = int(rollout.state.allocations.key[row])
    rollout.submit(paced(count=1, max_parallel=3))
    update = InPlace(rows=(row,), group="web", version=1, deployment=rollout.deployment.key)
    rollout.plan_of(updates=(update,))

    def say(version: int) -> tuple[int, int]:
        """Return the health of the allocation, and how many are healthy in the deployment."""
        if in_brief:
            columns: dict[str, Any] = {"statuses": (1, 1), "healths": (1, 1)}
            said = BriefStates(keys=(key,), rows=(row,), health_versions=(version, 1), **columns)
            rollout.report("n1", brief=said)
        else:
            fields: dict[str, Any] = {"status": "running", "health": 1, "health_version": version}
            rollout.report("n1", states=(AllocReport(key=key, row=row, **fields),))
        return int(rollout.state.allocations.health[row]), rollout.deployment.groups[0].healthy

    assert say(0) == (0, 0)
    assert rollout.state.allocations.client[row] == RUNNING
    assert say(1) == (1, 1)
    assert rollout.deployment.status == "successful"


@pytest.mark.parametrize("healths", [(1,), (1, 2), (3, 1), (-1, 1), (1, 0, 1, 1)])
def test_malformed_health_says_nothing(healths: tuple[int, ...]) -> None:
    """Columns of health that are no runs of known codes make the brief report count for nothing."""
    rollout = Rollout()
    rollout.submit(paced(count=1))
    (row,) = rollout.place()
    key = int(rollout.state.allocations.key[row])
    brief = BriefStates(keys=(key,), rows=(row,), statuses=(1, 1), healths=healths)
    rollout.report("n1", brief=brief)
    assert rollout.state.allocations.health[row] == 0


def test_what_was_healthy_must_be_so_at_the_end() -> None:
    """A healthy allocation that died before the deployment was done is replaced, and its replacement counts anew."""
    rollout = Rollout()
    rollout.submit(paced(count=2))
    first, second = rollout.place(count=2)
    rollout.healthy(first)
    rollout.say((first, 0), status="failed")
    rollout.healthy(second)
    assert (rollout.deployment.status, rollout.deployment.groups[0].healthy) == ("running", 2)
    (third,) = rollout.place(previous=(int(rollout.state.allocations.key[first]),), stops=[first])
    assert rollout.deployment.status == "running"
    assert rollout.deployment.due_ns == rollout.now_ns + 10 * MINUTE, "the clock continues"
    rollout.healthy(third)
    assert rollout.deployment.status == "successful"
