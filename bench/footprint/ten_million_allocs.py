"""Memory: bytes for each of ten million allocations on 50,000 nodes, by role, and growth after ten million that ended.

Without a bus, in log time. First a log of that cluster is made (`bench/harness/generated_log.py`) and read by the real
roles, each in a process of its own: `<role>_b` is the growth of its memory between the fleet and the last
placement, for each allocation; `log_b` the bytes of the log. Then waves of batch tasks are registered, placed,
reported running, reported complete and collected, and all roles follow in this one process: `soak_grown_pct` is the
growth between the first million and the end. The figures to reach: 200 bytes an allocation and role, 100 of log;
within 10 %.
"""

import argparse
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import orjson

from bench.harness.fleet_process import n1_standard_8
from bench.harness.generated_log import GeneratedLog
from bench.harness.host_info import HostRequirements
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.throughput.million_placements import COUNT, GROUPS, c1m_job
from schemas.allocations import CLIENT_STATUSES, AllocationsReported
from schemas.base import EvalKey, JobId
from schemas.envelope import CORE_VERSION, LogRecord
from schemas.jobs import JobRegistered, RegisterJob
from schemas.plans import GroupPlacement, Origin, SubmitPlan
from schemas.policy import Policy
from services.eval_broker.role import EvalBroker
from services.heartbeat.role import HeartbeatMonitor
from services.intake.role import Intake
from services.plan_applier.role import PlanApplier
from services.scheduler.role import Scheduler
from services.view.role import View
from shared.core.decide.garbage import LogTimeIndex, decide_garbage, is_pass_full
from shared.core.runtime.messages import CaughtUp, Effect, Put, PutDone, Record, SetTimer, Timer
from shared.core.runtime.role import Input
from shared.jobspec.submission import read_submission, to_command

RUNS = 1
NEEDS = HostRequirements(memory_mib=6_144)
NODES = 50_000
JOBS = 10_000
_A_JOB = GROUPS * COUNT
SOAK_NODES = 1_000
WAVES = 100
WAVE_JOBS = 100
#: The level that the end is compared with.
_FIRST = 10
_SECOND = 1_000_000_000
#: What ended is forgotten soon.
_FORGETFUL = Policy(
    submission_keep_ns=20 * _SECOND,
    evaluation_keep_ns=20 * _SECOND,
    allocation_keep_ns=20 * _SECOND,
    job_keep_ns=20 * _SECOND,
)
ROLES: dict[str, Callable[[], Any]] = {
    "plan_applier": lambda: PlanApplier(instance="a", cluster_id="memory"),
    "scheduler": lambda: Scheduler(instance="s"),
    "eval_broker": lambda: EvalBroker(instance="e"),
    "view": lambda: View(instance="v"),
    "intake": lambda: Intake(instance="i"),
    "heartbeat": lambda: HeartbeatMonitor(instance="h"),
}
_A_STEP = 64
#: Passes of garbage that a wave may take.
_PASSES_MAX = 100


def run(size: float, runs: int) -> BenchOutcome:
    """Fill and soak; `size` scales nodes, jobs and waves."""
    nodes, jobs = max(int(NODES * size), GROUPS * COUNT), max(int(JOBS * size), 2)
    waves = max(int(WAVES * size), 2)

    def once() -> BenchRun:
        filled, log_bytes = measure_full_cluster(nodes, jobs)
        soaked, checks = measure_churn(waves)
        return BenchRun(
            result={**filled, **soaked},
            checks=checks,
            cpu_s={},
            rss_mib={},
            log_bytes=log_bytes,
            fsync=True,
            replicas=0,
        )

    started = waves * WAVE_JOBS * _A_JOB
    wanted = {"nodes": nodes, "allocations": jobs * _A_JOB, "started_and_ended": started}
    return repeat_runs(once, runs, wanted, digits=1)


