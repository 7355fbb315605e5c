"""What `query.deployments`, `query.deployment` and `view.job` say of a deployment, and why it waits."""

from typing import Any

import msgspec
import pytest

from schemas.allocations import (
    AllocationsHealthChanged,
    AllocationsReported,
    AllocDetail,
    HealthCount,
)
from schemas.base import DeploymentKey, Event, JobId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentGroup,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentResumed,
    DeploymentStarted,
)
from schemas.envelope import ENCODER
from schemas.evaluations import Blocked, EvaluationEnded, EvaluationsCreated, NewEvaluation, Waiting
from schemas.jobs import GroupSpec, MigratePolicy
from schemas.nodes import NodeDrainChanged
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from shared.core.state.ids import deployment_id, make_key
from shared.protocol import subjects
from tests.unit.view.view_story import Story

KEY = DeploymentKey(make_key(100, 0))
ID = deployment_id(KEY)
JOB = JobId("j")
MINUTE = 60_000_000_000


def started(**group: Any) -> DeploymentStarted:
    one = DeploymentGroup(**{"name": "web", "desired_total": 2, "max_parallel": 2, **group})
    return DeploymentStarted(key=KEY, job_id=JOB, version=0, groups=(one,))


def story(*, placed: int = 2, canaries: bool = False, **group: Any) -> Story:
    """A job of two allocations on two nodes with a deployment; its evaluation is done."""
    one = Story()
    one.node("n1")
    one.node("n2")
    seq = one.job("j", count=2)
    one.log(started(**group))
    ended = EvaluationEnded(key=make_key(seq, 0), status="complete")
    placement = GroupPlacement(
        group="web",
        version=0,
        rows=tuple(range(placed)),
        counts=(1,) * placed,
        names=(0, placed),
        deployment=KEY,
        canaries=canaries,
    )
    origin = Origin(worker="w", number=1, snapshot_seq=1)
    placements = (placement,) if placed else ()
    one.log(PlanCommitted(key=0, job_id=JOB, origin=origin, placements=placements), ended)
    if placed:
        one.log(AllocationsReported(rows=tuple(range(placed)), statuses=(1,) * placed))
    return one


def healths(*codes: int, require_by_ns: int = 0) -> AllocationsHealthChanged:
    """Health of the first allocations."""
    count = HealthCount(
        deployment=KEY,
        group="web",
        healthy=codes.count(1),
        unhealthy=codes.count(2),
        require_by_ns=require_by_ns,
    )
    rows = tuple(range(len(codes)))
    return AllocationsHealthChanged(rows=rows, healths=codes, counts=(count,))


def ended(status: str, reason: str = "", **more: Any) -> DeploymentEnded:
    return DeploymentEnded(
        key=KEY, job_id=JOB, version=0, status=status, cause="healthy", reason=reason, **more
    )


PAUSED = DeploymentPaused(key=KEY, since_ns=9)
HELD = DeploymentHeld(key=KEY, cause="gate", reason="load is 120", since_ns=7)


@pytest.mark.parametrize(
    ("group", "events", "status", "text"),
    [
        ({}, (), "running", "Deployment is running"),
        (
            {"desired_canaries": 1},
            (),
            "running",
            "Deployment is running but requires manual promotion",
        ),
        (
            {"desired_canaries": 1, "auto_promote": True},
            (),
            "running",
            "Deployment is running pending automatic promotion",
        ),
        (
            {"desired_canaries": 1},
            (DeploymentPromoted(key=KEY, groups=("web",)),),
            "running",
            "Deployment is running",
        ),
        ({}, (PAUSED,), "paused", "Deployment is paused"),
        ({}, (PAUSED, DeploymentResumed(key=KEY)), "running", "Deployment is running"),
        ({}, (HELD,), "running", "Deployment is held: load is 120"),
        ({}, (HELD, PAUSED), "paused", "Deployment is paused"),
        ({}, (ended("successful"),), "successful", "Deployment completed successfully"),
        ({}, (ended("failed", "Failed due to x"),), "failed", "Failed due to x"),
        ({}, (ended("cancelled"),), "cancelled", "Deployment was cancelled"),
    ],
)
def test_the_status_in_nomads_words(
    group: dict[str, Any], events: tuple[Event, ...], status: str, text: str
) -> None:
    """A running deployment says whether it waits for a promotion; the reason of an end is the log's."""
    one = story(**group)
    for event in events:
        one.log(event)
    one.start()
    line = one.ask("deployment", id=ID)["deployment"]
    assert (line["status"], line["description"], line["id"]) == (status, text, ID)
    assert one.ask("job", id="j")["rollout"]["deployment"] == line


CAPACITY = Waiting(count=1, wait_class="capacity", reasons=("memory is exhausted",))


