"""Versions: reverted, scaled and started again as new ones; named and declared stable."""

from typing import Any

import msgspec
import pytest

from schemas.base import Event, JobId
from schemas.evaluations import EvaluationsCreated
from schemas.job_versions import RevertJob, ScaleJob, SetStability, StartJob, TagVersion
from schemas.jobs import (
    GroupSpec,
    JobRegistered,
    JobStabilityChanged,
    JobVersionTagged,
    ParameterizedBlock,
    RegisterJob,
    SubmissionRefused,
    UpdatePolicy,
)
from schemas.policy import OperatorRefused
from shared.core.decide.jobs.version_marks import TAGS_MAX
from tests.builders import Cluster, group, join, register, stop

APP = JobId("app")


def text_of(*groups: GroupSpec, **fields: Any) -> msgspec.Raw:
    """The canonical text of groups, with a block for scaling where `scaling` has one."""
    scaling = fields.pop("scaling", None)
    blocks: list[dict[str, Any]] = [{"Count": one.count, "Name": one.name} for one in groups]
    if scaling is not None:
        blocks[0]["Scaling"] = scaling
    text = {"ID": "app", "TaskGroups": blocks, **fields}
    return msgspec.Raw(msgspec.json.encode(text, order="sorted"))


def version_of(*groups: GroupSpec, number: int = 0, **fields: Any) -> RegisterJob:
    """A registration whose text says what its groups say."""
    own = {name: fields.pop(name) for name in ("scaling", "Stop") if name in fields}
    command = register("app", *groups, submission_id=f"s{number}", **fields)
    return msgspec.structs.replace(command, spec=text_of(*groups, Salt=number, **own))


def world_with(*commands: RegisterJob) -> Cluster:
    """A cluster of one roomy node, and versions of the job, each placed."""
    world = Cluster()
    world.do(join("n1", cpu_mhz=100_000, memory_mib=100_000))
    for command in commands:
        world.do(command)
        if world.state.evaluations.open_of.get(APP):
            world.schedule("app")
    return world


def two_versions(**fields: Any) -> Cluster:
    """Version 0 with three allocations, version 1 with five others."""
    return world_with(
        version_of(group(count=3, digest="d0"), number=0, priority=60, **fields),
        version_of(group(count=5, digest="d1"), number=1, **fields),
    )


def revert(**fields: Any) -> RevertJob:
    """A revert to version 0."""
    base: dict[str, Any] = {"submission_id": "r1", "digest": "x", "version": 0}
    return RevertJob(job_id=JobId(fields.pop("job_id", APP)), **(base | fields))


def scale(count: int, **fields: Any) -> ScaleJob:
    """A scaling of the only group."""
    base: dict[str, Any] = {"submission_id": "c1", "digest": "x"}
    return ScaleJob(job_id=JobId(fields.pop("job_id", APP)), count=count, **(base | fields))


def start(**fields: Any) -> StartJob:
    """A start."""
    base: dict[str, Any] = {"submission_id": "b1", "digest": "x"}
    return StartJob(job_id=JobId(fields.pop("job_id", APP)), **(base | fields))


def refusal(world: Cluster, command: Any) -> tuple[str, str, str]:
    """Verb, code and reason of a refusal, after which nothing has changed."""
    before = world.state.jobs.by_id.get(command.job_id)
    (refused,) = world.do(command)
    assert isinstance(refused, SubmissionRefused), refused
    assert world.state.jobs.by_id.get(command.job_id) == before
    return refused.verb, refused.code, refused.reason


def registered(events: list[Event]) -> JobRegistered:
    """The registration, which comes first, with its evaluation behind it."""
    first, *rest = events
    assert isinstance(first, JobRegistered)
    assert any(isinstance(one, EvaluationsCreated) for one in rest)
    return first


# ---- revert ----


