"""One account of a wait: the log, the queue, why-not, a new decision and SQL tell it alike."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import orjson
import pytest
from hypothesis import given

from schemas.base import EvalKey, JobId
from schemas.envelope import CORE_VERSION, RECORD_DECODER
from schemas.evaluation_answers import EvalAnswer, WaitingAnswer, WhyAnswer
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, ReservationsChanged, Waiting
from schemas.job_answers import JobAnswer
from schemas.jobs import GroupSpec, RegisterJob
from schemas.plans import PlanCommitted
from schemas.policy import Policy, Preemption
from schemas.projections import Query
from services.gateway.nomad.jobs import job_summary
from services.gateway.nomad.source import ShapeSource
from shared.archive.database import FactDatabase
from shared.archive.fact_extractor import FactExtractor
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.scheduling.explain.placement_probe import PlacementProbe
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Assignment, Snapshot
from shared.core.scheduling.place import place
from shared.core.scheduling.reservations.own_rooms import with_own_rooms
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job
from shared.fleet.profile import DurationSpec, FleetProfile, RunProfile, StartProfile
from shared.query.explain import explain_candidate
from shared.query.historical_state import HistoricalState
from shared.query.job_plan import plan_command
from shared.query.job_wait import BLOCKED, PARKED, WOKEN, job_wait
from shared.query.wait_queue import waiting_lines
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins
from shared.sim.virtual_time import SECOND, START_NS
from tests.builders import Cluster, register
from tests.examples import examples
from tests.golden.replay_log import read_log
from tests.not_tested import is_full
from tests.property.reason_counts import check_reason_counts
from tests.property.test_why import storm
from tests.property.test_why_not import cases
from tests.sim import recorded

pytestmark = pytest.mark.property
APP = JobId("app")
#: Facts of a transaction that holds a plan alone.
OF_A_PLAN = (PlanCommitted, EvaluationsCreated, EvaluationEnded, ReservationsChanged)
LOGS = Path(__file__).parents[1] / "golden" / "logs"


def stored_wait(cluster: Cluster) -> Waiting:
    """What the log says of the wait."""
    table = cluster.state.evaluations
    blocked = table.by_key[table.blocked_of[APP]].blocked
    assert blocked is not None
    (waiting,) = blocked.waiting.values()
    return waiting


@examples(400, gate=100)
@given(cases())
def test_a_wait_is_told_alike(case: tuple[Cluster, GroupSpec]) -> None:
    """The stored decision, the queue, why-not, a new look and a new decision name one class and the same reasons."""
    cluster, spec = case
    cluster.do(register("app", msgspec.structs.replace(spec, count=40)))
    cluster.schedule("app")
    state = cluster.state
    if APP not in state.evaluations.blocked_of:
        return
    stored, job = stored_wait(cluster), state.jobs.by_id[APP]
    said = {"stored": (stored.wait_class, stored.reasons)}
    (line,) = [one for one in waiting_lines(state, lambda _job_id: 0) if one.job == APP]
    said["queue"] = (line.wait_class, line.reasons)
    answer = explain_candidate(state, PlacementCache(), job, "")
    said["why-not"] = (answer.wait_class, answer.reasons)
    snapshot = Snapshot(state, state.allocations.held, PlacementCache())
    look = PlacementProbe(with_own_rooms(snapshot, job), job, job.groups[0]).explain()
    said["new look"] = (look.wait_class, look.reasons)
    (again,) = place(snapshot, Assignment(EvalKey(0), APP), seed=0, lane=0, lanes=1).follow_ups
    assert again.blocked is not None
    (waiting,) = again.blocked.waiting.values()
    said["plan"] = (waiting.wait_class, waiting.reasons)
    assert len(set(said.values())) == 1, said
    assert line.n == stored.count == waiting.count
    check_reason_counts(answer, job.job_type)
    assert answer.fitting == 0
    assert {one.dimension for one in answer.exhausted if one.nodes} or not answer.lacking


class Account(NamedTuple):
    """What is said of a group that waits: at which seq that was decided, 0: not yet; how many, class, reasons."""

    decided_seq: int
    n: int
    wait_class: str
    reasons: tuple[str, ...]


class Told(NamedTuple):
    """A group of a job that waits at a seq, and what the queue says of it."""

    seq: int
    job: str
    group: str
    account: Account


def stored(past: HistoricalState, job: Job) -> dict[str, Account]:
    """What the queue says of a job; its status, its evaluation and why-not have to say the same, with the same seq."""
    answer = past.answers.answer("waiting", Query(job_id=job.id))
    assert isinstance(answer, WaitingAnswer)
    said = {
        one.group: Account(one.decided_seq, one.n, one.wait_class, one.reasons)
        for one in answer.waiting
    }
    shown = past.answers.answer("job", Query(id=job.id))
    assert isinstance(shown, JobAnswer)
    assert said == {
        one.group: Account(one.decided_seq, one.n, one.wait_class, one.reasons)
        for one in shown.waiting
    }
    for line in answer.waiting:
        found = past.answers.answer("eval", Query(id=line.eval_id))
        assert isinstance(found, EvalAnswer)
        assert found.evaluation.parked == (not line.decided_seq)
        why = found.evaluation.waiting[line.group]
        decided_seq = found.evaluation.modify_seq if line.decided_seq else 0
        assert said[line.group] == (decided_seq, why.n, why.wait_class, why.reasons)
        if not line.decided_seq:
            assert shown.rollout.status == "waiting" and line.reasons[0] in shown.rollout.reason
    source = ShapeSource(past.state, past.histories, lambda _: 0)
    summary = job_summary(source, job)["Summary"]
    queued = {name: one["Queued"] for name, one in summary.items() if one["Queued"]}
    assert queued == {name: one.n for name, one in said.items() if name in summary}
    return said


def again_registered(state: State, job: Job) -> RegisterJob:
    """The command of a job's newest version, as `job plan` of its own file has it."""
    spec = state.jobs.spec(job.id, job.version)
    assert spec is not None
    same = {
        name: getattr(job, name) for name in RegisterJob.__struct_fields__ if hasattr(job, name)
    }
    return RegisterJob(**same, submission_id="s", digest="d", job_id=job.id, spec=msgspec.Raw(spec))