@pytest.mark.parametrize(
    ("made", "events", "waits"),
    [
        ({}, (), [("health", ["j.web[0]", "j.web[1]"], "2 allocations are not healthy yet")]),
        ({}, (healths(1),), [("health", ["j.web[1]"], "1 allocation is not healthy yet")]),
        ({}, (healths(1, 2),), [("unhealthy", ["j.web[1]"], "1 allocation is unhealthy")]),
        ({}, (healths(1, 1),), []),
        ({"placed": 0}, (), [("schedule", [], "about to be placed")]),
        ({}, (PAUSED,), [("paused", [], "paused by an operator")]),
        ({}, (healths(1, 1), PAUSED), []),
        ({}, (HELD,), [("held", [], "load is 120")]),
        ({}, (ended("failed"),), []),
        (
            {"desired_canaries": 2, "canaries": True},
            (healths(1),),
            [("health", ["j.web[1]"], "(canaries)")],
        ),
        (
            {"desired_canaries": 2, "canaries": True},
            (healths(1, 1),),
            [("promotion", [], "2 of 2 canaries are healthy")],
        ),
        ({"desired_canaries": 2, "auto_promote": True, "canaries": True}, (healths(1, 1),), []),
    ],
)
def test_why_a_deployment_does_not_go_on(
    made: dict[str, Any], events: tuple[Event, ...], waits: list[tuple[str, list[str], str]]
) -> None:
    """Each group says what it waits for, and which allocations those are."""
    one = story(**made)
    for event in events:
        one.log(event)
    one.start()
    found = one.ask("deployment", id=ID)["waits"]
    assert [(wait["why"], wait["allocations"]) for wait in found] == [wait[:2] for wait in waits]
    for wait, (_, _, text) in zip(found, waits, strict=True):
        assert text in wait["reason"]


@pytest.mark.parametrize(("event", "since_ns"), [(PAUSED, 9), (HELD, 7)])
def test_a_stop_of_a_deployment_says_since_when(event: Event, since_ns: int) -> None:
    """A pause and a hold have their own time; the clock of its progress says nothing of them."""
    one = story(placed=2)
    one.log(event)
    one.start()
    waits = one.ask("deployment", id=ID)["waits"]
    assert [wait["since_ns"] for wait in waits] == [since_ns] * len(waits) != []


def test_a_group_without_a_place_waits_for_one() -> None:
    """The reason is that of the blocked evaluation, and the job waits, as without a deployment."""
    one = story(placed=1)
    one.log(healths(1))
    blocked = Blocked(classes=(), waiting={"web": CAPACITY})
    one.log(EvaluationsCreated(evaluations=(NewEvaluation(job_id=JOB, blocked=blocked),)))
    one.start()
    (wait,) = one.ask("deployment", id=ID)["waits"]
    assert (wait["why"], wait["reason"]) == ("place", "1 without a place: memory is exhausted")
    assert one.ask("job", id="j")["rollout"]["status"] == "waiting"


def test_a_group_whose_old_allocations_are_to_end_has_its_place() -> None:
    """It waits for its predecessor: the deployment makes progress."""
    one = story(placed=1)
    one.log(healths(1))
    own = Waiting(count=1, wait_class="predecessor", reasons=("1 is to end first",))
    blocked = Blocked(classes=(), waiting={"web": own})
    one.log(EvaluationsCreated(evaluations=(NewEvaluation(job_id=JOB, blocked=blocked),)))
    one.start()
    (wait,) = one.ask("deployment", id=ID)["waits"]
    assert (wait["why"], wait["reason"]) == ("predecessor", "1 is to end first")
    assert one.ask("job", id="j")["rollout"]["status"] == "progressing"


def test_the_clock_says_since_when_nothing_happened() -> None:
    """The last progress is the deadline minus its length."""
    one = story(progress_deadline_ns=10 * MINUTE)
    one.log(healths(1, require_by_ns=25 * MINUTE))
    one.start()
    answer = one.ask("deployment", id=ID)
    assert [wait["since_ns"] for wait in answer["waits"]] == [15 * MINUTE]
    group = answer["deployment"]["groups"]["web"]
    assert (group["placed"], group["healthy"], group["require_by_ns"]) == (2, 1, 25 * MINUTE)
    shown = [(row["name"], row["health"], row["deployment"]) for row in answer["allocations"]]
    assert shown == [("j.web[0]", "healthy", ID), ("j.web[1]", "", ID)]


def test_a_rollout_goes_on_until_its_deployment_ended() -> None:
    """All allocations run and the deployment does not know it: progressing; then as it ended."""
    one = story()
    one.land(one.start())
    said = one.ask("job", id="j")["rollout"]
    assert (said["status"], said["groups"]["web"]["running"]) == ("progressing", 2)
    assert "2 allocations are not healthy yet" in said["reason"]
    one.log(healths(1, 1), ended("successful", "Deployment completed successfully"))
    value = one.land(one.later())[subjects.view_job("j")]
    assert one.ask("job", id="j")["rollout"] == value["rollout"]
    assert value["rollout"]["status"] == "running"
    assert value["rollout"]["deployment"]["status"] == "successful"


