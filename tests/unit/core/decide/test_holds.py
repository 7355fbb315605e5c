"""A deployment that is held neither continues nor runs out of time; once released it resumes where it was."""

from schemas.base import Event
from schemas.deployments import (
    DeploymentDue,
    DeploymentEnded,
    DeploymentHeld,
    DeploymentPromoted,
    DeploymentReleased,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
)
from schemas.policy import OperatorRefused
from shared.core.decide.consequences import apply_facts
from shared.core.decide.deployments.progress import hold_deployment, release_deployment
from tests.unit.core.decide.test_deployments import MINUTE, Rollout, of_type, paced, watchers


def hold(
    rollout: Rollout, cause: str = "gate", reason: str = "load is 120"
) -> list[DeploymentHeld]:
    """Hold the newest deployment."""
    events = hold_deployment(rollout.deployment, cause, reason, rollout.now_ns)
    rollout.apply(*events)
    return events


def release(rollout: Rollout, cause: str = "gate") -> list[Event]:
    """Release the newest deployment from a cause."""
    events = release_deployment(rollout.deployment, cause, "load is 80", rollout.now_ns)
    rollout.state.begin(rollout.state.seq + 1, rollout.now_ns)
    return apply_facts(rollout.state, events, rollout.now_ns)


def canaries(**update: bool) -> Rollout:
    """A new version of which the one canary was placed."""
    rollout = Rollout()
    rollout.bring_up(paced(count=2))
    rollout.submit(paced(count=2, digest="d2", canary=1, **update))
    rollout.place(canaries=True)
    return rollout


def test_a_held_deployment_has_no_clock_and_a_released_one_a_new_clock() -> None:
    """Each cause counts by itself; the same cause and reason a second time is no fact."""
    rollout = Rollout()
    rollout.submit(paced())
    rollout.place()
    due_ns = rollout.deployment.due_ns
    assert len(hold(rollout)) == 1
    assert hold(rollout) == []
    since_ns = rollout.deployment.holds[0].since_ns
    hold(rollout, "rollout", "a comes first")
    rollout.now_ns = due_ns + MINUTE
    (again,) = hold(rollout, reason="load is 130")
    assert again.since_ns == since_ns
    assert [one.cause for one in rollout.deployment.holds] == ["gate", "rollout"]
    assert rollout.do(DeploymentDue(key=rollout.deployment.key, due_ns=due_ns)) == []
    assert (rollout.deployment.status, rollout.deployment.due_ns) == ("running", 0)
    assert watchers(release(rollout)) == []
    assert release(rollout) == []
    assert watchers(release(rollout, "rollout")) == ["app"]
    assert rollout.deployment.due_ns == rollout.now_ns + 10 * MINUTE


def test_nothing_is_promoted_while_it_is_held() -> None:
    """An operator is refused with the reason of the hold; the release itself promotes nothing by hand."""
    rollout = canaries()
    hold(rollout)
    rollout.healthy(rollout.rows()[-1])
    (refused,) = of_type(rollout.told(PromoteDeployment), OperatorRefused)
    assert (refused.code, refused.reason) == (
        "conflict",
        "deployment is held: load is 120",
    )
    assert of_type(release(rollout), DeploymentPromoted) == []
    assert of_type(rollout.told(PromoteDeployment), DeploymentPromoted)


def test_canaries_that_became_healthy_meanwhile_are_promoted_by_the_release() -> None:
    """So they are when a pause ends; a cause that is left still keeps them."""
    rollout = canaries(auto_promote=True)
    hold(rollout)
    hold(rollout, "rollout", "a comes first")
    assert of_type(rollout.healthy(rollout.rows()[-1]), DeploymentPromoted) == []
    assert of_type(release(rollout), DeploymentPromoted) == []
    rollout.told(PauseDeployment, pause=True)
    assert of_type(release(rollout, "rollout"), DeploymentPromoted) == []
    events = rollout.told(PauseDeployment, pause=False)
    assert of_type(events, DeploymentPromoted)[0].by == "auto"


def test_an_end_takes_the_holds_away() -> None:
    """A held deployment can be failed, and ends when its job gets a newer version."""
    rollout = canaries()
    hold(rollout)
    assert of_type(rollout.told(FailDeployment), DeploymentEnded)
    assert not rollout.deployment.is_held
    rollout.submit(paced(count=2, digest="d3"))
    hold(rollout)
    ended = of_type(rollout.submit(paced(count=2, digest="d4")), DeploymentEnded)
    assert [one.status for one in ended] == ["cancelled"]
    assert not of_type(ended, DeploymentReleased)
