"""Host volumes by request at the agent's role: orders, journal, offers, and what it says of them."""

from typing import Any

import msgspec

from schemas.envelope import COMMANDS_DECODER
from schemas.host_volumes import VolumeCapability, VolumeOrder, VolumeSpec, VolumeStatus
from schemas.nodes import Pool, ReportNode
from services.agent.tasks.volume_monitor import RETRY_NS
from shared.core.runtime.agent_messages import WriteJournal
from shared.core.runtime.messages import Send
from shared.core.runtime.volume_messages import (
    CreateVolume,
    DeleteVolume,
    VolumeCreated,
    VolumeForgotten,
    VolumeKept,
    VolumeNotMade,
    VolumeNotRemoved,
    VolumeRemoved,
)
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

SPEC = VolumeSpec(
    id="v1", name="data", capabilities=(VolumeCapability(access_mode="single-node-writer"),)
)
ORDER = VolumeOrder(spec=SPEC)
LEAVE = VolumeOrder(spec=SPEC, delete=True)
MADE = VolumeCreated(id="v1", attempt=1, path="/v/v1", capacity_bytes=7)
USES = job_json(
    task_json(driver="exec", VolumeMounts=[{"Volume": "v", "Destination": "/d"}]),
)
USES["TaskGroups"][0]["Volumes"] = {"v": {"Name": "v", "Type": "host", "Source": "data"}}


def reports(story: Story) -> list[ReportNode]:
    """All reports so far; they stay."""
    sends = [one for one in story.done if isinstance(one, Send) and "report" in one.subject]
    found = [one for send in sends for one in COMMANDS_DECODER.decode(send.data).commands]
    return [one for one in found if isinstance(one, ReportNode)]


def told(story: Story) -> list[VolumeStatus]:
    """What the last report says of volumes."""
    return list(reports(story)[-1].volumes)


def offers(story: Story) -> tuple[str, list[Pool]]:
    """What the last registration offers."""
    spec = next(one.spec for one in reversed(reports(story)) if one.spec is not None)
    return spec.attributes.get("volume.data", ""), list(spec.pools)


def ready(**fields: Any) -> Story:
    story = Story(**fields).hear(2, volumes=(ORDER,))
    return story.step(MADE)


def test_the_journal_comes_before_the_plugin() -> None:
    """The order is on disk in the step that asks for the volume; it is asked for once."""
    story = Story()
    story.did(CreateVolume, DeleteVolume, WriteJournal)
    story.hear(2, volumes=(ORDER,))
    written, asked = story.did(WriteJournal, CreateVolume)[:2]
    assert VolumeKept(spec=SPEC) in written.entries
    assert written.sync
    assert asked == CreateVolume(spec=SPEC, attempt=1, is_new=True)
    story.hear(3, volumes=(ORDER,))
    assert story.did(CreateVolume) == []


def test_a_volume_that_is_there_is_offered_and_told() -> None:
    """As attribute and pool of the node, in the registration that the same report carries."""
    story = ready()
    story.wait(1)
    assert offers(story) == ("rw", [Pool(name="volume.data", amount=10_000)])
    assert told(story) == [VolumeStatus(id="v1", status="ready", capacity_bytes=7, path="/v/v1")]


def test_words_about_volumes_are_said_until_the_log_has_seen_them() -> None:
    """Also where nothing else is new."""
    story = ready()
    story.wait(1)
    number = reports(story)[-1].number
    before = len(reports(story))
    story.wait(3)
    assert len(reports(story)) > before
    assert told(story)
    story.hear(4, volumes=(ORDER,), reports_seen=number)
    before = len(reports(story))
    story.wait(10)
    assert len(reports(story)) == before


def test_one_that_may_only_be_read_has_no_pool() -> None:
    """No capability of it lets anyone write."""
    reader = (VolumeCapability(access_mode="single-node-reader-only"),)
    order = VolumeOrder(spec=msgspec.structs.replace(SPEC, capabilities=reader))
    story = Story().hear(2, volumes=(order,))
    story.step(MADE).wait(1)
    assert offers(story) == ("ro", [])