def test_a_revert_is_a_new_version_with_the_old_text_and_count() -> None:
    """Text, groups and priority come back; the version continues, and says where it came from."""
    world = two_versions()
    old = world.state.jobs.spec(APP, 0)
    found = registered(world.do(revert()))
    assert (found.version, found.reverted_from, bytes(found.spec)) == (2, 1, old)
    job = world.state.jobs.by_id[APP]
    assert (job.version, job.priority, job.reverted_from) == (2, 60, 1)
    assert [(one.count, one.digest) for one in job.groups] == [(3, "d0")]
    said = world.state.jobs.submissions["r1"]
    assert (said.status, said.version, said.evaluation) == ("accepted", 2, found.evaluation)


def test_a_revert_by_tag_and_sent_twice_is_one_version() -> None:
    """The name stands for its version; a submission id is decided once."""
    world = two_versions()
    world.do(TagVersion(request_id="t", job_id=APP, version=0, name="good"))
    command = revert(version=-1, version_tag="good")
    assert registered(world.do(command)).version == 2
    assert world.do(command) == []
    assert world.state.jobs.by_id[APP].version == 2
    kept = world.state.jobs.version(APP, 2)
    assert kept is not None and not kept.tag and not kept.is_stable


def test_a_revert_begins_a_deployment_of_its_own() -> None:
    """It takes the pace of the text that it takes."""
    update = UpdatePolicy(max_parallel=2)
    world = world_with(
        version_of(group(count=3, digest="d0", update=update), number=0),
        version_of(group(count=3, digest="d1", update=update), number=1),
    )
    world.do(revert())
    begun = world.state.deployments.latest_of(APP)
    assert begun is not None
    assert (begun.version, begun.cause) == (2, "revert")


def test_a_revert_to_an_equal_text_registers_nothing_new() -> None:
    """Version 0 again, when version 2 has its text already: the job is looked at, no version is made."""
    world = two_versions()
    world.do(revert())
    found = registered(world.do(revert(submission_id="r2")))
    assert (found.version, found.reverted_from) == (2, -1)


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({"job_id": "none"}, "not_found", "there is no job 'none'"),
        ({"version": 1}, "invalid", "can't revert to the current version 1"),
        ({"version": 7}, "not_found", "no stored version 7"),
        ({"version": -1, "version_tag": "x"}, "not_found", "no version with the tag 'x'"),
        ({"check_version": 0}, "conflict", "is at version 1, not 0"),
        ({"check_index": 1}, "conflict", "modify index"),
    ],
)
def test_a_revert_that_is_refused(fields: dict[str, Any], code: str, word: str) -> None:
    """One clear line, and nothing has changed."""
    verb, found, reason = refusal(two_versions(), revert(**fields))
    assert (verb, found) == ("revert", code) and word in reason


def test_a_revert_across_types_is_refused_as_any_submission() -> None:
    """The refusal names the verb that was asked."""
    world = two_versions()
    world.do(stop("app"))
    world.do(version_of(group(digest="b"), number=2, job_type="batch"))
    verb, code, reason = refusal(world, revert())
    assert (verb, code) == ("revert", "invalid") and "stop it first" in reason


def test_a_revert_runs_a_stopped_job_unless_the_text_says_stop() -> None:
    """The text alone tells whether it runs; a stop of the job is no part of a version."""
    world = two_versions()
    world.do(stop("app"))
    assert not registered(world.do(revert())).stopped
    world = world_with(
        version_of(group(digest="d0"), number=0, Stop=True, stopped=True),
        version_of(group(digest="d1"), number=1),
    )
    assert registered(world.do(revert())).stopped


# ---- scale ----


def test_scaling_is_a_new_version_with_the_count() -> None:
    """Text and group say the same, and what is unchanged stays where it is."""
    world = two_versions()
    found = registered(world.do(scale(7)))
    assert (found.version, found.reverted_from) == (2, -1)
    assert [(one.count, one.digest) for one in found.groups] == [(7, "d1")]
    assert bytes(found.spec) == bytes(text_of(group(count=7), Salt=1))
    rows = set(world.rows())
    world.schedule("app")
    assert rows < set(world.rows()), "only what is missing was placed"


