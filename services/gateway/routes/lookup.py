"""Finding what a path names, with Nomad's texts for what is not there, and its lists."""

from typing import Any

import numpy as np

from schemas.base import JobId, NodeId
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from shared.core.columns import Rows
from shared.core.state.ids import ALLOC_SALT, DEPLOYMENT_SALT, EVAL_SALT, match_prefix, shown_ids
from shared.core.state.tables.deployments import Deployment
from shared.core.state.tables.evaluations import Evaluation
from shared.core.state.tables.jobs import Job

#: Tables whose records may change a job as Nomad shows it.
JOB_TABLES = ("jobs", "allocations", "evaluations", "deployments")
_UUID_CHARS = 36


def check_namespace(call: Call) -> bool:
    """Say whether the only namespace is asked for."""
    return call.namespace in ("default", "*")


def find_job(call: Call) -> Job:
    """The job of a path. Raises HttpFault 404."""
    job = call.role.state.jobs.by_id.get(JobId(call.path["job"]))
    if job is None or is_purged(job) or not check_namespace(call):
        raise HttpFault(404, "job not found")
    return job


def is_purged(job: Job) -> bool:
    """Say whether a job is only kept until its allocations have ended: Nomad has forgotten it by then."""
    return job.stopped and job.purge


def find_alloc(call: Call) -> int:
    """The row of the allocation of a path, by its whole id. Raises HttpFault 404."""
    return alloc_row(call, call.path["alloc"])


def alloc_row(call: Call, alloc_id: str) -> int:
    """The row of an allocation by its whole id. Raises HttpFault 404."""
    rows = allocs_with_prefix(call, alloc_id)
    if len(rows) != 1 or len(alloc_id) != _UUID_CHARS:
        raise HttpFault(404, "alloc not found")
    return int(rows[0])


def find_eval(call: Call) -> Evaluation:
    """The evaluation of a path, by its whole id. Raises HttpFault 404."""
    found = evals_with_prefix(call, call.path["eval"])
    if len(found) != 1 or len(call.path["eval"]) != _UUID_CHARS:
        raise HttpFault(404, "eval not found")
    return found[0]


def find_deployment(call: Call) -> Deployment:
    """The deployment of a path, by its whole id. Raises HttpFault 404."""
    found = deployments_with_prefix(call, call.path["deployment"])
    if len(found) != 1 or len(call.path["deployment"]) != _UUID_CHARS:
        raise HttpFault(404, "deployment not found")
    return found[0]


def find_node(call: Call) -> tuple[int, str]:
    """Row and own id of the node of a path, by UUID or own id. Raises HttpFault 404."""
    return node_row(call, call.path["node"])


def node_row(call: Call, text: str) -> tuple[int, str]:
    """Row and own id of a node, by UUID or own id. Raises HttpFault 404."""
    node_id = call.role.node_ids.find(text)
    if not node_id:
        raise HttpFault(404, "node not found")
    return call.role.state.fleet.row_of[NodeId(node_id)], node_id


def allocs_with_prefix(call: Call, prefix: str) -> Rows:
    """Rows of the allocations whose id begins so. Raises HttpFault 400."""
    table = call.role.state.allocations
    rows = table.live_rows()
    return rows[_matches(table.key[rows], prefix, ALLOC_SALT)] if prefix else rows


def evals_with_prefix(call: Call, prefix: str) -> list[Evaluation]:
    """Evaluations whose id begins so. Raises HttpFault 400."""
    return [
        call.role.state.evaluations.by_key[key]
        for key in _keys_with_prefix(call.role.state.evaluations.by_key, prefix, EVAL_SALT)
    ]


def deployments_with_prefix(call: Call, prefix: str) -> list[Deployment]:
    """Deployments whose id begins so. Raises HttpFault 400."""
    return [
        call.role.state.deployments.by_key[key]
        for key in _keys_with_prefix(call.role.state.deployments.by_key, prefix, DEPLOYMENT_SALT)
    ]


def with_id_order(keys: list[int], salt: int) -> dict[int, str]:
    """Shown ids by key, made at once."""
    shown = shown_ids(np.asarray(keys, dtype=np.int64), salt)
    return dict(zip(keys, shown, strict=True))


def _keys_with_prefix(table: dict[Any, Any], prefix: str, salt: int) -> list[Any]:
    if not prefix:
        return list(table)
    keys = np.fromiter(table, dtype=np.int64, count=len(table))
    return keys[_matches(keys, prefix, salt)].tolist()  # type: ignore[no-any-return]


def _matches(keys: Any, prefix: str, salt: int) -> Any:
    try:
        return match_prefix(keys, prefix, salt)
    except ValueError as err:
        raise HttpFault(400, f"{prefix!r} is not the beginning of an id") from err
