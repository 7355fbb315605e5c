"""Starts, restarts and stops tasks, in the order that `lifecycle.py` gives.

Decides every effect on tasks, and changes them. Must not know the bus: orders come from `role.py`, which follows the
projection. Every start is in the journal before it is made (`AgentStep.effects`).
"""

from msgspec import DecodeError

from schemas.nodes import NodeSpec
from services.agent.reports import Reports
from services.agent.tasks import lifecycle
from services.agent.tasks.environment import log_limits, task_launch
from services.agent.tasks.group_network import must_wait
from services.agent.tasks.remote_tasks import kill_of, may_start, remote_run, take_end, take_start
from services.agent.tasks.restart_policy import decide_restart
from services.agent.tasks.runtime_state import AllocRuntime, TaskPhase, TaskRuntime
from services.agent.tasks.task_inputs import disk_input, missing_inputs, task_inputs
from shared.core.runtime.agent_messages import (
    AgentEffect,
    CancelPrepare,
    CloseAlloc,
    DiskUsed,
    EndKept,
    JournalEntry,
    KillTask,
    LimitLogs,
    PrepareTask,
    RecoverTask,
    SignalTask,
    StartTask,
    TaskExited,
    TaskGone,
    TaskInput,
    TaskLaunch,
    TaskNoted,
    TaskPrepared,
    TaskPrepareFailed,
    TaskStarted,
    TaskStartFailed,
    WriteJournal,
)
from shared.core.runtime.messages import Effect, SetTimer
from shared.jobspec.drivers.registry import driver_traits

#: A kill that shows no effect (a process the kernel holds) is repeated.
KILL_RETRY_NS = 5_000_000_000
KILLED_TEXT = "Task successfully killed"
EXPIRED_REASON = "allocation exceeded max_run_duration"
AGENT_END_REASON = "the agent ends, its next life continues"


class AgentStep:
    """What one step does. The journal comes first, and is on disk before anything starts."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.kept: list[JournalEntry] = []
        self.acts: list[Effect | AgentEffect] = []
        self._sync = False

    def keep(self, *entries: JournalEntry, sync: bool = False) -> None:
        """Write to the journal; `sync`: an effect of this step depends on it."""
        self.kept.extend(entries)
        self._sync = self._sync or sync

    def act(self, *effects: Effect | AgentEffect) -> None:
        """Add effects, performed in order after the journal."""
        self.acts.extend(effects)

    def effects(self) -> list[Effect | AgentEffect]:
        """All of the step, in order."""
        head = [WriteJournal(tuple(self.kept), self._sync)] if self.kept else []
        return [*head, *self.acts]


def timer_name(alloc: AllocRuntime, task: TaskRuntime) -> str:
    """Name of a task's timer, for its restart, its kill signal or its kill."""
    return f"task {alloc.key} {task.plan.name}"


def alloc_timer_name(alloc: AllocRuntime) -> str:
    """Name of an allocation's timer, for its max_run_duration or its first kill signal."""
    return f"alloc {alloc.key}"


def _may_end(alloc: AllocRuntime) -> bool:
    """Say whether an allocation has no end of its own yet."""
    return alloc.end is None or alloc.end.cause == lifecycle.AGENT


def record_driver_event(
    alloc: AllocRuntime, event: TaskNoted, reports: Reports, now_ns: int
) -> None:
    """Record an event that a driver reports about a task's current run."""
    task = alloc.tasks.get(event.task)
    if task is not None and task.run == event.run and task.phase is not TaskPhase.DEAD:
        task.note(event.kind, event.message, now_ns)
        reports.touch(alloc.key)


def limit_logs(alloc: AllocRuntime, turn: AgentStep) -> None:
    """Apply the log limits of a new plan to live runs, which continue under another version of the job."""
    for task in alloc.tasks.values():
        if task.phase is TaskPhase.RUNNING:
            limits = log_limits(task.plan)
            turn.act(LimitLogs(key=alloc.key, task=task.plan.name, run=task.run, logs=limits))


