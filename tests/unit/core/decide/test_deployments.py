"""A new version continues as its allocations become healthy, is promoted, fails, and goes back as a new version."""

from typing import Any

import pytest

from schemas.base import DeploymentKey, Event, JobId
from schemas.deployments import (
    DeploymentDue,
    DeploymentEnded,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentStarted,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
    SetAllocationHealth,
)
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import (
    GroupSpec,
    JobRegistered,
    JobStabilityChanged,
    ReschedulePolicy,
    UpdatePolicy,
)
from schemas.nodes import AllocReport
from schemas.plans import GroupPlacement, GroupSize, InPlace, PlanRefused, Stops
from schemas.policy import OperatorRefused
from shared.core.state.ids import deployment_id
from shared.core.state.tables.deployments import Deployment
from tests.builders import SECOND, Cluster, group, join, register, stop

MINUTE = 60 * SECOND
APP = JobId("app")


def paced(name: str = "web", *, count: int = 3, digest: str = "d1", **update: Any) -> GroupSpec:
    """A group with an update block."""
    reschedule = update.pop("reschedule", ReschedulePolicy())
    policy = UpdatePolicy(**({"max_parallel": 2} | update))
    return group(name, count=count, digest=digest, update=policy, reschedule=reschedule)


class Rollout(Cluster):
    """A cluster with one roomy node, and plans written by hand: the pace is the scheduler's."""

    def __init__(self) -> None:
        super().__init__()
        self.do(join("n1", cpu_mhz=100_000, memory_mib=100_000))
        self.salt = 0

    @property
    def deployment(self) -> Deployment:
        """The newest of the job."""
        found = self.state.deployments.latest_of(APP)
        assert found is not None
        return found

    def submit(self, *groups: GroupSpec, **fields: Any) -> list[Event]:
        """Register a new version."""
        self.salt += 1
        fields = {"submission_id": f"s{self.salt}"} | fields
        return self.do(register("app", *groups, salt=self.salt, **fields))

    def place(
        self,
        name: str = "web",
        count: int = 1,
        *,
        first: int = 0,
        stops: list[int] | None = None,
        **fields: Any,
    ) -> list[int]:
        """Commit a plan that places some of the newest version for its deployment; return their rows."""
        before = set(self.rows())
        job = self.state.jobs.by_id[APP]
        active = self.state.deployments.active_of(APP)
        fields = {
            "group": name,
            "version": job.version,
            "deployment": DeploymentKey(0) if active is None else active.key,
        } | fields
        one = GroupPlacement(rows=(0,), counts=(count,), names=(first, count), **fields)
        self.plan_of(placements=(one,), stops=(Stops(rows=tuple(stops)),) if stops else ())
        return sorted(set(self.rows()) - before)

    def plan_of(self, **fields: Any) -> list[Event]:
        """Commit a plan for the oldest pending evaluation, or for a new one."""
        if not self.state.evaluations.open_of.get(APP):
            job = self.state.jobs.by_id[APP]
            self.apply(
                EvaluationsCreated(evaluations=(NewEvaluation(job_id=APP, priority=job.priority),))
            )
        base: dict[str, Any] = {"placements": ()}
        return self.do(self.plan("app", **(base | fields)))

    def say(self, *healths: tuple[int, int], status: str = "running") -> list[Event]:
        """Report (row, health) pairs."""
        table = self.state.allocations
        states = tuple(
            AllocReport(key=int(table.key[row]), row=row, status=status, health=health)
            for row, health in healths
        )
        return self.report("n1", states=states)

    def healthy(self, *rows: int) -> list[Event]:
        """Report that these run and are healthy."""
        return self.say(*((row, 1) for row in rows))

    def bring_up(self, *groups: GroupSpec) -> list[int]:
        """Register a version and bring all of it up."""
        self.submit(*groups)
        rows: list[int] = []
        for one in groups:
            if one.count:
                rows += self.place(one.name, one.count)
        self.healthy(*rows)
        return rows

    def told(self, verb: type, **fields: Any) -> list[Event]:
        """Have an operator say something to the newest deployment."""
        return self.do(verb(request_id="r1", deployment_key=self.deployment.key, **fields))

    def due(self) -> list[Event]:
        """Let the clock of the newest deployment run out."""
        due_ns = self.deployment.due_ns
        self.now_ns = max(self.now_ns, due_ns)
        return self.do(DeploymentDue(key=self.deployment.key, due_ns=due_ns))


