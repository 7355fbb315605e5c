"""What runs, or shall run, on this node: allocations and the tasks in them, as the agent sees them.

Decides the client status of an allocation from its tasks, and what of it is reported and kept in the journal. Must
not know why a task starts or ends: that is `supervise.py`, which alone changes a task.
"""

from enum import Enum

import msgspec

from schemas.nodes import AllocReport, TaskEvent, TaskState
from services.agent.restart import RestartCount
from services.agent.spec import GroupPlan, TaskPlan
from shared.core.tasks import AllocKept, EndKept, TaskKept
from shared.core.wanted import DesiredAlloc

EVENTS_MAX = 10
#: Tasks around the end of the others; whether they succeed is no matter of the allocation's.
#: Causes of an end that this node decided alone, with the work not done.
CUT_OFF = ("silence", "disk")
AROUND_THE_END = ("prestop", "postfail", "poststop")


class Phase(Enum):
    """Where a task stands between two orders of ours."""

    #: not started yet: its turn has not come.
    IDLE = "idle"
    #: StartTask is not answered yet.
    STARTING = "starting"
    #: RecoverTask is not answered yet.
    RECOVERING = "recovering"
    RUNNING = "running"
    #: between an end and the next start, until `due_ns`.
    WAITING = "waiting"
    DEAD = "dead"


class Task:
    """One task. Only `supervise.py` changes it."""

    def __init__(self, plan: TaskPlan) -> None:
        self.plan = plan
        self.phase = Phase.IDLE
        self.run = 0
        self.pid = 0
        self.failed = False
        #: ordered to end: no exit is a reason to start again.
        self.stopping = False
        #: the kill signal was sent: what its timer waits for is the kill.
        self.signaled = False
        #: ends to be started again at once, for an operator wants that.
        self.restarting = False
        #: what its timer (restart or kill) was set to.
        self.due_ns = 0
        self.restarts = 0
        self.count = RestartCount()
        self.exit_code: int | None = None
        self.signal = 0
        self.events: list[TaskEvent] = []

    def note(self, kind: str, message: str, now_ns: int) -> None:
        """Add a line to the task's life."""
        self.events.append(TaskEvent(kind=kind, message=message[:500], t_ns=now_ns))
        del self.events[:-EVENTS_MAX]

    def state(self) -> TaskState:
        """The task as it is reported; between two runs it is pending."""
        known = {Phase.RUNNING: "running", Phase.RECOVERING: "running", Phase.DEAD: "dead"}
        return TaskState(
            state=known.get(self.phase, "pending"),
            failed=self.failed,
            restarts=self.restarts,
            exit_code=self.exit_code,
            signal=self.signal,
            pid=self.pid,
            events=tuple(self.events),
        )

    def kept(self, key: int) -> TaskKept:
        """The task as the journal keeps it."""
        alive = self.phase in (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING)
        return TaskKept(
            key=key,
            task=self.plan.name,
            run=self.run,
            state="running" if alive else "dead" if self.phase is Phase.DEAD else "pending",
            failed=self.failed,
            stopping=self.stopping,
            restarts=self.restarts,
            interval_restarts=self.count.attempts,
            interval_start_ns=self.count.interval_start_ns,
            exit_code=self.exit_code,
            signal=self.signal,
            events=tuple(self.events),
        )

    def restore(self, kept: TaskKept) -> None:
        """Take up what the journal kept. What ran is RECOVERING until its driver has answered."""
        phases = {"running": Phase.RECOVERING, "dead": Phase.DEAD}
        self.phase = phases.get(kept.state, Phase.IDLE)
        self.run = kept.run
        self.failed = kept.failed
        self.stopping = kept.stopping
        self.restarts = kept.restarts
        self.count = RestartCount(
            attempts=kept.interval_restarts, interval_start_ns=kept.interval_start_ns
        )
        self.exit_code = kept.exit_code
        self.signal = kept.signal
        self.events = list(kept.events)


class Alloc:
    """One allocation. Without `plan` its job version is not known yet."""

    def __init__(self, desired: DesiredAlloc) -> None:
        self.desired = desired
        self.plan: GroupPlan | None = None
        #: version that `plan` was made from.
        self.plan_version = -1
        self.tasks: dict[str, Task] = {}
        #: ordered to end, by a projection.
        self.stopping = False
        #: why and since when it ends, whoever wanted that; None: it does not.
        self.end: EndKept | None = None
        #: when this node first heard of it.
        self.first_ns = 0
        #: what its own timer was set to.
        self.due_ns = 0
        #: its end was made known to the edge.
        self.closed = False
        #: MiB that its directories take, as far as measured.
        self.disk_used_mib = 0
        #: the newest projection does not name it.
        self.omitted = False
        #: why its job version cannot be run.
        self.error = ""
        #: starts nothing new before a projection was heard: it comes from the journal.
        self.held = False
        #: starts nothing before the allocation whose data it takes over is dead.
        self.waits = False
        #: starts nothing before those who were evicted for it, or beside it, are over.
        self.crowded = False

    @property
    def key(self) -> int:
        """Identity of the allocation."""
        return self.desired.key

    def adopt_plan(self, plan: GroupPlan, version: int) -> None:
        """Take a plan; tasks that exist already keep their life and use it from their next start on."""
        self.plan = plan
        self.plan_version = version
        for one in plan.tasks:
            if one.name in self.tasks:
                self.tasks[one.name].plan = one
            else:
                self.tasks[one.name] = Task(one)

    def hooked(self, hook: str) -> list[Task]:
        """List its tasks of one hook, in the order of the job; empty: the main tasks."""
        return [task for task in self.tasks.values() if task.plan.hook == hook]

    def body(self) -> list[Task]:
        """List its tasks without those around the end."""
        return [task for task in self.tasks.values() if task.plan.hook not in AROUND_THE_END]

    def is_dead(self) -> bool:
        """Nothing of it runs, nothing of it will."""
        if not self.tasks:
            return self.stopping or bool(self.error)
        return all(task.phase is Phase.DEAD for task in self.tasks.values())

    def status(self) -> str:
        """Client status by Nomad's rule: failed before running before pending; all dead is complete.

        Tasks around the end keep it running, and do not decide how it ended.
        """
        if self.error or any(task.failed for task in self.body()):
            return "failed"
        if self.is_dead():
            return "failed" if self.end is not None and self.end.cause in CUT_OFF else "complete"
        states = {task.state().state for task in self.tasks.values()}
        is_over = bool(self.tasks) and all(task.phase is Phase.DEAD for task in self.body())
        return "running" if "running" in states or is_over else "pending"

    def kept(self, plan: bytes = b"{}") -> AllocKept:
        """The allocation as the journal keeps it; without `plan` the one there stays."""
        return AllocKept(
            alloc=self.desired, plan=msgspec.Raw(plan), first_ns=self.first_ns, end=self.end
        )

    def report(self) -> AllocReport:
        """The allocation as it is reported."""
        tasks = {name: task.state() for name, task in sorted(self.tasks.items())}
        if self.error:
            event = TaskEvent(kind="Failed Validation", message=self.error[:500])
            tasks = {"": TaskState(state="dead", failed=True, events=(event,))}
        return AllocReport(key=self.key, row=self.desired.row, status=self.status(), tasks=tasks)