class HandPlannedLog(GeneratedLog):
    """A log whose plans are made by hand, so that its making is quick; what decides verifies them all the same."""

    def __init__(self, sink: Callable[[Record], None], policy: Policy | None = None) -> None:
        self._sink = sink
        self.bytes = 0
        super().__init__("memory", policy)
        self._number = 0

    def run_job(self, name: str, nodes: int, at: int, kind: str = "service") -> None:
        """Register a job of the challenge and place it over nodes of each group's class in turn."""
        body = orjson.dumps({"Job": {**c1m_job(0), "ID": name, "Name": name, "Type": kind}})
        command = to_command(read_submission(body, "submit"), name)
        assert isinstance(command, RegisterJob)
        key = next(one.evaluation for one in self.take([command]) if isinstance(one, JobRegistered))
        self._number += 1
        self.take([self._hand_plan(JobId(name), key, nodes, at)])

    def prove(self) -> None:
        """Write a checkpoint."""
        self._write_checkpoint()

    def _hand_plan(self, job_id: JobId, key: EvalKey, nodes: int, at: int) -> SubmitPlan:
        placements = []
        for group in range(GROUPS):
            own = nodes // GROUPS
            first = np.sort((at * COUNT + np.arange(COUNT)) % own) * GROUPS + group
            rows, counts = np.unique(first, return_counts=True)
            placements.append(
                GroupPlacement(
                    group=f"group_{group + 1}",
                    version=0,
                    rows=tuple(rows.tolist()),
                    counts=tuple(counts.tolist()),
                    names=(0, COUNT),
                )
            )
        origin = Origin(
            worker="scheduler-1",
            number=self._number,
            snapshot_seq=self.replica.seq,
            policy=self.replica.state.policy.policy_hash,
            core=CORE_VERSION,
        )
        return SubmitPlan(
            key=key, job_id=job_id, origin=origin, placements=tuple(placements), end="complete"
        )

    def _seal(self, record: LogRecord) -> None:
        super()._seal(record)
        sealed = self.records.pop()
        self.bytes += len(sealed.data)
        self._sink(sealed)


# ---- ten million at once ----


def measure_full_cluster(nodes: int, jobs: int) -> tuple[dict[str, float], int]:
    """Write the log of a full cluster, and let every role read it. Returns bytes an allocation, and of the log."""
    with tempfile.TemporaryDirectory(prefix="caravan-memory-") as folder:
        path = Path(folder) / "log"
        with path.open("wb") as file:
            log = HandPlannedLog(lambda one: _write(file, one))
            log.nodes(n1_standard_8(nodes))
            before = log.bytes
            for number in range(jobs):
                log.run_job(f"c1m-{number}", nodes, number)
            size = log.bytes - before
            log.close()
        del log
        wanted = jobs * _A_JOB
        found = {"log_b": size / wanted}
        for role in ROLES:
            grown, start = _measured(role, path, nodes)
            found[f"{role}_b"] = grown / wanted
            found[f"{role}_start_mib"] = start / (1 << 20)
            sys.stderr.write(f"{role}: {grown / wanted:.1f} bytes an allocation\n")
    found["most_b"] = max(found[f"{role}_b"] for role in ROLES)
    return found, size


def _write(file: BinaryIO, record: Record) -> None:
    data = msgspec.msgpack.encode((record.seq, record.subject, record.data))
    file.write(len(data).to_bytes(4, "little") + data)


def _read(path: Path) -> Iterator[Record]:
    decoder = msgspec.msgpack.Decoder(tuple[int, str, bytes])
    with path.open("rb") as file:
        while head := file.read(4):
            yield Record(*decoder.decode(file.read(int.from_bytes(head, "little"))))


def _measured(role: str, path: Path, nodes: int) -> tuple[float, float]:
    """Have a role read a log in a process of its own; returns what it grew by, and where it was with the fleet."""
    words = [
        sys.executable,
        "-m",
        "bench.footprint.ten_million_allocs",
        "--role",
        role,
        "--log",
        str(path),
    ]
    done = subprocess.run(
        [*words, "--nodes", str(nodes)], stdout=subprocess.PIPE, check=True, text=True
    )
    start, end = map(int, done.stdout.split())
    return end - start, start


def _follow(role: str, path: Path, nodes: int) -> tuple[int, int]:
    """Read a log as a role does; returns resident bytes with the fleet, and with everything."""
    reader = RoleReader(ROLES[role]())
    start = seen = 0
    for record in _read(path):
        reader.take(record)
        seen += record.data.count(b'"node.registered"') if not start else 0
        if not start and seen >= nodes:
            reader.flush()
            start = resident()
    reader.end()
    return start, resident()


class RoleReader:
    """A role that reads along; whatever it puts is stored at once."""

    def __init__(self, role: Any) -> None:
        self.role = role
        self._waiting: list[Input] = []
        self._now_ns = 0
        self._timers: dict[str, int] = {}

    def take(self, record: Record) -> None:
        """Hand a record over, some at a time."""
        self._waiting.append(record)
        if len(self._waiting) >= _A_STEP:
            self.flush()

    def flush(self) -> None:
        """Let the role take what waits, and what comes of that."""
        inputs, self._waiting = self._waiting, []
        while inputs:
            self._now_ns += 100_000_000
            inputs = self._answers(self.role.step(inputs, self._now_ns))

    def end(self) -> None:
        """The log ends here."""
        self.flush()
        self._waiting.append(CaughtUp(self.role.next_seq - 1))
        self.flush()

    def _answers(self, effects: Sequence[Effect]) -> list[Input]:
        found: list[Input] = []
        for one in effects:
            if isinstance(one, Put):
                found.append(PutDone(one.subject, 1))
            elif isinstance(one, SetTimer):
                self._timers[one.name] = one.at_ns
        due = [name for name, at_ns in self._timers.items() if 0 < at_ns <= self._now_ns]
        found += [Timer(name, self._timers.pop(name)) for name in due]
        return found


