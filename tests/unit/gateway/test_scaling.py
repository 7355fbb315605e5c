"""Scaling blocks as an autoscaler reads them."""

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from services.gateway.nomad.jobs import canonical_job
from services.gateway.routes.scaling import policies_of
from shared.jobspec.submission import read_submission

if TYPE_CHECKING:
    from shared.core.state.tables.jobs import Job


def policies(*groups: dict[str, Any]) -> list[dict[str, Any]]:
    """The policies of a job with these groups."""
    job = cast("Job", SimpleNamespace(id="web", create_seq=3, modify_seq=7))
    spec = json.dumps({"ID": "web", "TaskGroups": list(groups)}).encode()
    return list(policies_of(job, canonical_job(spec)))


TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "x"}}
BLOCK = {"Min": 1, "Max": 5, "Policy": {"cooldown": "1m"}}


def test_a_policy_has_its_bounds_and_target() -> None:
    """As the job file says them; its id stays the same, and differs between groups."""
    first, second = policies(
        {"Name": "a", "Tasks": [TASK], "Scaling": BLOCK},
        {"Name": "b", "Tasks": [TASK], "Scaling": {**BLOCK, "Enabled": False}},
    )
    assert (first["Min"], first["Max"], first["Policy"]) == (1, 5, {"cooldown": "1m"})
    assert first["Target"] == {"Namespace": "default", "Job": "web", "Group": "a"}
    assert (first["Type"], first["Enabled"], second["Enabled"]) == ("horizontal", True, False)
    again = policies({"Name": "a", "Tasks": [TASK], "Scaling": BLOCK})
    assert again[0]["ID"] == first["ID"] != second["ID"]


def test_a_task_may_have_policies_too() -> None:
    """Of its resources; a job without blocks has none."""
    vertical = {"Type": "vertical_cpu", "Max": 500}
    (one,) = policies({"Name": "a", "Tasks": [{**TASK, "ScalingPolicies": [vertical]}]})
    assert (one["Type"], one["Target"]["Task"]) == ("vertical_cpu", "t")
    assert policies({"Name": "a", "Tasks": [TASK]}) == []


def test_what_is_of_consuls_catalogue_alone_is_a_warning() -> None:
    """A job that says it is accepted, and told that it has no effect here."""
    said = {"EnableTagOverride": True, "TaggedAddresses": {"lan": "10.0.0.1"}}
    service = {"Name": "x", "Provider": "nomad", **said, "Weights": {"Passing": 5, "Warning": 1}}
    group = {"Name": "g", "Services": [service], "Tasks": [TASK]}
    body = json.dumps({"Job": {"ID": "web", "TaskGroups": [group]}}).encode()
    (warning,) = read_submission(body, "submit").warnings
    assert all(f"Services[0].{name}" in warning for name in (*said, "Weights"))
