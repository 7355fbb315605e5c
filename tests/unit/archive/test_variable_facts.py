"""Variables as a SQL table: one row a life, without ciphertext and digests."""

import base64
from typing import Any

from schemas.base import Event
from schemas.variables import VariableDeleted, VariableLife, VariablesShredded
from shared.archive.database import FactDatabase
from shared.archive.fact_extractor import FactExtractor
from tests.unit.view.test_view_variables import CIPHER, DIGEST, put
from tests.unit.view.view_story import Story

EVENTS: tuple[Event, ...] = (
    put("db"),
    put("db", size=12),
    VariableDeleted(path="db", incarnation=1),
    put("db", 2, size=14),
    put("web"),
    VariablesShredded(lives=(VariableLife(path="db", incarnation=1),)),
)


def database() -> FactDatabase:
    """The log of these events, one a record from seq 3 on."""
    told = Story()
    for event in EVENTS:
        told.log(event)
    facts, found = FactExtractor(), FactDatabase()
    for record in told.records:
        facts.apply(record)
    found.take(facts)
    found.lock_sources({})
    return found


def rows(question: str) -> list[Any]:
    """The rows of an answer."""
    return list(database().ask(question).rows)


def test_a_life_is_one_row() -> None:
    """Its newest put is its revision; the end and the shredding have their seq."""
    question = (
        "SELECT path, incarnation, revision, items, size, created_seq, deleted_seq, shredded_seq "
        "FROM variables ORDER BY path, incarnation"
    )
    assert rows(question) == [
        ("db", 1, 4, 2, 12, 3, 5, 8),
        ("db", 2, 6, 2, 14, 6, None, None),
        ("web", 1, 7, 2, 10, 7, None, None),
    ]


def test_a_life_has_the_times_of_the_log() -> None:
    """Created before changed, deleted, shredded; null where it did not come."""
    question = (
        "SELECT created_time < changed_time, changed_time < deleted_time, deleted_time < shredded_time "
        "FROM variables WHERE path = 'db' ORDER BY incarnation"
    )
    # One ns a record: microseconds are the same.
    first, second = rows(question)
    assert None not in first
    assert second == (False, None, None)


def test_no_column_has_ciphertext_or_digests() -> None:
    """Neither the table, nor the bodies of events, which name everything else of the fact."""
    bodies = rows("SELECT body::VARCHAR FROM events WHERE type = 'variable.put'")
    assert len(bodies) == 4
    found = str(bodies) + str(rows("SELECT * FROM variables"))
    for secret in ("cipher", "digest", base64.b64encode(CIPHER).decode(), DIGEST):
        assert secret not in found
    question = "SELECT body->>'$.path', body->>'$.size' FROM events WHERE type = 'variable.put' ORDER BY seq"
    assert rows(question) == [("db", "10"), ("db", "12"), ("db", "14"), ("web", "10")]
