"""Jobs that were submitted together continue together, and back together."""

from typing import Any

import msgspec
import pytest

from schemas.base import Event, JobId, RolloutKey
from schemas.bounds import WORDS
from schemas.deployments import (
    DeploymentDue,
    DeploymentEnded,
    DeploymentPromoted,
    DeploymentReleased,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
)
from schemas.jobs import (
    JobRegistered,
    JobStopped,
    ParameterizedBlock,
    PeriodicBlock,
    RegisterJob,
    SubmissionRefused,
)
from schemas.nodes import AllocReport
from schemas.policy import CollectGarbage, OperatorRefused
from schemas.rollouts import FailRollout, RolloutEnded, RolloutStarted
from shared.core.decide.deployments.progress import register_version
from shared.query.deployments import deployment_waits
from shared.query.rollouts import member_lines
from tests.builders import group, register, stop
from tests.unit.core.decide.joint import JointCluster, paced, registered


def of_type(events: list[Event], kind: type) -> list[Any]:
    """Return the events of a type."""
    return [event for event in events if isinstance(event, kind)]


def two(order: str = "together", **update: Any) -> JointCluster:
    """Jobs a and b at version 0, healthy; version 1 of both submitted together."""
    at = JointCluster()
    at.bring_up("a", "b", **update)
    at.submit(*(at.job(one, paced("d2", **update)) for one in "ab"), order=order)
    return at


# ---- beginning ----


def test_jobs_are_registered_in_one_transaction() -> None:
    """One record has the rollout, both versions and both deployments; the verdict is kept under one id."""
    at = JointCluster()
    at.bring_up("a")
    events = at.submit(at.job("a", paced("d2")), at.job("b", paced("d2")), submission_id="joint-1")
    (started,) = of_type(events, RolloutStarted)
    assert [(one.job_id, one.version, one.before) for one in started.members] == [
        ("a", 1, 0),
        ("b", 0, -1),
    ]
    deployed = [at.state.deployments.active_of(JobId(one)) for one in "ab"]
    assert [one.deployment for one in started.members] == [one and one.key for one in deployed]
    assert {one.cause for one in deployed if one is not None} == {"rollout"}
    assert at.state.jobs.submissions["joint-1"].rollout == started.key
    assert at.submit(at.job("c"), submission_id="joint-1") == []


def test_all_or_none() -> None:
    """One member that is refused refuses all, with the reason of its own."""
    at = JointCluster()
    at.bring_up("a")
    events = at.submit(at.job("a", paced("d2")), at.job("b", paced(), check_index=7))
    (refused,) = events
    assert isinstance(refused, SubmissionRefused)
    assert (refused.code, refused.verb) == ("conflict", "submit_together")
    assert "'b' is at modify index 0, not 7" in refused.reason
    assert at.versions("a") == [0] and "b" not in at.state.jobs.by_id


@pytest.mark.parametrize(
    ("second", "order", "says"),
    [
        (register("b", job_type="batch"), "together", "type batch, which has no deployment"),
        (register("b", group()), "together", "update.max_parallel above 0"),
        (register("b", paced(), stopped=True), "together", "Stop = true"),
        (register("a", paced()), "together", "is listed twice in the rollout"),
        (register("b", paced()), "backwards", "order must be one of"),
    ],
)
def test_what_no_rollout_can_have_is_refused(second: RegisterJob, order: str, says: str) -> None:
    """Jobs without a deployment, a job that comes twice, an unknown order."""
    at = JointCluster()
    (refused,) = at.submit(at.job("a", paced()), second, order=order)
    assert isinstance(refused, SubmissionRefused) and refused.code == "invalid"
    assert says in refused.reason
    assert not at.state.jobs.by_id


def test_sixteen_members_at_most() -> None:
    """Sixteen jobs are taken, and go back; seventeen are refused."""
    at = JointCluster()
    names = [f"j{nth:02}" for nth in range(17)]
    (refused,) = at.submit(*(at.job(one, paced(count=1)) for one in names))
    assert isinstance(refused, SubmissionRefused) and "1 to 16" in refused.reason
    at.submit(*(at.job(one, paced(count=1)) for one in names[:16]))
    events = at.fail()
    assert [one.job_id for one in of_type(events, JobStopped)] == names[15::-1]


