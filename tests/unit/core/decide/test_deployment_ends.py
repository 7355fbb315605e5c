"""How a deployment ends by itself: all must be healthy at the end, and a clock runs until then."""

from schemas.deployments import DeploymentEnded, PromoteDeployment
from schemas.plans import Stops
from tests.builders import stop
from tests.unit.core.decide.test_deployments import MINUTE, Rollout, of_type, paced


def test_success_waits_for_what_is_old() -> None:
    """A deployment is not done while an allocation of another version is wanted."""
    rollout = Rollout()
    old = rollout.bring_up(paced(count=1))
    rollout.submit(paced(count=1, digest="d2", canary=1))
    canary = rollout.place(canaries=True)
    rollout.healthy(*canary)
    rollout.told(PromoteDeployment)
    assert rollout.deployment.status == "running"
    rollout.plan_of(stops=(Stops(rows=tuple(old)),))
    assert rollout.deployment.status == "successful"


def test_a_deadline_fails_nothing_that_is_whole() -> None:
    """Old allocations that nothing has stopped yet are no reason to go back: what is new is there and healthy."""
    rollout = Rollout()
    rollout.bring_up(paced(count=1))
    rollout.submit(paced(count=1, digest="d2", canary=1, auto_revert=True))
    (canary,) = rollout.place(canaries=True)
    rollout.healthy(canary)
    rollout.told(PromoteDeployment)
    assert rollout.due() == []
    assert rollout.deployment.status == "running"
    rollout.plan_of(stops=(Stops(rows=(canary,)),))
    assert of_type(rollout.due(), DeploymentEnded), "it is not whole any more"


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


def test_r28_those_that_failed_before_do_not_count() -> None:
    """R28: all are healthy, as many more of the deployment failed and stopped: successful, and silent afterwards."""
    rollout = Rollout()
    rollout.submit(paced(count=2))
    bad = rollout.place(count=2)
    rollout.say(*((row, 2) for row in bad), status="failed")
    rollout.healthy(*rollout.place(count=2, stops=bad))
    group_of = rollout.deployment.groups[0]
    assert (group_of.placed, group_of.healthy, group_of.unhealthy) == (4, 2, 2)
    assert rollout.deployment.status == "successful"
    before = rollout.deployment
    rollout.plan_of()
    assert rollout.deployment == before


def test_canaries_that_cannot_promote_themselves_do_not_wait_for_ever() -> None:
    """A healthy canary is lost and replaced, another is unhealthy: enough were healthy once, and the clock runs."""
    rollout = Rollout()
    rollout.bring_up(paced(count=2))
    canary = paced(count=2, digest="d2", canary=2, auto_promote=True, auto_revert=True)
    rollout.submit(canary)
    good, bad = rollout.place(count=2, canaries=True)
    rollout.healthy(good)
    rollout.say((bad, 2))
    (again,) = rollout.place(canaries=True, stops=[good])
    rollout.healthy(again)
    assert rollout.deployment.groups[0].healthy == 2 and rollout.deployment.needs_promotion
    assert rollout.deployment.due_ns == rollout.now_ns + 10 * MINUTE
    events = rollout.due()
    (ended,) = of_type(events, DeploymentEnded)
    assert ended.reason == "Failed due to progress deadline - rolling back to job version 0"


def test_a_stop_cancels() -> None:
    """Stopping the job cancels its deployment."""
    rollout = Rollout()
    rollout.submit(paced())
    rollout.do(stop("app"))
    assert (rollout.deployment.status, rollout.deployment.reason) == (
        "cancelled",
        "Cancelled because job is stopped",
    )