def of_type(events: list[Event], kind: type) -> list[Any]:
    """Return the events of a type."""
    return [event for event in events if isinstance(event, kind)]


def watchers(events: list[Event]) -> list[str]:
    """Jobs that are looked at because of their deployment."""
    return [
        one.job_id
        for event in of_type(events, EvaluationsCreated)
        for one in event.evaluations
        if one.triggered_by == "deployment-watcher"
    ]


# ---- beginning and success ----


def test_a_version_has_one_deployment() -> None:
    """A version that asks for a pace gets a deployment; the same text again, and one without a pace, get none."""
    rollout = Rollout()
    rollout.submit(paced(count=3))
    first = rollout.deployment
    assert (first.version, first.status, first.cause) == (0, "running", "submit")
    assert [(one.name, one.desired_total) for one in first.groups] == [("web", 3)]
    rollout.do(register("app", paced(count=3), salt=1, submission_id="again"))
    assert rollout.state.deployments.of_job(APP) == (first,)
    rollout.submit(group(count=3), paced("b", max_parallel=0), paced("c", count=0))
    assert [one.status for one in rollout.state.deployments.of_job(APP)] == ["cancelled"]
    assert rollout.deployment.reason == "Cancelled due to newer version of job"


def test_a_deployment_begins_with_the_registration_unless_more_is_to_be_said() -> None:
    """Without canaries no fact of its own begins it; with canaries `deployment.started` has their number."""
    rollout = Rollout()
    (registered, *more) = rollout.submit(paced(count=3))
    assert isinstance(registered, JobRegistered)
    assert registered.deploys
    assert not of_type(more, DeploymentStarted)
    assert rollout.deployment.key == registered.evaluation
    (registered, *more) = rollout.submit(paced(count=4, digest="d2", canary=1))
    assert isinstance(registered, JobRegistered)
    assert not registered.deploys
    (started,) = of_type(more, DeploymentStarted)
    assert started.key == registered.evaluation == rollout.deployment.key
    (registered, cancelled, *_) = rollout.submit(paced(count=4, digest="d3"))
    assert isinstance(registered, JobRegistered)
    assert isinstance(cancelled, DeploymentEnded)
    assert registered.deploys
    assert cancelled.key == started.key


def test_canaries_that_wait_are_no_reason_for_canaries() -> None:
    """Back to the text of what runs while canaries of another one wait: nothing is replaced, so there are none."""
    rollout = Rollout()
    rollout.bring_up(paced(count=2, canary=2))
    rollout.submit(paced(count=2, digest="d2", canary=2))
    rollout.place(count=2, canaries=True)
    rollout.submit(paced(count=5, canary=2))
    assert rollout.deployment.groups[0].desired_canaries == 0


def test_all_healthy_is_success_and_makes_the_version_stable() -> None:
    """The deployment ends with the last healthy allocation; the first word about each counts."""
    rollout = Rollout()
    rollout.submit(paced(count=3))
    rows = rollout.place(count=3)
    events = rollout.healthy(*rows[:2])
    assert (rollout.deployment.groups[0].placed, rollout.deployment.groups[0].healthy) == (3, 2)
    assert watchers(events) == ["app"]
    assert not of_type(rollout.healthy(*rows[:2]), EvaluationsCreated)
    assert rollout.deployment.groups[0].healthy == 2
    rollout.say((rows[0], 2))
    assert rollout.deployment.groups[0].unhealthy == 0, "unhealthy after healthy is an operator's"
    rollout.healthy(rows[2])
    assert (rollout.deployment.status, rollout.deployment.due_ns) == ("successful", 0)
    assert rollout.deployment.reason == "Deployment completed successfully"
    stable = rollout.state.jobs.stable_version(APP)
    assert stable is not None
    assert stable.version == 0