def fresh(state: State, job: Job, group: str, answer: WhyAnswer) -> str:
    """Compare what why-not, job plan and a new decision say of a group now; return what they do: place, evict, wait."""
    refused = sum(one.refused for one in answer.filters)
    nodes = int(state.fleet.live.sum())
    assert answer.nodes_considered == refused + answer.lacking + answer.fitting == nodes
    assert (answer.seq, answer.decision.snapshot_seq) == (state.seq, state.seq)
    snapshot = Snapshot(state, state.allocations.held, PlacementCache())
    again = place(snapshot, Assignment(EvalKey(0), job.id), seed=0, lane=0, lanes=1)
    waits = {
        name: one
        for each in again.follow_ups
        if each.blocked is not None
        for name, one in each.blocked.waiting.items()
    }
    planned = plan_command(state, PlacementCache(), again_registered(state, job))
    assert planned.seq == state.seq
    assert {
        name: (one.n, one.wait_class, one.reasons) for name, one in planned.unplaced.items()
    } == {name: (one.count, one.wait_class, one.reasons) for name, one in waits.items()}
    places = any(one.group == group for one in again.placements)
    if places:
        assert not answer.wait_class and (answer.fitting or answer.victims), answer.text
        assert bool(answer.victims) == (not answer.fitting)
        return "evict" if answer.victims else "place"
    if group not in waits:
        assert answer.text.endswith("; the group requests none now"), answer.text
        return "nothing"
    assert (answer.wait_class, answer.reasons) == (waits[group].wait_class, waits[group].reasons)
    # What is placed of other groups takes room before it.
    return "other" if again.placements else "wait"


def is_quiet(state: State, record: Record) -> str:
    """Name the job that the record blocked by its only plan, made on the state before it; empty: it did not.

    Nothing changed since the decision then.
    """
    events = RECORD_DECODER.decode(record.data).events if is_framed(record.data) else ()
    plans = [one for one in events if isinstance(one, PlanCommitted)]
    if not all(isinstance(one, OF_A_PLAN) for one in events):
        # A node that joined, or a job that was stopped, in the same transaction.
        return ""
    if len(plans) != 1 or plans[0].cut or plans[0].origin.snapshot_seq != state.seq - 1:
        return ""
    return plans[0].job_id


