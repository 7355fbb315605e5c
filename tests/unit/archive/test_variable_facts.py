"""Variables and their locks as SQL tables, without ciphertext, digests and hashes of locks."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.base import Event
from schemas.variables import (
    VariableDeleted,
    VariableLife,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
    VariablesShredded,
)
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


HASH = "abad1deaabad1dea" * 2
PAGE = Path(__file__).resolve().parents[3] / "docs" / "sql.md"


def locked(path: str) -> VariableLocked:
    """A lock of 10 s with a delay of 2 s."""
    return VariableLocked(
        path=path,
        lock=HASH,
        ttl_ns=10_000_000_000,
        delay_ns=2_000_000_000,
        at_ns=1,
        request_id="r",
    )


LOCKS: tuple[Event, ...] = (
    locked("app/leader"),
    locked("app/backup"),
    VariableLockReleased(path="app/leader", lock=HASH, request_id="r"),
    VariableLockExpired(path="app/backup", lock=HASH, free_ns=1_700_000_000_000_000_000),
    locked("app/leader"),
)


def database(events: Sequence[Event] = EVENTS) -> FactDatabase:
    """The log of these events, one a record from seq 3 on."""
    told = Story()
    for event in events:
        told.log(event)
    facts, found = FactExtractor(), FactDatabase()
    for record in told.records:
        facts.apply(record)
    found.take(facts)
    found.lock_sources({})
    return found


def rows(question: str, events: Sequence[Event] = EVENTS) -> list[Any]:
    """The rows of an answer."""
    return list(database(events).ask(question).rows)


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


def test_a_lock_is_one_row() -> None:
    """From the record that took it to the one that ended it; null while it is held."""
    question = (
        "SELECT path, from_seq, to_seq, end_reason, ttl_s, delay_s, from_time <= to_time, free_time::VARCHAR "
        "FROM variable_locks ORDER BY from_seq"
    )
    assert rows(question, LOCKS) == [
        ("app/leader", 3, 5, "released", 10.0, 2.0, True, None),
        ("app/backup", 4, 6, "expired", 10.0, 2.0, True, "2023-11-14 22:13:20"),
        ("app/leader", 7, None, None, 10.0, 2.0, None, None),
    ]
    assert HASH not in str(rows("SELECT * FROM variable_locks", LOCKS))


def test_the_question_of_the_page_about_locks_is_answered() -> None:
    """The query that docs/sql.md shows, and what it answers about these locks."""
    text = PAGE.read_text().partition("`variable_locks` answers")[2]
    question = text.partition("```text\n")[2].partition("```")[0]
    shown = [(row[0], row[1], row[2], row[4]) for row in rows(question, LOCKS)]
    assert shown == [("app/backup", 1, 1, False), ("app/leader", 2, 0, True)]