# ---- W1, W2, W7, W8: failures and reverts ----


def test_w1_unhealthy_by_hand_fails() -> None:
    """W1: an allocation set unhealthy by hand fails the deployment, and the job is looked at."""
    rollout = Rollout()
    rollout.submit(paced())
    rows = rollout.place(count=2)
    rollout.healthy(*rows)
    keys = tuple(int(rollout.state.allocations.key[row]) for row in rows)
    rollout.later(5)
    events = rollout.told(SetAllocationHealth, unhealthy=keys[:1])
    assert rollout.deployment.status == "failed"
    assert rollout.deployment.reason == "Failed due to unhealthy allocations"
    assert (rollout.deployment.groups[0].healthy, rollout.deployment.groups[0].unhealthy) == (1, 1)
    assert watchers(events) == ["app"]


@pytest.mark.parametrize(
    ("stable_salt", "says"),
    [
        ("other", "rolling back to job version 0"),
        ("equal", "not rolling back to stable job version 1 as current job has same specification"),
        ("none", "no stable job version to auto revert to"),
    ],
)
def test_w2_auto_revert(stable_salt: str, says: str) -> None:
    """W2: with auto_revert the newest stable version is registered again, if there is one and it differs."""
    rollout = Rollout()
    if stable_salt != "none":
        rollout.bring_up(paced(count=1, auto_revert=True))
    version = 0 if stable_salt == "none" else 1
    rollout.submit(paced(count=1, digest="d2", auto_revert=True))
    if stable_salt == "equal":
        changed = JobStabilityChanged(request_id="r", job_id=APP, version=version, stable=True)
        rollout.apply(changed)
    (row,) = rollout.place(stops=rollout.rows())
    events = rollout.told(SetAllocationHealth, unhealthy=(int(rollout.state.allocations.key[row]),))
    failed = of_type(events, DeploymentEnded)[0]
    assert failed.reason == f"Failed due to unhealthy allocations - {says}"
    assert failed.reverted_to == (0 if stable_salt == "other" else -1)
    registered = of_type(events, JobRegistered)
    assert len(registered) == (stable_salt == "other")
    if registered:
        job = rollout.state.jobs.by_id[APP]
        assert (job.version, job.reverted_from, job.groups[0].digest) == (2, 1, "d1")
        assert registered[0].submission_id == f"revert:{deployment_id(failed.key)}"
        assert (rollout.deployment.version, rollout.deployment.cause) == (2, "revert")
        assert watchers(events) == ["app"]


def test_a_failed_revert_does_not_go_on() -> None:
    """A revert that fails too stays failed: its text is the stable one."""
    rollout = Rollout()
    rollout.bring_up(paced(count=1, auto_revert=True))
    rollout.submit(paced(count=1, digest="d2", auto_revert=True))
    rollout.told(FailDeployment)
    assert (rollout.deployment.version, rollout.deployment.cause) == (2, "revert")
    events = rollout.told(FailDeployment)
    assert not of_type(events, JobRegistered)
    assert rollout.deployment.reason == (
        "Deployment marked as failed - not rolling back to stable job version 0 as current job has"
        " same specification"
    )
    assert rollout.state.jobs.by_id[APP].version == 2


def test_w7_without_a_deadline_the_first_unhealthy_one_fails() -> None:
    """W7: progress_deadline 0: the first unhealthy allocation fails the deployment, which reverts."""
    rollout = Rollout()
    rollout.bring_up(paced(count=1))
    rollout.submit(paced(count=1, digest="d2", auto_revert=True, progress_deadline_ns=0))
    (row,) = rollout.place(stops=rollout.rows())
    assert rollout.deployment.due_ns == 0
    rollout.say((row, 2))
    assert [one.status for one in rollout.state.deployments.of_job(APP)] == [
        "successful",
        "failed",
        "running",
    ]


