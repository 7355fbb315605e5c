"""Parked jobs in SQL: from when to when, behind whom; also where an export is continued."""

from random import Random

import pytest

from shared.archive import parked_waits
from shared.archive.database import FactDatabase
from shared.archive.fact_extractor import FactExtractor
from shared.core.runtime.messages import Record
from shared.core.state.tables.evaluations import EvaluationTable
from shared.fleet.profile import FleetProfile, RunProfile
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins
from shared.sim.virtual_time import SECOND, START_NS
from tests.sim import recorded

_QUESTION = """SELECT job_id, class, n, reasons, from_seq, to_seq, decided_seq, woken_seq, eval_id
    FROM reasons ORDER BY ALL"""


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Forty equal jobs on a node that holds four of them at once."""
    profile = FleetProfile(runs=(RunProfile(job_type="batch", lasts="5s"),))
    engine = SimulationEngine(EngineSetup(seed=1, profile=profile))
    engine.at(START_NS, NodeJoins(spec=recorded.spec(1)))
    for number in range(40):
        when = START_NS + (2 + number // 8) * SECOND
        engine.at(when, recorded.job(f"j{number:02}", Priority=(50, 60)[number % 5 == 0]))
    engine.run(START_NS + 60 * SECOND)
    return list(engine.records)


def asked(records: list[Record], begin: int) -> list[tuple[object, ...]]:
    """The reasons of a log whose facts were extracted up to a seq, and then by another extractor."""
    first, database = FactExtractor(), FactDatabase()
    second = FactExtractor(is_recording=False, words=first.words)
    for record in records[:begin]:
        first.apply(record)
        second.apply(record)
    database.take(first)
    second.resume()
    for record in records[begin:]:
        second.apply(record)
    database.take(second)
    database.lock_sources({})
    return database.ask(_QUESTION).rows


def test_a_parked_job_waits_in_sql(records: list[Record]) -> None:
    """Of forty jobs most were parked first: each behind a job, undecided, until that was decided or it was itself."""
    rows = asked(records, 0)
    parked = [row for row in rows if row[6] is None]
    assert len({row[0] for row in parked}) >= 20
    for job_id, name, n, reasons, from_seq, to_seq, _, woken_seq, _ in parked:
        (reason,) = reasons
        assert (name, n, woken_seq) == ("priority", 1, None)
        assert reason.startswith("job 'j") and f"'{job_id}'" not in reason
        assert to_seq is None or from_seq < to_seq
    # No moment is in two rows.
    by_job: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (row[0], row[4])):
        assert row[4] >= by_job.get(row[0], 0)
        by_job[row[0]] = row[5] or 1 << 40


def test_a_continued_export_has_the_same_parked_waits(records: list[Record]) -> None:
    """Wherever one extractor ends and another begins, nothing is lost, doubled or never ended."""
    whole = asked(records, 0)
    assert any(row[6] is None for row in whole)
    for begin in Random(1).sample(range(1, len(records)), 12):
        assert asked(records, begin) == whole, begin


def test_a_record_costs_no_look_at_all_that_are_parked(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are looked at, all records together, no more often than records are about them."""
    looks: list[object] = []
    look = parked_waits.undecided_place
    monkeypatch.setattr(
        parked_waits,
        "undecided_place",
        lambda state, job_id: (looks.append(job_id), look(state, job_id))[1],
    )
    facts = FactExtractor()
    for record in records:
        facts.apply(record)
    table = facts.replica.state.evaluations
    assert isinstance(table, EvaluationTable)
    touched = sum(
        buffer.rows
        for name, buffer in facts.buffers.items()
        if name in {"jobs", "evaluations", "decisions"}
    )
    assert len(looks) <= touched
    # A job is noted once while it is parked, and once when it is decided.
    assert facts.buffers["parked"].rows <= 2 * 40