def test_a_failed_deployment_is_a_failed_rollout() -> None:
    """Whatever its allocations do: the version did not come up as it should."""
    one = story()
    one.log(ended("failed", "Failed due to progress deadline"))
    one.start()
    said = one.ask("job", id="j")["rollout"]
    assert said["status"] == "failed"
    assert said["reason"] == "deployment failed: Failed due to progress deadline"


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({}, [ID]),
        ({"job_id": "j"}, [ID]),
        ({"job_id": "k"}, []),
        ({"status": "running"}, [ID]),
        ({"status": "failed"}, []),
        ({"limit": 0}, []),
    ],
)
def test_the_list_has_filters(query: dict[str, Any], ids: list[str]) -> None:
    """By job and by status."""
    one = story()
    one.job("k")
    one.start()
    answer = one.ask("deployments", **query)
    assert [line["id"] for line in answer["deployments"]] == ids


@pytest.mark.parametrize(
    ("query", "code", "text"),
    [
        ({"id": "ffffffff"}, "not_found", "no deployment 'ffffffff'"),
        ({"id": "xyz"}, "invalid", "not a valid id prefix"),
        ({}, "invalid", "deployment id or id prefix required"),
        ({"job_id": "k"}, "not_found", "job 'k' has no deployment"),
    ],
)
def test_a_deployment_that_is_not_there(query: dict[str, Any], code: str, text: str) -> None:
    """Each wrong name has its own code."""
    one = story()
    one.start()
    error = one.ask("deployment", **query)["error"]
    assert error["code"] == code
    assert text in error["message"]


def test_a_prefix_finds_a_deployment() -> None:
    """As for all ids; the newest one of a job has a name of its own."""
    one = story()
    one.start()
    assert one.ask("deployment", id=ID[:6])["deployment"]["id"] == ID
    assert one.ask("deployment", job_id="j")["deployment"]["id"] == ID


def test_an_unknown_status_is_refused() -> None:
    """The words are those of the schema."""
    one = story()
    one.start()
    error = one.ask("deployments", status="done")["error"]
    assert "expected one of running, paused, successful, failed, cancelled" in error["message"]


def test_a_wait_names_the_check_and_the_task_that_it_is_for() -> None:
    """Failing checks, and tasks that have not started, stand with their allocation, as the agent reported them."""
    one = story()
    told = (
        {"t": {"state": "running", "checks": {"web/up": "critical", "web/fine": "passing"}}},
        {"t": {"state": "pending", "events": [{"kind": "Downloading", "message": "an image"}]}},
    )
    details = tuple(
        AllocDetail(row=row, tasks=msgspec.Raw(ENCODER.encode(tasks)))
        for row, tasks in enumerate(told)
    )
    one.log(AllocationsReported(rows=(0, 1), statuses=(1, 0), details=details))
    one.start()
    (wait,) = one.ask("deployment", id=ID)["waits"]
    assert wait["reason"] == (
        "2 allocations are not healthy yet (max_parallel 2); j.web[0]: check web/up is critical; "
        "j.web[1]: task t has not started: Downloading an image"
    )


def test_a_drain_names_its_allocations_and_those_that_hold_it_back() -> None:
    """What is left on the node by name, since when it drains, and whose health the others wait for."""
    one = Story()
    one.node("n1")
    one.node("n2")
    group = GroupSpec(
        name="web", count=2, cpu_mhz=100, memory_mib=64, migrate=MigratePolicy(max_parallel=1)
    )
    one.text("j", 0, b'{"ID":"j"}', (group,))
    placed = GroupPlacement(group="web", version=0, rows=(0, 1), counts=(1, 1), names=(0, 2))
    origin = Origin(worker="w", number=1, snapshot_seq=1)
    one.log(PlanCommitted(key=0, job_id=JOB, origin=origin, placements=(placed,)))
    one.log(AllocationsReported(rows=(0, 1), statuses=(1, 1)))
    one.log(AllocationsHealthChanged(rows=(0,), healths=(1,)))
    one.log(NodeDrainChanged(row=0, draining=True, deadline_ns=10**18, started_ns=77))
    one.start()
    drain = one.ask("node", id="n1")["drain"]
    (wait,) = drain["waits"]
    assert (drain["started_ns"], wait["names"]) == (77, ["j.web[0]"])
    assert wait["why"] == "1 of 2 healthy, 1 must stay healthy; not healthy: j.web[1]"
    one.log(AllocationsHealthChanged(rows=(1,), healths=(1,)))
    assert one.ask("node", id="n1")["drain"]["waits"][0]["why"] == "1 may leave next"
    blocked = Blocked(waiting={"web": Waiting(count=1)})
    created = NewEvaluation(job_id=JOB, priority=50, job_type="service", blocked=blocked)
    one.log(EvaluationsCreated(evaluations=(created,)))
    why = one.ask("node", id="n1")["drain"]["waits"][0]["why"]
    assert why == "1 may leave: no other node has room for them yet"
