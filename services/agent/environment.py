"""The environment of a task, and `${…}` references in its environment and driver options.

Decides names and values of variables. Must not know directories: the driver adds those and resolves references to
them in a second pass. A reference that nothing answers stays as it is, as in Nomad.
Source: Nomad's runtime environment and interpolation tables. Next: `restart.py`.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.nodes import NodeSpec
from schemas.projections import DesiredAlloc
from services.agent.spec import GroupPlan, TaskPlan
from shared.core.tasks import LogLimits, TaskLaunch

_REFERENCE = re.compile(r"\$\{\s*([^}\s]+)\s*\}")
_ENV_CALL = re.compile(r'env\["?([^"\]]+)"?\]')
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """Replace `${name}` and `${env["name"]}` by what `values` holds; one pass, nothing is read twice."""
    if "${" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        called = _ENV_CALL.fullmatch(name)
        return values.get(called.group(1) if called else name, match.group(0))

    return _REFERENCE.sub(value, text)


def interpolate_json(value: Any, values: Mapping[str, str]) -> Any:
    """Interpolate every string of a decoded JSON value, object keys excepted."""
    if isinstance(value, str):
        return interpolate(value, values)
    if isinstance(value, list):
        return [interpolate_json(one, values) for one in value]
    if isinstance(value, dict):
        return {key: interpolate_json(one, values) for key, one in value.items()}
    return value


def node_values(node: NodeSpec) -> dict[str, str]:
    """What `${node.…}`, `${attr.…}` and `${meta.…}` stand for on this node."""
    return {
        "node.unique.id": node.node_id,
        "node.unique.name": node.name,
        "node.datacenter": node.datacenter,
        "node.class": node.node_class,
        "node.pool": node.node_pool,
        **{f"attr.{name}": value for name, value in node.attributes.items()},
        **{f"meta.{name}": value for name, value in node.meta.items()},
    }


def task_environment(
    alloc: DesiredAlloc, plan: GroupPlan, task: TaskPlan, node: NodeSpec
) -> dict[str, str]:
    """Build the variables of a task; its own `env` block wins over ours."""
    ours = {
        "NOMAD_ALLOC_ID": alloc.alloc_id,
        "NOMAD_SHORT_ALLOC_ID": alloc.alloc_id[:8],
        "NOMAD_ALLOC_NAME": f"{alloc.job_id}.{alloc.group}[{alloc.index}]",
        "NOMAD_ALLOC_INDEX": str(alloc.index),
        "NOMAD_TASK_NAME": task.name,
        "NOMAD_GROUP_NAME": alloc.group,
        "NOMAD_JOB_ID": alloc.job_id,
        "NOMAD_JOB_NAME": plan.job_name,
        "NOMAD_DC": node.datacenter,
        "NOMAD_REGION": "global",
        "NOMAD_NAMESPACE": "default",
        "NOMAD_CPU_LIMIT": str(task.cpu_mhz),
        "NOMAD_MEMORY_LIMIT": str(task.memory_mib),
    }
    for name in sorted(task.meta):
        plain = _NOT_A_NAME.sub("_", name)
        ours[f"NOMAD_META_{plain}"] = task.meta[name]
        ours[f"NOMAD_META_{plain.upper()}"] = task.meta[name]
    values = {**node_values(node), **ours}
    own = {name: interpolate(text, values) for name, text in sorted(task.env.items())}
    return {**ours, **own}


def task_launch(alloc: DesiredAlloc, plan: GroupPlan, task: TaskPlan, node: NodeSpec) -> TaskLaunch:
    """Build what a driver needs. Raises msgspec.DecodeError when the driver's options are no JSON."""
    env = task_environment(alloc, plan, task, node)
    config = interpolate_json(msgspec.json.decode(task.config), {**node_values(node), **env})
    return TaskLaunch(
        config=msgspec.Raw(msgspec.json.encode(config)),
        env=env,
        user=task.user,
        cpu_mhz=task.cpu_mhz,
        memory_mib=task.memory_mib,
        logs=log_limits(task),
    )


def log_limits(task: TaskPlan) -> LogLimits:
    """Say how much of a task's output is kept."""
    return LogLimits(
        files=task.log_files, file_bytes=task.log_file_bytes, disabled=task.log_disabled
    )
