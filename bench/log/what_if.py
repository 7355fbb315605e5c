"""P20, what if: a million recorded placements decided again, and forked under another policy, allocation by allocation.

A log of the million container challenge, made without a bus (`bench/harness/generated_log.py`), is forked behind the
fleet's registration. The clock runs from the log's bytes in memory to the finished report: every recorded decision
again on its own snapshot (`divergent` counts those with another result), the unchanged fork, the fork with `spread`
instead of `binpack`, and the comparison of the two. In this process and a child of it, as in `caravan what-if`.
"""

import os
import time

from bench.harness.fleet_process import n1_standard_8
from bench.harness.generated_log import START_NS, GeneratedLog
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.throughput.million_placements import COUNT, GROUPS, JOBS, NODES, c1m_job
from services.cli.what_if import parallel
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.whatif import fork
from shared.whatif.changes import RequestedChanges, apply_changes
from shared.whatif.fork import RecordedLog, run_fork
from shared.whatif.report import WhatIfReport
from shared.whatif.what_if import WhatIfAnswer, WhatIfQuestion, build_what_if_report, run_what_if

RUNS = 3
_CHANGES = RequestedChanges(policy={"algorithm": "spread"})


def run(size: float, runs: int) -> BenchOutcome:
    """Ask it `runs` times; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 2)
    records, fleet_seq, log_ns = _log(nodes, jobs)
    placements = jobs * GROUPS * COUNT
    return repeat_runs(
        lambda: _once(records, fleet_seq, placements=placements, log_ns=log_ns),
        runs,
        {"nodes": nodes, "jobs": jobs, "placements": placements},
    )


def _log(nodes: int, jobs: int) -> tuple[list[Record], int, int]:
    """The log, the seq behind which it is forked, and its length in log time."""
    log = GeneratedLog()
    log.nodes(n1_standard_8(nodes))
    fleet_seq = log.replica.seq
    for number in range(jobs):
        log.job(c1m_job(number))
    return log.close(), fleet_seq, log.now_ns - START_NS


def _once(records: list[Record], fleet_seq: int, *, placements: int, log_ns: int) -> BenchRun:
    before_s, cpu_before = time.perf_counter(), _cpu_s()
    recorded = fork.read_log(records, base=Replica(), is_before=lambda one: one.seq <= fleet_seq)
    question = WhatIfQuestion(changes=_CHANGES, until_ns=recorded.timeline.t_ns)
    answer = run_what_if(recorded, question, both=parallel.run_in_parallel)
    report = build_what_if_report(recorded, question, answer)
    wall_s = time.perf_counter() - before_s
    cpu_s = _cpu_s() - cpu_before
    return BenchRun(
        result={
            "wall_s": wall_s,
            "log_span_s": log_ns / 1e9,
            "decisions": report.faithful.checked,
            "divergent": report.faithful.divergence,
            "changed": report.changed,
        },
        checks=_checks(recorded, question, answer, report=report, placements=placements),
        cpu_s={"bench": round(cpu_s, 2)},
        rss_mib={},
        log_bytes=sum(len(one.data) for one in records),
        # No bus takes part.
        fsync=False,
        replicas=0,
    )


def _checks(
    recorded: RecordedLog,
    question: WhatIfQuestion,
    answer: WhatIfAnswer,
    *,
    report: WhatIfReport,
    placements: int,
) -> dict[str, bool]:
    """What must hold; the fork that was requested is played once more, outside of the clock."""
    assert answer.after is not None
    assert report.differences is not None
    entries = apply_changes(recorded.fork.state, recorded.entries, question.changes)
    again = run_fork(
        recorded, entries, workers=recorded.workers, until_ns=question.until_ns, settle=True
    )
    agreed = report.agreement
    return {
        "divergence_zero": report.faithful.divergence == 0 and report.faithful.untold == 0,
        "all_compared": report.differences.compared == placements,
        "unchanged_as_recorded": agreed.same == agreed.recorded == placements,
        "both_came_to_rest": answer.before.settled and answer.after.settled,
        "the_same_twice": again.digest == answer.after.digest,
    }


def _cpu_s() -> float:
    """CPU of this process and of the children that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