def crowd(seed: int) -> list[Record]:
    """Many equal jobs on two nodes: those that wait are parked behind one of them, of which the order changes."""
    rng = Random(seed)
    lasts = FleetProfile(
        starts=StartProfile(after=DurationSpec(uniform=("100ms", "1s"))),
        runs=(RunProfile(job_type="batch", lasts="7s"),),
    )
    engine = SimulationEngine(EngineSetup(seed=seed, profile=lasts, schedulers=2))
    for number in (1, 2):
        engine.at(START_NS, NodeJoins(spec=recorded.spec(number)))
    for number in range(24):
        when = START_NS + SECOND * rng.randrange(2, 30)
        cpu = rng.choice((1000, 1000, 3000))
        kind = rng.choice(("batch", "batch", "service"))
        priority = rng.choice((30, 50, 50, 70))
        engine.at(
            when, recorded.job(f"j{number}", rng.randrange(1, 4), kind, cpu, Priority=priority)
        )
    engine.run(START_NS + 90 * SECOND)
    return list(engine.records)


def pairs(seed: int) -> list[Record]:
    """Jobs of two groups on three nodes: what the first takes, the second lacks; some of them all at once."""
    rng = Random(seed)
    policy = Policy(preemption=Preemption(service=True))
    lasts = FleetProfile(runs=(RunProfile(job_type="batch", lasts="7s"),))
    engine = SimulationEngine(EngineSetup(seed=seed, profile=lasts, schedulers=2, policy=policy))
    for number in (1, 2, 3):
        engine.at(START_NS + number * 5 * SECOND, NodeJoins(spec=recorded.spec(number)))
    for number in range(16):
        kind, priority = rng.choice(("batch", "service")), rng.choice((30, 50, 70))
        one = recorded.job(f"j{number}", 1, kind, Priority=priority, AllAtOnce=rng.random() < 0.3)
        body = orjson.loads(one.body)
        (first,) = body["Job"]["TaskGroups"]
        body["Job"]["TaskGroups"] = []
        for name in ("g", "h"):
            task = dict(first["Tasks"][0])
            cpu = rng.choice((700, 1500, 2500))
            task["Resources"] = {"CPU": cpu, "MemoryMB": 64}
            body["Job"]["TaskGroups"].append(
                {**first, "Name": name, "Count": rng.randrange(1, 3), "Tasks": [task]}
            )
        when = START_NS + SECOND * rng.randrange(2, 40)
        engine.at(when, msgspec.structs.replace(one, body=orjson.dumps(body)))
    engine.run(START_NS + 90 * SECOND)
    return list(engine.records)


#: Of each story; not at all of them something waits.
MOMENTS = 60 if is_full() else 45
#: Of each moment: of so many jobs all that decides anew is asked.
JOBS = 20 if is_full() else 3
#: The gate has one part; together they have more than a thousand moments.
PARTS = 9 if is_full() else 1


def stories(part: int) -> Iterator[list[Record]]:
    """Crowds, jobs of two groups, and storms; in the first part, logs of this core version."""
    seeds = range(part * 2 + 1, part * 2 + 3)
    for seed in seeds:
        yield crowd(seed)
    for seed in seeds if is_full() else seeds[:1]:
        yield pairs(seed)
    for path in sorted(LOGS.glob(f"v1-{CORE_VERSION}-*.gz")) if not part else ():
        yield read_log(path)
    for seed in seeds if is_full() else seeds[:1]:
        yield storm(seed)[1]
        yield storm(seed + 100)[1]


@pytest.mark.parametrize("part", range(PARTS))
def test_random_moments_of_clusters_are_told_alike(part: int) -> None:
    """At any moment all that tell a stored wait agree, with its seq, and so do all that tell what would be decided now.

    Where nothing changed since the decision, both are equal. Where nothing waits, SQL has nothing that does.
    """
    checked, seen = 0, Counter[str]()
    for number, records in enumerate(stories(part)):
        past, told, rng = HistoricalState(), set[Told](), Random(number)
        moments = set(rng.sample(range(1, len(records) + 1), min(MOMENTS, len(records))))
        for record in records:
            past.apply(record)
            if record.seq not in moments:
                continue
            state, quiet = past.state, is_quiet(past.state, record)
            waiting = list(dict.fromkeys(one.job for one in waiting_lines(state, lambda _: 0)))
            asked = {*rng.sample(waiting, min(JOBS, len(waiting))), quiet}
            for job_id in waiting:
                job = state.jobs.by_id[JobId(job_id)]
                # A stopped job waits no longer than until its stop is decided.
                assert not job.stopped or is_undecided(state, job), job.id
                for group, account in stored(past, job).items():
                    told.add(Told(record.seq, job_id, group, account))
                    if job_id not in asked or group not in {one.name for one in job.groups}:
                        continue
                    answer = explain_candidate(state, PlacementCache(), job, group)
                    assert answer.queue is not None
                    assert Account(*msgspec.structs.astuple(answer.queue)) == account
                    seen[fresh(state, job, group, answer)] += 1
                    seen += check_reason_counts(answer, job.job_type)
                    seen["parked"] += not account.decided_seq
                    if job_id == quiet and account.decided_seq == record.seq:
                        assert (answer.wait_class, answer.reasons) == account[2:]
                        assert "the queue" not in answer.text
                        seen["quiet"] += 1
            checked += bool(waiting)
            seen["woken"] += check_undecided(past, set(waiting))
        assert told_by_sql(records, moments) == told
    assert checked >= (120 if is_full() else 100)
    assert min(seen[name] for name in ("quiet", "place", "parked", "woken", "other")), seen
    assert min(seen[name] for name in ("short counted", "status counted", "held counted")), seen
    assert seen["wait"] >= 100, seen


