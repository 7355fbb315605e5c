"""Stateful groups in job files: what they are compiled to, and what they exclude."""

from typing import Any

import pytest

from schemas.base import SECOND_NS
from shared.jobspec.compile.groups import compile_groups
from shared.jobspec.submission import JobInvalid, read_job
from tests.unit.agent.agent_story import job_json, task_json


def job(
    *, kind: str = "service", top: dict[str, Any] | None = None, **group: Any
) -> dict[str, Any]:
    """A job with one stateful group."""
    one = job_json(task_json(), kind=kind) | (top or {})
    one["TaskGroups"][0].update({"Stateful": True, **group})
    return one


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (job(kind="batch"), "Stateful"),
        (job(kind="system"), "Stateful"),
        (job(top={"AllAtOnce": True}), "Stateful"),
        (job(Update={"Canary": 1}), "Update.Canary"),
        (job(Update={"MaxParallel": 2}), "Update.MaxParallel"),
        (job(Update={"HealthCheck": "manual"}), "Update.HealthCheck"),
        (job(Migrate={"MaxParallel": 2}), "Migrate.MaxParallel"),
        (job(Disconnect={"LostAfter": SECOND_NS}), "Disconnect.LostAfter"),
        (job(Disconnect={"Reconcile": "keep_original"}), "Disconnect.Reconcile"),
        (job(MaxClientDisconnect=SECOND_NS), "MaxClientDisconnect"),
    ],
)
def test_what_contradicts_a_stateful_group_is_refused(given: dict[str, Any], path: str) -> None:
    """Each contradiction is named where it stands."""
    with pytest.raises(JobInvalid) as found:
        read_job(given)
    assert f"Job.TaskGroups[0].{path}" in [fault.path for fault in found.value.errors]


def test_a_stateful_group_is_never_replaced_by_time() -> None:
    """Its silence on a node frees nothing, whatever the disconnect block leaves open."""
    given = job(Disconnect={"StopOnClientAfter": SECOND_NS}, Update={"MaxParallel": 1})
    read, _ = read_job(given)
    (compiled,) = compile_groups(read, given)
    assert compiled.stateful
    assert (compiled.disconnect.replace, compiled.disconnect.lost_after_ns) == (False, 0)
