"""`view.service.<name>`: where the instances of a service are, published as they change."""

from typing import Any

import msgspec
import pytest

from schemas.allocations import AllocationsHealthChanged, AllocationsReported, AllocDetail
from schemas.base import DeploymentKey, Event, JobId, NodeId
from schemas.deployments import DeploymentGroup, DeploymentPromoted, DeploymentStarted
from schemas.envelope import ENCODER
from schemas.jobs import GroupSpec, JobRegistered, JobsCollected
from schemas.nodes import NodeRegistered, NodeSpec
from schemas.plans import GroupPlacement, Origin, PlanCommitted, Stops
from services.view import service_tracker
from shared.core.runtime.messages import Put, PutRefused, Reconnected
from shared.protocol import subjects
from tests.unit.query.test_services import CHECK, WEB, story
from tests.unit.view.view_story import Story, puts

HOUR_S = 3_600
CHECKED = {**WEB, "Checks": [CHECK]}
SUBJECT, NAMES = subjects.view_service("web"), subjects.VIEW_SERVICE_NAMES


def published(one: Story, *events: Event, ms: int = 60) -> dict[str, Any]:
    """What the values of services became after these facts."""
    if events:
        one.log(*events)
    landed = one.land(one.later(ms=ms))
    return {name: value for name, value in landed.items() if name.startswith("view.service.")}


def started(one: Story) -> dict[str, Any]:
    landed = one.land(one.start())
    return {name: value for name, value in landed.items() if name.startswith("view.service.")}


def told(status: str, check: str, row: int = 0) -> AllocationsReported:
    detail = AllocDetail(
        row=row,
        tasks=msgspec.Raw(ENCODER.encode({"t": {"state": "running", "checks": {"web/up": check}}})),
    )
    return AllocationsReported(rows=(row,), statuses=(int(status == "running"),), details=(detail,))


def stop(*rows: int) -> PlanCommitted:
    origin = Origin(worker="w", number=9, snapshot_seq=1)
    return PlanCommitted(key=0, job_id=JobId("j"), origin=origin, stops=(Stops(rows=rows),))


def second_job(one: Story, service: dict[str, Any] = WEB) -> None:
    """Another job with an instance of the same service, or of another one, on the first node."""
    group = {"Name": "g", "Tasks": [{"Name": "t", "Driver": "x"}], "Services": [service]}
    text = {"ID": "k", "Name": "k", "TaskGroups": [group]}
    one.log(
        JobRegistered(
            submission_id="s2",
            digest="d",
            job_id=JobId("k"),
            version=0,
            groups=(GroupSpec(name="g", count=1, cpu_mhz=100, memory_mib=64),),
            spec=msgspec.Raw(ENCODER.encode(text)),
        )
    )
    placed = GroupPlacement(group="g", version=0, rows=(0,), counts=(1,), names=(0, 1))
    origin = Origin(worker="w", number=2, snapshot_seq=1)
    one.log(PlanCommitted(key=0, job_id=JobId("k"), origin=origin, placements=(placed,)))
    one.log(AllocationsReported(rows=(2,), statuses=(1,)))


def test_a_service_is_published_with_what_a_balancer_needs() -> None:
    """Address, port, check status, node and allocation of each instance, and how many there are."""
    one = story(CHECKED, checks={"web/up": "passing"})
    value = started(one)[SUBJECT]
    first, second = value["instances"]
    assert (value["service"], value["total"], value["cluster_id"]) == ("web", 2, "c1")
    assert value["seq"] == len(one.records)
    assert (first["address"], first["port"], first["status"]) == ("10.0.0.1", 8080, "passing")
    assert (first["node"], second["node"], second["status"]) == ("n1", "n2", "pending")
    assert first["alloc"] == one.ask("service", id="web")["instances"][0]["alloc"]


def test_it_changes_with_checks_and_health_and_not_otherwise() -> None:
    """Failed checks and health are published; a report that changes no instance publishes nothing."""
    one = story(CHECKED, checks={"web/up": "passing"})
    started(one)
    failed = published(one, told("running", "critical"))[SUBJECT]["instances"]
    assert [each["status"] for each in failed] == ["critical", "pending"]
    assert published(one, told("running", "critical")) == {}
    health = published(one, AllocationsHealthChanged(rows=(0,), healths=(1,)))
    assert health[SUBJECT]["instances"][0]["health"] == "healthy"


