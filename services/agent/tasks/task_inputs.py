"""The inputs of one start of a task, and which of them are missing.

Decides what is interpolated and what is prepared again. Pure. Next: `supervisor.py`.
"""

from collections.abc import Mapping

import msgspec

from schemas.nodes import NodeSpec
from services.agent.tasks.environment import OF_NODE, interpolate_json, node_variables
from services.agent.tasks.resolved_group import ResolvedGroup, ResolvedTask
from services.agent.tasks.resolved_inputs import ResolvedInput
from services.agent.tasks.runtime_state import AllocRuntime, TaskRuntime
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import DISK, PAYLOAD, TEMPLATE, DiskInput, PayloadInput

_NONE: tuple[TaskInput, ...] = ()


def disk_input(alloc: AllocRuntime) -> tuple[TaskInput, ...]:
    """Say what is fetched of the allocation that this one replaces, once for all tasks; nothing: no data follows it."""
    plan = alloc.plan
    if plan is None or not plan.migrates or not alloc.desired.previous:
        return _NONE
    names = tuple(one.name for one in plan.tasks)
    spec = DiskInput(previous=alloc.desired.previous, tasks=names, size_mib=plan.disk_mib)
    return (TaskInput(name=DISK, kind=DISK, spec=_raw(spec)),)


def task_inputs(
    plan: ResolvedGroup, task: ResolvedTask, env: Mapping[str, str], node: NodeSpec
) -> tuple[TaskInput, ...]:
    """List all inputs of a task, interpolated with its environment. Raises msgspec.DecodeError."""
    found = list(_NONE)
    if task.payload_file and plan.payload:
        spec = PayloadInput(file=task.payload_file, data=plan.payload)
        found.append(TaskInput(name=PAYLOAD, kind=PAYLOAD, spec=_raw(spec)))
    if task.inputs:
        of_node = node_variables(node)
        values = {**of_node, **env}
        found += [_interpolated(one, values, of_node) for one in task.inputs]
    return tuple(found)


def missing_inputs(
    task: TaskRuntime, inputs: tuple[TaskInput, ...], *, is_first: bool
) -> tuple[TaskInput, ...]:
    """List what is not prepared yet. `is_first`: nothing was prepared for this start so far."""
    return tuple(one for one in inputs if not _is_there(task, one, is_first=is_first))


def _is_there(task: TaskRuntime, one: TaskInput, *, is_first: bool) -> bool:
    if one.each_start and is_first:
        return False
    # What lies in memory may be gone with an earlier life: the machine was down, or the agent ended its tasks.
    return one.name in (task.prepared_here if one.in_memory else task.prepared)


def _interpolated(
    one: ResolvedInput, values: Mapping[str, str], of_node: Mapping[str, str]
) -> TaskInput:
    spec = msgspec.json.decode(one.spec)
    plain = {name: spec[name] for name in one.verbatim if name in spec}
    if one.kind == TEMPLATE and (spec["source"] or any(word in spec["data"] for word in OF_NODE)):
        plain["node"] = dict(of_node)
    return TaskInput(
        name=one.name,
        kind=one.kind,
        spec=_raw({**interpolate_json(spec, values), **plain}),
        each_start=one.each_start,
        in_memory=one.in_memory,
    )


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