def test_a_failure_is_told_and_tried_again_by_a_new_attempt_alone() -> None:
    """What is answered to an older attempt counts for nothing."""
    story = Story().hear(2, volumes=(ORDER,))
    story.step(VolumeNotMade(id="v1", attempt=1, reason="full")).wait(1)
    assert told(story) == [VolumeStatus(id="v1", status="failed", reason="full")]
    story.did(CreateVolume, DeleteVolume, WriteJournal)
    story.hear(3, volumes=(VolumeOrder(spec=SPEC, attempt=2),))
    assert story.did(CreateVolume) == [CreateVolume(spec=SPEC, attempt=2, is_new=True)]
    story.step(MADE).wait(1)
    assert told(story)[0].status == "failed"
    story.step(msgspec.structs.replace(MADE, attempt=2)).wait(1)
    assert told(story)[0].attempt == 2


def test_a_killed_agent_asks_again() -> None:
    """S75: what was half made is asked for by the same id; what was ready is offered before its plugin answers."""
    half = Story().hear(2, volumes=(ORDER,)).restarted()
    half.step()
    assert half.did(CreateVolume) == [CreateVolume(spec=SPEC, attempt=1, is_new=True)]
    whole = ready().restarted()
    whole.step().wait(1)
    assert whole.did(CreateVolume) == [CreateVolume(spec=SPEC, attempt=1, is_new=False)]
    assert offers(whole)[0] == "rw"
    whole.step(VolumeNotMade(id="v1", attempt=1, reason="gone")).wait(1)
    assert offers(whole)[0] == ""
    assert told(whole)[0].status == "failed"


def test_a_deletion_offers_no_more_at_once() -> None:
    """The journal comes first; once it is done the agent reports it, and forgets it when the log says so."""
    story = ready()
    story.did(CreateVolume, DeleteVolume, WriteJournal)
    story.hear(3, volumes=(LEAVE,))
    written, asked = story.did(WriteJournal, DeleteVolume)[:2]
    assert [one.state for one in written.entries if isinstance(one, VolumeKept)] == ["deleting"]
    assert asked == DeleteVolume(spec=SPEC, path="/v/v1")
    story.wait(1)
    assert offers(story)[0] == ""
    story.step(VolumeRemoved(id="v1")).wait(1)
    assert told(story) == [VolumeStatus(id="v1", status="deleted")]
    story.hear(5)
    entries = [entry for one in story.did(WriteJournal) for entry in one.entries]
    assert VolumeForgotten(id="v1") in entries


def test_a_deletion_waits_for_the_last_task_here() -> None:
    """The log may have given up an allocation that runs on."""
    story = ready(job=USES)
    story.hear(3, alloc(), volumes=(ORDER,))
    story.started()
    story.did(CreateVolume, DeleteVolume, WriteJournal)
    story.hear(4, alloc(), volumes=(LEAVE,))
    assert story.did(DeleteVolume) == []
    story.hear(5, volumes=(LEAVE,))
    story.wait(6)
    story.exited(None, signal=9)
    assert story.did(DeleteVolume) == [DeleteVolume(spec=SPEC, path="/v/v1")]


def test_a_deletion_that_fails_is_tried_again() -> None:
    """After a while, and by the next life of the agent."""
    story = ready().hear(3, volumes=(LEAVE,))
    story.did(CreateVolume, DeleteVolume, WriteJournal)
    story.step(VolumeNotRemoved(id="v1", reason="busy")).wait(1)
    assert told(story) == [VolumeStatus(id="v1", status="failed", reason="busy")]
    assert story.did(DeleteVolume) == []
    story.wait(RETRY_NS // SECOND + 1)
    assert len(story.did(DeleteVolume)) == 1
    again = story.restarted()
    again.step()
    assert len(again.did(DeleteVolume)) == 1


def test_a_volume_that_the_log_does_not_have_stays_on_the_disk() -> None:
    """An operator had it forgotten while the node was away: it is not offered, and that is no order to delete."""
    story = ready().restarted()
    story.hear(5)
    story.step(MADE)
    assert story.did(DeleteVolume) == [DeleteVolume(spec=SPEC, path="/v/v1", keeps_data=True)]
    story.wait(1)
    assert offers(story)[0] == ""