@pytest.mark.parametrize(("attempts", "status"), [(2, "running"), (0, "failed")])
def test_w8_attempts_left(attempts: int, status: str) -> None:
    """W8: with attempts left an unhealthy allocation is tried again; with none left it fails the deployment."""
    rollout = Rollout()
    policy = ReschedulePolicy(attempts=attempts, interval_ns=MINUTE, unlimited=False)
    rollout.submit(paced(count=1, reschedule=policy))
    (row,) = rollout.place()
    rollout.say((row, 2), status="failed")
    assert rollout.deployment.status == status
    if status == "running":
        rollout.due()
        assert rollout.deployment.reason == "Failed due to progress deadline"


# ---- W3, W4, W10: canaries ----


def test_w3_promotion_needs_healthy_canaries() -> None:
    """W3: canaries are promoted once all are healthy; before that the refusal counts them."""
    rollout = Rollout()
    rollout.bring_up(paced(count=2))
    rollout.submit(paced(count=2, digest="d2", canary=2))
    assert rollout.deployment.groups[0].desired_canaries == 2
    rows = rollout.place(count=2, canaries=True)
    assert rollout.state.allocations.canary[rows].all()
    rollout.healthy(rows[0])
    refused = of_type(rollout.told(PromoteDeployment), OperatorRefused)
    assert [one.reason for one in refused] == ["Task group 'web' has 1/2 healthy allocations"]
    rollout.healthy(rows[1])
    assert rollout.deployment.needs_promotion
    rollout.later(5)
    events = rollout.told(PromoteDeployment, groups=("web",))
    assert of_type(events, DeploymentPromoted)[0].rows == tuple(rows)
    assert watchers(events) == ["app"]
    assert not rollout.state.allocations.canary[rows].any()
    assert rollout.told(PromoteDeployment) == []
    assert of_type(rollout.told(PromoteDeployment, groups=("x",)), OperatorRefused)


def test_no_canaries_without_something_old() -> None:
    """The first version, and one that replaces nothing, has no canaries; then there is nothing to promote."""
    rollout = Rollout()
    rollout.bring_up(paced(count=1, canary=1))
    rollout.submit(paced(count=2, canary=1))
    assert not rollout.deployment.needs_promotion
    assert of_type(rollout.told(PromoteDeployment), OperatorRefused)[0].reason == (
        "no canaries to promote"
    )


def test_w4_auto_promote() -> None:
    """W4: all groups are promoted once the canaries of each that has some are healthy."""
    rollout = Rollout()
    rollout.bring_up(paced(count=3), paced("b", count=1))
    rollout.submit(
        paced(count=3, digest="d2", canary=3, auto_promote=True), paced("b", count=1, digest="d2")
    )
    rows = rollout.place(count=3, canaries=True)
    rollout.healthy(*rows[:2])
    assert rollout.deployment.needs_promotion
    events = rollout.healthy(rows[2])
    assert of_type(events, DeploymentPromoted)[0].by == "auto"
    assert not rollout.deployment.needs_promotion


def test_w10_waiting_for_a_person_is_no_failure() -> None:
    """W10: with healthy canaries the clock does not fail the deployment; promotion begins it anew."""
    rollout = Rollout()
    rollout.bring_up(paced(count=2))
    rollout.submit(paced(count=2, digest="d2", canary=1))
    (row,) = rollout.place(canaries=True)
    rollout.healthy(row)
    assert rollout.deployment.due_ns == 0
    rollout.later(3_600)
    rollout.told(PromoteDeployment)
    assert rollout.deployment.due_ns == rollout.now_ns + 10 * MINUTE


# ---- W5, W6, W9, W11: clocks and operators ----


