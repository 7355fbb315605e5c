"""Times, ids and differences in Nomad's shape."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.nomad.job_diff import job_diff
from services.gateway.nomad.jobs import canonical_job
from services.gateway.nomad.times import UNSET, rfc3339
from shared.protocol.node_uuids import node_uuid


@given(st.integers(min_value=1, max_value=4_102_444_800_000_000_000))
def test_times_are_those_of_the_calendar(t_ns: int) -> None:
    """The text is the calendar's, to the nanosecond."""
    seconds, ns = divmod(t_ns, 1_000_000_000)
    wanted = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{ns:09d}".rstrip("0").rstrip(".")
    assert rfc3339(t_ns) == f"{wanted}{fraction}Z"


def test_an_unset_time_is_never_empty() -> None:
    """Go's decoder fails on an empty text."""
    assert rfc3339(0) == rfc3339(-1) == UNSET


def test_a_node_has_a_uuid_that_stays() -> None:
    """Two ids differ from the first digits on, and the form is a UUID's."""
    assert node_uuid("node-1") == "9efa4c0c-f726-af40-f131-99ce3f1b136b"
    assert node_uuid("node-1")[:8] != node_uuid("node-2")[:8]
    assert [len(part) for part in node_uuid("x").split("-")] == [8, 4, 4, 4, 12]


def text_of(**job: Any) -> dict[str, Any]:
    """A job in Nomad's shape, from a short text."""
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    groups = [{"Name": "g", "Tasks": [task]}]
    found: dict[str, Any] = canonical_job(
        json.dumps({"ID": "web", "TaskGroups": groups, **job}).encode()
    )
    return found


@pytest.mark.parametrize(
    ("kind", "restart", "reschedule", "update"),
    [
        ("service", (2, "fail"), True, 1),
        ("batch", (3, "fail"), True, None),
        ("system", (2, "fail"), False, 1),
        ("sysbatch", (3, "fail"), False, None),
    ],
)
def test_defaults_follow_the_type(
    kind: str, restart: tuple[int, str], reschedule: object, update: int | None
) -> None:
    """What clients read is filled in by the type of the job, as Nomad's server does."""
    found = text_of(Type=kind)
    group = found["TaskGroups"][0]
    policy = group["RestartPolicy"]
    assert (policy["Attempts"], policy["Mode"]) == restart
    assert group["Tasks"][0]["RestartPolicy"] == policy
    assert (group["ReschedulePolicy"] is not None) is reschedule
    assert (group["Update"] or {}).get("MaxParallel") == update
    assert (group["Migrate"] is not None) is (kind == "service")
    assert found["Priority"] == 50 and found["Datacenters"] == ["*"] and found["Name"] == "web"
    assert group["Tasks"][0]["Config"] == {"command": "/bin/true"}


def test_a_difference_names_fields_and_groups() -> None:
    """Fields, groups and tasks that differ, and nothing where nothing does."""
    old = text_of()
    assert job_diff(old, old)["Type"] == "None"
    new = text_of(Priority=70, Meta={"team": "blue"})
    found = job_diff(old, new)
    assert found["Type"] == "Edited"
    field = {"Type": "Edited", "Name": "Priority", "Old": "50", "New": "70", "Annotations": None}
    assert field in found["Fields"]
    assert [one["Name"] for one in found["Objects"]] == ["Meta"]
    assert [one["Type"] for one in found["TaskGroups"]] == ["None"]
    assert job_diff(None, new)["Type"] == "Added"
    assert job_diff(old, None)["Type"] == "Deleted"
    assert {one["Type"] for one in job_diff(None, new)["TaskGroups"]} == {"Added"}
