"""Lifecycle checks of the simulated world: tasks with hooks must run in their order, by what nodes really ran."""

from collections.abc import Callable
from typing import Any

from shared.core.runtime import agent_messages
from shared.fleet.simulated_tasks import TaskRun, TaskRunId
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.oracle.invariants import InvariantChecks

#: Tasks beside `main`, by hook; those of `CHAIN` run one after the other.
PRESTART_TASKS = ("init-1", "init-2")
PROXY, HELLO, DRAIN, TELL, BYE = "proxy", "hello", "drain", "tell", "bye"
#: Second main task of a group whose tasks run elsewhere.
BESIDE = "beside"
#: Tasks that start once the allocation is not wanted any more.
END_TASKS = (DRAIN, TELL, BYE)
_HOOKS = (
    *((name, "prestart", 40) for name in PRESTART_TASKS),
    (HELLO, "poststart", 60),
    (DRAIN, "prestop", 80),
    (TELL, "postfail", 30),
    (BYE, "poststop", 50),
)


def add_lifecycle_tasks(group: dict[str, Any]) -> dict[str, Any]:
    """Add a task of every hook to a group, which end after some ms, and inputs to its main task."""
    (main,) = group["Tasks"]
    small = {**main, "Resources": {"CPU": 1, "MemoryMB": 10}}
    around = [
        {
            **small,
            "Name": name,
            "Config": {**main["Config"], "args": [str(run_ms)]},
            "Lifecycle": {"Hook": hook},
        }
        for name, hook, run_ms in _HOOKS
    ]
    proxy = {
        **small,
        "Name": PROXY,
        "Config": {**main["Config"], "args": ["0"]},
        "Lifecycle": {"Hook": "prestart", "Sidecar": True},
    }
    fetched = [{"GetterSource": f"https://example.com/{at}.tgz"} for at in range(2)]
    rendered = [
        {"EmbeddedTmpl": "{{ env `EDITION` }}", "DestPath": "local/edition"},
        {"EmbeddedTmpl": "A=b", "DestPath": "secrets/env", "Envvars": True},
    ]
    main = {**main, "Artifacts": fetched, "Templates": rendered}
    return {**group, "RestartFrom": "failed", "Tasks": [*around, proxy, main]}


class LifecycleChecks:
    """Task runs of allocations with lifecycle tasks."""

    def __init__(self, ledger: InvariantChecks, is_wanted: Callable[[int], bool]) -> None:
        self._ledger = ledger
        self._is_wanted = is_wanted
        self._nodes: dict[int, SimulatedNode] = {}

    def started(self, node: SimulatedNode, name: TaskRunId) -> None:
        """Check that all earlier steps are done when a task starts, and no later one."""
        key, task, _ = name
        runs = _runs(node, key)
        if task in ("main", BESIDE) and PRESTART_TASKS[0] not in runs:
            return
        self._nodes[key] = node
        if task in (*PRESTART_TASKS, *END_TASKS):
            again = any(_is_well(run) for run in runs[task] if run.name != name)
            self._ledger.hold("step_once", not again, name, "succeeded before, on", node.node_id)
        turns: dict[str, Callable[[], bool]] = {
            PRESTART_TASKS[1]: lambda: _any(runs, PRESTART_TASKS[0], _is_well),
            PROXY: lambda: _any(runs, PRESTART_TASKS[1], _is_well),
            "main": lambda: _any(runs, PRESTART_TASKS[1], _is_well) and PROXY in runs,
            HELLO: lambda: "main" in runs,
            DRAIN: lambda: "main" in runs,
            TELL: lambda: "main" in runs and not _is_well(runs["main"][-1]) and _quiet(runs, name),
            BYE: lambda: _quiet(runs, name),
        }
        is_turn = task not in turns or turns[task]()
        story = {one: [(r.exit_code, r.signal, r.is_alive) for r in runs[one]] for one in runs}
        self._ledger.hold("hooks_in_order", is_turn, name, "out of order:", story)

    def may_end(self, node_id: str, key: int) -> bool:
        """Whether tasks of a wanted allocation may be stopped: one failed, or the main task is done."""
        node = self._nodes.get(key)
        if node is None or node.node_id != node_id:
            return False
        return any(
            run.is_started and not run.is_alive and (name == "main" or not _is_well(run))
            for name, runs in _runs(node, key).items()
            for run in runs
        )

    def unsettled(self) -> str:
        """Describe an ended allocation without its last step; empty: none."""
        for key, node in self._nodes.items():
            if self._is_wanted(key) or node.is_dead:
                continue
            runs = _runs(node, key)
            last = runs.get(BYE, [None])[-1]
            if last is None or last.is_alive:
                return f"the last step of {key} on {node.node_id} has not run"
        return ""

    def settle(self) -> None:
        """Check at the end that no step was skipped. Raises InvariantBroken."""
        for key, node in self._nodes.items():
            if not self._is_wanted(key):
                there = set(_runs(node, key))
                # A poststart task is skipped if the stop was ordered before it could start.
                done = BYE in there
                self._ledger.hold("no_step_skipped", done, key, "on", node.node_id, sorted(there))


def is_end_task(effect: agent_messages.StartTask) -> bool:
    """Return whether a task starts after the end of the allocation."""
    return effect.task in END_TASKS


def _runs(node: SimulatedNode, key: int) -> dict[str, list[TaskRun]]:
    """All runs of an allocation on a node, by task, in order."""
    found: dict[str, list[TaskRun]] = {}
    for name, run in node.runs.items():
        if name[0] == key and run.is_started:
            found.setdefault(name[1], []).append(run)
    return found


def _is_well(run: TaskRun) -> bool:
    return run.is_started and not run.is_alive and run.exit_code == 0


def _any(runs: dict[str, list[TaskRun]], task: str, check: Callable[[TaskRun], bool]) -> bool:
    return any(check(run) for run in runs.get(task, ()))


def _quiet(runs: dict[str, list[TaskRun]], name: TaskRunId) -> bool:
    """Return whether no other task of the allocation is running."""
    return not any(run.is_alive for each in runs.values() for run in each if run.name != name)
