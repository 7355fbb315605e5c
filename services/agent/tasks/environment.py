"""The environment of a task, and `${…}` references in its environment and driver options.

Decides names and values of variables. Must not know directories: the driver adds those and resolves references to
them in a second pass. What the node lacks (`${node.…}`, `${attr.…}`, `${meta.…}`) is empty, as in Nomad;
any other unknown reference stays as it is: the driver resolves what its programs inherit, such as `${PATH}`.
Source: Nomad's runtime environment and interpolation tables. Next: `restart_policy.py`.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.nodes import NodeSpec
from services.agent.tasks import task_resources
from services.agent.tasks.resolved_group import ResolvedGroup, ResolvedTask
from services.agent.tasks.resolved_inputs import DEFAULT_TOKEN
from services.agent.tasks.runtime_state import TaskRuntime
from services.agent.tasks.task_resources import env_name
from shared.core.runtime.agent_messages import (
    LogLimits,
    TaskLaunch,
    TaskNames,
    TaskNetwork,
    VolumeBind,
)
from shared.core.runtime.desired_allocs import DesiredAlloc

_REFERENCE = re.compile(r"\$\{\s*([^}\s]+)\s*\}")
#: What names of a node's values begin with.
OF_NODE = ("node.", "attr.", "meta.")
_NOT_IN_HOSTNAMES = re.compile(r"[^A-Za-z0-9-]+")
#: A label of a host name (RFC 1123).
_HOSTNAME_MAX = 63
_ENV_CALL = re.compile(r'env\["?([^"\]]+)"?\]')


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """Replace `${name}` and `${env["name"]}` by their values, in one pass."""
    if "${" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        called = _ENV_CALL.fullmatch(name)
        unknown = "" if name.startswith(OF_NODE) else match.group(0)
        return values.get(called.group(1) if called else name, unknown)

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


def node_variables(node: NodeSpec) -> dict[str, str]:
    """Values of `${node.…}`, `${attr.…}` and `${meta.…}` on this node."""
    return {
        "node.unique.id": node.node_id,
        "node.unique.name": node.name,
        "node.datacenter": node.datacenter,
        "node.region": "global",
        "node.class": node.node_class,
        "node.pool": node.node_pool,
        **{f"attr.{name}": value for name, value in node.attributes.items()},
        **{f"meta.{name}": value for name, value in node.meta.items()},
    }


def with_operator_meta(node: NodeSpec, said: dict[str, str | None]) -> NodeSpec:
    """Add metadata set by operators to a node; None removes a key."""
    meta = {key: value for key, value in {**node.meta, **said}.items() if value is not None}
    return msgspec.structs.replace(node, meta=dict(sorted(meta.items())))


def task_environment(
    alloc: DesiredAlloc,
    plan: ResolvedGroup,
    task: ResolvedTask,
    node: NodeSpec,
    *,
    failed: TaskRuntime | None = None,
    address: str = "",
) -> dict[str, str]:
    """Build the variables of a task; its own `env` block wins. `failed`: the failed task, for a postfail task.

    `address`: of the group in its network namespace, in mode bridge.
    """
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
    if any(one.name == DEFAULT_TOKEN for one in task.inputs):
        # The driver knows where the task sees the directory.
        ours["NOMAD_UNIX_ADDR"] = "unix://${NOMAD_SECRETS_DIR}/api.sock"
    if plan.stateful:
        ours["NOMAD_GROUP_HOSTNAME"] = instance_hostname(alloc)
    if plan.job_parent:
        ours["NOMAD_JOB_PARENT_ID"] = plan.job_parent
    if task.memory_max_mib > 0:
        ours["NOMAD_MEMORY_MAX_LIMIT"] = str(task.memory_max_mib)
    if cores := task_resources.task_cores(alloc, task):
        ours["NOMAD_CPU_CORES"] = task_resources.format_cores(cores)
    ports = task_resources.task_ports(alloc, plan, task)
    addresses = task_resources.port_addresses(plan, node)
    ours |= task_resources.port_variables(ports, task.driver, node, addresses, own=address)
    ours |= task_resources.device_variables(task_resources.task_devices(alloc, task), node)
    if task.hook == "postfail" and failed is not None:
        ours |= _failure_variables(failed)
    values = {**node_variables(node), **ours}
    for name in sorted(task.meta):
        plain, text = env_name(name), interpolate(task.meta[name], values)
        ours[f"NOMAD_META_{plain}"] = ours[f"NOMAD_META_{plain.upper()}"] = text
    values |= ours
    own = {name: interpolate(text, values) for name, text in sorted(task.env.items())}
    return {**ours, **own}


def alloc_name(alloc: DesiredAlloc) -> str:
    """Name of an allocation: `job.group[index]`."""
    return f"{alloc.job_id}.{alloc.group}[{alloc.index}]"


def instance_hostname(alloc: DesiredAlloc) -> str:
    """Host name of an instance of a stateful group: group and index, at most 63 letters, digits and hyphens."""
    index = str(alloc.index)
    label = _NOT_IN_HOSTNAMES.sub("-", alloc.group).strip("-")[: _HOSTNAME_MAX - len(index) - 1]
    return f"{label.rstrip('-') or 'group'}-{index}"


def _failure_variables(task: TaskRuntime) -> dict[str, str]:
    """Describe a failed task; an unknown exit code or signal is empty."""
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
    plan: ResolvedGroup,
    task: ResolvedTask,
    node: NodeSpec,
    *,
    failed: TaskRuntime | None = None,
    address: str = "",
) -> TaskLaunch:
    """Build what a driver needs. Raises msgspec.DecodeError when the driver's options are not JSON."""
    env = task_environment(alloc, plan, task, node, failed=failed, address=address)
    values = {**node_variables(node), **env}
    config = interpolate_json(msgspec.json.decode(task.config), values)
    return TaskLaunch(
        config=msgspec.Raw(msgspec.json.encode(config)),
        env=env,
        user=task.user,
        cpu_mhz=task.cpu_mhz,
        memory_mib=task.memory_mib,
        memory_max_mib=task.memory_max_mib,
        cores=task_resources.task_cores(alloc, task),
        ports=task_resources.task_ports(alloc, plan, task),
        shared_ports=tuple(sorted(task_resources.shared_labels(plan))),
        devices=task_resources.task_devices(alloc, task),
        device_paths=task_resources.task_device_paths(alloc, task, node),
        network=resolved_dns(alloc_network(alloc, plan, node, address), values),
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
        volumes=tuple(
            VolumeBind(
                source=f"{one.source}[{alloc.index}]" if one.per_alloc else one.source,
                target=one.target,
                read_only=one.read_only,
                propagation=one.propagation,
                label=one.label,
            )
            for one in task.volumes
        ),
    )


def alloc_network(
    alloc: DesiredAlloc, plan: ResolvedGroup, node: NodeSpec, address: str = ""
) -> TaskNetwork:
    """Say what an allocation's group says of its network. `address`: in its namespace, in mode bridge."""
    network = task_resources.group_network(plan, node, address)
    if plan.stateful and not network.hostname:
        network = msgspec.structs.replace(network, hostname=instance_hostname(alloc))
    return network


def resolved_dns(network: TaskNetwork, values: Mapping[str, str]) -> TaskNetwork:
    """Resolve references in what the group says of DNS; what this node lacks is left out."""

    def resolved(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(filter(None, (interpolate(one, values) for one in texts)))

    return msgspec.structs.replace(
        network,
        dns_servers=resolved(network.dns_servers),
        dns_searches=resolved(network.dns_searches),
        dns_options=resolved(network.dns_options),
    )


def log_limits(task: ResolvedTask) -> LogLimits:
    """Log limits of a task."""
    return LogLimits(
        files=task.log_files,
        file_bytes=task.log_file_bytes,
        disabled=task.log_disabled,
        ship=task.log_ship,
    )