def test_a_job_is_in_one_rollout() -> None:
    """A second rollout with a member of an active one is refused whole, and says which."""
    at = two()
    (refused,) = at.submit(at.job("c", paced()), at.job("b", paced("d3")))
    assert isinstance(refused, SubmissionRefused) and refused.code == "conflict"
    assert "job 'b' is in the rollout 'r'" in refused.reason
    assert at.rollout.is_active and "c" not in at.state.jobs.by_id


def test_texts_to_go_back_to_are_bounded() -> None:
    """What could not go back in one transaction is refused."""
    at = JointCluster()
    for one in "ab":
        at.do(at.job(one, paced(), salt="x" * 150_000))
    (refused,) = at.submit(at.job("a", paced("d2")), at.job("b", paced("d2")))
    assert isinstance(refused, SubmissionRefused) and refused.code == "too_large"


def test_unchanged_members_are_done_at_once() -> None:
    """The same text makes no version; with nothing to bring up the rollout is successful at once."""
    at = JointCluster()
    at.bring_up("a", "b")
    same = [register(one, paced("d1"), salt=nth + 1) for nth, one in enumerate("ab")]
    events = at.submit(same[0], at.job("b", paced("d2")), order="in_order")
    assert registered(events) == ["b"]
    assert [one.done for one in at.rollout.members] == [True, False]
    assert at.state.deployments.active_of(JobId("b")).is_moving  # type: ignore[union-attr]
    at.fail()
    assert at.versions("a", "b") == [0, 2]
    events = at.submit(same[0], same[1])
    assert [one.status for one in of_type(events, RolloutEnded)] == ["successful"]
    assert not registered(events)


# ---- together ----


def test_canaries_are_promoted_together() -> None:
    """A member whose canaries are healthy waits for the other's; then both are promoted in one transaction."""
    at = two(canary=1, auto_promote=True)
    at.schedule_all()
    table = at.state.allocations
    canaries = {job: [row for row in at.rows(job) if table.canary[row]] for job in "ab"}

    def healthy(job: str) -> list[Event]:
        states = tuple(
            AllocReport(key=int(table.key[row]), row=row, status="running", health=1)
            for row in canaries[job]
        )
        return at.report("n1", states=states)

    assert not of_type(healthy("a"), DeploymentPromoted)
    first, second = (deployment_waits(at.state, one) for one in _deployments(at))
    assert [(one.why, one.reason) for one in first] == [
        ("rollout", "its canaries are healthy; those of 'b' are promoted with them")
    ]
    assert [one.why for one in second] == ["health"]
    line, _ = member_lines(at.state, at.rollout)
    assert line.reason == f"web: {first[0].reason}"
    promoted = of_type(healthy("b"), DeploymentPromoted)
    assert len(promoted) == 2 and {one.by for one in promoted} == {"auto"}
    at.settle()
    assert at.rollout.status == "successful"
    assert at.running("a") == at.running("b") == ["d2", "d2"]


def test_an_operator_promotes_all_or_none() -> None:
    """A member is not promoted alone; the rollout not before all canaries are healthy, then every member."""
    at = two(canary=1)
    at.schedule_all()
    (refused,) = at.promote()
    assert isinstance(refused, OperatorRefused) and "job 'a', group 'web': 0/1" in refused.reason
    at.settle()
    assert at.rollout.is_active
    key = at.rollout.members[0].deployment
    (refused,) = at.do(PromoteDeployment(request_id="r2", deployment_key=key))
    assert isinstance(refused, OperatorRefused) and "caravan rollout promote" in refused.reason
    assert len(of_type(at.promote(), DeploymentPromoted)) == 2
    at.settle()
    assert at.rollout.status == "successful"


def test_without_canaries_there_is_nothing_to_promote() -> None:
    """A promotion of a rollout without canaries is refused."""
    at = two()
    (refused,) = at.promote()
    assert isinstance(refused, OperatorRefused) and refused.reason == "no canaries to promote"


def test_a_paused_member_keeps_all_canaries() -> None:
    """Healthy canaries wait for a paused member, and are promoted when it is resumed."""
    at = two(canary=1, auto_promote=True)
    key = at.rollout.members[0].deployment
    at.schedule_all()
    at.do(PauseDeployment(request_id="p", deployment_key=key, pause=True))
    at.settle()
    assert all(group.needs_promotion for one in _deployments(at) for group in one.groups)
    events = at.do(PauseDeployment(request_id="q", deployment_key=key, pause=False))
    assert len(of_type(events, DeploymentPromoted)) == 2
    at.settle()
    assert at.rollout.status == "successful"


