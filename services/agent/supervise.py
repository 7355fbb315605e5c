"""The life of a task: start, restart, stop. Whose turn it is says `lifecycle.py`.

Decides every effect on tasks, and changes them. Must not know the bus: orders come from `role.py`, which follows the
projection. Every start is in the journal before it is made (`Turn.effects`).
"""

from msgspec import DecodeError

from schemas.nodes import NodeSpec
from services.agent import lifecycle
from services.agent.environment import log_limits, task_launch
from services.agent.reports import Reports
from services.agent.restart import judge_end
from services.agent.workload import Alloc, Phase, Task
from shared.core.role import Effect, SetTimer
from shared.core.tasks import (
    AgentEffect,
    CloseAlloc,
    DiskUsed,
    EndKept,
    JournalEntry,
    KillTask,
    LimitLogs,
    RecoverTask,
    SignalTask,
    StartTask,
    TaskExited,
    TaskGone,
    TaskNoted,
    TaskStarted,
    TaskStartFailed,
    WriteJournal,
)

#: A kill that shows no effect (a process the kernel holds) is repeated.
KILL_AGAIN_NS = 5_000_000_000
DEFAULT_KILL_SIGNAL = "SIGINT"
#: Of drivers that know better: empty is the image's own, else SIGTERM.
OWN_KILL_SIGNAL = {"docker": ""}
EXPIRED_REASON = "allocation exceeded max_run_duration"


class Turn:
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


def timer_name(alloc: Alloc, task: Task) -> str:
    """Name of a task's one timer: it waits for its restart, for its kill signal, or for its kill."""
    return f"task {alloc.key} {task.plan.name}"


def alloc_timer_name(alloc: Alloc) -> str:
    """Name of an allocation's one timer: it waits for its last day, or for its first kill signal."""
    return f"alloc {alloc.key}"


def noted(alloc: Alloc, event: TaskNoted, reports: Reports, now_ns: int) -> None:
    """A driver has something to tell of a task's present run."""
    task = alloc.tasks.get(event.task)
    if task is not None and task.run == event.run and task.phase is not Phase.DEAD:
        task.note(event.kind, event.message, now_ns)
        reports.touch(alloc.key)


