"""What-if and simulate decide about a moment as job plan says of it."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from schemas.base import JobId
from schemas.envelope import RECORD_DECODER
from schemas.evaluations import EvaluationsCreated
from schemas.job_answers import UnplacedLine
from schemas.jobs import JobRegistered, RegisterJob
from schemas.plans import PlanCommitted
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import copy_replica
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.state.state import State
from shared.query.historical_state import HistoricalState
from shared.query.job_plan import plan_command
from shared.query.job_wait import PENDING, job_wait
from shared.query.wait_queue import waiting_lines
from shared.sim.scenario.parser import read_scenario
from shared.sim.scenario.run import run_scenario
from shared.sim.virtual_time import SECOND
from shared.whatif.changes import RequestedChanges, apply_changes
from shared.whatif.continuation import Continuation
from shared.whatif.fork import RecordedLog, run_fork
from shared.whatif.what_if import WhatIfQuestion, build_what_if_report, run_what_if
from tests.not_tested import is_full
from tests.property.test_one_answer import crowd
from tests.sim import recorded as logs

pytestmark = pytest.mark.property

#: It is first in the queue, and no job of the crowd asks for the same: it is decided at once.
SCENARIO = b"""
duration: 1s
cluster: {export: given}
arrivals:
  - name: asked
    burst: 1
    job: {type: service, priority: 90, count: 5, cpu_mhz: 1001, memory_mib: 64}
"""


class FirstPlan(NamedTuple):
    """The first plan about the job that was asked about: what it was made on, what waited and how many were placed."""

    snapshot_seq: int
    command: RegisterJob
    waits: dict[str, UnplacedLine]
    placed: int
    #: its worker had no plan that the snapshot lacks: it would have counted that, too.
    is_first: bool


def first_plan(records: list[Record]) -> FirstPlan:
    """Find it in what a run wrote."""
    command: RegisterJob | None = None
    plans: list[tuple[int, str]] = []
    for record in records:
        events = RECORD_DECODER.decode(record.data).events if is_framed(record.data) else ()
        for event in events:
            if isinstance(event, JobRegistered) and event.job_id.startswith("asked"):
                names = set(RegisterJob.__struct_fields__) & set(event.__struct_fields__)
                command = RegisterJob(**{name: getattr(event, name) for name in names})
            if not isinstance(event, PlanCommitted):
                continue
            origin = event.origin
            under_way = [one for one in plans if one[0] > origin.snapshot_seq]
            is_first = origin.worker not in [worker for _, worker in under_way]
            plans.append((record.seq, origin.worker))
            if command is not None and event.job_id == command.job_id:
                waits = {
                    name: UnplacedLine(n=one.count, wait_class=one.wait_class, reasons=one.reasons)
                    for each in events
                    if isinstance(each, EvaluationsCreated)
                    for new in each.evaluations
                    if new.job_id == command.job_id and new.blocked is not None
                    for name, one in new.blocked.waiting.items()
                }
                placed = sum(sum(one.counts) for one in event.placements)
                return FirstPlan(origin.snapshot_seq, command, waits, placed, is_first)
    raise AssertionError("nothing was decided")


def state_behind(log: RecordedLog, records: list[Record], seq: int) -> State:
    """The state of a run at a seq."""
    replica = copy_replica(log.fork)
    for record in records:
        if record.seq <= seq:
            replica.apply(record)
    return replica.state


def check_first_plan(log: RecordedLog, records: list[Record]) -> FirstPlan:
    """Compare it with job plan, asked at the moment that it was made on."""
    found = first_plan(records)
    if not found.is_first:
        return found
    state = state_behind(log, records, found.snapshot_seq)
    said = plan_command(state, PlacementCache(), found.command)
    assert (said.seq, said.unplaced) == (found.snapshot_seq, found.waits)
    waiting = sum(one.n for one in found.waits.values())
    assert sum(one.place for one in said.groups.values()) == found.placed + waiting
    return found


#: Moments of each story at which what-if is asked what waits.
ASKED = 40 if is_full() else 10


@pytest.mark.parametrize("seed", range(1, 9 if is_full() else 3))
def test_what_if_tells_the_waits_of_a_moment_as_the_queue_does(seed: int) -> None:
    """At any moment: blocked and parked jobs with class and count; `queued` is what is to be decided, or again."""
    records, past = crowd(seed), HistoricalState()
    seen = Counter[str]()
    places = range(20, len(records))
    moments = set(Random(seed).sample(places, min(ASKED, len(places))))
    for record in records:
        past.apply(record)
        if record.seq not in moments:
            continue
        wanted, pending = waits_of_queue(past.state)
        seen["parked"] += any("priority" in one for one in wanted.values())
        seen["pending"] += bool(pending)
        log = logs.read(records, record.seq)
        question = WhatIfQuestion(
            changes=RequestedChanges(), until_ns=log.fork.state.t_ns, settle=False
        )
        told = build_what_if_report(log, question, run_what_if(log, question)).still_waiting
        for job_id in set(told) - set(wanted):
            assert pending.get(job_id, told[job_id].get("queued", 0)) == told[job_id].get("queued")
            assert set(told.pop(job_id)) == {"queued"}
            assert past.state.evaluations.open_of[JobId(job_id)]
        assert told == wanted
    assert min(seen["parked"], seen["pending"]), seen


def waits_of_queue(state: State) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """By job: what the queue holds, by class; and how many of a job that was never decided are to be decided."""
    wanted: dict[str, dict[str, int]] = {}
    for line in waiting_lines(state, lambda _: 0):
        classes = wanted.setdefault(line.job, {})
        classes[line.wait_class] = classes.get(line.wait_class, 0) + line.n
    waits = [(job, job_wait(state, job)) for job in state.jobs.by_id.values()]
    new = {
        job.id: sum(group.count for group in job.groups)
        for job, wait in waits
        if wait.kind == PENDING and not len(state.allocations.rows_of(job.id))
    }
    return wanted, new


@pytest.mark.parametrize("seed", range(1, 9 if is_full() else 3))
def test_forks_of_a_moment_decide_as_job_plan_says(seed: int) -> None:
    """How many are placed and wait, the class and the reasons: in what-if and in simulate as in job plan."""
    records, asked = crowd(seed), 0
    for seq in Random(seed).sample(range(20, len(records)), 4):
        written: list[Record] = []
        scenario = read_scenario(SCENARIO, "asked.yaml", Path())
        log = logs.read(records, seq)
        run_scenario(
            scenario,
            opens=lambda _: iter(()),
            start=log.fork,
            record=Continuation(log, seed),
            sink=written.append,
        )
        log = logs.read(records, seq)
        found = check_first_plan(log, written)
        asked += found.is_first
        own = msgspec.structs.replace(found.command, job_id=JobId("asked"), submission_id="s-asked")
        said = plan_command(log.fork.state, PlacementCache(), own)
        played = run_fork(
            log,
            apply_changes(log.fork.state, [], RequestedChanges(jobs=(own,))),
            workers=1,
            until_ns=log.fork.state.t_ns + SECOND,
            settle=False,
            keep=True,
        )
        found = check_first_plan(log, played.records)
        # It is registered behind a lease, and decided at once.
        assert found.snapshot_seq == seq + 2
        if found.is_first:
            assert found.waits == said.unplaced
            asked += 1
    assert asked
