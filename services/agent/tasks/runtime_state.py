"""Runtime state of the allocations and tasks of this node, as the agent sees them.

Decides the client status of an allocation from its tasks, and what of it is reported and kept in the journal. Must
not know why a task starts or ends: only `supervisor.py` changes a task.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import msgspec

from schemas.nodes import AllocReport, TaskEvent, TaskState
from services.agent.tasks.resolved_group import ResolvedGroup, ResolvedTask
from services.agent.tasks.restart_policy import RestartCount
from shared.core.runtime.agent_messages import AllocKept, EndKept, HealthKept, TaskKept
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.core.runtime.remote_messages import RemoteKept

EVENTS_MAX = 10
_NO_CHECKS: Mapping[str, str] = MappingProxyType({})
#: Causes of an end that this node decided alone, with the work not done.
FAILED_END_CAUSES = ("silence", "disk", "network")
#: Hooks of tasks that run at the end of the others; their result does not change the allocation's status.
END_HOOKS = ("prestop", "postfail", "poststop")
#: Cause of an end that is this life of the agent's alone.
AGENT_END_CAUSE = "agent"


class TaskPhase(Enum):
    """Phase of a task."""

    #: not started yet.
    IDLE = "idle"
    #: PrepareTask is not answered yet.
    PREPARING = "preparing"
    #: StartTask is not answered yet.
    STARTING = "starting"
    #: RecoverTask is not answered yet.
    RECOVERING = "recovering"
    RUNNING = "running"
    #: between an end and the next start, until `due_ns`.
    WAITING = "waiting"
    DEAD = "dead"


#: The phases that may follow each phase; `restore` alone sets one without this table.
NEXT_PHASES = {
    TaskPhase.IDLE: frozenset(
        {TaskPhase.PREPARING, TaskPhase.STARTING, TaskPhase.WAITING, TaskPhase.DEAD}
    ),
    TaskPhase.PREPARING: frozenset({TaskPhase.STARTING, TaskPhase.IDLE, TaskPhase.DEAD}),
    TaskPhase.STARTING: frozenset({TaskPhase.RUNNING, TaskPhase.IDLE, TaskPhase.DEAD}),
    TaskPhase.RECOVERING: frozenset({TaskPhase.RUNNING, TaskPhase.IDLE, TaskPhase.DEAD}),
    TaskPhase.RUNNING: frozenset({TaskPhase.IDLE, TaskPhase.DEAD}),
    TaskPhase.WAITING: frozenset({TaskPhase.IDLE, TaskPhase.DEAD}),
    # A step of a chain runs again when a later step fails.
    TaskPhase.DEAD: frozenset({TaskPhase.IDLE}),
}


class NetworkPhase(Enum):
    """Where the network of a group in mode bridge stands."""

    #: it has none, or none was needed yet.
    NONE = "none"
    #: a task waits for it; PrepareNetwork is sent at the end of the step.
    WANTED = "wanted"
    #: PrepareNetwork is not answered yet.
    PREPARING = "preparing"
    READY = "ready"


class TaskRuntime:
    """One task. Only `supervisor.py` changes it."""

    def __init__(self, plan: ResolvedTask) -> None:
        self.plan = plan
        self.phase = TaskPhase.IDLE
        self.run = 0
        self.pid = 0
        self.failed = False
        #: ordered to end: no exit is a reason to start again.
        self.stopping = False
        #: the kill signal was sent: what its timer waits for is the kill.
        self.signaled = False
        #: is ended to be started again at once, by order of an operator.
        self.restarting = False
        #: is restarted with its whole allocation: ends and starts in the order of its tasks.
        self.ordered = False
        #: is ended because of a check, which counts as a failure.
        self.unhealthy = False
        #: is ended for good, as failed.
        self.condemned = False
        #: what its timer (restart or kill) was set to.
        self.due_ns = 0
        self.restarts = 0
        self.count = RestartCount()
        self.exit_code: int | None = None
        self.signal = 0
        self.events: list[TaskEvent] = []
        #: input -> digest, and which of them were prepared in this life of the agent.
        self.prepared: dict[str, str] = {}
        self.prepared_here: set[str] = set()
        #: inputs of which the change_mode is due, in order; and those of them whose script waits for the first run.
        self.changed: dict[str, None] = {}
        self.first_rendered: set[str] = set()
        #: where what runs elsewhere for it stands; None: it runs here, or never started.
        self.remote: RemoteKept | None = None

    def enter(self, phase: TaskPhase) -> None:
        """Change the phase. Raises AssertionError for a transition that NEXT_PHASES does not list."""
        if phase not in NEXT_PHASES[self.phase]:
            text = f"task {self.plan.name!r}: illegal transition from {self.phase} to {phase}"
            raise AssertionError(text)
        self.phase = phase

    def take_digests(self, digests: Mapping[str, str]) -> None:
        """Take what was prepared for it."""
        self.prepared.update(digests)
        self.prepared_here.update(digests)

    def take_first_renderings(self, digests: Mapping[str, str]) -> None:
        """Note the scripts that run once the first run has begun, before their inputs are known as prepared."""
        for one in self.plan.inputs:
            action = one.on_change
            if action is None or not action.on_first_render or one.name not in digests:
                continue
            if one.name not in self.prepared:
                self.changed[one.name] = None
                self.first_rendered.add(one.name)

    def begin_run(self) -> None:
        """Begin the next run. What changed before is in what it is given, but for scripts of a first rendering."""
        self.run += 1
        self.pid = self.signal = 0
        self.exit_code = None
        self.failed = self.signaled = self.restarting = self.unhealthy = self.ordered = False
        self.changed = {one: None for one in self.changed if one in self.first_rendered}

    def note(self, kind: str, message: str, now_ns: int) -> None:
        """Add a task event."""
        self.events.append(TaskEvent(kind=kind, message=message[:500], t_ns=now_ns))
        del self.events[:-EVENTS_MAX]

    def state(self, checks: Mapping[str, str] = _NO_CHECKS) -> TaskState:
        """The task as it is reported; between two runs it is pending. `checks`: their statuses by name."""
        known = {
            TaskPhase.RUNNING: "running",
            TaskPhase.RECOVERING: "running",
            TaskPhase.DEAD: "dead",
        }
        return TaskState(
            state=known.get(self.phase, "pending"),
            failed=self.failed,
            restarts=self.restarts,
            exit_code=self.exit_code,
            signal=self.signal,
            pid=self.pid,
            events=tuple(self.events),
            checks=dict(checks),
        )

    def kept(self, key: int) -> TaskKept:
        """The task as the journal keeps it."""
        alive = self.phase in (TaskPhase.STARTING, TaskPhase.RECOVERING, TaskPhase.RUNNING)
        return TaskKept(
            key=key,
            task=self.plan.name,
            run=self.run,
            state="running" if alive else "dead" if self.phase is TaskPhase.DEAD else "pending",
            failed=self.failed,
            stopping=self.stopping,
            restarts=self.restarts,
            interval_restarts=self.count.attempts,
            interval_start_ns=self.count.interval_start_ns,
            exit_code=self.exit_code,
            signal=self.signal,
            events=tuple(self.events),
            prepared=dict(self.prepared),
            changed=tuple(self.changed),
            remote=self.remote,
        )

    def restore(self, kept: TaskKept) -> None:
        """Take up what the journal kept. What ran is RECOVERING until its driver has answered."""
        phases = {"running": TaskPhase.RECOVERING, "dead": TaskPhase.DEAD}
        self.phase = phases.get(kept.state, TaskPhase.IDLE)
        self.run = kept.run
        self.failed = kept.failed
        # An end of what was being prepared has nothing to wait for: it is ordered again.
        self.stopping = kept.stopping and self.phase is not TaskPhase.IDLE
        self.restarts = kept.restarts
        self.count = RestartCount(
            attempts=kept.interval_restarts, interval_start_ns=kept.interval_start_ns
        )
        self.exit_code = kept.exit_code
        self.signal = kept.signal
        self.events = list(kept.events)
        self.prepared = dict(kept.prepared)
        self.remote = kept.remote
        self.changed = dict.fromkeys(kept.changed)
        actions = {one.name: one.on_change for one in self.plan.inputs if one.on_change}
        due = [(one, actions[one]) for one in self.changed if one in actions]
        # Whether the run has begun that they wait for is not known before it is found.
        self.first_rendered = {one for one, action in due if action.on_first_render}
        # The earlier life may have begun to end it: it ends for its restart in either case.
        is_alive = self.phase is TaskPhase.RECOVERING
        self.restarting = is_alive and any(action.mode == "restart" for _, action in due)


class CheckState(msgspec.Struct, frozen=True):
    """What a check of a service last said."""

    #: pending, passing, warning or critical.
    status: str
    #: since when it passes, or does not.
    since_ns: int
    #: sum of the runs of its tasks; 0: of an earlier life of the agent.
    run: int = 0
    output: str = ""
    #: when its tasks were up.
    began_ns: int = 0


class AllocRuntime:
    """One allocation. Without `plan` its job version is not known yet."""

    def __init__(self, desired: DesiredAlloc) -> None:
        self.desired = desired
        self.plan: ResolvedGroup | None = None
        #: version that `plan` was made from.
        self.plan_version = -1
        self.tasks: dict[str, TaskRuntime] = {}
        #: ordered to end, by a projection.
        self.stopping = False
        #: cause and time of its end, once it is ending.
        self.end: EndKept | None = None
        #: when this node first heard of it.
        self.first_ns = 0
        #: what its own timer was set to.
        self.due_ns = 0
        #: its tasks, ordered to restart, are ended from then on.
        self.restart_ns = 0
        #: CloseAlloc was sent to the executor.
        self.closed = False
        #: MiB that its directories take, as far as measured.
        self.disk_used_mib = 0
        #: the newest projection does not name it.
        self.omitted = False
        #: why its job version cannot be run.
        self.error = ""
        #: restored from the journal: starts nothing before the first projection.
        self.held = False
        #: starts nothing before the allocation whose data it inherits is dead.
        self.waits = False
        #: starts nothing before the evicted allocations of this node are dead.
        self.crowded = False
        #: where its health stands, of the job version named in it; None: its clocks have not begun.
        self.health: HealthKept | None = None
        #: by name, the checks of what runs.
        self.checks: dict[str, CheckState] = {}
        #: its address on the node's bridge, with the length of its prefix; empty: none was chosen.
        self.address = ""
        self.network = NetworkPhase.NONE
        #: tasks may run in a namespace that is lost, until they have ended.
        self.network_lost = False

    @property
    def key(self) -> int:
        """Identity of the allocation."""
        return self.desired.key

    def adopt_plan(self, plan: ResolvedGroup, version: int) -> None:
        """Take a plan; tasks that exist already keep their life and use it from their next start on."""
        self.plan = plan
        self.plan_version = version
        for one in plan.tasks:
            if one.name in self.tasks:
                self.tasks[one.name].plan = one
            else:
                self.tasks[one.name] = TaskRuntime(one)

    def tasks_with_hook(self, hook: str) -> list[TaskRuntime]:
        """List its tasks of one hook, in the order of the job; empty: the main tasks."""
        return [task for task in self.tasks.values() if task.plan.hook == hook]

    def body(self) -> list[TaskRuntime]:
        """List its tasks without those around the end."""
        return [task for task in self.tasks.values() if task.plan.hook not in END_HOOKS]

    def is_dead(self) -> bool:
        """Say whether all tasks are dead, for good."""
        if not self.tasks:
            return self.stopping or bool(self.error)
        return all(task.phase is TaskPhase.DEAD for task in self.tasks.values())

    @property
    def is_interrupted(self) -> bool:
        """Say whether it ends with its agent alone, with tasks that the next life continues."""
        if self.end is None or self.end.cause != AGENT_END_CAUSE:
            return False
        return any(task.stopping or task.phase is not TaskPhase.DEAD for task in self.body())

    def resume(self) -> bool:
        """Take back an end that was an earlier life's alone; returns whether there was one.

        What that life had ended starts again. What it had only begun to end is ended first.
        """
        if self.end is None or self.end.cause != AGENT_END_CAUSE:
            return False
        was_interrupted, self.end = self.is_interrupted, None
        for task in self.tasks.values() if was_interrupted else ():
            if task.stopping or task.plan.hook in END_HOOKS:
                task.stopping = False
                task.restarting = task.phase is TaskPhase.RECOVERING
                if task.phase is TaskPhase.DEAD:
                    task.phase = TaskPhase.IDLE
        return True

    def status(self) -> str:
        """Client status by Nomad's rule: failed before running before pending; all dead is complete.

        Tasks around the end keep it running, and do not decide how it ended.
        """
        if self.error or any(task.failed for task in self.body()):
            return "failed"
        if self.is_dead() and not self.is_interrupted:
            return (
                "failed"
                if self.end is not None and self.end.cause in FAILED_END_CAUSES
                else "complete"
            )
        states = {task.state().state for task in self.tasks.values()}
        is_over = (
            bool(self.tasks)
            and not self.is_interrupted
            and all(task.phase is TaskPhase.DEAD for task in self.body())
        )
        return "running" if "running" in states or is_over else "pending"

    def kept(self, plan: bytes = b"{}") -> AllocKept:
        """The allocation as the journal keeps it; without `plan` the one there stays."""
        return AllocKept(
            alloc=self.desired,
            plan=msgspec.Raw(plan),
            first_ns=self.first_ns,
            end=self.end,
            address=self.address,
            network_lost=self.network_lost,
        )

    def _checks_by_task(self) -> dict[str, dict[str, str]]:
        """Statuses of its checks; those of the group stand with its first main task."""
        if not self.checks or self.plan is None:
            return {}
        mains = self.tasks_with_hook("")
        found: dict[str, dict[str, str]] = {}
        for check in self.plan.checks:
            state = self.checks.get(check.name)
            owner = check.task or (mains[0].plan.name if mains else "")
            if state is not None:
                found.setdefault(owner, {})[check.name] = state.status
        return found

    def report(self) -> AllocReport:
        """The allocation as it is reported."""
        checks = self._checks_by_task()
        tasks = {
            name: task.state(checks.get(name, {})) for name, task in sorted(self.tasks.items())
        }
        if self.is_interrupted:
            for name in (name for name in tasks if self.tasks[name].stopping):
                # The next life starts it again.
                if tasks[name].state == "dead":
                    tasks[name] = msgspec.structs.replace(tasks[name], state="pending")
        if self.error:
            event = TaskEvent(kind="Failed Validation", message=self.error[:500])
            tasks = {"": TaskState(state="dead", failed=True, events=(event,))}
        health = self.health
        if health is None or health.version != self.desired.version:
            # Another version is another deployment: its health is not known yet.
            return AllocReport(
                key=self.key, row=self.desired.row, status=self.status(), tasks=tasks
            )
        return AllocReport(
            key=self.key,
            row=self.desired.row,
            status=self.status(),
            tasks=tasks,
            health=health.health,
            health_reason=health.reason,
            health_version=health.version if health.health else -1,
        )
