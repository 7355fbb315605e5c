"""Claims at the view: listed, and released by request."""

from schemas.base import JobId, NodeId
from schemas.volumes import ClaimMade, ClaimReleased
from tests.unit.view.test_operator_api import sent, silent, told, wish
from tests.unit.view.view_story import Story

DB = JobId("db")


def ready() -> Story:
    story = Story()
    for index in (1, 0):
        story.log(ClaimMade(job_id=DB, group="g", index=index, volume="data", node_id=NodeId("n1")))
    story.start()
    return story


def test_claims_are_listed_by_index() -> None:
    """Of one job where it is named."""
    story = ready()
    answer = story.ask("claims")
    shown = [(one["index"], one["node_id"]) for one in answer["claims"]]  # type: ignore[attr-defined]
    assert shown == [(0, "n1"), (1, "n1")]
    assert story.ask("claims", job_id="other")["total"] == 0


def test_a_release_waits_for_its_fact() -> None:
    """That of another index does not answer it; the same again changes nothing."""
    story = ready()
    request = wish("volume", "release_claim", job_id="db", group="g", index=0)
    (command,) = sent(story.feed(request))
    assert (command["type"], command["index"]) == ("release_claim", 0)
    story.log(ClaimReleased(request_id="o", job_id=DB, group="g", index=1))
    assert silent(story.feed())
    story.log(ClaimReleased(request_id="r", job_id=DB, group="g", index=0))
    assert told(story.feed())["changed"] is True
    again = told(story.feed(wish("volume", "release_claim", job_id="db", group="g", index=0)))
    assert (again["status"], again["changed"]) == ("accepted", False)
