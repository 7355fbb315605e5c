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
from services.agent import holdings
from services.agent.holdings import variable
from services.agent.spec import GroupPlan, TaskPlan
from services.agent.workload import Task
from shared.core.tasks import LogLimits, TaskLaunch, TaskNames
from shared.core.wanted import DesiredAlloc

_REFERENCE = re.compile(r"\$\{\s*([^}\s]+)\s*\}")
_ENV_CALL = re.compile(r'env\["?([^"\]]+)"?\]')


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


def with_meta(node: NodeSpec, said: dict[str, str | None]) -> NodeSpec:
    """The node with what an operator says of it; None takes a key out."""
    meta = {key: value for key, value in {**node.meta, **said}.items() if value is not None}
    return msgspec.structs.replace(node, meta=dict(sorted(meta.items())))


def task_environment(
    alloc: DesiredAlloc,
    plan: GroupPlan,
    task: TaskPlan,
    node: NodeSpec,
    *,
    failed: Task | None = None,
) -> dict[str, str]:
    """Build the variables of a task; its own `env` block wins over ours. `failed`: what a postfail task is told of."""
    ours = {
        "NOMAD_ALLOC_ID": alloc.alloc_id,
        "NOMAD_SHORT_ALLOC_ID": alloc.alloc_id[:8],
        "NOMAD_ALLOC_NAME": alloc_name(alloc),
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
    if task.memory_max_mib > 0:
        ours["NOMAD_MEMORY_MAX_LIMIT"] = str(task.memory_max_mib)
    if cores := holdings.cores_of(alloc, task):
        ours["NOMAD_CPU_CORES"] = holdings.core_text(cores)
    ports = holdings.ports_of(alloc, plan, task)
    ours |= holdings.port_variables(ports, task.driver, node, holdings.addresses_of(plan, node))
    ours |= holdings.device_variables(holdings.devices_of(alloc, task), node)
    if task.hook == "postfail" and failed is not None:
        ours |= _failure(failed)
    for name in sorted(task.meta):
        plain = variable(name)
        ours[f"NOMAD_META_{plain}"] = task.meta[name]
        ours[f"NOMAD_META_{plain.upper()}"] = task.meta[name]
    values = {**node_values(node), **ours}
    own = {name: interpolate(text, values) for name, text in sorted(task.env.items())}
    return {**ours, **own}


def alloc_name(alloc: DesiredAlloc) -> str:
    """What people call an allocation: `job.group[index]`."""
    return f"{alloc.job_id}.{alloc.group}[{alloc.index}]"


def _failure(task: Task) -> dict[str, str]:
    """Tell a failure: the code is empty where nobody knows it, the signal where there was none."""
    said = {
        "FAILED_TASK": task.plan.name,
        "FAILED_EXIT_CODE": "" if task.exit_code is None else str(task.exit_code),
        "FAILED_SIGNAL": str(task.signal) if task.signal else "",
    }
    return {
        f"{prefix}_{name}": text for prefix in ("CARAVAN", "NOMAD") for name, text in said.items()
    }


def task_launch(
    alloc: DesiredAlloc,
    plan: GroupPlan,
    task: TaskPlan,
    node: NodeSpec,
    *,
    failed: Task | None = None,
) -> TaskLaunch:
    """Build what a driver needs. Raises msgspec.DecodeError when the driver's options are no JSON."""
    env = task_environment(alloc, plan, task, node, failed=failed)
    config = interpolate_json(msgspec.json.decode(task.config), {**node_values(node), **env})
    return TaskLaunch(
        config=msgspec.Raw(msgspec.json.encode(config)),
        env=env,
        user=task.user,
        cpu_mhz=task.cpu_mhz,
        memory_mib=task.memory_mib,
        memory_max_mib=task.memory_max_mib,
        cores=holdings.cores_of(alloc, task),
        ports=holdings.ports_of(alloc, plan, task),
        shared_ports=tuple(sorted(holdings.shared_labels(plan))),
        devices=holdings.devices_of(alloc, task),
        device_paths=holdings.device_paths_of(alloc, task, node),
        network=holdings.network_of(plan, task, node),
        names=TaskNames(
            job=alloc.job_id,
            group=alloc.group,
            task=task.name,
            alloc=alloc_name(alloc),
            node_id=node.node_id,
            node_name=node.name,
        ),
        secrets_mib=task.secrets_mib,
        logs=log_limits(task),
    )


def log_limits(task: TaskPlan) -> LogLimits:
    """Say how much of a task's output is kept."""
    return LogLimits(
        files=task.log_files, file_bytes=task.log_file_bytes, disabled=task.log_disabled
    )
