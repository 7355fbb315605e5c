"""Follows the checks of allocations: which run now, what they last said, and which restart a task.

Decides when a check runs (its task does, and the allocation is not ending), what its states mean for health, and when
`check_restart` starts a task again. Must not know how a check is made (`executor/check_runner.py`).
"""

from collections.abc import Iterable, Mapping

import msgspec

from services.agent.reports import Reports
from services.agent.tasks import task_resources
from services.agent.tasks.environment import interpolate, node_variables, task_environment
from services.agent.tasks.resolved_checks import IGNORE, REQUIRE_HEALTHY, ResolvedCheck
from services.agent.tasks.resolved_group import ResolvedTask
from services.agent.tasks.runtime_state import AllocRuntime, CheckState, TaskPhase, TaskRuntime
from services.agent.tasks.supervisor import AgentStep, Supervisor
from shared.core.runtime.agent_messages import CheckChanged, CheckSpec, WatchChecks
from shared.core.runtime.messages import SetTimer
from shared.jobspec.service_names import port_number

TIMER = "checks"
PENDING, PASSING, WARNING, CRITICAL = "pending", "passing", "warning", "critical"
_OUTPUT_SHOWN = 100


def failing_checks(alloc: AllocRuntime) -> list[str]:
    """Say of each check that hinders health what it says; empty: none does, or they do not count."""
    plan = alloc.plan
    if plan is None or plan.health is None or not plan.health.uses_checks:
        return []
    texts: list[str] = []
    for check in plan.checks:
        state = alloc.checks.get(check.name)
        status = PENDING if state is None else state.status
        if not _hinders(check, status):
            continue
        words = "" if state is None else " ".join(state.output.split())
        said = f": {words[:_OUTPUT_SHOWN]}" if words else ""
        texts.append(f"check {check.name!r} is {status}{said}")
    return texts


def _hinders(check: ResolvedCheck, status: str) -> bool:
    if status == PASSING or (status == WARNING and check.on_update != REQUIRE_HEALTHY):
        return False
    return status == PENDING or check.on_update != IGNORE


