"""What tasks used in SQL: minutes of the live bus beside the facts of the log."""

import msgspec

from schemas.usage import UsageMinute
from shared.archive.database import FactDatabase

MINUTE = UsageMinute(
    node_id="n1",
    at_s=1_700_000_040,
    allocs=("a1", "a2"),
    tasks=("web", "db"),
    samples=(6, 5),
    cpu_millicores=(250, 10),
    cpu_peak_millicores=(900, 20),
    memory_bytes=(1 << 30, 1 << 20),
    throttled_ms=(7, 0),
    oom_kills=(0, 2),
)


def test_minutes_become_rows() -> None:
    """A row for each task of a minute; of an allocation that the log does not know job and group are null."""
    database = FactDatabase()
    database.lock_sources({})
    database.take_usage([MINUTE, msgspec.structs.replace(MINUTE, node_id="n2")])
    question = (
        "SELECT id, job_id, node_id, task, time::VARCHAR, samples, cpu_millicores, cpu_peak_millicores,"
        " memory_bytes, throttled_ms, oom_kills FROM task_usage WHERE node_id = 'n1' ORDER BY id"
    )
    assert database.ask(question).rows == [
        ("a1", None, "n1", "web", "2023-11-14 22:14:00", 6, 250, 900, 1 << 30, 7, 0),
        ("a2", None, "n1", "db", "2023-11-14 22:14:00", 5, 10, 20, 1 << 20, 0, 2),
    ]
    assert database.ask("SELECT count(*) FROM task_usage").rows == [(4,)]
    database.close()


def test_a_minute_whose_columns_differ_in_length_is_left_out() -> None:
    """A node may send anything: nothing is shown for the wrong task."""
    database = FactDatabase()
    database.lock_sources({})
    database.take_usage([msgspec.structs.replace(MINUTE, tasks=("web",)), MINUTE])
    assert database.ask("SELECT count(*) FROM task_usage").rows == [(2,)]
    database.close()