def test_the_promotion_of_canaries_is_published() -> None:
    """Their tags become those of all with that record, in the value and in the list of names."""
    one = story(WEB, canaries=True)
    groups = (DeploymentGroup(name="g", desired_total=2, desired_canaries=2),)
    one.log(DeploymentStarted(key=DeploymentKey(1), job_id=JobId("j"), version=0, groups=groups))
    assert started(one)[SUBJECT]["instances"][0]["tags"] == ["new"]
    rows = (0, 1)
    promoted = DeploymentPromoted(key=DeploymentKey(1), groups=("g",), rows=rows)
    value = published(one, promoted)[SUBJECT]
    assert [each["tags"] for each in value["instances"]] == [["blue"], ["blue"]]


def test_a_stopped_instance_leaves_with_the_record_that_stops_it() -> None:
    """The stop is enough, before its agent hears; the last one leaves an empty value, which expires."""
    one = story(WEB)
    started(one)
    value = published(one, stop(0))[SUBJECT]
    assert [each["node"] for each in value["instances"]] == ["n2"]
    one.log(stop(1))
    effects = one.later(ms=60)
    (last,) = [put for put in puts(effects) if put.subject == SUBJECT]
    assert (msgspec.json.decode(last.data)["total"], last.ttl_s) == (0, HOUR_S)


def test_a_service_of_two_jobs_is_one_value() -> None:
    """Instances of all jobs that declare it, by job; one job that leaves takes only its own."""
    one = story(WEB)
    second_job(one)
    value = started(one)[SUBJECT]
    assert [each["job"] for each in value["instances"]] == ["j", "j", "k"]
    one.log(stop(0, 1))
    one.log(AllocationsReported(rows=(0, 1), statuses=(2, 2)))
    left = published(one, JobsCollected(job_ids=(JobId("j"),)))[SUBJECT]
    assert [each["job"] for each in left["instances"]] == ["k"]


@pytest.mark.parametrize("view", ["follows", "was away"])
def test_the_service_of_a_purged_job_ends(view: str) -> None:
    """Also where the view was away while the job was stopped and purged."""
    one = story(WEB)
    if view == "follows":
        started(one)
    one.log(stop(0, 1))
    one.log(AllocationsReported(rows=(0, 1), statuses=(2, 2)), JobsCollected(job_ids=(JobId("j"),)))
    value = (published(one) if view == "follows" else started(one))[SUBJECT]
    assert (value["total"], value["instances"]) == (0, [])


def test_a_node_with_another_address_moves_its_instances() -> None:
    """The address is the node's, so its registration tells it."""
    one = story(WEB)
    started(one)
    attributes = {"unique.network.ip-address": "10.0.9.9"}
    spec = NodeSpec(node_id=NodeId("n1"), cpu_mhz=4000, memory_mib=4096, attributes=attributes)
    again = NodeRegistered(spec=spec, host_id="h-n1", boot_id="b2")
    value = published(one, again)[SUBJECT]
    assert [each["address"] for each in value["instances"]] == ["10.0.9.9", "10.0.0.2"]


def test_after_a_reconnect_all_services_are_published() -> None:
    """The bus may have lost what it held in memory."""
    one = story(WEB)
    started(one)
    assert published(one) == {}
    again = one.land(one.later(Reconnected(), ms=60))
    assert again[SUBJECT]["total"] == 2


