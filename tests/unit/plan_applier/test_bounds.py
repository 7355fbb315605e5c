"""Large and senseless commands: each is refused alone, in words, and the applier continues."""

import pytest

from schemas.base import Event
from schemas.envelope import RECORD_DECODER, AnyCommand
from schemas.jobs import JobRegistered, SubmissionRefused
from schemas.nodes import Pool
from schemas.plans import PlanRefused
from schemas.policy import DeclarePool, DrainNode, OperatorRefused, Policy, SetPolicy
from services.plan_applier import batch as batches
from services.plan_applier.command_queue import CommandQueue
from shared.core.decide.refusals import refuse_command
from shared.core.runtime.messages import CaughtUp, Effect, Message, Rewind, Send, Stop
from shared.core.state.state import State
from tests.builders import Cluster, join, register
from tests.unit.plan_applier.test_plan_applier import Bench


def refused(bench: Bench, request_id: str) -> OperatorRefused:
    """The refusal of a request in the log."""
    (found,) = [
        event
        for _, data in bench.log
        for event in RECORD_DECODER.decode(data).events
        if isinstance(event, OperatorRefused) and event.request_id == request_id
    ]
    return found


def stops(effects: list[Effect]) -> list[Effect]:
    return [one for one in effects if isinstance(one, Stop)]


def test_a_long_vendor_is_refused_and_the_applier_goes_on() -> None:
    """A vendor of 1,010,000 bytes passes CMD and no record: its command is refused, the next one is written."""
    bench = Bench().lead()
    pool = Pool(name="licence", amount=10_000, vendor="v" * 1_010_000)
    long = DeclarePool(request_id="long", node_id="", pool=pool)
    short = DeclarePool(request_id="short", node_id="", pool=Pool(name="licence", amount=10_000))
    assert not stops(bench.settle(bench.send(long, kind="operator")))
    assert not stops(bench.settle(bench.send(short, kind="operator")))
    assert "vendor has 1010000 characters" in refused(bench, "long").reason
    assert ("", "licence") in bench.role.replica.state.fleet.declared


def test_numbers_without_sense_are_refused() -> None:
    """10**26 has no place in a snapshot: as a deadline of a drain, and in every number of the policy."""
    bench = Bench().lead()
    bench.settle(Message("report", "cmd.report.n1", bench.send(join("n1")).data, 7))
    assert "n1" in bench.role.replica.state.fleet.row_of
    drain = DrainNode(request_id="drain", node_id="n1", draining=True, deadline_ns=9 * 10**18)
    bench.settle(bench.send(drain, kind="operator"))
    assert "hundred years" in refused(bench, "drain").reason
    beyond = DrainNode(request_id="beyond", node_id="n1", draining=True, deadline_ns=10**26)
    assert not stops(bench.settle(bench.send(beyond, kind="operator")))
    numbers = [name for name in Policy.__struct_fields__ if type(getattr(Policy(), name)) is int]
    for name in numbers:
        wrong = SetPolicy(request_id=name, policy=Policy(**{name: 10**26}))
        assert not stops(bench.settle(bench.send(wrong, kind="operator")))
    assert len(numbers) >= 8
    assert not bench.role.replica.state.fleet.drains
    assert bench.role.replica.state.policy.policy == Policy()


def test_a_large_command_is_not_hidden_by_small_ones() -> None:
    """Each command of a message counts with its own size, not with the average."""
    bench, queue = Bench(), CommandQueue()
    small = [register(f"job-{n}", submission_id=f"s{n}") for n in range(10)]
    queue.put(bench.send(*small, register("large", submission_id="l", salt="x" * 300_000)))
    queue.put(bench.send(register("second", submission_id="m", salt="x" * 300_000)))
    taken = list(queue.take(100, 400 * 1024))
    assert len(taken) == 11 and len(queue) == 1
    assert sum(one.size for one in taken) > 300_000


def test_a_command_that_breaks_the_state_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the tables raise, the state is read anew; the command is found, buried and refused, others are written."""
    evolve = State.evolve

    def fragile(self: State, event: Event, seq: int) -> None:
        if isinstance(event, JobRegistered) and event.job_id == "poison":
            raise OverflowError("int too big to convert")
        evolve(self, event, seq)

    monkeypatch.setattr(State, "evolve", fragile)
    bench = Bench().lead()
    asked = [register(name, submission_id=f"s-{name}") for name in ("a", "poison", "b")]
    everything: list[Effect] = []
    for _ in range(8):
        known = bench.role.replica.state.jobs.submissions
        waiting: list[AnyCommand] = [one for one in asked if one.submission_id not in known]
        effects = bench.settle(bench.send(*waiting)) if waiting else []
        everything += effects
        if any(isinstance(one, Rewind) for one in effects):
            bench.settle(*bench.replay(), CaughtUp(len(bench.log)))
    assert not stops(everything)
    assert set(bench.role.replica.state.jobs.by_id) == {"a", "b"}
    verdicts = [
        event
        for _, data in bench.log
        for event in RECORD_DECODER.decode(data).events
        if isinstance(event, SubmissionRefused)
    ]
    assert [one.submission_id for one in verdicts] == ["s-poison"]
    assert any(isinstance(one, Send) and b"OverflowError" in one.data for one in everything)


def test_facts_beyond_a_record_are_refused_before_they_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command may be short and its facts long: they are measured before the state takes them."""
    monkeypatch.setattr(batches, "EVENTS_BYTES_MAX", 300)
    bench = Bench().lead()
    pool = Pool(name="licence", amount=10_000, model="m" * 120, vendor="v" * 120)
    asked = DeclarePool(request_id="wide", node_id="", pool=pool)
    assert not stops(bench.settle(bench.send(asked, kind="operator")))
    assert refused(bench, "wide").code == "too_large"
    assert not bench.role.replica.state.fleet.declared


def test_poison_is_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest command that broke the state is forgotten first; the newest ones are known."""
    monkeypatch.setattr(batches, "POISON_MAX", 3)
    decider = batches.BatchDecider()
    bad: list[AnyCommand] = [register(f"bad-{n}", submission_id=f"s{n}") for n in range(5)]
    for command in bad:
        assert decider.blame([command]) == [command]
    assert list(decider._poison) == [batches._digest(command) for command in bad[2:]]


def test_a_late_copy_of_a_plan_that_broke_the_state_is_not_refused_again() -> None:
    """A refusal names its worker's number: an older one would make the applier wait for plans that are long decided."""
    world = Cluster()
    world.do(join("n1"))
    world.do(register("app"))
    worker = world.plan()
    assert [type(one) for one in refuse_command(world.state, worker, "invalid", "broken")] == [
        PlanRefused
    ]
    world.do(worker)
    assert refuse_command(world.state, worker, "invalid", "broken") == []
