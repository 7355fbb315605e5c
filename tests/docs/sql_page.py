"""docs/sql.md: its questions, and what they answer over the golden log of a simulated world."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from services.cli.runtime.output import CommandOutput
from services.cli.sql.answer_table import print_answer
from shared.archive.database import FactDatabase
from shared.archive.fact_extractor import FactExtractor
from tests.golden.replay_log import read_log

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sql.md"
LOG = ROOT / "tests" / "golden" / "logs" / "v1-0.1.0-seed-2.jsonl.gz"
_BLOCK = re.compile(r"```sql\n(?P<sql>.*?)```\n\n```text\n(?P<text>.*?)```", re.DOTALL)


class Question(NamedTuple):
    """One question of the page and the answer beside it."""

    sql: str
    text: str


def questions() -> list[Question]:
    found = _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))
    return [Question(one["sql"].strip(), one["text"]) for one in found]


def loaded() -> FactDatabase:
    facts, database = FactExtractor(), FactDatabase()
    for record in read_log(LOG):
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    return database


def answered(database: FactDatabase, sql: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `caravan sql` prints."""
    capsys.readouterr()
    source = SimpleNamespace(problems=[], seq=0, cluster_id="")
    print_answer(CommandOutput(), source, database.ask(sql), comma=False, limit=1000)  # type: ignore[arg-type]
    return capsys.readouterr().out


def bless(answers: dict[str, str]) -> None:
    """Write the answers into the page."""
    text = PAGE.read_text(encoding="utf-8")

    def put(found: re.Match[str]) -> str:
        return f"```sql\n{found['sql']}```\n\n```text\n{answers[found['sql'].strip()]}```"

    PAGE.write_text(_BLOCK.sub(put, text), encoding="utf-8")
