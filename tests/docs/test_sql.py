"""docs/sql.md says what is there and what it answers. CARAVAN_BLESS=1 writes the answers anew."""

import os
import re

import pytest

from shared.archive.database import FactDatabase
from shared.archive.views import SQL_MACROS, SQL_TABLES
from tests.docs.sql_page import PAGE, answered, bless, loaded, questions

QUESTIONS = questions()


@pytest.fixture(scope="module")
def database() -> FactDatabase:
    return loaded()


def test_fifteen_questions_are_answered() -> None:
    """There are fifteen numbered questions, each with SQL and its answer."""
    numbers = re.findall(r"^### (\d+)\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(one) for one in numbers] == list(range(1, 16))
    assert len(QUESTIONS) == 15


def test_the_answers_are_those_of_the_page(
    database: FactDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every question gives just the answer that the page shows, and none is empty."""
    found = {one.sql: answered(database, one.sql, capsys) for one in QUESTIONS}
    if os.environ.get("CARAVAN_BLESS"):
        bless(found)
        return
    for one in QUESTIONS:
        hint = "the golden log changed, too? CARAVAN_BLESS=1 writes the answers anew"
        assert found[one.sql] == one.text, f"{one.sql}\n{hint}"
        assert "no rows" not in one.text


def test_every_table_and_macro_is_described(database: FactDatabase) -> None:
    """The page names each table with just its columns, and each macro."""
    text = PAGE.read_text(encoding="utf-8")
    for table in SQL_TABLES:
        told = re.search(rf"^\| `{table}` \| ([^|]*) \|", text, re.MULTILINE)
        assert told, table
        columns = [str(row[0]) for row in database.ask(f"DESCRIBE FROM {table}").rows]
        assert told[1].replace("`", "").split(", ") == columns, table
    for macro in SQL_MACROS:
        assert f"| `{macro}` |" in text, macro
