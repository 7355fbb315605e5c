"""How fast the log becomes tables, and how fast these tell the state at a seq: `python -m bench.tables`.

A log of a million placements on 5,000 nodes, and a report of each of them: half of them end. Everything is checked
against the replayed state. Processor seconds stand beside wall seconds, since others may work on the machine.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from schemas.allocations import AllocationsReported
from schemas.base import EvalKey, JobId, NodeId
from schemas.envelope import LeaseHeld
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import GroupSpec, JobRegistered
from schemas.nodes import NodeRegistered, NodeSpec
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from shared.archive.database import Database
from shared.archive.export import Export, Reading
from shared.archive.segments import Archive
from shared.core.log import Chain, seal
from shared.core.role import Record

NODES = 5_000
PLACEMENTS = 1_000_000
_A_PLAN = 5_000
_A_REPORT = 200
_JOB = JobId("big")
_PLENTY = 1 << 40


class Log:
    """Records, sealed and chained as the applier does it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._chain = Chain()

    def write(self, kind: str, **told: object) -> None:
        """Write the next record."""
        seq = len(self.records) + 1
        record = self._chain.draft(kind, seq * 1_000_000, **told)  # type: ignore[arg-type]
        data, digest = seal(record)
        self._chain.wrote(seq, msgspec.structs.replace(record, sum=digest), digest)
        self.records.append(Record(seq, f"log.1.{kind}", data))


def make(placements: int) -> tuple[list[Record], int]:
    """Make the log; returns it and the seq behind its last placement."""
    log = Log()
    log.write("lease", lease=LeaseHeld(holder="bench", cluster_id="bench"))
    size = {"cpu_mhz": _PLENTY, "memory_mib": _PLENTY, "disk_mib": _PLENTY}
    for first in range(0, NODES, 100):
        specs = [NodeSpec(node_id=NodeId(f"node-{n}"), **size) for n in range(first, first + 100)]
        log.write(
            "tx", events=[NodeRegistered(spec=one, host_id="h", boot_id="b") for one in specs]
        )
    group = GroupSpec(name="g", count=placements, cpu_mhz=100, memory_mib=64)
    job = JobRegistered(submission_id="s", digest="d", job_id=_JOB, version=0, groups=(group,))
    created = EvaluationsCreated(evaluations=(NewEvaluation(job_id=_JOB),))
    log.write("tx", events=[job, created])
    key = EvalKey(len(log.records) << 20)
    parts = placements // _A_PLAN
    for part in range(parts):
        origin = Origin(worker="w", number=1, part=part, parts=parts, snapshot_seq=1)
        placement = GroupPlacement(
            group="g",
            version=0,
            rows=tuple((part * _A_PLAN + n) % NODES for n in range(_A_PLAN)),
            counts=(1,) * _A_PLAN,
            names=(part * _A_PLAN, _A_PLAN),
        )
        log.write(
            "tx",
            events=[PlanCommitted(key=key, job_id=_JOB, origin=origin, placements=(placement,))],
        )
    placed = len(log.records)
    for number in range(placements // _A_REPORT):
        rows = tuple(range(number * _A_REPORT, (number + 1) * _A_REPORT))
        nodes = tuple(sorted({row % NODES for row in rows}))
        report = AllocationsReported(
            nodes=nodes,
            numbers=(number + 1,) * len(nodes),
            rows=rows,
            statuses=(1 + number % 2,) * len(rows),
        )
        log.write("tx", events=[report])
    return log.records, placed


class Watch:
    """Wall and processor seconds."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def told(self) -> tuple[float, float]:
        """Say how many have passed."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return round(wall, 3), round(cpu, 3)


def export(folder: Path, records: list[Record]) -> tuple[float, float]:
    """Export a log; returns wall and processor seconds."""
    watch = Watch()
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive)
        work.wanted()
        for record in records:
            work.apply(record)
        work.flush()
        work.close()
    return watch.told()


def ask(database: Database, question: str, moment: int) -> tuple[float, float, int]:
    """Ask three times; returns the best wall and processor seconds, and the one number that it answers."""
    found = []
    answer = 0
    for _ in range(3):
        watch = Watch()
        answer = int(database.ask(question, [moment]).rows[0][0])
        found.append(watch.told())
    return *min(found), answer


def main() -> int:
    """Measure, and print one JSON object."""
    placements = int(sys.argv[1]) if len(sys.argv) > 1 else PLACEMENTS
    load = os.getloadavg()[0]
    records, placed = make(placements)
    folder = Path(tempfile.mkdtemp(prefix="tables-"))
    try:
        only = export(folder / "placed", records[:placed])
        both = export(folder / "all", records)
        database = Database()
        database.close_doors(Reading(folder / "all").files())
        middle = (placed + len(records)) // 2
        usage = ask(database, "SELECT sum(allocations) FROM usage_at(?)", middle)
        held = ask(database, "SELECT count(*) FROM allocations_at(?)", middle)
        question = "SELECT count(*) FROM allocations_at(?) WHERE client_status = 'running'"
        running = ask(database, question, middle)
        size = sum(one.stat().st_size for one in (folder / "all").rglob("*") if one.is_file())
    finally:
        shutil.rmtree(folder)
    ended = (middle - placed) // 2 * _A_REPORT
    print(
        json.dumps(
            {
                "name": "tables",
                "size": {"nodes": NODES, "placements": placements, "reports": placements},
                "result": {
                    "export_placements_s": only[0],
                    "export_placements_cpu_s": only[1],
                    "export_all_s": both[0],
                    "export_all_cpu_s": both[1],
                    "usage_at_s": usage[0],
                    "usage_at_cpu_s": usage[1],
                    "allocations_at_s": held[0],
                    "allocations_at_cpu_s": held[1],
                    "running_at_s": running[0],
                    "running_at_cpu_s": running[1],
                    "export_bytes": size,
                },
                "checks": {"equal": usage[2] == held[2] == placements - ended},
                "load_before": round(load, 2),
            }
        )
    )
    return 0 if usage[2] == held[2] == placements - ended else 1


if __name__ == "__main__":
    sys.exit(main())
