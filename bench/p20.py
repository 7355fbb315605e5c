"""P20, what if: a million recorded placements decided again, and forked under another policy, allocation by allocation.

A log of the million container challenge, made without a bus (`written.py`), is forked behind the fleet's registration.
The clock runs from the log's bytes in memory to the finished report: every recorded decision again on its own snapshot
(the figure `divergent` counts those that come out otherwise), the unchanged fork, the fork with `spread` instead of
`binpack`, and the comparison of the two. In this process and a child of it, as `caravan what-if` does it.
"""

import os
import sys
import time

from bench.fleet import n1_standard_8
from bench.outcome import Outcome, Run, merge, shown
from bench.p1 import COUNT, GROUPS, JOBS, NODES, job
from bench.written import START_NS, Written
from services.cli import twice
from shared.core.replica import Replica
from shared.core.role import Record
from shared.whatif import fork
from shared.whatif.answer import Answer, Question, answered, reported
from shared.whatif.fork import Recorded, play
from shared.whatif.report import Report
from shared.whatif.wishes import Wishes, changed

RUNS = 3
_WISHES = Wishes(policy={"algorithm": "spread"})


def run(size: float, runs: int) -> Outcome:
    """Ask it `runs` times; `size` scales nodes and jobs."""
    nodes, jobs = max(int(NODES * size), GROUPS * 4), max(int(JOBS * size), 2)
    records, fleet_seq, log_ns = _log(nodes, jobs)
    found: list[Run] = []
    for _ in range(runs):
        found.append(_once(records, fleet_seq, placements=jobs * GROUPS * COUNT, log_ns=log_ns))
        print(f"run {len(found)} of {runs}: {shown(found[-1])}", file=sys.stderr, flush=True)
    return merge({"nodes": nodes, "jobs": jobs, "placements": jobs * GROUPS * COUNT}, found)


def _log(nodes: int, jobs: int) -> tuple[list[Record], int, int]:
    """The log, the seq behind which it is forked, and its length in log time."""
    log = Written()
    log.nodes(n1_standard_8(nodes))
    fleet_seq = log.replica.seq
    for number in range(jobs):
        log.job(job(number))
    return log.close(), fleet_seq, log.now_ns - START_NS


def _once(records: list[Record], fleet_seq: int, *, placements: int, log_ns: int) -> Run:
    before_s, cpu_before = time.perf_counter(), _cpu_s()
    recorded = fork.read(records, base=Replica(), is_before=lambda one: one.seq <= fleet_seq)
    question = Question(wishes=_WISHES, until_ns=recorded.course.t_ns)
    answer = answered(recorded, question, both=twice.at_once)
    told = reported(recorded, question, answer)
    wall_s = time.perf_counter() - before_s
    cpu_s = _cpu_s() - cpu_before
    return Run(
        result={
            "wall_s": wall_s,
            "log_span_s": log_ns / 1e9,
            "decisions": told.faithful.checked,
            "divergent": told.faithful.divergence,
            "changed": told.changed,
        },
        checks=_checks(recorded, question, answer, told=told, placements=placements),
        cpu_s={"bench": round(cpu_s, 2)},
        rss_mib={},
        log_bytes=sum(len(one.data) for one in records),
        # No bus takes part.
        fsync=False,
        replicas=0,
    )


def _checks(
    recorded: Recorded, question: Question, answer: Answer, *, told: Report, placements: int
) -> dict[str, bool]:
    """What must hold; the fork that was asked for is played once more, outside of the clock."""
    assert answer.after is not None
    assert told.differences is not None
    entries = changed(recorded.fork.state, recorded.entries, question.wishes)
    again = play(
        recorded, entries, workers=recorded.workers, until_ns=question.until_ns, settle=True
    )
    agreed = told.agreement
    return {
        "divergence_zero": told.faithful.divergence == 0 and told.faithful.untold == 0,
        "all_compared": told.differences.compared == placements,
        "unchanged_as_recorded": agreed.same == agreed.recorded == placements,
        "both_came_to_rest": answer.before.settled and answer.after.settled,
        "the_same_twice": again.digest == answer.after.digest,
    }


def _cpu_s() -> float:
    """CPU of this process and of the children that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
