"""Follows the inputs of running tasks: which of them may change, and the change_mode that a change performs.

Decides when a task's change_mode is performed, and which one. What is due is in the journal before it is performed
and leaves it afterwards: a killed agent performs it again, at most once more. A restart leaves it with the start of the
next run. Must not know how an input is made (services/agent/inputs/). Source: Nomad's template hook, without its order
by chance: the pause before it is drawn from the allocation's key.
"""

from collections.abc import Iterable, Mapping

from services.agent.reports import Reports
from services.agent.tasks.environment import interpolate, node_variables
from services.agent.tasks.resolved_inputs import ChangeAction
from services.agent.tasks.runtime_state import AllocRuntime, TaskPhase, TaskRuntime
from services.agent.tasks.supervisor import AgentStep, Supervisor, compose_run
from shared.core.runtime.agent_messages import (
    ChangeScriptEnded,
    InputChanged,
    RunChangeScript,
    SignalTask,
    TaskLaunch,
    WatchInputs,
)
from shared.core.runtime.input_specs import IDENTITY, SECRET, VAULT
from shared.core.runtime.messages import SetTimer
from shared.core.splitmix import splitmix64

TIMER = "inputs"
EVENT, IDENTITY_EVENT, VAULT_EVENT = "Template", "Identity", "Vault"
#: Kind of event -> what is done to an input.
_DONE = {EVENT: "rendered", IDENTITY_EVENT: "signed", VAULT_EVENT: "logged in for"}
_NO_LAUNCH = TaskLaunch()
#: Phases in which the next start reads what is in place.
_NOT_STARTED = (TaskPhase.IDLE, TaskPhase.WAITING, TaskPhase.PREPARING)

_Name = tuple[int, str]


