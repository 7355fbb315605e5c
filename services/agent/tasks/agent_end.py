"""The end of tasks with their agent: each allocation ends as an order would end it, and the next life continues it.

Decides when nothing is waited for any more, and what is waited for meanwhile. What ends by itself before its signal has
ended for good; what the agent ended starts again in the next life, at no charge (`AllocRuntime.resume`). Next:
`supervisor.py`, `lifecycle.py`.
"""

from collections.abc import Mapping

from services.agent.tasks import lifecycle
from services.agent.tasks.runtime_state import AllocRuntime, TaskPhase, TaskRuntime
from services.agent.tasks.supervisor import AgentStep, Supervisor
from shared.core.runtime.agent_messages import EndTasks, TasksEnded
from shared.jobspec.drivers.registry import driver_traits

_SECOND_NS = 1_000_000_000
_ALIVE = (TaskPhase.PREPARING, TaskPhase.STARTING, TaskPhase.RECOVERING, TaskPhase.RUNNING)


class AgentEnd:
    """Of one agent; idle until `begin`."""

    def __init__(self, supervisor: Supervisor, allocs: Mapping[int, AllocRuntime]) -> None:
        self._supervisor = supervisor
        self._allocs = allocs
        self._is_told = False

    def begin(self, event: EndTasks, turn: AgentStep) -> None:
        """End what runs, or kill it."""
        self._supervisor.is_ending = True
        self._supervisor.is_killing = self._supervisor.is_killing or event.at_once
        for alloc in list(self._allocs.values()):
            self._supervisor.advance(alloc, turn)
            for task in _alive(alloc) if self._supervisor.is_killing else ():
                task.stopping = task.signaled = True
                turn.keep(task.kept(alloc.key))
                self._supervisor.timer(alloc, task, task.due_ns, turn)

    def update(self, turn: AgentStep) -> None:
        """Say once that all is over. Called once in each step, after all inputs."""
        if not self._supervisor.is_ending or self._is_told:
            return
        if all(map(self._is_over, self._allocs.values())):
            self._is_told = True
            turn.act(TasksEnded())

    def awaited(self) -> dict[str, str]:
        """Say for each group, `job.group`, what is waited for."""
        found: dict[str, dict[str, None]] = {}
        for alloc in self._allocs.values():
            if not self._is_over(alloc):
                name = f"{alloc.desired.job_id}.{alloc.desired.group}"
                found.setdefault(name, {}).update(dict.fromkeys(_awaited(alloc)))
        return {name: "; ".join(texts) for name, texts in sorted(found.items())}

    def _is_over(self, alloc: AllocRuntime) -> bool:
        if self._supervisor.is_killing:
            return not _alive(alloc)
        return alloc.plan is None or alloc.is_dead()


def _alive(alloc: AllocRuntime) -> list[TaskRuntime]:
    return [task for task in alloc.tasks.values() if task.phase in _ALIVE]


def _awaited(alloc: AllocRuntime) -> list[str]:
    """What an allocation still does before it is over, in words."""
    if lifecycle.delay_ends_ns(alloc) and alloc.plan is not None and alloc.due_ns:
        return [f"shutdown_delay of {_seconds(alloc.plan.shutdown_delay_ns)} s"]
    found = []
    for task in _alive(alloc):
        plan = task.plan
        if task.signaled:
            name = plan.kill_signal or driver_traits(plan.driver).kill_signal or "its kill signal"
            found.append(f"{plan.name} has {name}, at most {_seconds(plan.kill_timeout_ns)} s")
        elif task.stopping:
            found.append(
                f"{plan.name} has its shutdown_delay of {_seconds(plan.shutdown_delay_ns)} s"
            )
        elif plan.hook in ("prestop", "postfail", "poststop"):
            found.append(f"{plan.name} runs ({plan.hook})")
    return found


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / _SECOND_NS:g}"