# ---- ten million that come and go ----


def measure_churn(waves: int) -> tuple[dict[str, float], dict[str, bool]]:
    """Start, end and forget wave after wave; returns the growth in percent and what held."""
    readers = {name: RoleReader(made()) for name, made in ROLES.items()}

    def deliver(record: Record) -> None:
        for one in readers.values():
            one.take(record)

    log = SoakLog(deliver, _FORGETFUL)
    log.nodes(n1_standard_8(SOAK_NODES))
    deliver_end = [one.end for one in readers.values()]
    for end in deliver_end:
        end()
    levels: list[int] = []
    for number in range(waves):
        log.wave(number)
        for one in readers.values():
            one.flush()
        levels.append(resident())
        if number % 10 == 9 or number < 3:
            line = f"{(number + 1) * WAVE_JOBS * _A_JOB} ended, {levels[-1] >> 20} MiB\n"
            sys.stderr.write(line)
    log.close()
    first = levels[min(_FIRST, len(levels)) - 1]
    state = log.replica.state
    checks = {
        "all_forgotten": not len(state.allocations.live_rows()) and not state.jobs.by_id,
        "roles_followed": all(
            one.role.next_seq >= log.replica.next_seq - _A_STEP for one in readers.values()
        ),
    }
    grown = 100 * (levels[-1] - first) / first
    return {"soak_first_mib": first / (1 << 20), "soak_grown_pct": grown}, checks


class SoakLog(HandPlannedLog):
    """Waves of tasks that run for a moment."""

    def __init__(self, sink: Callable[[Record], None], policy: Policy) -> None:
        self._marks = LogTimeIndex()
        super().__init__(sink, policy)
        self._horizon = self._marks

    def wave(self, number: int) -> None:
        """Start tasks, end them, and forget what ended a while ago."""
        table = self.replica.state.allocations
        for at in range(WAVE_JOBS):
            self.run_job(f"w{number}-{at}", SOAK_NODES, at, "batch")
        for status in ("running", "complete"):
            rows = table.live_rows()
            rows = rows[table.client[rows] != CLIENT_STATUSES.index("complete")]
            for start in range(0, len(rows), 2_000):
                self._report(rows[start : start + 2_000], status)
        self.now_ns += 2 * _SECOND
        self._write_checkpoint()
        self.now_ns += 60 * _SECOND
        for _ in range(_PASSES_MAX):
            self.now_ns += _SECOND
            state = self.replica.state
            state.begin(self.replica.next_seq, self.now_ns)
            events = decide_garbage(state, self._marks, self.now_ns)
            if events:
                self._commit(events)
            if not is_pass_full(events) and not len(table.live_rows()):
                break

    def _report(self, rows: Any, status: str) -> None:
        self.now_ns += 1_000_000
        table = self.replica.state.allocations
        nodes = np.unique(table.node[rows]).tolist()
        event = AllocationsReported(
            nodes=tuple(nodes),
            numbers=(self.replica.seq,) * len(nodes),
            rows=tuple(rows.tolist()),
            statuses=(CLIENT_STATUSES.index(status),) * len(rows),
        )
        self._commit([event])

    def _seal(self, record: LogRecord) -> None:
        self._marks.note(self.replica.next_seq, record.t_ns)
        super()._seal(record)


# ---- what a process has ----


def resident() -> int:
    """Resident bytes of this process, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Read the arguments: all of it, or one role for a log."""
    parser = argparse.ArgumentParser(prog="python -m bench.footprint.ten_million_allocs")
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--soak", type=int, default=0, help="only so many waves")
    parser.add_argument("--role", choices=ROLES, default="")
    parser.add_argument("--log", type=Path, default=Path())
    parser.add_argument("--nodes", type=int, default=0)
    given = parser.parse_args()
    if given.role:
        start, end = _follow(given.role, given.log, given.nodes)
        sys.stdout.write(f"{start} {end}\n")
        return 0
    if given.soak:
        sys.stdout.write(f"{measure_churn(given.soak)}\n")
        return 0
    found = run(given.size, 1)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0 if all(found.checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