class CheckMonitor:
    """The checks of all allocations of this node."""

    def __init__(
        self, reports: Reports, supervisor: Supervisor, allocs: Mapping[int, AllocRuntime]
    ) -> None:
        self._reports = reports
        self._supervisor = supervisor
        self._allocs = allocs
        #: checks that the executor makes, by allocation.
        self._sent: dict[int, tuple[CheckSpec, ...]] = {}
        #: when a task is to be started again, by allocation and check.
        self._due: dict[tuple[int, str], int] = {}
        self._timer_ns = 0

    def sync(self, keys: Iterable[int], turn: AgentStep) -> None:
        """Begin and end checks of allocations that changed, and restart what is due."""
        for key in keys:
            alloc = self._allocs.get(key)
            if alloc is not None and alloc.plan is not None and (alloc.plan.checks or alloc.checks):
                self._sync(alloc, turn)
            elif alloc is None and self._sent.pop(key, ()):
                turn.act(WatchChecks(key=key, alloc_id="", checks=()))
        self._restart(turn)
        at_ns = min(self._due.values(), default=0)
        if at_ns != self._timer_ns:
            self._timer_ns = at_ns
            turn.act(SetTimer(TIMER, at_ns))

    def changed(self, event: CheckChanged, turn: AgentStep) -> None:
        """Take what a check says now."""
        alloc = self._allocs.get(event.key)
        state = None if alloc is None else alloc.checks.get(event.check)
        if alloc is None or state is None or state.run != event.run:
            return
        check = _find(alloc, event.check)
        if state.status != event.status:
            since_ns = turn.now_ns
            if check is not None and not (
                _is_fine(check, state.status) or _is_fine(check, event.status)
            ):
                # It continues failing: that is what a restart counts from.
                since_ns = state.since_ns
            alloc.checks[event.check] = msgspec.structs.replace(
                state, status=event.status, since_ns=since_ns, output=event.output
            )
            self._keep(alloc, turn)
            self._reports.touch(alloc.key)
        else:
            alloc.checks[event.check] = msgspec.structs.replace(state, output=event.output)
        self._supervisor.changed[alloc.key] = None

    # ---- inside ----

    def _sync(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        assert alloc.plan is not None
        before = {name: one.status for name, one in alloc.checks.items()}
        specs: list[CheckSpec] = []
        for name in set(alloc.checks) - {check.name for check in alloc.plan.checks}:
            self._drop(alloc, name)
        for check in alloc.plan.checks:
            tasks = _tasks_of(alloc, check)
            if any(task.phase is TaskPhase.RECOVERING for task in tasks):
                continue
            is_up = bool(tasks) and all(task.phase is TaskPhase.RUNNING for task in tasks)
            if not is_up or alloc.end is not None or alloc.stopping:
                self._drop(alloc, check.name)
                continue
            run = sum(task.run for task in tasks)
            state = alloc.checks.get(check.name)
            if state is None or state.run not in {0, run}:
                now_ns = turn.now_ns
                state = CheckState(check.initial_status or PENDING, now_ns, run, began_ns=now_ns)
            alloc.checks[check.name] = msgspec.structs.replace(state, run=run)
            specs.append(self._spec(alloc, check, tasks[0].plan, run))
            self._plan_restart(alloc, check)
        if tuple(specs) != self._sent.get(alloc.key, ()):
            self._sent[alloc.key] = tuple(specs)
            said = WatchChecks(key=alloc.key, alloc_id=alloc.desired.alloc_id, checks=tuple(specs))
            turn.act(said)
        if before != {name: one.status for name, one in alloc.checks.items()}:
            self._keep(alloc, turn)
            self._reports.touch(alloc.key)

    def _drop(self, alloc: AllocRuntime, name: str) -> None:
        alloc.checks.pop(name, None)
        self._due.pop((alloc.key, name), None)

    def _keep(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        """Journal the states: after a restart of the agent they are what they were."""
        if alloc.health is not None:
            states = {name: one.status for name, one in sorted(alloc.checks.items())}
            alloc.health = msgspec.structs.replace(alloc.health, checks=states)
            turn.keep(alloc.health)

    def _spec(
        self, alloc: AllocRuntime, check: ResolvedCheck, task: ResolvedTask, run: int
    ) -> CheckSpec:
        assert alloc.plan is not None
        node = self._supervisor.node
        env = task_environment(alloc.desired, alloc.plan, task, node, address=alloc.address)
        values = {**node_variables(node), **env}
        port, address = 0, node.attributes.get(task_resources.IP_ATTRIBUTE) or "127.0.0.1"
        if number := port_number(check.port):
            port = number
        elif check.port:
            found = task_resources.task_ports(alloc.desired, alloc.plan, task)
            port = found.get(check.port, (0, 0))[0]
            named = task_resources.port_addresses(alloc.plan, node)
            address = named.get(check.port) or address
        return CheckSpec(
            name=check.name,
            run=run,
            kind=check.kind,
            task=task.name,
            address=address,
            port=port,
            protocol=check.protocol,
            method=check.method,
            path=interpolate(check.path, values),
            header={
                name: tuple(interpolate(one, values) for one in texts)
                for name, texts in check.header.items()
            },
            body=interpolate(check.body, values),
            tls_skip_verify=check.tls_skip_verify,
            grpc_service=interpolate(check.grpc_service, values),
            grpc_use_tls=check.grpc_use_tls,
            command=tuple(interpolate(one, values) for one in check.command),
            interval_ns=check.interval_ns,
            timeout_ns=check.timeout_ns,
        )

    # ---- check_restart ----

    def _plan_restart(self, alloc: AllocRuntime, check: ResolvedCheck) -> None:
        """Plan when a check that does not pass starts its task again."""
        state, name = alloc.checks[check.name], (alloc.key, check.name)
        if not check.limit or _is_fine(check, state.status):
            self._due.pop(name, None)
            return
        begin_ns = max(state.since_ns, state.began_ns + check.grace_ns)
        self._due[name] = begin_ns + check.interval_ns * (check.limit - 1)

    def _restart(self, turn: AgentStep) -> None:
        for (key, name), at_ns in sorted(self._due.items()):
            if at_ns > turn.now_ns or (key, name) not in self._due:
                continue
            alloc = self._allocs.get(key)
            check = None if alloc is None else _find(alloc, name)
            self._due.pop((key, name), None)
            if alloc is None or check is None:
                continue
            for task in _tasks_of(alloc, check):
                # All checks of the task get a new grace with its next start.
                text = f"check {name!r} is unhealthy"
                self._supervisor.restart(alloc, task, turn, unhealthy=text)


def _find(alloc: AllocRuntime, name: str) -> ResolvedCheck | None:
    checks = () if alloc.plan is None else alloc.plan.checks
    return next((one for one in checks if one.name == name), None)


def _is_fine(check: ResolvedCheck, status: str) -> bool:
    """Say whether a status restarts nothing."""
    return status == PASSING or (status == WARNING and check.ignore_warnings)


def _tasks_of(alloc: AllocRuntime, check: ResolvedCheck) -> list[TaskRuntime]:
    """List the tasks that a check is of: one, or all main ones."""
    if check.task:
        return [alloc.tasks[check.task]] if check.task in alloc.tasks else []
    return alloc.tasks_with_hook("")
