"""Dispatch: a child of a parameterized job, with what it was given; two of one token are one."""

from typing import Any

import msgspec
import pytest

from schemas.base import EvalKey, JobId
from schemas.evaluations import EvaluationsCreated
from schemas.jobs import (
    JobRegistered,
    ParameterizedBlock,
    PeriodicBlock,
    RegisterJob,
    SubmissionRefused,
)
from schemas.launches import PAYLOAD_BYTES_MAX, DispatchJob, JobLaunched, JobPayload, LaunchDue
from schemas.policy import CollectGarbage
from tests.builders import SECOND, Cluster, join, register, stop

OPEN = ParameterizedBlock(meta_required=("scene",), meta_optional=("tone",))
TEXT = b'{"ID":"render","Meta":{"tone":"low"},"ParameterizedJob":{},"Priority":50}'


def world_with(block: ParameterizedBlock = OPEN, **fields: Any) -> Cluster:
    """A cluster of one node with the parameterized job `render`."""
    world = Cluster()
    command = register("render", **({"job_type": "batch", "parameterized": block} | fields))
    world.do(join(), msgspec.structs.replace(command, spec=msgspec.Raw(TEXT)))
    return world


def dispatch(number: int = 1, job_id: str = "render", **fields: Any) -> DispatchJob:
    """A dispatch that the job takes."""
    base: dict[str, Any] = {"meta": {"scene": "7"}, "submission_id": f"d{number}", "digest": "x"}
    return DispatchJob(job_id=JobId(job_id), **(base | fields))


def test_a_parent_is_kept_and_nothing_of_it_is_evaluated() -> None:
    """Its children run; garbage collection leaves it until it is stopped."""
    world = world_with()
    job = world.state.jobs.by_id[JobId("render")]
    assert job.runs_nothing and not job.stopped and not world.state.evaluations.open
    world.do(CollectGarbage(request_id="gc"))
    assert "render" in world.state.jobs.by_id


def test_a_child_has_its_own_name_meta_and_payload() -> None:
    """Meta is laid over the job's; the payload is a fact of its own; the verdict names the child."""
    world = world_with()
    child, payload, created = world.do(dispatch(payload=b"data", priority=80))
    assert isinstance(child, JobRegistered) and isinstance(created, EvaluationsCreated)
    assert child.job_id.startswith(f"render/dispatch-{world.state.seq}-")
    assert (child.parent, child.version, child.priority) == ("render", 0, 80)
    assert child.parameterized is None
    assert payload == JobPayload(job_id=child.job_id, data=b"data")
    assert b"data" not in bytes(child.spec)
    spec = msgspec.json.decode(bytes(child.spec))
    assert (spec["Meta"], spec["Priority"]) == ({"scene": "7", "tone": "low"}, 80)
    assert "ParameterizedJob" not in spec and spec["ID"] == child.job_id
    said = world.state.jobs.submissions["d1"]
    assert (said.status, said.job_id, said.evaluation) == (
        "accepted",
        child.job_id,
        child.evaluation,
    )
    assert list(world.state.evaluations.open_of[child.job_id]) == [child.evaluation]