def test_a_large_service_is_cut_and_not_compared_at_each_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of too many instances the passing ones are published, with the total; the next look waits its time."""
    monkeypatch.setattr(service_tracker, "INSTANCES_MAX", 1)
    monkeypatch.setattr(service_tracker, "INSTANCE_NS", 50_000_000)
    one = story(CHECKED, checks={"web/up": "critical"})
    one.log(told("running", "passing", row=1))
    value = started(one)[SUBJECT]
    assert (value["total"], [each["node"] for each in value["instances"]]) == (2, ["n2"])
    assert published(one, told("running", "passing")) == {}
    assert published(one, ms=1_000)[SUBJECT]["instances"][0]["node"] == "n1"


def test_jobs_without_services_publish_none() -> None:
    """Nothing is published for them, at the start and later."""
    one = story()
    assert started(one) == {}
    assert published(one, told("running", "")) == {}


def test_puts_are_fenced_like_other_values() -> None:
    """A second value of a service expects the seq of the first."""
    one = story(WEB)
    started(one)
    expected = one.stands[SUBJECT][0]
    one.log(stop(0))
    (put,) = [
        each for each in one.later(ms=60) if isinstance(each, Put) and each.subject == SUBJECT
    ]
    assert put.expected == expected


def names(values: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(each["name"], each["tags"]) for each in values[NAMES]["services"]]


def test_names_are_listed_with_the_tags_of_all_instances() -> None:
    """The list changes with names and tags alone, and an instance that ends may take both."""
    one = story({**CHECKED, "Tags": ["b", "a"]}, {**WEB, "Name": "db"}, {**WEB, "Name": "idle"})
    value = one.land(one.start())
    assert names(value) == [("db", ["blue"]), ("idle", ["blue"]), ("web", ["a", "b"])]
    assert (value[NAMES]["total"], value[NAMES]["cluster_id"]) == (3, "c1")
    one.log(told("running", "critical"))
    again = one.land(one.later())
    assert SUBJECT in again
    assert NAMES not in again
    one.log(stop(0))
    assert NAMES not in one.land(one.later())
    one.log(stop(1))
    gone = one.land(one.later())
    assert (names(gone), gone[NAMES]["total"]) == ([], 0)


def test_names_are_listed_where_there_are_none() -> None:
    """An empty list says that the state was read and no service has an instance."""
    one = Story()
    assert names(one.land(one.start())) == []


def test_before_there_is_a_cluster_nothing_is_listed() -> None:
    """A view that has read an empty log lists nothing; the list follows with the first records."""
    one = Story()
    records, one.records = one.records, []
    assert not puts(one.start())
    one.records = records
    assert one.land(one.later())[NAMES]["cluster_id"] == "c1"


def test_the_list_waits_until_every_service_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list with a part of the services would say that the others have no instance."""
    monkeypatch.setattr(service_tracker, "INSTANCES_PER_TICK", 1)
    one = story(WEB)
    other = {**WEB, "Name": "api"}
    second_job(one, other)
    first = one.land(one.start())
    assert (SUBJECT in first, NAMES in first) == (True, False)
    assert names(one.land(one.later())) == [("api", ["blue"]), ("web", ["blue"])]


def test_a_service_that_its_job_forgot_at_the_start_does_not_hold_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last version that declares it is dropped before its instances were read: then it is published as empty."""
    monkeypatch.setattr(service_tracker, "INSTANCES_PER_TICK", 0)
    one = story(WEB)
    assert NAMES not in one.land(one.start())
    one.log(stop(0, 1))
    group = GroupSpec(name="g", count=2, cpu_mhz=100, memory_mib=64)
    for version in range(1, 11):
        one.text("j", version, b'{"ID":"j"}', (group,))
    one.feed()
    monkeypatch.setattr(service_tracker, "INSTANCES_PER_TICK", 9)
    value = one.land(one.later())
    assert (value[SUBJECT]["total"], names(value)) == (0, [])


def test_a_service_that_ended_while_no_view_ran_is_published_empty() -> None:
    """The list that stands tells a view that began behind it which values are of no service any more."""
    one = story(WEB)
    started(one)
    stands = {"cluster_id": "c1", "seq": 1, "services": [{"name": "gone"}, {"name": "web"}]}
    one.view.step([PutRefused(NAMES, 7, b"{")], one.now_ns)
    assert "view.service.gone" not in one.land(one.later())
    one.log(stop(0, 1))
    effects = one.later()
    assert NAMES in {each.subject for each in puts(effects)}
    one.view.step([PutRefused(NAMES, 7, ENCODER.encode(stands))], one.now_ns)
    value = one.land(one.later())
    assert (value["view.service.gone"]["total"], names(value)) == (0, [])


def test_a_long_list_is_cut_and_says_how_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first names are listed, with the number of all; a long list pauses before it is published again."""
    monkeypatch.setattr(service_tracker, "NAMES_MAX", 1)
    monkeypatch.setattr(service_tracker, "NAME_NS", 50_000_000)
    one = story(WEB, {**WEB, "Name": "api"})
    value = one.land(one.start())
    assert (names(value), value[NAMES]["total"]) == ([("api", ["blue"])], 2)
    one.log(stop(0, 1))
    assert NAMES not in one.land(one.later())
    assert names(one.land(one.later(ms=1_000))) == []


def test_a_node_in_another_datacenter_says_so() -> None:
    """The datacenter is the node's, so its registration tells it."""
    one = story(WEB)
    assert [each["datacenter"] for each in started(one)[SUBJECT]["instances"]] == ["dc1", "dc1"]
    attributes = {"unique.network.ip-address": "10.0.0.1"}
    spec = NodeSpec(
        node_id=NodeId("n1"),
        cpu_mhz=4000,
        memory_mib=4096,
        attributes=attributes,
        datacenter="dc2",
    )
    value = published(one, NodeRegistered(spec=spec, host_id="h-n1", boot_id="b2"))[SUBJECT]
    assert [each["datacenter"] for each in value["instances"]] == ["dc2", "dc1"]
