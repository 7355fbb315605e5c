"""Values of jobs and nodes that left the state are closed once, also by a view that did not see them leave."""

import copy
from typing import Any

import msgspec
import pytest

from schemas.allocations import AllocationsCollected
from schemas.base import JobId
from schemas.jobs import JobsCollected
from schemas.nodes import NodesCollected
from schemas.plans import Stops
from services.view.role import View
from services.view.standing_values import TRIES_MAX
from shared.core.runtime.messages import (
    Answer,
    Ask,
    CaughtUp,
    Effect,
    Put,
    PutDone,
    PutRefused,
    Reconnected,
)
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.protocol import subjects
from tests.unit.view.view_story import MS, Story, puts

JOB, NODE, NODE_SUMMARY = subjects.view_job("j"), subjects.node("n2"), subjects.view_node("n2")


class Bus:
    """VIEW and NODE with fences, as JetStream has them, and the list of their subjects."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.values: dict[str, tuple[int, dict[str, Any]]] = {}
        self._seq = 0
        #: subjects in one answer; listings without an answer; questions so far.
        self.page, self.silent, self.asked = 100, 0, 0

    def store(self, put: Put) -> PutDone | PutRefused:
        """Store a value where its fence holds."""
        seq, value = self.values.get(put.subject, (0, None))
        if put.expected not in (-1, seq):
            return PutRefused(put.subject, seq, msgspec.json.encode(value))
        self._seq += 1
        self.values[put.subject] = (self._seq, msgspec.json.decode(put.data))
        return PutDone(put.subject, self._seq)

    def carry(self, effects: list[Effect]) -> list[Put]:
        """Answer a view until it has nothing more to say; returns what it put."""
        story, sent = self.story, list[Put]()
        while effects or story.view._publisher.waiting:
            answers: list[Any] = [self.store(one) for one in puts(effects)]
            sent += puts(effects)
            answers += [self._list(one) for one in effects if isinstance(one, Ask)]
            story.now_ns += 60 * MS
            effects = story.view.step(answers, story.now_ns)
        return sent

    def _list(self, ask: Ask) -> Answer:
        assert ask.subject == subjects.js_stream_info("VIEW")
        self.asked += 1
        if self.silent:
            self.silent -= 1
            return Answer(name=ask.name, data=None)
        body = msgspec.json.decode(ask.data)
        kind = body["subjects_filter"].removesuffix("*")
        names = sorted(name for name in self.values if name.startswith(kind))
        page = names[body["offset"] :][: self.page]
        state = {"subjects": dict.fromkeys(page, 1)} if page else {}
        return Answer(
            name=ask.name, data=msgspec.json.encode({"total": len(names), "state": state})
        )


def small() -> Story:
    """Two nodes, and a job with an allocation on each."""
    story = Story()
    story.node("n1")
    story.node("n2")
    story.job("j", count=2)
    story.plan("j", (0, 1))
    return story


def leave(story: Story) -> None:
    """The job and the second node leave the state."""
    story.plan("j", (), stops=(Stops(rows=(0, 1), client_status="lost"),))
    gone = (NodesCollected(rows=(1,)), JobsCollected(job_ids=(JobId("j"),)))
    story.log(AllocationsCollected(rows=(0, 1)), *gone)


def restart(story: Story, *, at_snapshot: bool) -> list[Effect]:
    """Another view begins, at a snapshot of the end of the log or at its first record."""
    at_end = View(instance="maker")
    at_end.step([*story.records, CaughtUp(len(story.records))], story.now_ns)
    story.view = View(instance="v2")
    if not at_snapshot:
        return story.start()
    lease = at_end._answers.lease
    assert lease is not None
    begun = Restored(copy.deepcopy(at_end.replica), SnapshotExtras(), lease)
    return story.view.step([begun, CaughtUp(len(story.records))], story.now_ns)


@pytest.mark.parametrize("at_snapshot", [True, False])
def test_what_left_while_no_view_ran_is_closed(*, at_snapshot: bool) -> None:
    """The values of the former view stand; the next one ends them for an hour, and leaves the others."""
    story = small()
    bus = Bus(story)
    bus.carry(story.start())
    leave(story)
    sent = bus.carry(restart(story, at_snapshot=at_snapshot))
    seq, job = bus.values[JOB]
    assert (job["purged"], job["status"], job["seq"]) == (True, "dead", len(story.records))
    assert bus.values[NODE_SUMMARY][1]["status"] == "down"
    assert bus.values[subjects.view_node("n1")][1]["status"] == "ready"
    assert {one.ttl_s for one in sent if one.subject == JOB} == {3600}
    assert bus.asked == (2 if at_snapshot else 0)
    # The next view has nothing to add, and shortens nothing.
    bus.carry(restart(story, at_snapshot=False))
    assert bus.values[JOB] == (seq, job)


def test_lists_of_many_pages_are_read_whole() -> None:
    """One subject a page, and an answer that does not come is asked for again."""
    story = small()
    for at in range(5):
        story.job(f"other-{at}")
    bus = Bus(story)
    bus.carry(story.start())
    leave(story)
    bus.page, bus.silent = 1, 2
    bus.carry(restart(story, at_snapshot=True))
    assert bus.values[JOB][1]["purged"] and bus.values[NODE_SUMMARY][1]["status"] == "down"
    assert not any(bus.values[subjects.view_job(f"other-{at}")][1].get("purged") for at in range(5))
    assert bus.asked == 6 + 2 + 2


def test_a_list_that_never_comes_is_given_up() -> None:
    """The view works without it."""
    story = small()
    bus = Bus(story)
    bus.carry(story.start())
    leave(story)
    bus.silent = 100
    bus.carry(restart(story, at_snapshot=True))
    assert bus.asked == TRIES_MAX
    assert bus.values[subjects.view_node("n1")][1]["status"] == "ready"


def test_a_newer_value_of_another_view_stays() -> None:
    """A job of the same id that was registered later is not closed by a view that is behind."""
    story = small()
    bus = Bus(story)
    bus.carry(story.start())
    leave(story)
    late = restart(story, at_snapshot=False)
    newer = {**bus.values[JOB][1], "seq": len(story.records) + 5}
    bus.values[JOB] = (999, newer)
    bus.carry(late)
    assert bus.values[JOB] == (999, newer)


def test_last_words_survive_a_lost_connection() -> None:
    """A Put that went with its connection is sent again; not for a job that is there again."""
    for comes_back in (False, True):
        story = small()
        bus = Bus(story)
        bus.carry(story.start())
        leave(story)
        lost = story.later()
        assert JOB in {one.subject for one in puts(lost)}
        if comes_back:
            story.job("j", version=3)
        bus.carry(story.feed(Reconnected()))
        assert bus.values[JOB][1].get("purged", False) is not comes_back