@pytest.mark.parametrize(
    ("count", "fields", "code", "word"),
    [
        (1, {}, "invalid", "less than scaling minimum: 1 < 2"),
        (7, {}, "invalid", "greater than scaling maximum: 7 > 6"),
        (3, {"group": "db"}, "not_found", "no group 'db'"),
        (3, {"check_index": 1}, "conflict", "modify index"),
        (3, {"job_id": "none"}, "not_found", "there is no job"),
    ],
)
def test_x1_scaling_out_of_bounds(count: int, fields: dict[str, Any], code: str, word: str) -> None:
    """X1: below the minimum or above the maximum of the scaling block, or of what is not there."""
    world = world_with(version_of(group(count=3), scaling={"Max": 6, "Min": 2}))
    verb, found, reason = refusal(world, scale(count, **fields))
    assert (verb, found) == ("scale", code) and word in reason
    assert registered(world.do(scale(6, submission_id="c2"))).version == 1


def test_x1_scaling_waits_for_the_end_of_a_deployment() -> None:
    """X1: while a deployment is active the count stays."""
    update = UpdatePolicy(max_parallel=1)
    world = world_with(version_of(group(count=2, update=update)))
    assert world.state.deployments.active_of(APP) is not None
    verb, code, reason = refusal(world, scale(3))
    assert (verb, code, reason) == (
        "scale",
        "conflict",
        "job scaling blocked due to active deployment",
    )


def test_a_minimum_that_was_the_count_does_not_follow_it() -> None:
    """Without a minimum the count of the submitted text is the least, also after scaling."""
    world = world_with(version_of(group(count=3), scaling={"Max": 6}))
    assert "3" in refusal(world, scale(2))[2]
    world.do(scale(5, submission_id="c2"))
    assert registered(world.do(scale(3, submission_id="c3"))).version == 2
    assert "2 < 3" in refusal(world, scale(2, submission_id="c4"))[2]


@pytest.mark.parametrize(
    ("job_type", "count", "word"),
    [("system", 2, "0 or 1"), ("service", 1_000_001, "0 to 1000000"), ("service", -1, "0 to")],
)
def test_bounds_of_every_count(job_type: str, count: int, word: str) -> None:
    """System jobs have one on each node; the sum of a job is bounded."""
    world = world_with(version_of(group(count=1), job_type=job_type))
    assert word in refusal(world, scale(count))[2]


def test_a_group_is_named_where_there_are_several() -> None:
    """The others keep their counts."""
    world = world_with(version_of(group("web", count=1), group("db", count=2)))
    assert "name one of web, db" in refusal(world, scale(3))[2]
    found = registered(world.do(scale(3, group="db", submission_id="c2")))
    assert [(one.name, one.count) for one in found.groups] == [("web", 1), ("db", 3)]


def test_what_does_not_run_itself_or_is_stopped() -> None:
    """A stopped job is started, not scaled; a child has one version."""
    world = two_versions()
    world.do(stop("app"))
    assert "start it first" in refusal(world, scale(2))[2]
    world.do(register("child", parent=APP, submission_id="k"))
    assert "child of 'app'" in refusal(world, scale(2, job_id="child", submission_id="c2"))[2]


# ---- start ----


def test_a_stopped_job_starts_with_its_newest_text() -> None:
    """As a new version; a text that says stop says so no more."""
    world = two_versions()
    verb, code, reason = refusal(world, start())
    assert (verb, code) == ("start", "invalid") and "has not been stopped" in reason
    world.do(stop("app"))
    found = registered(world.do(start(submission_id="b2")))
    assert (found.version, found.stopped) == (2, False)
    assert bytes(found.spec) == world.state.jobs.spec(APP, 1)
    world = world_with(version_of(group(), Stop=True, stopped=True))
    found = registered(world.do(start()))
    assert (found.version, found.stopped) == (1, False)
    assert b"Stop" not in bytes(found.spec)
    assert refusal(world, start(job_id="none", submission_id="b3"))[1] == "not_found"


def test_a_started_pattern_is_not_evaluated() -> None:
    """A parameterized job runs nothing itself."""
    block = ParameterizedBlock()
    world = world_with(version_of(group(), job_type="batch", parameterized=block))
    world.do(stop("app"))
    (found,) = world.do(start())
    assert isinstance(found, JobRegistered) and found.parameterized == block