class InputMonitor:
    """The followed inputs of all allocations of this node."""

    def __init__(
        self, reports: Reports, supervisor: Supervisor, allocs: Mapping[int, AllocRuntime]
    ) -> None:
        self._reports = reports
        self._supervisor = supervisor
        self._allocs = allocs
        #: run and names of what is followed, by allocation and task.
        self._sent: dict[int, dict[str, tuple[int, tuple[str, ...]]]] = {}
        #: when a change_mode is due.
        self._due: dict[_Name, int] = {}
        #: scripts under way, and whether their input changed meanwhile.
        self._scripts: dict[tuple[int, str, str], bool] = {}
        #: changes so far, for the draw of pauses.
        self._changes: dict[_Name, int] = {}
        self._timer_ns = 0

    def sync(self, keys: Iterable[int], turn: AgentStep) -> None:
        """Follow the inputs of allocations that changed, and perform what is due."""
        for key in keys:
            alloc = self._allocs.get(key)
            if alloc is None:
                self._forget(key)
                continue
            for task in alloc.tasks.values():
                if task.plan.inputs or task.changed:
                    self._follow(alloc, task, turn)
        self._perform_due(turn)
        at_ns = min(self._due.values(), default=0)
        if at_ns != self._timer_ns:
            self._timer_ns = at_ns
            turn.act(SetTimer(TIMER, at_ns))

    def changed(self, event: InputChanged, turn: AgentStep) -> None:
        """An input was made anew."""
        found = self._find(event.key, event.task, event.run)
        if found is None:
            return
        alloc, task = found
        if task.prepared.get(event.input) == event.digest:
            return
        task.take_digests({event.input: event.digest})
        action = _action(task, event.input)
        is_due = action is not None and action.mode != "noop" and task.phase not in _NOT_STARTED
        if is_due:
            task.changed[event.input] = None
            script = (alloc.key, task.plan.name, event.input)
            if script in self._scripts:
                self._scripts[script] = True
        if is_due and task.restarting:
            text = f"{_made_anew(event.input)}, change_mode skipped: the task restarts"
            task.note(_event_kind(event.input), text, turn.now_ns)
            self._reports.touch(alloc.key)
        turn.keep(task.kept(alloc.key), sync=is_due)
        self._supervisor.changed[alloc.key] = None

    def script_ended(self, event: ChangeScriptEnded, turn: AgentStep) -> None:
        """A script of a change is over."""
        is_again = self._scripts.pop((event.key, event.task, event.input), False)
        # Also of an earlier run: what changed meanwhile waits for its end.
        self._supervisor.changed[event.key] = None
        found = self._find(event.key, event.task, event.run)
        if found is None:
            return
        alloc, task = found
        action = _action(task, event.input)
        is_fatal = bool(event.reason) and action is not None and action.fail_on_error
        if event.reason:
            text = f"change_script of {event.input} failed: {event.reason}"
            task.note(EVENT, text, turn.now_ns)
            self._reports.touch(alloc.key)
            if is_fatal:
                self._supervisor.restart(alloc, task, turn, reason=text, is_final=True)
        if not (is_again or is_fatal):
            # What is fatal stays due until the task is dead: a killed agent finds out again.
            task.changed.pop(event.input, None)
            task.first_rendered.discard(event.input)
        turn.keep(task.kept(alloc.key))

    # ---- inside ----

    def _find(self, key: int, name: str, run: int) -> tuple[AllocRuntime, TaskRuntime] | None:
        alloc = self._allocs.get(key)
        task = None if alloc is None else alloc.tasks.get(name)
        if alloc is None or task is None or task.run != run or task.phase is TaskPhase.DEAD:
            return None
        return alloc, task

    def _forget(self, key: int) -> None:
        # Its tasks are dead, and not followed any more.
        for name in self._sent.pop(key, {}):
            self._drop(key, name)

    def _drop(self, key: int, name: str) -> None:
        self._due.pop((key, name), None)
        self._changes.pop((key, name), None)
        for script in [one for one in self._scripts if one[:2] == (key, name)]:
            del self._scripts[script]

    def _follow(self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep) -> None:
        name = task.plan.name
        sent = self._sent.setdefault(alloc.key, {})
        if task.phase is TaskPhase.DEAD or task.stopping:
            if sent.pop(name, None) is not None:
                turn.act(_nothing(alloc, name))
            self._drop(alloc.key, name)
            task.changed.clear()
            return
        if task.phase is TaskPhase.RUNNING:
            self._watch(alloc, task, sent, turn)
        self._plan(alloc, task, turn)

    def _watch(
        self,
        alloc: AllocRuntime,
        task: TaskRuntime,
        sent: dict[str, tuple[int, tuple[str, ...]]],
        turn: AgentStep,
    ) -> None:
        """Have the inputs of a run followed; between two runs those of the earlier one stay."""
        name = task.plan.name
        names = tuple(one.name for one in task.plan.inputs if one.on_change is not None)
        if sent.get(name, (0, ())) == (task.run if names else 0, names):
            return
        if not names:
            del sent[name]
            turn.act(_nothing(alloc, name))
            return
        # The same was composed for the start of the run.
        launch, inputs = compose_run(alloc, task, self._supervisor.node)
        sent[name] = (task.run, names)
        turn.act(
            WatchInputs(
                key=alloc.key,
                alloc_id=alloc.desired.alloc_id,
                task=name,
                run=task.run,
                launch=launch,
                # In a life of the agent that did not start the run, what is followed needs their values, too.
                inputs=tuple(one for one in inputs if one.name in names or one.kind == SECRET),
                digests={one: task.prepared[one] for one in names if one in task.prepared},
            )
        )

    def _plan(self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep) -> None:
        """Plan when the change_mode of what changed is due; what changed later joins it."""
        name = (alloc.key, task.plan.name)
        waiting = [one for one in task.changed if (*name, one) not in self._scripts]
        if not waiting or task.restarting or alloc.end is not None:
            # The next run, if there is one, is given what changed.
            self._due.pop(name, None)
            return
        if name in self._due:
            return
        actions = [_action(task, one) for one in waiting if one not in task.first_rendered]
        splays = [action.splay_ns for action in actions if action is not None]
        count = self._changes[name] = self._changes.get(name, 0) + 1
        # Any 64-bit seed is good: the key is unique, the name separates the tasks of an allocation.
        seed = alloc.key ^ int.from_bytes(task.plan.name.encode()[-8:], "big") ^ count << 48
        drawn = splitmix64(seed & (1 << 64) - 1) >> 32
        self._due[name] = turn.now_ns + (max(splays, default=0) * drawn >> 32)

    def _perform_due(self, turn: AgentStep) -> None:
        for (key, name), at_ns in sorted(self._due.items()):
            task = self._allocs[key].tasks[name]
            # What starts or is found again answers first.
            if at_ns <= turn.now_ns and task.phase is TaskPhase.RUNNING:
                del self._due[key, name]
                self._perform(self._allocs[key], task, turn)

    def _perform(self, alloc: AllocRuntime, task: TaskRuntime, turn: AgentStep) -> None:
        """Perform the change_mode of what changed: a restart wins over signals and scripts, equal signals are one."""
        actions = {
            one: action
            for one in task.changed
            if (action := _action(task, one)) is not None and action.mode != "noop"
        }
        self._reports.touch(alloc.key)
        if any(action.mode == "restart" for action in actions.values()):
            # Stays in the journal until the next run begins.
            named = [one for one in actions if actions[one].mode == "restart"]
            self._supervisor.restart(alloc, task, turn, reason=_made_anew(*named))
            return
        self._signal(alloc, task, actions, turn)
        self._run_scripts(alloc, task, actions, turn)
        task.changed = {
            one: None for one in task.changed if one in actions and actions[one].command
        }
        turn.keep(task.kept(alloc.key))

    def _signal(
        self,
        alloc: AllocRuntime,
        task: TaskRuntime,
        actions: Mapping[str, ChangeAction],
        turn: AgentStep,
    ) -> None:
        names: dict[str, list[str]] = {}
        for one, action in actions.items():
            if action.mode == "signal":
                names.setdefault(action.signal, []).append(one)
        for signal, changed in names.items():
            text = f"{signal}: {_made_anew(*changed)}"
            task.note("Signaling", text, turn.now_ns)
            run = task.run
            turn.act(SignalTask(key=alloc.key, task=task.plan.name, run=run, signal=signal))

    def _run_scripts(
        self,
        alloc: AllocRuntime,
        task: TaskRuntime,
        actions: Mapping[str, ChangeAction],
        turn: AgentStep,
    ) -> None:
        launch, _ = compose_run(alloc, task, self._supervisor.node)
        values = {**node_variables(self._supervisor.node), **launch.env}
        for one, action in actions.items():
            script = (alloc.key, task.plan.name, one)
            if action.mode != "script" or script in self._scripts:
                continue
            self._scripts[script] = False
            turn.act(
                RunChangeScript(
                    key=alloc.key,
                    alloc_id=alloc.desired.alloc_id,
                    task=task.plan.name,
                    run=task.run,
                    input=one,
                    command=tuple(interpolate(word, values) for word in action.command),
                    timeout_ns=action.timeout_ns,
                )
            )


def _action(task: TaskRuntime, name: str) -> ChangeAction | None:
    return next((one.on_change for one in task.plan.inputs if one.name == name), None)


def _event_kind(name: str) -> str:
    """Return the kind of the event that says what became of an input."""
    if name == VAULT:
        return VAULT_EVENT
    return IDENTITY_EVENT if name.startswith(f"{IDENTITY}[") else EVENT


def _made_anew(*names: str) -> str:
    """Say that inputs have other content now."""
    kinds = {_event_kind(one) for one in names}
    done = " or ".join(word for kind, word in _DONE.items() if kind in kinds)
    return f"{', '.join(names)} was {done} anew"


def _nothing(alloc: AllocRuntime, name: str) -> WatchInputs:
    """Follow nothing of a task."""
    alloc_id = alloc.desired.alloc_id
    return WatchInputs(key=alloc.key, alloc_id=alloc_id, task=name, run=0, launch=_NO_LAUNCH)
