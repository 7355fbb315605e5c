"""A replayed past answers what the view answered then."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from schemas.projections import Query
from services.cli.log.tail import EventFilter
from services.cli.runtime import log_position
from services.cli.runtime.log_position import replay_to
from services.cli.runtime.output import CliError
from shared.core.runtime.messages import Record
from shared.query.historical_state import HistoricalState
from shared.query.state_diff import diff_states
from tests.unit.view.view_story import Story

QUESTIONS = (
    ("jobs", Query()),
    ("job", Query(id="web")),
    ("nodes", Query()),
    ("node", Query(id="n1")),
    ("allocs", Query()),
    ("evals", Query()),
    ("policy", Query()),
    ("cluster", Query(id="hashes")),
)


class Log:
    """As much of a bus client as reads a log."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.bus = None

    async def read_log(self, first: int = 1, last: int = 0) -> AsyncIterator[Record]:
        for record in self._records:
            if record.seq >= first and (not last or record.seq <= last):
                yield record


@pytest.fixture(autouse=True)
def _no_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """No view has written any: everything is replayed."""

    async def newest(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(log_position.snapshots, "restore_newest", newest)


def story() -> Story:
    told = Story()
    told.node("n1")
    told.job("web", count=2)
    told.plan("web", (0,))
    told.node("n2")
    told.job("other")
    return told


@pytest.mark.parametrize(("noun", "query"), QUESTIONS, ids=[noun for noun, _ in QUESTIONS])
def test_a_past_answers_as_the_view_did(noun: str, query: Query) -> None:
    """At the end of any beginning of the log both say the same, byte for byte."""
    told = story()
    told.start()
    now = HistoricalState()
    for record in told.records:
        now.apply(record)
    body = msgspec.json.encode(query)
    assert msgspec.json.decode(now.answer(noun, body)) == told.ask(
        noun, **msgspec.to_builtins(query)
    )


def test_a_seq_is_a_moment() -> None:
    """At a seq nothing is known of what came later."""
    then = asyncio.run(replay_to(Log(story().records), "4"))  # type: ignore[arg-type]
    assert msgspec.json.decode(then.answer("jobs", b"{}"))["total"] == 1
    assert msgspec.json.decode(then.answer("allocs", b"{}"))["total"] == 0
    assert then.replica.seq == 4


def test_a_moment_beyond_the_end_is_told() -> None:
    """A seq that was not written yet is an error that names the end."""
    records = story().records
    with pytest.raises(CliError, match=f"the log ends at {len(records)}, before seq 999"):
        asyncio.run(replay_to(Log(records), "999"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0", "yesterday", "-3"])
def test_what_is_no_moment_is_told(text: str) -> None:
    """Neither a seq nor a time."""
    with pytest.raises(CliError, match="--at"):
        asyncio.run(replay_to(Log([]), text))  # type: ignore[arg-type]


def test_two_moments_are_compared() -> None:
    """What came between two moments is named, each thing once; nothing else is."""
    records = story().records
    before = asyncio.run(replay_to(Log(records), "4"))  # type: ignore[arg-type]
    after = asyncio.run(replay_to(Log(records)))  # type: ignore[arg-type]
    found = diff_states(before.state, after.state)
    assert (found.from_seq, found.to_seq) == (4, len(records))
    assert [(one.kind, one.what, one.id.split()[0]) for one in found.changes] == [
        ("job", "added", "other"),
        ("node", "added", "n2"),
        ("allocation", "added", "web.web[0]"),
    ]
    assert found.counts == {"job added": 1, "node added": 1, "allocation added": 1}
    assert not diff_states(after.state, after.state).changes


def test_a_filter_knows_whose_an_event_is() -> None:
    """Events that name rows and keys only belong to the jobs and nodes that these stand for."""
    records = story().records
    of_web = EventFilter(job="web")
    told = [line.type for record in records for line in of_web.lines(record)]
    assert told == ["job.registered", "evaluations.created", "plan.committed"]
    of_node = EventFilter(node="n1")
    told = [line.type for record in records for line in of_node.lines(record)]
    assert told == ["node.registered", "plan.committed"]
    by_kind = EventFilter(kinds=("node", "plan"))
    told = [line.type for record in records for line in by_kind.lines(record)]
    assert told == ["node.registered", "plan.committed", "node.registered"]
