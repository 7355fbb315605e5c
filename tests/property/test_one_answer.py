"""One account of a wait: the log, the queue, why-not, a new decision and SQL tell it alike."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given

from schemas.base import EvalKey, JobId
from schemas.envelope import CORE_VERSION, RECORD_DECODER
from schemas.evaluations import EvaluationEnded, EvaluationsCreated, ReservationsChanged, Waiting
from schemas.jobs import GroupSpec
from schemas.plans import PlanCommitted
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
from shared.query.explain import explain_candidate
from shared.query.historical_state import HistoricalState
from shared.query.wait_queue import waiting_lines
from tests.builders import Cluster, register
from tests.examples import examples
from tests.golden.replay_log import read_log
from tests.not_tested import is_full
from tests.property.test_why import storm
from tests.property.test_why_not import cases

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
    # Each reason that counts nodes counts among those that the answer counts.
    assert answer.fitting == 0
    assert {one.dimension for one in answer.exhausted if one.nodes} or not answer.lacking


class Moment(msgspec.Struct, frozen=True, eq=False):
    """A wait that was decided in the last record, on the state before it: nothing changed since."""

    state: State
    job: Job
    waiting: dict[str, Waiting]


def moments(records: list[Record]) -> Iterator[Moment]:
    """Follow a log; yield the moments at which an evaluation had just been blocked by the only plan of a record."""
    past = HistoricalState()
    for record in records:
        past.apply(record)
        state = past.state
        events = RECORD_DECODER.decode(record.data).events if is_framed(record.data) else ()
        plans = [one for one in events if isinstance(one, PlanCommitted)]
        if not all(isinstance(one, OF_A_PLAN) for one in events):
            # A node that joined, or a job that was stopped, in the same transaction.
            continue
        if len(plans) != 1 or plans[0].cut or plans[0].origin.snapshot_seq != state.seq - 1:
            continue
        job = state.jobs.by_id.get(plans[0].job_id)
        key = state.evaluations.blocked_of.get(plans[0].job_id)
        blocked = None if key is None else state.evaluations.by_key[key].blocked
        if job is None or key is None or blocked is None:
            continue
        if state.evaluations.by_key[key].modify_seq == state.seq:
            yield Moment(state, job, blocked.waiting)


def stories() -> Iterator[list[Record]]:
    """Logs of this core version, and storms; in the full tier as many as make a thousand moments."""
    for path in sorted(LOGS.glob(f"v1-{CORE_VERSION}-*.gz")):
        yield read_log(path)
    for seed in range(1, 61 if is_full() else 3):
        yield storm(seed)[1]


def test_random_moments_of_clusters_are_told_alike() -> None:
    """The stored wait, the queue, why-not, a new decision (what job plan shows) and SQL agree at every such moment."""
    checked = 0
    for records in stories():
        told: list[tuple[object, ...]] = []
        for moment in moments(records):
            state, job = moment.state, moment.job
            snapshot = Snapshot(state, state.allocations.held, PlacementCache())
            again = place(snapshot, Assignment(EvalKey(0), job.id), seed=0, lane=0, lanes=1)
            (planned,) = [one.blocked for one in again.follow_ups if one.blocked is not None]
            assert planned.waiting == moment.waiting
            lines = [one for one in waiting_lines(state, lambda _: 0) if one.job == job.id]
            assert {
                one.group: Waiting(count=one.n, wait_class=one.wait_class, reasons=one.reasons)
                for one in lines
            } == moment.waiting
            for name, one in moment.waiting.items():
                answer = explain_candidate(state, PlacementCache(), job, name)
                assert (answer.wait_class, answer.reasons) == (one.wait_class, one.reasons)
                told.append((job.id, name, state.seq, one.wait_class, one.count, one.reasons))
            checked += 1
        assert told_by_sql(records) >= {(*rest, "; ".join(reasons)) for *rest, reasons in told}
    assert checked >= (1_000 if is_full() else 30)


def told_by_sql(records: list[Record]) -> set[tuple[object, ...]]:
    """Read the reasons of a log as SQL has them."""
    facts, database = FactExtractor(), FactDatabase()
    for record in records:
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    columns = "job_id, group_name, from_seq, class, n, array_to_string(reasons, '; ')"
    return set(database.ask(f"SELECT {columns} FROM reasons").rows)
