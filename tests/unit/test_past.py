"""A replayed past answers what the view answered then."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from schemas.projections import Query
from services.cli.moments import past
from services.cli.output import CliError
from shared.core.role import Record
from shared.query.past import Past
from tests.unit.view_story import Story

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

    async def read_log(self, first: int = 1, last: int = 0) -> AsyncIterator[Record]:
        for record in self._records:
            if record.seq >= first and (not last or record.seq <= last):
                yield record


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
    now = Past()
    for record in told.records:
        now.apply(record)
    body = msgspec.json.encode(query)
    assert msgspec.json.decode(now.answer(noun, body)) == told.ask(
        noun, **msgspec.to_builtins(query)
    )


def test_a_seq_is_a_moment() -> None:
    """At a seq nothing is known of what came later."""
    then = asyncio.run(past(Log(story().records), "4"))  # type: ignore[arg-type]
    assert msgspec.json.decode(then.answer("jobs", b"{}"))["total"] == 1
    assert msgspec.json.decode(then.answer("allocs", b"{}"))["total"] == 0
    assert then.replica.seq == 4


def test_a_moment_beyond_the_end_is_told() -> None:
    """A seq that was not written yet is an error that names the end."""
    records = story().records
    with pytest.raises(CliError, match=f"the log ends at {len(records)}, asked for 999"):
        asyncio.run(past(Log(records), "999"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0", "yesterday", "-3"])
def test_what_is_no_moment_is_told(text: str) -> None:
    """Neither a seq nor a time."""
    with pytest.raises(CliError, match="--at"):
        asyncio.run(past(Log([]), text))  # type: ignore[arg-type]