def test_w5_pause_and_resume() -> None:
    """W5: pausing and resuming is idempotent; a paused deployment has no clock, a resumed one a new clock."""
    rollout = Rollout()
    rollout.submit(paced())
    rollout.place()
    due_ns = rollout.deployment.due_ns
    assert due_ns == rollout.now_ns + 10 * MINUTE
    assert rollout.told(PauseDeployment, pause=False) == []
    (paused,) = rollout.told(PauseDeployment, pause=True)
    assert isinstance(paused, DeploymentPaused)
    assert rollout.deployment.paused_ns == paused.since_ns == rollout.now_ns
    assert rollout.told(PauseDeployment, pause=True) == []
    rollout.now_ns = due_ns + 1
    assert rollout.do(DeploymentDue(key=rollout.deployment.key, due_ns=due_ns)) == []
    assert rollout.deployment.status == "paused"
    events = rollout.told(PauseDeployment, pause=False)
    assert watchers(events) == ["app"]
    assert rollout.deployment.paused_ns == 0
    assert rollout.deployment.due_ns == rollout.now_ns + 10 * MINUTE


def test_w6_failed_is_terminal() -> None:
    """W6: after an operator failed it every verb is refused, and nothing counts any more."""
    rollout = Rollout()
    rollout.submit(paced())
    (row,) = rollout.place()
    rollout.told(FailDeployment)
    assert rollout.deployment.reason == "Deployment marked as failed"
    before = rollout.deployment
    for verb, fields in (
        (PromoteDeployment, {}),
        (FailDeployment, {}),
        (PauseDeployment, {"pause": True}),
        (SetAllocationHealth, {"healthy": (1,)}),
    ):
        (refused,) = of_type(rollout.told(verb, **fields), OperatorRefused)
        assert "has terminal status" in refused.reason
    rollout.healthy(row)
    assert rollout.deployment == before
    unknown = rollout.do(FailDeployment(request_id="r", deployment_key=DeploymentKey(7)))
    assert of_type(unknown, OperatorRefused)[0].code == "not_found"


def test_w9_the_earliest_unfinished_group_counts() -> None:
    """W9: of two groups the earlier clock counts; a group that is done has none, and so has no group at the end."""
    rollout = Rollout()
    rollout.submit(
        paced(count=1, progress_deadline_ns=MINUTE),
        paced("b", count=2, progress_deadline_ns=2 * MINUTE),
    )
    start = rollout.now_ns
    first = rollout.place()
    second = rollout.place("b", 2)
    assert rollout.deployment.due_ns == start + MINUTE
    rollout.healthy(*first)
    assert rollout.deployment.due_ns == start + 2 * MINUTE
    rollout.later(30)
    rollout.healthy(second[0])
    assert rollout.deployment.due_ns == start + 30 * SECOND + 2 * MINUTE, "health moves the clock"
    rollout.healthy(second[1])
    assert rollout.deployment.due_ns == 0


def test_w11_no_clock_before_the_first_placement() -> None:
    """W11: nothing placed, no clock; a stale or early word of a timer changes nothing; a purged job has nothing."""
    rollout = Rollout()
    rollout.submit(paced())
    assert rollout.deployment.due_ns == 0
    rollout.place()
    due_ns, key = rollout.deployment.due_ns, rollout.deployment.key
    assert rollout.do(DeploymentDue(key=key, due_ns=due_ns)) == [], "too early"
    rollout.now_ns = due_ns
    assert rollout.do(DeploymentDue(key=key, due_ns=due_ns - 1)) == [], "not this instant"
    rollout.do(DeploymentDue(key=key, due_ns=due_ns))
    assert rollout.deployment.status == "failed"
    assert rollout.do(DeploymentDue(key=key, due_ns=due_ns)) == []
    purged = Rollout()
    purged.submit(paced())
    purged.do(stop("app", purge=True))
    assert not purged.state.deployments.by_key
    assert not purged.state.deployments.active


