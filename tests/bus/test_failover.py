"""Failover under load: kill -9 of every process and of the bus while jobs come in, on one server and on three."""

from bench.resilience import crash_recovery


def test_nothing_is_lost_or_doubled_whoever_dies() -> None:
    """Each role, a lone server, the leader of the log's stream and all three servers die; every count is exact."""
    found = crash_recovery.run(0.03, 1)
    assert len(found.checks) == 4 and all(found.checks.values()), found.checks
    assert found.result["lost"] == found.result["doubled"] == 0
    assert found.size["kills"] == len(crash_recovery.ALONE) + len(crash_recovery.TRIO) == 10
    assert found.fsync