@pytest.mark.parametrize(
    ("block", "fields", "word"),
    [
        (OPEN, {"job_id": "nothing"}, "there is no job"),
        (OPEN, {"job_id": "plain"}, "not parameterized"),
        (ParameterizedBlock(payload="required"), {"meta": {}}, "requires a payload"),
        (
            ParameterizedBlock(payload="forbidden"),
            {"meta": {}, "payload": b"x"},
            "takes no payload",
        ),
        (OPEN, {"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)}, "at most 16384"),
        (OPEN, {"meta": {"scene": "7", "colour": "red"}}, "'colour' is not one of the job's"),
        (OPEN, {"meta": {"tone": "high"}}, "'scene' is required"),
        (OPEN, {"priority": 101}, "0 (the job's) to 100"),
    ],
)
def test_what_the_job_does_not_take_is_refused(
    block: ParameterizedBlock, fields: dict[str, Any], word: str
) -> None:
    """The verdict says what is wrong, and no child is made."""
    world = world_with(block)
    world.do(register("plain", job_type="batch"))
    (refused,) = world.do(dispatch(**fields))
    assert isinstance(refused, SubmissionRefused) and word in refused.reason
    assert refused.verb == "dispatch" and not world.state.launches.children


def test_a_stopped_parent_is_not_dispatched() -> None:
    """Children that are there continue."""
    world = world_with()
    child, *_ = world.do(dispatch())
    world.do(stop("render"))
    (refused,) = world.do(dispatch(2))
    assert isinstance(refused, SubmissionRefused) and "is stopped" in refused.reason
    assert isinstance(child, JobRegistered)
    assert not world.state.jobs.by_id[child.job_id].stopped


def test_a_submission_id_is_dispatched_once_and_others_are_children_of_their_own() -> None:
    """Sent again it changes nothing; two in one record have two names."""
    world = world_with()
    first, *_ = world.do(dispatch(1), dispatch(2), dispatch(1))
    assert isinstance(first, JobRegistered)
    assert len(world.state.launches.children[JobId("render")]) == 2
    assert world.do(dispatch(1)) == []


def test_two_dispatches_of_one_token_are_one_child() -> None:
    """X4: the second names the child and creates no evaluation; a child that was collected is made anew."""
    world = world_with()
    first, *_ = world.do(dispatch(1, token="order-1"))
    (second,) = world.do(dispatch(2, token="order-1", meta={"scene": "other"}))
    assert isinstance(first, JobRegistered) and isinstance(second, JobRegistered)
    assert (second.job_id, second.evaluation) == (first.job_id, EvalKey(0))
    assert world.state.jobs.submissions["d2"].job_id == first.job_id
    other, *_ = world.do(dispatch(3, token="order-2"))
    assert isinstance(other, JobRegistered) and other.job_id != first.job_id
    world.do(stop(first.job_id, purge=True))
    world.schedule(first.job_id) if world.state.evaluations.open_of.get(first.job_id) else None
    assert first.job_id not in world.state.jobs.by_id
    third, *_ = world.do(dispatch(4, token="order-1"))
    assert isinstance(third, JobRegistered) and third.job_id != first.job_id


def test_what_was_given_leaves_with_the_child() -> None:
    """Neither payload nor token stay behind."""
    world = world_with()
    child, *_ = world.do(dispatch(payload=b"data", token="t"))
    assert isinstance(child, JobRegistered)
    assert world.state.launches.payloads and world.state.launches.tokens
    world.do(stop(child.job_id, purge=True))
    table = world.state.launches
    assert not (table.payloads or table.tokens or table.children or table.parent_of)


def test_a_periodic_job_that_is_dispatched_is_a_periodic_job() -> None:
    """The parent launches nothing; each dispatch launches children of its own, with its payload."""
    hourly = PeriodicBlock(crons=("@hourly",))
    world = world_with(periodic=hourly)
    assert not world.state.launches.by_parent
    events = world.do(dispatch(payload=b"data"))
    assert [type(one) for one in events] == [JobRegistered, JobPayload]
    child = events[0]
    assert isinstance(child, JobRegistered) and child.periodic == hourly and not child.evaluation
    mark = world.state.launches.by_parent[child.job_id]
    world.later(3_600)
    at_ns = world.now_ns - SECOND
    due = LaunchDue(
        parent=child.job_id, modify_seq=mark.modify_seq, after_ns=mark.handled_ns, at_ns=at_ns
    )
    launched, _, payload, _ = world.do(due)
    assert isinstance(launched, JobLaunched) and isinstance(payload, JobPayload)
    assert launched.child_id.startswith(f"{child.job_id}/periodic-")
    assert (payload.job_id, payload.data) == (launched.child_id, b"data")


def test_a_job_that_runs_does_not_become_parameterized_nor_back() -> None:
    """Both changes are refused until the job is stopped."""
    world = world_with()
    world.do(register("app", job_type="batch"))

    def refused(command: RegisterJob) -> str:
        (event,) = world.do(command)
        assert isinstance(event, SubmissionRefused)
        return event.reason

    wanted = register("app", job_type="batch", parameterized=OPEN, submission_id="a2", salt=1)
    assert "is not parameterized: stop it" in refused(wanted)
    plain = register("render", job_type="batch", submission_id="r2", salt=1)
    assert "is parameterized: stop it" in refused(plain)