def test_w12_many_words_are_few_evaluations() -> None:
    """W12: a hundred health changes in a second have the job looked at now, and once more a second later."""
    rollout = Rollout()
    rollout.submit(paced(count=101))
    rows = rollout.place(count=101)
    made = [one for row in rows[:100] for one in watchers(rollout.healthy(row))]
    assert made == ["app", "app"]
    rollout.later(2)
    assert watchers(rollout.healthy(rows[100])) == []
    assert rollout.deployment.status == "successful"


# ---- what a plan may do ----


def test_a_plan_adds_only_to_the_active_deployment_of_its_version() -> None:
    """A plan for another deployment, version or group is refused; sizes are taken."""
    rollout = Rollout()
    rollout.bring_up(paced(count=1))
    old = rollout.deployment
    rollout.submit(paced(count=1, digest="d2"))
    one = {"group": "web", "rows": (0,), "counts": (1,), "names": (1, 1)}
    for fields in (
        {"version": 1, "deployment": old.key},
        {"version": 0, "deployment": rollout.deployment.key},
        {"version": 1, "canaries": True},
    ):
        events = rollout.plan_of(placements=(GroupPlacement(**(one | fields)),))
        assert of_type(events, PlanRefused)
    sizes = (
        GroupSize(group="web", desired_total=5, desired_canaries=2),
        GroupSize(group="x", desired_total=1),
    )
    rollout.plan_of(sizes=sizes, end="")
    found = rollout.deployment.groups[0]
    assert (found.desired_total, found.desired_canaries) == (5, 2)
    stops = (Stops(rows=tuple(rollout.rows())),)
    rollout.plan_of(placements=(GroupPlacement(version=0, **one),), stops=stops)
    assert len(rollout.rows()) == 1, "an older version may be placed again, outside the deployment"


# ---- E1, E2, X2 ----


def test_e1_a_bad_version_costs_one_allocation() -> None:
    """E1: a good version, a bad one that reverts, the good one again: 2 successful and 1 failed deployment."""
    rollout = Rollout()
    old = rollout.bring_up(paced(count=2, max_parallel=1, auto_revert=True))
    rollout.submit(paced(count=2, max_parallel=1, digest="bad", auto_revert=True))
    (bad,) = rollout.place(stops=old[:1])
    rollout.say((bad, 2))
    rollout.due()
    assert rollout.deployment.version == 2
    (again,) = rollout.place(stops=[bad])
    rollout.healthy(again)
    update = InPlace(rows=(old[1],), group="web", version=2, deployment=rollout.deployment.key)
    rollout.plan_of(updates=(update,))
    assert rollout.state.allocations.health[old[1]] == 0, "health counts anew"
    rollout.healthy(old[1])
    statuses = [one.status for one in rollout.state.deployments.of_job(APP)]
    assert statuses == ["successful", "failed", "successful"]


def test_e2_failed_canaries_leave_the_old_alone() -> None:
    """E2: canaries that fail revert the job; what is old was never stopped."""
    rollout = Rollout()
    old = rollout.bring_up(paced(count=3, auto_revert=True))
    rollout.submit(paced(count=3, digest="bad", canary=3, auto_revert=True, progress_deadline_ns=0))
    rows = rollout.place(count=3, canaries=True)
    rollout.say(*((row, 2) for row in rows))
    assert [one.status for one in rollout.state.deployments.of_job(APP)][1] == "failed"
    assert rollout.deployment.version == 2
    assert rollout.state.allocations.is_wanted(old).all()


def test_x2_the_stable_version_is_kept() -> None:
    """X2: with the seventh version the second oldest goes if the oldest is the only stable one."""
    rollout = Rollout()
    rollout.bring_up(paced(count=1))
    for nth in range(1, 8):
        rollout.submit(paced(count=1, digest=f"d{nth}"))
    kept = [one.version for one in rollout.state.jobs.versions[APP]]
    assert kept == [0, 3, 4, 5, 6, 7]
    found = rollout.state.jobs.job_at(APP, 0)
    assert found is not None
    assert found.groups[0].digest == "d1"