class Supervisor:
    """Drives tasks; knows the node only to fill in variables."""

    def __init__(
        self, *, node: NodeSpec, reports: Reports, disk_over_is_fatal: bool = False
    ) -> None:
        #: the node as its agent finds it, and as jobs see it: with what an operator says of it.
        self.own_node = self.node = node
        self._reports = reports
        self._disk_over_is_fatal = disk_over_is_fatal
        self.starts = 0
        self.failures = 0

    # ---- orders ----

    def advance(self, alloc: Alloc, turn: Turn) -> None:
        """Start and end every task whose turn has come."""
        if alloc.plan is None:
            return
        while self._advance(alloc, turn):
            pass
        self._arm(alloc, turn)
        if alloc.is_dead() and not alloc.closed:
            alloc.closed = True
            turn.act(CloseAlloc(key=alloc.key, alloc_id=alloc.desired.alloc_id))

    def recover(self, alloc: Alloc, turn: Turn) -> None:
        """Look for what ran before the agent died."""
        for task in alloc.tasks.values():
            if task.phase is Phase.RECOVERING:
                turn.act(
                    RecoverTask(
                        key=alloc.key,
                        alloc_id=alloc.desired.alloc_id,
                        task=task.plan.name,
                        run=task.run,
                        driver=task.plan.driver,
                        logs=log_limits(task.plan),
                    )
                )
                self._limit(alloc, task, turn)

    def stop(self, alloc: Alloc, reason: str, turn: Turn, *, cause: str = lifecycle.ORDER) -> None:
        """End an allocation, in its order. What is ending already goes on as it does."""
        if alloc.end is None:
            alloc.end = EndKept(cause=cause, reason=reason, at_ns=turn.now_ns)
            turn.keep(alloc.kept())
        self._reports.touch(alloc.key)
        self.advance(alloc, turn)

    def restart(self, alloc: Alloc, task: Task, turn: Turn) -> bool:
        """End a run as a stop would and start the next at once, at no charge; False: there is none to end."""
        if alloc.end is not None or task.stopping or task.restarting:
            return False
        if task.phase is Phase.WAITING:
            task.phase = Phase.IDLE
            task.restarts += 1
            self._set_timer(alloc, task, 0, turn)
            self.advance(alloc, turn)
            return True
        if task.phase is not Phase.RUNNING:
            return False
        task.restarting = True
        task.note("Restart Signaled", "an operator asked for it", turn.now_ns)
        self._reports.touch(alloc.key)
        self._signal(alloc, task, turn)
        return True

    # ---- what happened ----

    def started(self, alloc: Alloc, task: Task, event: TaskStarted, turn: Turn) -> None:
        """A run is alive."""
        if task.phase not in (Phase.STARTING, Phase.RECOVERING):
            return
        task.phase = Phase.RUNNING
        task.pid = event.pid
        if event.adopted:
            task.note("Recovered", f"found alive, pid {event.pid}", turn.now_ns)
        else:
            task.note("Started", "Task started by client", turn.now_ns)
        turn.keep(task.kept(alloc.key))
        self._reports.touch(alloc.key)
        if task.stopping:
            self._signal(alloc, task, turn)
        self.advance(alloc, turn)

    def start_failed(self, alloc: Alloc, task: Task, event: TaskStartFailed, turn: Turn) -> None:
        """A run did not come alive."""
        task.note("Driver Failure", event.reason, turn.now_ns)
        self.failures += 1
        if event.recoverable or task.stopping:
            self._ended(alloc, task, success=False, turn=turn)
        else:
            task.note("Not Restarting", "error is not recoverable", turn.now_ns)
            self._bury(alloc, task, failed=True, turn=turn)
        self.advance(alloc, turn)

    def exited(self, alloc: Alloc, task: Task, event: TaskExited, turn: Turn) -> None:
        """A run ended."""
        task.exit_code = event.exit_code
        task.signal = event.signal
        code = "unknown" if event.exit_code is None else event.exit_code
        text = f"Exit Code: {code}" + (f", Signal: {event.signal}" if event.signal else "")
        task.note("Terminated", f"{text}, {event.reason}".rstrip(", "), turn.now_ns)
        self._ended(alloc, task, success=event.exit_code == 0, turn=turn)
        self.advance(alloc, turn)

    def gone(self, alloc: Alloc, task: Task, event: TaskGone, turn: Turn) -> None:
        """A run that the journal knows is not there: it never began, or ended with nobody watching."""
        if event.started:
            task.exit_code, task.signal = None, 0
            task.note("Terminated", event.reason or "lost while unwatched", turn.now_ns)
            self._ended(alloc, task, success=False, turn=turn)
        elif task.stopping:
            self._bury(alloc, task, failed=False, turn=turn)
        else:
            task.phase = Phase.IDLE
            turn.keep(task.kept(alloc.key))
            self._reports.touch(alloc.key)
        self.advance(alloc, turn)

    def timer(self, alloc: Alloc, task: Task, deadline_ns: int, turn: Turn) -> None:
        """The task's timer fired: its pause is over, or its patience."""
        if deadline_ns != task.due_ns:
            return
        task.due_ns = 0
        if task.phase is Phase.WAITING:
            task.phase = Phase.IDLE
            task.restarts += 1
        elif task.stopping and not task.signaled and task.phase is Phase.RUNNING:
            self._signal(alloc, task, turn)
        elif task.restarting and task.phase is Phase.RUNNING:
            turn.act(KillTask(key=alloc.key, task=task.plan.name, run=task.run))
            self._set_timer(alloc, task, turn.now_ns + KILL_AGAIN_NS, turn)
        elif task.phase is not Phase.DEAD and (task.stopping or task.plan.hook == "prestop"):
            if not task.stopping:
                task.note("Killing", "the time of a prestop task is up", turn.now_ns)
                task.stopping = task.signaled = True
                turn.keep(task.kept(alloc.key))
            turn.act(KillTask(key=alloc.key, task=task.plan.name, run=task.run))
            self._set_timer(alloc, task, turn.now_ns + KILL_AGAIN_NS, turn)
        self.advance(alloc, turn)

    def alloc_timer(self, alloc: Alloc, turn: Turn) -> None:
        """An allocation's timer fired."""
        alloc.due_ns = 0
        self.advance(alloc, turn)

    def replanned(self, alloc: Alloc, turn: Turn) -> None:
        """Runs that are alive go on under another version of the job: what counts for them at once is said."""
        for task in alloc.tasks.values():
            if task.phase is Phase.RUNNING:
                limits = log_limits(task.plan)
                turn.act(LimitLogs(key=alloc.key, task=task.plan.name, run=task.run, logs=limits))

    def disk_used(self, alloc: Alloc, event: DiskUsed, turn: Turn) -> None:
        """What an allocation's directories take was measured."""
        limit_mib = alloc.plan.disk_mib if alloc.plan is not None else 0
        was_over = alloc.disk_used_mib > limit_mib
        alloc.disk_used_mib = event.used_mib
        if not limit_mib or event.used_mib <= limit_mib or was_over or alloc.end is not None:
            return
        text = f"its directories take {event.used_mib} MiB, it asked for {limit_mib}"
        for task in alloc.tasks.values():
            if task.phase is Phase.RUNNING:
                task.note("Disk Exceeded", text, turn.now_ns)
        self._reports.touch(alloc.key)
        if self._disk_over_is_fatal:
            self.stop(alloc, text, turn, cause=lifecycle.DISK)

    # ---- inside ----

    def _advance(self, alloc: Alloc, turn: Turn) -> bool:
        """One round; says whether anything changed."""
        if alloc.end is None and (found := self._ending(alloc, turn)):
            cause, reason = found
            alloc.end = EndKept(cause=cause, reason=reason, at_ns=turn.now_ns)
            turn.keep(alloc.kept())
        starts = lifecycle.due_starts(alloc)
        for task in starts:
            self._start(alloc, task, turn)
        stops = lifecycle.due_stops(alloc, turn.now_ns)
        for task in stops:
            self._stop(alloc, task, turn)
        over = lifecycle.skipped(alloc)
        for task in over:
            self._bury(alloc, task, failed=False, turn=turn)
        # A start opens nothing by itself: what waits for it waits for its answer.
        is_over = any(task.phase is Phase.DEAD for task in starts)
        return bool(stops or over) or is_over

    def _ending(self, alloc: Alloc, turn: Turn) -> tuple[str, str] | None:
        assert alloc.plan is not None
        last_ns = alloc.first_ns + alloc.plan.max_run_ns
        if alloc.plan.max_run_ns and turn.now_ns >= last_ns and not alloc.is_dead():
            return lifecycle.EXPIRED, EXPIRED_REASON
        return lifecycle.ending(alloc)

    def _arm(self, alloc: Alloc, turn: Turn) -> None:
        """Wake up for what an allocation waits for by itself."""
        assert alloc.plan is not None
        due_ns = lifecycle.delay_ends_ns(alloc)
        if alloc.end is None and alloc.plan.max_run_ns and not alloc.is_dead():
            due_ns = alloc.first_ns + alloc.plan.max_run_ns
        if due_ns != alloc.due_ns and (due_ns > turn.now_ns or not due_ns):
            alloc.due_ns = due_ns
            turn.act(SetTimer(alloc_timer_name(alloc), due_ns))

    def _start(self, alloc: Alloc, task: Task, turn: Turn) -> None:
        assert alloc.plan is not None
        try:
            failed = lifecycle.failed_main(alloc)
            launch = task_launch(alloc.desired, alloc.plan, task.plan, self.node, failed=failed)
        except DecodeError as err:
            task.note("Failed Validation", f"driver options cannot be read: {err}", turn.now_ns)
            self._bury(alloc, task, failed=True, turn=turn)
            return
        self.starts += 1
        task.run += 1
        task.phase = Phase.STARTING
        task.pid = task.signal = 0
        task.exit_code = None
        task.failed = task.signaled = task.restarting = False
        turn.keep(task.kept(alloc.key), sync=True)
        turn.act(
            StartTask(
                key=alloc.key,
                alloc_id=alloc.desired.alloc_id,
                task=task.plan.name,
                run=task.run,
                driver=task.plan.driver,
                launch=launch,
                inherit=alloc.desired.previous if alloc.plan.inherits else "",
            )
        )
        self._limit(alloc, task, turn)

    def _limit(self, alloc: Alloc, task: Task, turn: Turn) -> None:
        """What waits for prestop tasks waits only so long, even for one that does not come up."""
        if task.plan.hook == "prestop":
            self._set_timer(alloc, task, turn.now_ns + task.plan.kill_timeout_ns, turn)

    def _stop(self, alloc: Alloc, task: Task, turn: Turn) -> None:
        assert alloc.end is not None
        task.stopping = True
        task.note("Killing", alloc.end.reason, turn.now_ns)
        if task.phase in (Phase.IDLE, Phase.WAITING):
            self._bury(alloc, task, failed=False, turn=turn)
            return
        turn.keep(task.kept(alloc.key))
        if task.phase is Phase.RUNNING and task.plan.shutdown_delay_ns:
            self._set_timer(alloc, task, turn.now_ns + task.plan.shutdown_delay_ns, turn)
        elif task.phase is Phase.RUNNING:
            self._signal(alloc, task, turn)
        # A start or a recovery under way is answered first; `started` goes on from there.

    def _signal(self, alloc: Alloc, task: Task, turn: Turn) -> None:
        task.signaled = True
        name = task.plan.kill_signal or OWN_KILL_SIGNAL.get(task.plan.driver, DEFAULT_KILL_SIGNAL)
        turn.act(SignalTask(key=alloc.key, task=task.plan.name, run=task.run, signal=name))
        self._set_timer(alloc, task, turn.now_ns + task.plan.kill_timeout_ns, turn)

    def _ended(self, alloc: Alloc, task: Task, *, success: bool, turn: Turn) -> None:
        task.pid = 0
        if task.stopping:
            task.note("Killed", "Task successfully killed", turn.now_ns)
            self._bury(alloc, task, failed=False, turn=turn)
            return
        if task.restarting:
            task.phase = Phase.IDLE
            task.restarts += 1
            self._set_timer(alloc, task, 0, turn)
            turn.keep(task.kept(alloc.key))
            self._reports.touch(alloc.key)
            return
        # Any 64-bit seed will do: the key is unique, the name tells an allocation's tasks apart.
        seed = alloc.key ^ int.from_bytes(task.plan.name.encode()[-8:], "big")
        verdict = judge_end(
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
        task.phase = Phase.IDLE
        first = task
        for step in reversed(lifecycle.chain_before(alloc, task)):
            # All over again, from the first step on, which waits for the failed one.
            first, step.phase = step, Phase.IDLE
            turn.keep(step.kept(alloc.key))
        first.phase = Phase.WAITING
        turn.keep(task.kept(alloc.key), first.kept(alloc.key))
        self._reports.touch(alloc.key)
        self._set_timer(alloc, first, turn.now_ns + verdict.delay_ns, turn)

    def _bury(self, alloc: Alloc, task: Task, *, failed: bool, turn: Turn) -> None:
        task.phase = Phase.DEAD
        task.failed = failed
        task.pid = 0
        if task.due_ns:
            self._set_timer(alloc, task, 0, turn)
        turn.keep(task.kept(alloc.key))
        self._reports.touch(alloc.key)

    def _set_timer(self, alloc: Alloc, task: Task, at_ns: int, turn: Turn) -> None:
        task.due_ns = at_ns
        turn.act(SetTimer(timer_name(alloc, task), at_ns))