def _deployments(at: JointCluster) -> list[Any]:
    return [at.state.deployments.by_key[one.deployment] for one in at.rollout.members]


# ---- in order ----


def test_members_begin_in_order() -> None:
    """The second is held, with its reason, until the first is successful; its clock begins then."""
    at = two("in_order", progress_deadline_ns=600_000_000_000)
    second = _deployments(at)[1]
    assert [hold.reason for hold in second.holds] == ["job 'a' comes first in rollout 'r'"]
    words = WORDS["DeploymentWait", "why"]
    assert {one.why for one in deployment_waits(at.state, second)} <= {"held"} <= set(words)
    assert "rollout" in words
    at.schedule_all()
    assert at.running("b") == ["d1", "d1"] and "d2" in at.running("a")
    for _ in range(10):
        if at.rollout.members[0].done:
            break
        assert at.running("b") == ["d1", "d1"]
        at.schedule_all()
        at.report_new()
    assert not _deployments(at)[1].is_held
    assert not at.state.jobs.version(JobId("a"), 1).is_stable  # type: ignore[union-attr]
    at.settle()
    assert at.rollout.status == "successful"
    assert at.running("b") == ["d2", "d2"]
    for job in "ab":
        assert at.state.jobs.stable_version(JobId(job)).version == 1  # type: ignore[union-attr]


# ---- ends ----


@pytest.mark.parametrize("order", ["together", "in_order"])
def test_one_failure_brings_all_back(order: str) -> None:
    """Also a member that was successful goes back, in reverse order, and no version of it is stable."""
    at = two(order, progress_deadline_ns=0)
    at.settle("b")
    assert at.rollout.status == "failed"
    assert at.rollout.members[0].done == (order == "in_order")
    assert not any(one.is_stable for one in at.state.jobs.versions[JobId("a")] if one.version == 1)
    at.settle()
    for job in "ab":
        assert at.text(job) == at.text(job, 0)
        assert at.running(job) == ["d1", "d1"]
        assert at.versions(job) == [2]


def test_all_that_failed_at_once_goes_back_once() -> None:
    """Two members that fail in one report are one failure: each goes back once, by one version."""
    at = two(progress_deadline_ns=0, auto_revert=True)
    at.settle("a", "b", steps=1)
    assert at.rollout.status == "failed"
    assert at.rollout.reason == "job 'a': Failed due to unhealthy allocations"
    assert at.versions("a", "b") == [2, 2]
    statuses = [(one.status, one.reverted_to) for one in _deployments(at)]
    assert statuses == [("failed", 0), ("failed", 0)]
    at.settle()
    assert at.running("a") == at.running("b") == ["d1", "d1"]


def test_a_member_that_is_ready_in_the_report_of_a_failure_goes_back() -> None:
    """A member whose last allocation is healthy in the very report by which another fails is not successful."""
    at = JointCluster()
    at.bring_up("a", "b")
    at.submit(*(at.job(one, paced("d2", count=1, progress_deadline_ns=0)) for one in "ab"))
    at.settle("a", steps=1)
    assert at.rollout.status == "failed"
    assert [one.status for one in _deployments(at)] == ["failed", "failed"]
    at.settle()
    assert at.running("a") == at.running("b") == ["d1", "d1"]


def test_an_operator_fails_it_and_members_go_back_in_reverse() -> None:
    """What was new is stopped, what was stopped before is stopped again, the others run their old text."""
    at = JointCluster()
    at.bring_up("a", "b")
    at.do(stop("b"))
    at.submit(*(at.job(one, paced("d2")) for one in "abc"))
    at.settle(steps=1)
    events = at.fail()
    assert [one.status for one in of_type(events, RolloutEnded)] == ["failed"]
    order = [one.job_id for one in events if isinstance(one, JobRegistered | JobStopped)]
    assert order == ["c", "b", "a"]
    assert {one.cause for one in of_type(events, DeploymentEnded)} == {"rollout"}
    at.settle()
    assert at.running("a") == ["d1", "d1"]
    assert at.running("b") == at.running("c") == []
    assert at.state.jobs.by_id[JobId("b")].stopped and at.state.jobs.by_id[JobId("c")].stopped
    (refused,) = at.fail()
    assert isinstance(refused, OperatorRefused) and "terminal status 'failed'" in refused.reason


