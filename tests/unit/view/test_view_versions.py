"""Versions at the view: tags and stability by request, shown with the versions."""

import msgspec

from schemas.base import JobId
from schemas.jobs import JobRegistered, JobStabilityChanged, JobVersionTagged
from tests.unit.view.test_operator_api import sent, silent, told, wish
from tests.unit.view.view_story import Story

APP = JobId("app")


def ready() -> Story:
    """A view of a cluster with two versions of the job `app`."""
    story = Story()
    for version in (0, 1):
        text = msgspec.Raw(b'{"ID":"app","Meta":{"v":"%d"}}' % version)
        story.log(
            JobRegistered(
                submission_id=f"s{version}", digest="d", job_id=APP, version=version, spec=text
            )
        )
    story.start()
    return story


def test_a_tag_is_for_the_version_that_is_the_newest_when_asked() -> None:
    """The command names it; the answer comes with the fact; the same again changes nothing."""
    story = ready()
    effects = story.feed(wish("job", "tag", job_id="app", name="good"))
    assert silent(effects)
    (command,) = sent(effects)
    assert (command["type"], command["version"], command["name"]) == ("tag_version", 1, "good")
    story.log(JobVersionTagged(request_id="r", job_id=APP, version=1, name="good"))
    answer = told(story.feed())
    assert (answer["status"], answer["changed"]) == ("accepted", True)
    again = told(story.feed(wish("job", "tag", job_id="app", name="good")))
    assert (again["status"], again["changed"]) == ("accepted", False)


def test_a_refused_tag_or_stability_is_told_at_once() -> None:
    """With its code, and nothing is sent."""
    story = ready()
    story.log(JobVersionTagged(request_id="r", job_id=APP, version=1, name="good"))
    cases: tuple[tuple[str, dict[str, object], str], ...] = (
        ("tag", {"name": "good", "version": 0}, "conflict"),
        ("tag", {"name": "x", "version": 7}, "not_found"),
        ("set_stability", {"version": 7, "stable": True}, "not_found"),
    )
    for verb, body, code in cases:
        effects = story.feed(wish("job", verb, job_id="app", **body))
        answer = told(effects)
        assert (answer["status"], answer["error"]["code"]) == ("refused", code)  # type: ignore[index]
        assert not sent(effects)


def test_stability_waits_for_its_fact() -> None:
    """Another version's fact does not answer the request."""
    story = ready()
    effects = story.feed(wish("job", "set_stability", job_id="app", version=0, stable=True))
    (command,) = sent(effects)
    assert (command["type"], command["version"], command["stable"]) == ("set_stability", 0, True)
    story.log(JobStabilityChanged(request_id="o", job_id=APP, version=1, stable=True))
    assert silent(story.feed())
    story.log(JobStabilityChanged(request_id="r", job_id=APP, version=0, stable=True))
    assert told(story.feed())["changed"] is True
    (new, old) = story.ask("job_versions", id="app")["versions"]
    assert (new["version"], new["stable"], old["version"], old["stable"]) == (1, True, 0, True)
    assert (old["tag"], old["tag_description"]) == ("", "")
