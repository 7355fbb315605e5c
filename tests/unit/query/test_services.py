"""What `query.services` and `query.service` derive from jobs, allocations and reported checks."""

from typing import Any

import msgspec
import pytest

from schemas.allocations import AllocationsHealthChanged, AllocationsReported, AllocDetail
from schemas.base import DeploymentKey, JobId
from schemas.deployments import DeploymentPromoted
from schemas.envelope import ENCODER
from schemas.jobs import GroupSpec, JobRegistered
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from tests.unit.view.view_story import Story

CHECK = {"Name": "up", "Type": "tcp", "Interval": 10**9, "Timeout": 10**9}
WEB = {"Name": "web", "PortLabel": "8080", "Tags": ["blue"], "CanaryTags": ["new"]}


def story(
    *services: dict[str, Any],
    task: tuple[dict[str, Any], ...] = (),
    canaries: bool = False,
    checks: dict[str, str] | None = None,
    state: str = "running",
    client: int = 1,
) -> Story:
    """A job of two allocations on two nodes; the first has reported its task."""
    one = Story()
    for name, address in (("n1", "10.0.0.1"), ("n2", "10.0.0.2")):
        one.node(name, attributes={"unique.network.ip-address": address})  # type: ignore[arg-type]
    tasks = [{"Name": "t", "Driver": "x", "Services": list(task)}]
    group = {"Name": "g", "Tasks": tasks, "Services": list(services)}
    job = {"ID": "j", "Name": "j", "TaskGroups": [group]}
    text = msgspec.Raw(ENCODER.encode(job))
    one.log(
        JobRegistered(
            submission_id="s",
            digest="d",
            job_id=JobId("j"),
            version=0,
            groups=(GroupSpec(name="g", count=2, cpu_mhz=100, memory_mib=64),),
            spec=text,
        )
    )
    placed = GroupPlacement(
        group="g",
        version=0,
        rows=(0, 1),
        counts=(1, 1),
        names=(0, 2),
        canaries=canaries,
        deployment=DeploymentKey(1 if canaries else 0),
    )
    origin = Origin(worker="w", number=1, snapshot_seq=1)
    plan = PlanCommitted(key=0, job_id=JobId("j"), origin=origin, placements=(placed,))
    one.log(plan)
    said = {"t": {"state": state, "checks": checks or {}}}
    detail = AllocDetail(row=0, tasks=msgspec.Raw(ENCODER.encode(said)))
    one.log(AllocationsReported(rows=(0, 1), statuses=(client, 1), details=(detail,)))
    return one


def instances(one: Story, name: str = "web", **query: Any) -> list[dict[str, Any]]:
    one.start()
    found: list[dict[str, Any]] = one.ask("service", id=name, **query)["instances"]
    return found


def test_every_running_allocation_is_an_instance() -> None:
    """Address and port are those of its node, the rest is the job's."""
    first, second = instances(story(WEB))
    assert (first["address"], first["port"], first["tags"]) == ("10.0.0.1", 8080, ["blue"])
    assert (first["node"], first["job"], first["group"], first["index"]) == ("n1", "j", "g", 0)
    assert (first["status"], first["health"], second["address"]) == ("passing", "", "10.0.0.2")


@pytest.mark.parametrize("label", ["000000001999999", "000000001" + "9" * 5_000])
def test_digits_that_are_no_port_end_no_listing(label: str) -> None:
    """Earlier releases accepted jobs with them: the instance has no port."""
    assert [one["port"] for one in instances(story({**WEB, "PortLabel": label}))] == [0, 0]


@pytest.mark.parametrize(
    ("more", "tags", "status"),
    [
        ({"canaries": True}, ["new"], "passing"),
        ({"client": 5}, ["blue"], "unknown"),
        ({"checks": {"web/up": "critical"}}, ["blue"], "critical"),
        ({"checks": {"web/up": "warning"}}, ["blue"], "warning"),
        ({"checks": {"web/up": "passing"}}, ["blue"], "passing"),
        ({"checks": {}}, ["blue"], "pending"),
    ],
)
def test_tags_and_status(more: dict[str, Any], tags: list[str], status: str) -> None:
    """Canaries have tags of their own; the status is the worst of the checks that were reported."""
    service = {**WEB, "Checks": [CHECK]} if "checks" in more else WEB
    first = instances(story(service, **more))[0]
    assert (first["tags"], first["status"]) == (tags, status)


def test_a_promoted_canary_has_the_tags_and_meta_of_all() -> None:
    """Its own ones hold until the promotion; where it has none, those of all do, as in Nomad."""
    service = {**WEB, "Meta": {"v": "${JOB}"}, "CanaryMeta": {"v": "new ${JOB}"}}
    one = story(service, {"Name": "plain", "Tags": ["t"], "Meta": {"k": "v"}}, canaries=True)
    first = instances(one)[0]
    assert (first["tags"], first["meta"]) == (["new"], {"v": "new j"})
    plain = one.ask("service", id="plain")["instances"][0]
    assert (plain["tags"], plain["meta"]) == (["t"], {"k": "v"})
    one.log(DeploymentPromoted(key=DeploymentKey(1), groups=("g",), rows=(0, 1)))
    first = one.ask("service", id="web")["instances"][0]
    assert (first["tags"], first["meta"]) == (["blue"], {"v": "j"})


def test_what_ended_is_no_instance() -> None:
    """A pending or ended allocation is not listed, nor a service of a task that does not run."""
    assert [one["node"] for one in instances(story(WEB, client=2))] == ["n2"]
    task = story(task=(WEB,), state="pending")
    assert [(one["node"], one["task"]) for one in instances(task)] == [("n2", "t")]


def test_health_is_that_of_the_allocation() -> None:
    """Health in its deployment stands beside the status."""
    one = story(WEB)
    one.log(AllocationsHealthChanged(rows=(0,), healths=(1,)))
    assert [each["health"] for each in instances(one)] == ["healthy", ""]


def test_filters_and_pages() -> None:
    """By node, status and job; `total` counts all that fit."""
    one = story({**WEB, "Checks": [CHECK]}, checks={"web/up": "passing"})
    one.start()
    assert len(one.ask("service", id="web", node_id="n2")["instances"]) == 1
    assert [
        each["node"] for each in one.ask("service", id="web", status="passing")["instances"]
    ] == ["n1"]
    page = one.ask("service", id="web", limit=1, offset=1)
    assert (page["total"], [each["node"] for each in page["instances"]]) == (2, ["n2"])


def test_services_in_lines() -> None:
    """The list has a line for each name, with counts and all tags."""
    other = {"Name": "${JOB}-db", "PortLabel": "1", "Tags": ["b", "a"]}
    one = story(WEB, other)
    one.start()
    answer = one.ask("services")
    assert [(each["name"], each["instances"]) for each in answer["services"]] == [
        ("j-db", 2),
        ("web", 2),
    ]
    assert answer["services"][0]["tags"] == ["a", "b"]
    assert [each["name"] for each in one.ask("services", id="we")["services"]] == ["web"]


@pytest.mark.parametrize(
    ("query", "code"),
    [({"id": "nope"}, "not_found"), ({}, "invalid"), ({"id": "web", "job_id": "x"}, "not_found")],
)
def test_what_is_not_there(query: dict[str, Any], code: str) -> None:
    """An unknown service or job is an error, so is a question without a name."""
    one = story(WEB)
    one.start()
    assert one.ask("service", **query)["error"]["code"] == code