def test_a_deadline_of_a_member_fails_the_rollout() -> None:
    """The clock of one member runs out: all go back, whatever auto_revert says."""
    at = two()
    at.schedule_all()
    one = _deployments(at)[1]
    at.now_ns = one.due_ns
    at.do(DeploymentDue(key=one.key, due_ns=one.due_ns))
    assert (at.rollout.status, at.rollout.cause) == ("failed", "deadline")
    at.settle()
    assert at.running("a") == ["d1", "d1"]


def test_failing_a_member_fails_the_rollout() -> None:
    """An operator's `deployment fail` of a member is one of the rollout."""
    at = two()
    at.do(FailDeployment(request_id="r", deployment_key=_deployments(at)[0].key))
    assert (at.rollout.status, at.rollout.cause) == ("failed", "operator")
    assert at.versions("a", "b") == [2, 2]


@pytest.mark.parametrize("how", ["register", "stop", "purge"])
def test_a_member_changed_alone_cancels_the_rollout(how: str) -> None:
    """The others continue singly: nothing holds them, and their versions become stable by themselves."""
    at = two("in_order")
    at.schedule_all()
    command = at.job("a", paced("d3")) if how == "register" else stop("a", purge=how == "purge")
    events = at.do(command)
    (ended,) = of_type(events, RolloutEnded)
    assert ended.status == "cancelled" and "'a'" in ended.reason
    assert [one.cause for one in of_type(events, DeploymentReleased)] == ["rollout"]
    at.settle()
    assert at.running("b") == ["d2", "d2"]
    assert at.state.jobs.stable_version(JobId("b")).version == 1  # type: ignore[union-attr]
    if how == "register":
        assert at.running("a") == ["d3", "d3"]


def test_the_same_text_alone_cancels_nothing() -> None:
    """A registration that makes no version leaves the rollout as it is."""
    at = two()
    text = at.job("a", paced("d3"))
    at.fail()
    at.settle()
    at.submit(text, at.job("b", paced("d3")))
    events = at.do(text)
    assert isinstance(events[0], JobRegistered) and at.rollout.is_active


def test_a_rollback_that_fails_is_a_failure_of_its_own() -> None:
    """What goes back is deployed as any revert: its failure touches no other job."""
    at = two(progress_deadline_ns=0)
    at.fail()
    at.settle("a", steps=1)
    found = at.state.deployments.latest_of(JobId("a"))
    assert found is not None and (found.cause, found.status) == ("revert", "failed")
    assert at.versions("a", "b") == [2, 2]


def test_a_command_about_no_rollout_is_refused() -> None:
    """An unknown key has one clear answer."""
    at = JointCluster()
    (refused,) = at.do(FailRollout(request_id="r", rollout_key=RolloutKey(7)))
    assert isinstance(refused, OperatorRefused) and refused.code == "not_found"
    assert refused.reason == "there is no such rollout"


def test_a_member_that_waits_is_no_garbage() -> None:
    """A job that is new and held has no allocation and no evaluation; it is kept."""
    at = JointCluster()
    at.submit(*(at.job(one, paced("d1")) for one in "ab"), order="in_order")
    at.schedule_all()
    assert at.rows("b") == [] and not at.state.evaluations.open_of.get(JobId("b"))
    at.later(30 * 24 * 3600)
    at.do(CollectGarbage(request_id="gc"))
    assert JobId("b") in at.state.jobs.by_id
    at.settle()
    assert at.rollout.status == "successful"


def test_a_way_back_keeps_what_makes_a_job_a_pattern() -> None:
    """A version that is registered again is parameterized or periodic if it was: it runs nothing itself."""
    at = two()
    patterns: tuple[dict[str, Any], ...] = (
        {"parameterized": ParameterizedBlock()},
        {"periodic": PeriodicBlock(crons=("0 0 * * *",))},
    )
    for number, fields in enumerate(patterns):
        name = JobId(f"pattern{number}")
        at.do(register(name, job_type="batch", **fields))
        job = at.state.jobs.by_id[name]
        kept = msgspec.structs.replace(at.state.jobs.versions[name][-1], job=job)
        again = register_version(at.state, job, kept, "revert")[0]
        assert isinstance(again, JobRegistered)
        assert again.parameterized == job.parameterized
        assert again.periodic == job.periodic
        assert not again.deploys