def compose_run(
    alloc: AllocRuntime, task: TaskRuntime, node: NodeSpec
) -> tuple[TaskLaunch, tuple[TaskInput, ...]]:
    """Compose what a run of a task is given. Raises msgspec.DecodeError."""
    assert alloc.plan is not None
    failed = lifecycle.failed_main(alloc)
    launch = task_launch(
        alloc.desired, alloc.plan, task.plan, node, failed=failed, address=alloc.address
    )
    own = task_inputs(alloc.plan, task.plan, launch.env, node)
    return launch, (*disk_input(alloc), *own)


class Supervisor:
    """Drives tasks; the node only fills in variables."""

    def __init__(
        self, *, node: NodeSpec, reports: Reports, disk_over_is_fatal: bool = False
    ) -> None:
        #: the node as fingerprinted, and with the metadata that operators set.
        self.fingerprinted_node = self.node = node
        self._reports = reports
        self._disk_over_is_fatal = disk_over_is_fatal
        self.starts = 0
        self.failures = 0
        #: the agent ends: what runs is ended, in its order, and nothing else starts; or it is killed.
        self.is_ending = self.is_killing = False
        #: keys of allocations that may have changed, in order; `HealthMonitor.update` takes them out.
        self.changed: dict[int, None] = {}
        self.cluster_id = ""
        #: keys of allocations with a start that the log has to know of first.
        self.announced: dict[int, None] = {}

    # ---- orders ----

    def advance(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        """Start and end every task that is due."""
        self.changed[alloc.key] = None
        if alloc.plan is None:
            return
        if self.is_ending and alloc.end is None:
            self._set_end(alloc, lifecycle.AGENT, AGENT_END_REASON, turn)
            self._reports.touch(alloc.key)
        while self._advance(alloc, turn):
            pass
        self._arm(alloc, turn)
        if alloc.is_dead() and not alloc.closed:
            alloc.closed = True
            turn.act(CloseAlloc(key=alloc.key, alloc_id=alloc.desired.alloc_id))

    def recover(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        """Recover the runs of an earlier agent process."""
        for task in alloc.tasks.values():
            if task.phase is TaskPhase.RECOVERING:
                turn.act(
                    RecoverTask(
                        key=alloc.key,
                        alloc_id=alloc.desired.alloc_id,
                        task=task.plan.name,
                        run=task.run,
                        driver=task.plan.driver,
                        logs=log_limits(task.plan),
                        remote=remote_run(self.cluster_id, alloc, task),
                    )
                )
                self._limit(alloc, task, turn)

    def stop(
        self, alloc: AllocRuntime, reason: str, turn: AgentStep, *, cause: str = lifecycle.ORDERED
    ) -> None:
        """End an allocation, in its order. What is ending already continues as it does."""
        if _may_end(alloc):
            self._set_end(alloc, cause, reason, turn)
        self._reports.touch(alloc.key)
        self.advance(alloc, turn)

    def restart(
        self,
        alloc: AllocRuntime,
        task: TaskRuntime,
        turn: AgentStep,
        *,
        unhealthy: str = "",
        reason: str = "requested by an operator",
        is_final: bool = False,
    ) -> bool:
        """End a run as a stop would and start the next at once, at no charge; False: there is none to end.

        `unhealthy`: why its checks want that; then it counts as a failure, under the restart policy. `is_final`: the
        task has failed, and there is no next run.
        """
        if alloc.end is not None or task.stopping or task.restarting:
            return False
        if task.phase is TaskPhase.WAITING and not (unhealthy or is_final):
            task.enter(TaskPhase.IDLE)
            task.restarts += 1
            self._set_timer(alloc, task, 0, turn)
            self.advance(alloc, turn)
            return True
        if task.phase is not TaskPhase.RUNNING:
            return False
        task.restarting = True
        task.unhealthy = bool(unhealthy)
        task.condemned = is_final
        kind = "Killing" if is_final else "Restart Signaled"
        task.note(kind, unhealthy or reason, turn.now_ns)
        self._reports.touch(alloc.key)
        if task.plan.shutdown_delay_ns and not (unhealthy or is_final):
            self._set_timer(alloc, task, turn.now_ns + task.plan.shutdown_delay_ns, turn)
        else:
            self._signal(alloc, task, turn)
        return True

    # ---- what happened ----

    def started(
        self, alloc: AllocRuntime, task: TaskRuntime, event: TaskStarted, turn: AgentStep
    ) -> None:
        """A run is alive."""
        if task.phase not in (TaskPhase.STARTING, TaskPhase.RECOVERING):
            return
        task.enter(TaskPhase.RUNNING)
        take_start(task, event)
        task.pid = event.pid
        if event.adopted:
            task.note("Recovered", f"adopted after agent restart, pid {event.pid}", turn.now_ns)
        else:
            task.note("Started", "Task started by client", turn.now_ns)
        turn.keep(task.kept(alloc.key))
        self._reports.touch(alloc.key)
        if task.stopping or task.restarting:
            self._signal(alloc, task, turn)
        self.advance(alloc, turn)

    def prepared(
        self, alloc: AllocRuntime, task: TaskRuntime, event: TaskPrepared, turn: AgentStep
    ) -> None:
        """The inputs of a run are there: it starts."""
        task.take_first_renderings(event.digests)
        task.take_digests(event.digests)
        if task.stopping:
            self._ended(alloc, task, success=False, turn=turn)
        elif (composed := self._compose(alloc, task, turn)) is not None:
            self._prepare_or_launch(alloc, task, composed, turn, is_first=False)
        self.advance(alloc, turn)

    def start_failed(
        self,
        alloc: AllocRuntime,
        task: TaskRuntime,
        event: TaskStartFailed | TaskPrepareFailed,
        turn: AgentStep,
    ) -> None:
        """A run failed to start, or one of its inputs cannot be prepared."""
        if isinstance(event, TaskStartFailed):
            take_end(task, event)
            task.note("Driver Failure", event.reason, turn.now_ns)
        else:
            task.take_first_renderings(event.digests)
            task.take_digests(event.digests)
            if not task.stopping:
                text = f"{event.input}: {event.reason}" if event.input else event.reason
                task.note(event.kind, text, turn.now_ns)
        self.failures += 1
        if event.recoverable or task.stopping:
            self._ended(alloc, task, success=False, turn=turn)
        else:
            task.note("Not Restarting", "error is not recoverable", turn.now_ns)
            self._bury(alloc, task, failed=True, turn=turn)
        self.advance(alloc, turn)

    def exited(
        self, alloc: AllocRuntime, task: TaskRuntime, event: TaskExited, turn: AgentStep
    ) -> None:
        """A run ended."""
        take_end(task, event)
        task.exit_code = event.exit_code
        task.signal = event.signal
        if event.is_detached:
            task.note("Detached", event.reason or "it runs on elsewhere", turn.now_ns)
            self._bury(alloc, task, failed=False, turn=turn)
            self.advance(alloc, turn)
            return
        code = "unknown" if event.exit_code is None else event.exit_code
        text = f"Exit Code: {code}" + (f", Signal: {event.signal}" if event.signal else "")
        task.note("Terminated", f"{text}, {event.reason}".rstrip(", "), turn.now_ns)
        if task.stopping and alloc.is_interrupted and (event.by_itself or not task.signaled):
            # It was over before its agent could end it.
            task.stopping = False
        success = event.exit_code == 0 and not task.unhealthy
        self._ended(alloc, task, success=success, turn=turn, left=event.left)
        self.advance(alloc, turn)

    def gone(
        self, alloc: AllocRuntime, task: TaskRuntime, event: TaskGone, turn: AgentStep
    ) -> None:
        """A run of the journal does not exist: it never began, or ended while the agent was down."""
        take_end(task, event)
        if event.started:
            task.exit_code, task.signal = None, 0
            task.note("Terminated", event.reason or "lost while the agent was down", turn.now_ns)
        if event.started and event.charged:
            self._ended(alloc, task, success=False, turn=turn)
        elif task.stopping:
            self._bury(alloc, task, failed=False, turn=turn)
        else:
            task.enter(TaskPhase.IDLE)
            turn.keep(task.kept(alloc.key))
            self._reports.touch(alloc.key)
        self.advance(alloc, turn)

    def timer(
        self, alloc: AllocRuntime, task: TaskRuntime, deadline_ns: int, turn: AgentStep
    ) -> None:
        """The task's timer fired: a pause or a timeout is over."""
        if deadline_ns != task.due_ns:
            return
        task.due_ns = 0
        if task.phase is TaskPhase.WAITING:
            task.enter(TaskPhase.IDLE)
            task.restarts += 1
        elif (task.stopping and not task.signaled and task.phase is TaskPhase.RUNNING) or (
            task.restarting and not task.signaled and task.phase is TaskPhase.RUNNING
        ):
            self._signal(alloc, task, turn)
        elif task.restarting and task.phase is TaskPhase.RUNNING:
            turn.act(KillTask(key=alloc.key, task=task.plan.name, run=task.run))
            self._set_timer(alloc, task, turn.now_ns + KILL_RETRY_NS, turn)
        elif task.phase is not TaskPhase.DEAD and (task.stopping or task.plan.hook == "prestop"):
            if not task.stopping:
                task.note("Killing", "prestop task exceeded its kill timeout", turn.now_ns)
                task.stopping = task.signaled = True
                turn.keep(task.kept(alloc.key))
            kill = CancelPrepare if task.phase is TaskPhase.PREPARING else kill_of(alloc, task)
            turn.act(kill(key=alloc.key, task=task.plan.name, run=task.run))
            self._set_timer(alloc, task, turn.now_ns + KILL_RETRY_NS, turn)
        self.advance(alloc, turn)

    def alloc_timer(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        """An allocation's timer fired."""
        alloc.due_ns = 0
        self.advance(alloc, turn)

    def disk_used(self, alloc: AllocRuntime, event: DiskUsed, turn: AgentStep) -> None:
        """The disk usage of an allocation was measured."""
        limit_mib = alloc.plan.disk_mib if alloc.plan is not None else 0
        was_over = alloc.disk_used_mib > limit_mib
        alloc.disk_used_mib = event.used_mib
        if not limit_mib or event.used_mib <= limit_mib or was_over or alloc.end is not None:
            return
        text = f"allocation uses {event.used_mib} MiB of disk, its ask is {limit_mib} MiB"
        for task in alloc.tasks.values():
            if task.phase is TaskPhase.RUNNING:
                task.note("Disk Exceeded", text, turn.now_ns)
        self._reports.touch(alloc.key)
        if self._disk_over_is_fatal:
            self.stop(alloc, text, turn, cause=lifecycle.DISK)

    # ---- inside ----

    def _advance(self, alloc: AllocRuntime, turn: AgentStep) -> bool:
        """One round; says whether anything changed."""
        if _may_end(alloc) and (found := self._ending(alloc, turn)):
            self._set_end(alloc, *found, turn)
        for task in lifecycle.tasks_to_restart(alloc, turn.now_ns):
            if task.phase is TaskPhase.WAITING:
                task.enter(TaskPhase.IDLE)
                task.restarts += 1
                self._set_timer(alloc, task, 0, turn)
            else:
                self.restart(alloc, task, turn)
        starts = [] if self.is_killing else lifecycle.tasks_to_start(alloc)
        if starts and must_wait(alloc):
            starts = []
        for task in starts:
            self._start(alloc, task, turn)
        stops = lifecycle.tasks_to_stop(alloc, turn.now_ns)
        for task in stops:
            self._stop(alloc, task, turn)
        over = lifecycle.tasks_never_started(alloc)
        for task in over:
            self._bury(alloc, task, failed=False, turn=turn)
        # A start opens nothing by itself: what waits for it waits for its answer.
        is_over = any(task.phase is TaskPhase.DEAD for task in starts)
        return bool(stops or over) or is_over

    @staticmethod
    def _set_end(alloc: AllocRuntime, cause: str, reason: str, turn: AgentStep) -> None:
        """Begin an end; one that was the agent's alone continues from where it is."""
        at_ns = turn.now_ns if alloc.end is None else alloc.end.at_ns
        alloc.end = EndKept(cause=cause, reason=reason, at_ns=at_ns)
        turn.keep(alloc.kept())

    def _ending(self, alloc: AllocRuntime, turn: AgentStep) -> tuple[str, str] | None:
        assert alloc.plan is not None
        last_ns = alloc.first_ns + alloc.plan.max_run_ns
        if alloc.plan.max_run_ns and turn.now_ns >= last_ns and not alloc.is_dead():
            return lifecycle.EXPIRED, EXPIRED_REASON
        return lifecycle.end_cause(alloc)

    def _arm(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        """Set the timer of an allocation."""
        assert alloc.plan is not None
        due_ns = lifecycle.delay_ends_ns(alloc)
        if alloc.end is None and alloc.plan.max_run_ns and not alloc.is_dead():
            due_ns = alloc.first_ns + alloc.plan.max_run_ns
        if alloc.end is None and alloc.restart_ns > turn.now_ns:
            due_ns = min(due_ns or alloc.restart_ns, alloc.restart_ns)
        if due_ns != alloc.due_ns and (due_ns > turn.now_ns or not due_ns):
            alloc.due_ns = due_ns
            turn.act(SetTimer(alloc_timer_name(alloc), due_ns))

    def _start(self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep) -> None:
        assert alloc.plan is not None
        may, is_new = may_start(alloc, task, self.node, self._reports)
        if is_new:
            turn.keep(task.kept(alloc.key))
        if not may:
            self.announced[alloc.key] = None
            return
        composed = self._compose(alloc, task, turn)
        if composed is None:
            return
        self.starts += 1
        task.begin_run()
        self._prepare_or_launch(alloc, task, composed, turn, is_first=True)
        self._limit(alloc, task, turn)

    def _compose(
        self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep
    ) -> tuple[TaskLaunch, tuple[TaskInput, ...]] | None:
        """Compose what a start needs; None: it cannot be read, and the task is dead."""
        try:
            return compose_run(alloc, task, self.node)
        except DecodeError as err:
            task.note("Failed Validation", f"driver options cannot be read: {err}", turn.now_ns)
            self._bury(alloc, task, failed=True, turn=turn)
            return None

    def _prepare_or_launch(
        self,
        alloc: AllocRuntime,
        task: TaskRuntime,
        composed: tuple[TaskLaunch, tuple[TaskInput, ...]],
        turn: AgentStep,
        *,
        is_first: bool,
    ) -> None:
        """Prepare the inputs that the run lacks, or start it when it lacks none."""
        assert alloc.plan is not None
        launch, inputs = composed
        missing = missing_inputs(task, inputs, is_first=is_first)
        phase = TaskPhase.PREPARING if missing else TaskPhase.STARTING
        if task.phase is not phase:
            task.enter(phase)
        turn.keep(task.kept(alloc.key), sync=True)
        key, alloc_id, name = alloc.key, alloc.desired.alloc_id, task.plan.name
        inherit = alloc.desired.previous if alloc.plan.inherits else ""
        turn.act(
            PrepareTask(
                key=key,
                alloc_id=alloc_id,
                task=name,
                run=task.run,
                launch=launch,
                inputs=missing,
                inherit=inherit,
            )
            if missing
            else StartTask(
                key=key,
                alloc_id=alloc_id,
                task=name,
                run=task.run,
                driver=task.plan.driver,
                launch=launch,
                inherit=inherit,
                inputs=inputs,
                remote=remote_run(self.cluster_id, alloc, task),
            )
        )

    def _limit(self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep) -> None:
        """Bound the wait for a prestop task, even for one that does not start."""
        if task.plan.hook == "prestop":
            self._set_timer(alloc, task, turn.now_ns + task.plan.kill_timeout_ns, turn)

    def _stop(self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep) -> None:
        assert alloc.end is not None
        task.stopping = True
        task.note("Killing", alloc.end.reason, turn.now_ns)
        if task.phase in (TaskPhase.IDLE, TaskPhase.WAITING):
            self._bury(alloc, task, failed=False, turn=turn)
            return
        turn.keep(task.kept(alloc.key))
        if task.phase is TaskPhase.RUNNING and task.plan.shutdown_delay_ns:
            self._set_timer(alloc, task, turn.now_ns + task.plan.shutdown_delay_ns, turn)
        elif task.phase is TaskPhase.RUNNING:
            self._signal(alloc, task, turn)
        elif task.phase is TaskPhase.PREPARING:
            turn.act(CancelPrepare(key=alloc.key, task=task.plan.name, run=task.run))
        # A start or a recovery under way is answered first; `started` continues from there.

    def _signal(self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep) -> None:
        task.signaled = True
        if self.is_killing or lifecycle.is_left(alloc, task):
            turn.act(kill_of(alloc, task)(key=alloc.key, task=task.plan.name, run=task.run))
            self._set_timer(alloc, task, turn.now_ns + KILL_RETRY_NS, turn)
            return
        name = task.plan.kill_signal or driver_traits(task.plan.driver).kill_signal
        turn.act(SignalTask(key=alloc.key, task=task.plan.name, run=task.run, signal=name))
        self._set_timer(alloc, task, turn.now_ns + task.plan.kill_timeout_ns, turn)

    def _ended(
        self,
        alloc: AllocRuntime,
        task: TaskRuntime,
        *,
        success: bool,
        turn: AgentStep,
        left: int = 0,
    ) -> None:
        task.pid = 0
        if task.stopping:
            text = f"Task killed; {left} of its processes still run" if left else KILLED_TEXT
            task.note("Killed", text, turn.now_ns)
            self._bury(alloc, task, failed=False, turn=turn)
            return
        if task.condemned:
            task.note("Killed", KILLED_TEXT, turn.now_ns)
            self._bury(alloc, task, failed=True, turn=turn)
            return
        if task.restarting and not task.unhealthy:
            task.enter(TaskPhase.IDLE)
            task.restarts += 1
            self._set_timer(alloc, task, 0, turn)
            turn.keep(task.kept(alloc.key))
            self._reports.touch(alloc.key)
            return
        # Any 64-bit seed is good: the key is unique, the name separates the tasks of an allocation.
        seed = alloc.key ^ int.from_bytes(task.plan.name.encode()[-8:], "big")
        verdict = decide_restart(
            task.plan.restart, task.count, success=success, seed=seed, now_ns=turn.now_ns
        )
        task.count = verdict.count
        if not verdict.again:
            if verdict.failed:
                task.note("Not Restarting", verdict.reason, turn.now_ns)
            self._bury(alloc, task, failed=verdict.failed, turn=turn)
            return
        seconds = verdict.delay_ns // 1_000_000 / 1000
        task.note("Restarting", f"in {seconds} s, {verdict.reason}", turn.now_ns)
        task.enter(TaskPhase.IDLE)
        first = task
        for step in reversed(lifecycle.chain_steps_before(alloc, task)):
            # The chain starts again from its first step, after the pause of the failed one.
            step.enter(TaskPhase.IDLE)
            first = step
            turn.keep(step.kept(alloc.key))
        first.enter(TaskPhase.WAITING)
        turn.keep(task.kept(alloc.key), first.kept(alloc.key))
        self._reports.touch(alloc.key)
        self._set_timer(alloc, first, turn.now_ns + verdict.delay_ns, turn)

    def _bury(
        self, alloc: AllocRuntime, task: TaskRuntime, *, failed: bool, turn: AgentStep
    ) -> None:
        task.enter(TaskPhase.DEAD)
        task.failed = failed
        task.pid = 0
        if task.due_ns:
            self._set_timer(alloc, task, 0, turn)
        turn.keep(task.kept(alloc.key))
        self._reports.touch(alloc.key)

    def _set_timer(
        self, alloc: AllocRuntime, task: TaskRuntime, at_ns: int, turn: AgentStep
    ) -> None:
        task.due_ns = at_ns
        turn.act(SetTimer(timer_name(alloc, task), at_ns))
