"""Finds the command of an action: that of the job version which the allocation runs, interpolated for its task.

Decides which task is meant and the error when there is none. Pure; directories and values of secrets are filled in
where the command is run (`node_rpc/action.py`). Source: Nomad's Allocations.Actions and alloc exec.
"""

from collections.abc import Iterable
from typing import NamedTuple

from schemas.node_rpc import ActionAsk
from schemas.nodes import NodeSpec
from services.agent.tasks.environment import interpolate, node_variables
from services.agent.tasks.resolved_group import ResolvedAction
from services.agent.tasks.runtime_state import AllocRuntime, TaskPhase, TaskRuntime
from services.agent.tasks.supervisor import compose_run
from shared.core.runtime.agent_messages import TaskInput
from shared.errors import CommandInvalid


class ActionCommand(NamedTuple):
    """What an action runs, and in which run of which task. `inputs`: those of the task, which may hold values."""

    task: str
    run: int
    words: tuple[str, ...]
    inputs: tuple[TaskInput, ...]


def find_action(ask: ActionAsk, allocs: Iterable[AllocRuntime], node: NodeSpec) -> ActionCommand:
    """Find the command of an action. Raises CommandInvalid."""
    alloc = next((one for one in allocs if one.desired.alloc_id == ask.alloc_id), None)
    if alloc is None or alloc.plan is None:
        text = f"allocation {ask.alloc_id[:40]!r} not found on this node"
        raise CommandInvalid("not_found", text, "alloc_id")
    task, action = _selected(ask, alloc)
    if task.phase is not TaskPhase.RUNNING or task.stopping or task.restarting:
        ending = ", stopping" if task.stopping or task.restarting else ""
        text = f"task {task.plan.name!r} is not running (state {task.phase.value}{ending})"
        raise CommandInvalid("not_running", text, "task")
    launch, inputs = compose_run(alloc, task, node)
    values = {**node_variables(node), **launch.env}
    words = tuple(interpolate(word, values) for word in action.words)
    return ActionCommand(task=task.plan.name, run=task.run, words=words, inputs=inputs)


def _selected(ask: ActionAsk, alloc: AllocRuntime) -> tuple[TaskRuntime, ResolvedAction]:
    if ask.task and ask.task not in alloc.tasks:
        known = ", ".join(sorted(alloc.tasks)) or "none yet"
        text = f"unknown task {ask.task[:80]!r}; expected one of {known}"
        raise CommandInvalid("not_found", text, "task")
    tasks = [alloc.tasks[ask.task]] if ask.task else list(alloc.tasks.values())
    having = [(task, one) for task in tasks for one in task.plan.actions if one.name == ask.action]
    if len(having) == 1:
        return having[0]
    version = alloc.plan_version
    if having:
        names = ", ".join(task.plan.name for task, _ in having)
        text = f"several tasks have an action {ask.action!r}; expected one of {names}"
        raise CommandInvalid("invalid", text, "task")
    names = ", ".join(sorted({one.name for task in tasks for one in task.plan.actions})) or "none"
    text = f"version {version}, which the allocation runs, has no action {ask.action[:128]!r}; known: {names}"
    raise CommandInvalid("not_found", text, "action")
