"""Deployments at the view: what an operator asks of one, what is refused, and what comes late."""

import pytest

from schemas.allocations import AllocationsHealthChanged, HealthCount
from schemas.base import DeploymentKey, JobId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentGroup,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentResumed,
    DeploymentStarted,
)
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from schemas.policy import OperatorRefused
from shared.core.state.ids import deployment_id
from tests.unit.view.test_operator_api import sent, silent, told, wish
from tests.unit.view.view_story import Story

KEY, OTHER = DeploymentKey(7_000), DeploymentKey(8_000)
APP = JobId("app")


class Rollout(Story):
    """A view of a job with two canaries, one of them healthy."""

    def __init__(self) -> None:
        super().__init__()
        self.node("n1")
        self.job("app", count=2)
        part = DeploymentGroup(name="web", desired_total=2, desired_canaries=2)
        self.log(DeploymentStarted(key=KEY, job_id=APP, version=0, groups=(part,)))
        canaries = GroupPlacement(
            group="web",
            version=0,
            rows=(0,),
            counts=(2,),
            names=(0, 2),
            deployment=KEY,
            canaries=True,
        )
        origin = Origin(worker="w", number=1, snapshot_seq=1)
        self.log(PlanCommitted(key=0, job_id=APP, origin=origin, placements=(canaries,)))
        self.healthy(0)
        self.start()

    def healthy(self, row: int) -> None:
        """A canary is healthy."""
        count = HealthCount(deployment=KEY, group="web", healthy=1)
        self.log(AllocationsHealthChanged(rows=(row,), healths=(1,), counts=(count,)))

    def end(self) -> None:
        """The deployment failed."""
        ended = DeploymentEnded(key=KEY, job_id=APP, version=0, status="failed", cause="operator")
        self.log(ended)

    def want(self, verb: str, **body: object) -> list:
        """Ask something of the deployment."""
        return self.feed(wish("deployment", verb, deployment_id=deployment_id(KEY), **body))


def refusal(effects: list) -> tuple[str, str]:
    """Code and text of a refusal; nothing is sent for it."""
    answer = told(effects)
    assert answer["status"] == "refused" and not sent(effects)
    error = answer["error"]
    assert isinstance(error, dict)
    assert "\n" not in error["message"]
    return error["code"], error["message"]


def test_a_promotion_of_unhealthy_canaries_is_refused() -> None:
    """With the number that is healthy; once all are, the command goes out and its fact is the answer."""
    story = Rollout()
    code, text = refusal(story.want("promote"))
    assert (code, text) == ("conflict", "Task group 'web' has 1/2 healthy allocations")
    assert refusal(story.want("promote", groups=["x"]))[0] == "not_found"
    story.healthy(1)
    effects = story.want("promote")
    assert silent(effects)
    (command,) = sent(effects)
    assert (command["type"], command["deployment_key"]) == ("promote_deployment", KEY)
    story.log(DeploymentPromoted(key=KEY, groups=("web",), rows=(0, 1)))
    assert told(story.feed())["changed"] is True
    assert told(story.want("promote"))["changed"] is False


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("promote", {}),
        ("pause", {}),
        ("resume", {}),
        ("fail", {}),
        ("set_health", {"unhealthy": ["app.web[0]"]}),
    ],
)
def test_a_verb_on_a_deployment_that_is_over(verb: str, body: dict[str, object]) -> None:
    """One line that says so, and nothing is sent."""
    story = Rollout()
    story.end()
    _, text = refusal(story.want(verb, **body))
    assert "terminal status" in text


@pytest.mark.parametrize("verb", ["promote", "pause", "resume", "fail", "set_health"])
def test_an_unknown_deployment(verb: str) -> None:
    """It is not found, under every verb."""
    story = Rollout()
    more = {"healthy": ["app.web[0]"]} if verb == "set_health" else {}
    effects = story.feed(wish("deployment", verb, deployment_id=deployment_id(OTHER), **more))
    assert refusal(effects)[0] == "not_found"


def test_a_late_copy_of_a_pause_changes_nothing_twice() -> None:
    """While it is paused a copy is answered at once; the fact of another deployment answers nothing."""
    story = Rollout()
    effects = story.want("pause")
    (command,) = sent(effects)
    assert (command["type"], command["pause"]) == ("pause_deployment", True)
    story.log(DeploymentPaused(key=KEY))
    assert told(story.feed())["changed"] is True
    again = story.want("pause")
    assert not sent(again) and told(again)["changed"] is False
    effects = story.want("resume")
    assert sent(effects)
    story.log(DeploymentResumed(key=KEY))
    assert told(story.feed())["changed"] is True


def test_what_ends_while_it_is_asked_is_refused() -> None:
    """A pause was on its way when the deployment failed: the refusal of the applier is the answer."""
    story = Rollout()
    (command,) = sent(story.want("pause"))
    story.end()
    request_id = str(command["request_id"])
    story.log(OperatorRefused(request_id=request_id, code="conflict", reason="it has ended"))
    answer = told(story.feed())
    assert answer["status"] == "refused" and answer["error"]["message"] == "it has ended"  # type: ignore[index]
