"""Where the data of an allocation comes from, as the view tells the two nodes that it concerns."""

from typing import Any

import msgspec
import pytest

from schemas.plans import GroupPlacement, Origin, PlanCommitted
from shared.core.runtime.messages import Ack, CaughtUp, Message, Reply
from shared.core.state.ids import alloc_id
from shared.protocol import subjects
from tests.unit.view.view_story import Story


def world() -> tuple[Story, str, str]:
    """An allocation on n0 that one on n1 replaces; n2 has one of its own. Returns the story and both ids."""
    story = Story()
    for node in ("n0", "n1", "n2"):
        story.node(node)
    story.job("app")
    story.plan("app", (0,))
    story.start()
    table = story.view.replica.state.allocations
    old = int(table.key[0])
    placement = GroupPlacement(
        group="web", version=0, rows=(1,), counts=(1,), names=(0, 1), previous=(old,)
    )
    origin = Origin(worker="w", number=9, snapshot_seq=1)
    story.log(PlanCommitted(key=0, job_id="app", origin=origin, placements=(placement,)))
    story.job("other")
    story.plan("other", (2,))
    story.feed(CaughtUp(len(story.records)))
    (new,) = table.previous
    return story, alloc_id(old), alloc_id(int(table.key[new]))


def ask(story: Story, node: str, body: bytes, *, reply: bool = True) -> dict[str, Any]:
    message = Message("disk_source", subjects.node_disk_sources(node), body, 900, reply=reply)
    (answer,) = [one for one in story.feed(message) if isinstance(one, Reply | Ack)]
    return msgspec.json.decode(answer.data) if isinstance(answer, Reply) else {}


def of(wanted: str) -> bytes:
    return msgspec.json.encode({"alloc_id": wanted})


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_both_nodes_learn_what_replaces_what_and_where(node: str) -> None:
    """The node of the new allocation and that of the old one get the same answer."""
    story, old, new = world()
    assert ask(story, node, of(new)) == {
        "node_id": "n1",
        "previous": old,
        "previous_node": "n0",
        "previous_status": "pending",
        "previous_node_status": "ready",
        "error": None,
    }


def test_another_node_learns_nothing() -> None:
    """Of an allocation that does not concern it a node gets what it gets of one that does not exist."""
    story, old, new = world()
    for node, wanted in (("n2", new), ("n2", old), ("n1", old), ("n1", "0" * 36), ("n9", new)):
        said = ask(story, node, of(wanted))
        assert said["error"]["code"] == "not_found"
        assert (said["node_id"], said["previous"], said["previous_node"]) == ("", "", "")


def test_one_that_replaces_none_has_no_source() -> None:
    """The answer to its own node names no other allocation."""
    story, old, _ = world()
    said = ask(story, "n0", of(old))
    assert (said["node_id"], said["previous"], said["previous_node"]) == ("n0", "", "")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"alloc_id":1}', b'{"alloc_id":"a","alloc_id":"b"}']
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    """With an error in the shape of the answer; a message without a place for one is dropped."""
    story, _, new = world()
    assert ask(story, "n1", body)["error"]["code"] == "invalid"
    assert ask(story, "n1", of(new), reply=False) == {}


def test_before_the_log_was_read_nothing_is_said() -> None:
    """The answer is to ask again."""
    story = Story()
    assert ask(story, "n1", of("a"))["error"]["code"] == "unavailable"
