"""Lives of allocations in the simulated world: jobs whose tasks have hooks, and whether each step had its turn.

Decides what a job with a whole life looks like and what must have happened before a run of it may start, from what the
nodes really ran. Must not know why an agent does anything. Next: `oracle.py`.
"""

from collections.abc import Callable
from typing import Any

from shared.core import tasks
from shared.sim.drivers import Node, Run, RunName
from shared.sim.findings import Ledger

#: Names of the tasks around `main`, by hook; those of `CHAIN` run one after the other.
CHAIN = ("init-1", "init-2")
PROXY, HELLO, DRAIN, TELL, BYE = "proxy", "hello", "drain", "tell", "bye"
#: Tasks that start when nobody wants the allocation any more.
AFTER = (DRAIN, TELL, BYE)
_HOOKS = (
    *((name, "prestart", 40) for name in CHAIN),
    (HELLO, "poststart", 60),
    (DRAIN, "prestop", 80),
    (TELL, "postfail", 30),
    (BYE, "poststop", 50),
)


def with_life(group: dict[str, Any]) -> dict[str, Any]:
    """Put a task of every hook around the main one of a group; those that end do so after some ms."""
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
    return {**group, "RestartFrom": "failed", "Tasks": [*around, proxy, main]}


class Lives:
    """What nodes ran of allocations that have a whole life."""

    def __init__(self, ledger: Ledger, is_wanted: Callable[[int], bool]) -> None:
        self._ledger = ledger
        self._is_wanted = is_wanted
        self._nodes: dict[int, Node] = {}

    def started(self, node: Node, name: RunName) -> None:
        """Hold a start against all that must have happened before, and must not have."""
        key, task, _ = name
        runs = _runs(node, key)
        if task == "main" and CHAIN[0] not in runs:
            return
        self._nodes[key] = node
        if task in (*CHAIN, *AFTER):
            again = any(_is_well(run) for run in runs[task] if run.name != name)
            self._ledger.hold("step_once", not again, name, "succeeded before, on", node.node_id)
        turns: dict[str, Callable[[], bool]] = {
            CHAIN[1]: lambda: _any(runs, CHAIN[0], _is_well),
            PROXY: lambda: _any(runs, CHAIN[1], _is_well),
            "main": lambda: _any(runs, CHAIN[1], _is_well) and PROXY in runs,
            HELLO: lambda: "main" in runs,
            DRAIN: lambda: "main" in runs,
            TELL: lambda: "main" in runs and not _is_well(runs["main"][-1]) and _quiet(runs, name),
            BYE: lambda: _quiet(runs, name),
        }
        is_turn = task not in turns or turns[task]()
        story = {one: [(r.exit_code, r.signal, r.is_alive) for r in runs[one]] for one in runs}
        self._ledger.hold("hooks_in_order", is_turn, name, "before its turn:", story)

    def may_end(self, node_id: str, key: int) -> bool:
        """Say whether tasks of an allocation may be ended though it is wanted: one failed, or the main one is done."""
        node = self._nodes.get(key)
        if node is None or node.node_id != node_id:
            return False
        return any(
            run.is_started and not run.is_alive and (name == "main" or not _is_well(run))
            for name, runs in _runs(node, key).items()
            for run in runs
        )

    def unsettled(self) -> str:
        """Name an allocation that is over and lacks its last step; nothing: there is none."""
        for key, node in self._nodes.items():
            if self._is_wanted(key) or node.is_dead:
                continue
            runs = _runs(node, key)
            last = runs.get(BYE, [None])[-1]
            if last is None or last.is_alive:
                return f"the last step of {key} on {node.node_id} is open"
        return ""

    def settle(self) -> None:
        """Check at the end that no step was skipped. Raises Broken."""
        for key, node in self._nodes.items():
            if not self._is_wanted(key):
                there = set(_runs(node, key))
                # A poststart task is skipped where the end was ordered before it had its turn.
                done = BYE in there
                self._ledger.hold("no_step_skipped", done, key, "on", node.node_id, sorted(there))


def is_after(effect: tasks.StartTask) -> bool:
    """Say whether a start is a step of an end."""
    return effect.task in AFTER


def _runs(node: Node, key: int) -> dict[str, list[Run]]:
    """All runs that ever were of an allocation on a node, by task, in order."""
    found: dict[str, list[Run]] = {}
    for name, run in node.runs.items():
        if name[0] == key and run.is_started:
            found.setdefault(name[1], []).append(run)
    return found


def _is_well(run: Run) -> bool:
    return run.is_started and not run.is_alive and run.exit_code == 0


def _any(runs: dict[str, list[Run]], task: str, check: Callable[[Run], bool]) -> bool:
    return any(check(run) for run in runs.get(task, ()))


def _quiet(runs: dict[str, list[Run]], name: RunName) -> bool:
    """Nothing else of the allocation is alive."""
    return not any(run.is_alive for each in runs.values() for run in each if run.name != name)
