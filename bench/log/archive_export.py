"""The archive: a log of two million placements becomes Parquet, and SQL returns the state at a seq.

The log is that of the million container challenge with twice as many jobs, made by the core's own functions
(`bench/harness/generated_log.py`); then every allocation is reported running and half of them complete. Placements are
counted one by one, a report of many as one event. The SQL state at a seq must equal the replayed state, and a second
export must have nothing to do. In this process, without a bus. Bars: 500,000 events a second, 200 ms a state.
"""

import gc
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.fleet_process import n1_standard_8
from bench.harness.generated_log import GeneratedLog as Log
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.throughput.million_placements import COUNT, GROUPS, NODES, c1m_job
from schemas.allocations import CLIENT_STATUSES, AllocationsReported
from shared.archive.database import FactDatabase
from shared.archive.export import Export, ExportReader, ExportStats
from shared.archive.segments import Archive
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.state import State

RUNS = 5
JOBS = 2_000
#: Allocations of one report's transaction, as the applier collects them under load.
_A_REPORT = 2_000
#: Each question is asked so often; the median counts.
_TIMES = 5
_USAGE = "SELECT node_id, allocations, cpu_mhz, memory_mib, disk_mib FROM usage_at(?)"
_HELD = """SELECT node_id, client_status, count(*), sum(key)::HUGEINT
    FROM allocations_at(?) GROUP BY node_id, client_status"""
Rows = set[tuple[Any, ...]]


class ReportedLog(Log):
    """A log in which nodes report what became of their allocations."""

    def report(self, rows: Sequence[int], status: str) -> None:
        """Write one status of these allocations, as their nodes would report it."""
        self.now_ns += 1_000_000
        table = self.replica.state.allocations
        nodes = np.unique(table.node[np.asarray(rows)]).tolist()
        self._commit(
            [
                AllocationsReported(
                    nodes=tuple(nodes),
                    numbers=(self.replica.seq,) * len(nodes),
                    rows=tuple(rows),
                    statuses=(CLIENT_STATUSES.index(status),) * len(rows),
                )
            ]
        )


def make_log(nodes: int, jobs: int) -> tuple[list[Record], int]:
    """Write the log; returns it and a seq in the midst of the reports."""
    log = ReportedLog("bench")
    log.nodes(n1_standard_8(nodes))
    for number in range(jobs):
        log.job(c1m_job(number))
    total = jobs * GROUPS * COUNT
    for start in range(0, total, _A_REPORT):
        log.report(range(start, min(start + _A_REPORT, total)), "running")
    middle = log.replica.seq
    for start in range(0, total, 2 * _A_REPORT):
        log.report(range(start, min(start + _A_REPORT, total)), "complete")
    middle = (middle + log.replica.seq) // 2
    return log.close(), middle


def run(size: float, runs: int) -> BenchOutcome:
    """Export and ask `runs` times; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 1)
    records, middle = make_log(nodes, jobs)
    at = Replica()
    for record in records[:middle]:
        at.apply(record)
    placements = jobs * GROUPS * COUNT
    wanted = {"nodes": nodes, "jobs": jobs, "placements": placements, "records": len(records)}
    wanted["status_changes"] = placements + placements // 2
    return repeat_runs(lambda: _once(records, at.state, middle), runs, wanted)


def _once(records: list[Record], state: State, middle: int) -> BenchRun:
    folder = Path(tempfile.mkdtemp(prefix="archive-"))
    cpu = time.process_time()
    try:
        gc.collect()
        start = time.perf_counter()
        written = export(folder, records)
        export_s = time.perf_counter() - start
        cpu_s = time.process_time() - cpu
        again = export(folder, records).records
        start = time.perf_counter()
        reading = ExportReader(folder)
        database = FactDatabase()
        database.lock_sources(reading.files(), reading.bases())
        open_s = time.perf_counter() - start
        usage_s, usage = _ask(database, _USAGE, middle)
        held_s, held = _ask(database, _HELD, middle)
        checks = {
            "usage_equals_state": usage == _usage_of(state),
            "allocations_equal_state": held == _held_of(state),
            "nothing_exported_twice": again == 0 and written.records == len(records),
            "nothing_damaged": not reading.problems,
        }
        database.close()
    finally:
        shutil.rmtree(folder)
    return BenchRun(
        result={
            "events_per_s": written.events / export_s,
            "export_s": export_s,
            "open_ms": open_s * 1e3,
            "allocations_at_ms": held_s * 1e3,
            "usage_at_ms": usage_s * 1e3,
            "bytes_per_event": written.bytes / written.events,
        },
        checks=checks,
        cpu_s={"export": round(cpu_s, 2)},
        rss_mib={},
        log_bytes=sum(len(one.data) for one in records),
        fsync=False,
        replicas=0,
    )


def export(folder: Path, records: list[Record]) -> ExportStats:
    """Export what of a log is not in a folder yet, as the command does."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive)
        first, _ = work.wanted()
        for record in records[first - 1 :]:
            work.apply(record)
        work.flush()
        work.close()
    return work.written


def _ask(database: FactDatabase, question: str, moment: int) -> tuple[float, Rows]:
    """Ask; returns the median of seconds and the rows."""
    took = []
    rows: Rows = set()
    for _ in range(_TIMES):
        start = time.perf_counter()
        answer = database.ask(question, [moment])
        took.append(time.perf_counter() - start)
        rows = set(answer.rows)
    return sorted(took)[_TIMES // 2], rows


def _usage_of(state: State) -> Rows:
    """The expected result of usage_at."""
    table, size = state.allocations, state.fleet.size
    rows = table.live_rows()
    counts = np.bincount(table.node[rows[table.is_holding(rows)]], minlength=size).tolist()
    used = table.used(size).tolist()
    return {(state.fleet.ids[row], counts[row], *used[row]) for row in range(size)}


def _held_of(state: State) -> Rows:
    """The expected result of allocations_at, by node and status."""
    table = state.allocations
    rows = table.live_rows()
    rows = rows[table.is_holding(rows)]
    places = table.node[rows].astype(np.int64) * len(CLIENT_STATUSES) + table.client[rows]
    kinds, inverse = np.unique(places, return_inverse=True)
    counts = np.bincount(inverse).tolist()
    sums = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(sums, inverse, table.key[rows])
    names = [divmod(kind, len(CLIENT_STATUSES)) for kind in kinds.tolist()]
    return {
        (state.fleet.ids[row], CLIENT_STATUSES[status], count, total)
        for (row, status), count, total in zip(names, counts, sums.tolist(), strict=True)
    }