def is_undecided(state: State, job: Job) -> bool:
    """Tell whether an evaluation of a job is to be decided."""
    table = state.evaluations
    return any(table.by_key[one].status == "pending" for one in table.open_of.get(job.id, ()))


def check_undecided(past: HistoricalState, waiting: set[str]) -> int:
    """What is in no queue has no account anywhere; return how many of these were woken."""
    state, woken = past.state, 0
    for job in state.jobs.by_id.values():
        wait = job_wait(state, job)
        if job.id not in waiting:
            assert not wait.groups and wait.kind not in {BLOCKED, PARKED}
            shown = past.answers.answer("job", Query(id=job.id))
            assert isinstance(shown, JobAnswer) and not shown.waiting
            woken += wait.kind == WOKEN
    return woken


def told_by_sql(records: list[Record], moments: set[int]) -> set[Told]:
    """Read from `reasons` what waited at each moment; `waiting` and `timeline` have just the same of each job."""
    facts, database = FactExtractor(), FactDatabase()
    for record in records:
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    listed = ", ".join(f"({seq})" for seq in sorted(moments))
    columns = "seq, job_id, group_name, coalesce(decided_seq, 0), n, class, reasons"
    there = "from_seq <= seq AND seq < coalesce(to_seq, seq + 1)"
    found = database.ask(
        f"SELECT {columns} FROM reasons JOIN (VALUES {listed}) m(seq) ON {there}"
    ).rows
    told = {
        Told(seq, job, group, Account(decided, n, name, tuple(reasons)))
        for seq, job, group, decided, n, name, reasons in found
    }
    assert len(told) == len(found)
    for (job_id,) in database.ask("SELECT DISTINCT job_id FROM reasons").rows:
        check_spans(database, job_id, {one for one in told if one.job == job_id}, moments)
    return told


def check_spans(database: FactDatabase, job_id: str, told: set[Told], moments: set[int]) -> None:
    """What waited at a moment is in exactly one span of `waiting` and of `timeline` there, with class and reasons."""
    question = "SELECT group_name, class, n, reasons, from_seq, to_seq, decided_seq FROM waiting(?)"
    spans = database.ask(question, [job_id]).rows
    question = (
        "SELECT name, state, detail, from_seq, to_seq FROM timeline(?) WHERE lane = 'waiting'"
    )
    lanes = database.ask(question, [job_id]).rows
    there = {(one.seq, one.group) for one in told}
    for name, begin, end in [(row[0], *row[-3:-1]) for row in spans] + [
        (row[0], *row[-2:]) for row in lanes
    ]:
        covers = {seq for seq in moments if begin <= seq < (end or seq + 1)}
        assert {(seq, name) for seq in covers} <= there, (job_id, name, begin, end)
    for one in told:
        own = one.account
        (span,) = [
            span
            for span in spans
            if span[0] == one.group and span[4] <= one.seq < (span[5] or one.seq + 1)
        ]
        assert (span[1], span[2], tuple(span[3])) == (own.wait_class, own.n, own.reasons)
        assert (span[6] or 0) >= own.decided_seq >= (span[4] if own.decided_seq else 0)
        (lane,) = [
            lane
            for lane in lanes
            if lane[0] == one.group and lane[3] <= one.seq < (lane[4] or one.seq + 1)
        ]
        last = f"decided at seq {span[6]}" if span[6] else "not decided yet"
        assert lane[1] == own.wait_class
        assert lane[2] == f"{own.n} wait: {'; '.join(own.reasons)} ({last})"