# ---- tags and stability ----


def tag(name: str, version: int = -1, **fields: Any) -> TagVersion:
    """A name for a version."""
    return TagVersion(request_id="t", job_id=APP, version=version, name=name, **fields)


def test_x3_a_name_is_of_one_version() -> None:
    """X3: refused on another version, updated on the same; without a version the newest is named."""
    world = two_versions()
    (named,) = world.do(tag("good", 0))
    assert named == JobVersionTagged(request_id="t", job_id=APP, version=0, name="good")
    (refused,) = world.do(tag("good"))
    assert isinstance(refused, OperatorRefused)
    assert "already exists on a different version" in refused.reason
    (updated,) = world.do(tag("good", 0, description="calm"))
    assert isinstance(updated, JobVersionTagged) and updated.description == "calm"
    assert world.do(tag("good", 0, description="calm")) == []
    (renamed,) = world.do(tag("better", 0))
    assert isinstance(renamed, JobVersionTagged)
    (moved,) = world.do(tag("good"))
    assert isinstance(moved, JobVersionTagged) and moved.version == 1


def test_a_named_version_is_kept_until_its_name_is_taken() -> None:
    """Six versions are kept beside it."""
    world = world_with(version_of(group(count=1, digest="d0")))
    world.do(tag("first"))
    for number in range(1, 9):
        world.do(version_of(group(count=1, digest=f"d{number}"), number=number))
    kept = [one.version for one in world.state.jobs.versions[APP]]
    assert kept == [0, 3, 4, 5, 6, 7, 8]
    (unset,) = world.do(tag("first", unset=True))
    assert unset == JobVersionTagged(request_id="t", job_id=APP, version=0)
    world.do(version_of(group(count=1, digest="d9"), number=9))
    assert [one.version for one in world.state.jobs.versions[APP]] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        (tag(""), "invalid", "1 to 128"),
        (tag("x" * 129), "invalid", "1 to 128"),
        (tag(" x"), "invalid", "blanks"),
        (tag("7"), "invalid", "number of a version"),
        (tag("x", description="d" * 1001), "invalid", "at most 1000"),
        (tag("x", 9), "not_found", "no stored version 9"),
        (tag("x", unset=True), "not_found", "no version with the tag 'x'"),
        (tag("known", 1, unset=True), "not_found", "version 0 has it"),
        (TagVersion(request_id="t", job_id=JobId("no"), name="x"), "not_found", "no job"),
        (
            SetStability(request_id="t", job_id=JobId("no"), version=0, stable=True),
            "not_found",
            "there is no job",
        ),
        (
            SetStability(request_id="t", job_id=APP, version=9, stable=True),
            "not_found",
            "no stored version 9",
        ),
    ],
)
def test_marks_that_are_refused(command: TagVersion | SetStability, code: str, word: str) -> None:
    """One clear line, no fact about the job."""
    world = two_versions()
    world.do(tag("known", 0))
    (refused,) = world.do(command)
    assert isinstance(refused, OperatorRefused), refused
    assert refused.code == code and word in refused.reason


def test_the_names_of_a_job_are_bounded() -> None:
    """Each keeps a text in the state."""
    world = world_with(version_of(group(count=1, digest="d")))
    for number in range(1, TAGS_MAX + 1):
        world.do(tag(f"t{number}"))
        world.do(version_of(group(count=1, digest=f"d{number}"), number=number))
    (refused,) = world.do(tag("more"))
    assert isinstance(refused, OperatorRefused) and "more are not kept" in refused.reason


def test_stability_is_said_once() -> None:
    """The same word again is no fact."""
    world = two_versions()
    (said,) = world.do(SetStability(request_id="t", job_id=APP, version=0, stable=True))
    assert said == JobStabilityChanged(request_id="t", job_id=APP, version=0, stable=True)
    assert world.do(SetStability(request_id="t", job_id=APP, version=0, stable=True)) == []
    found = world.state.jobs.stable_version(APP)
    assert found is not None and found.version == 0
    world.do(SetStability(request_id="t", job_id=APP, version=0, stable=False))
    assert world.state.jobs.stable_version(APP) is None
