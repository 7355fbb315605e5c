"""Inputs that change while simulated tasks run: what they are made of, what is in place, and what each run has seen.

A change is drawn for each input that is followed. While an agent is down its inputs stay as they are; its next life
makes them anew. A run sees what is in place when it starts, when it gets SIGHUP, and when a script of it runs.
"""

from collections.abc import Callable

from shared.core.runtime.agent_messages import InputChanged, RunChangeScript, WatchInputs
from shared.fleet.simulated_tasks import TaskRunId
from shared.sim.virtual_time import MS, RandomDraws, VirtualLoop

#: Changes of one input: then the world may come to rest.
CHANGES_MAX = 2
#: Longest way of a message to the agent.
TOLD_WITHIN_NS = 300 * MS
#: Pause before a change_mode, and the end of a run that heeds no signal.
TOLD_BY_NS = 5_000 * MS
_RELOAD = "SIGHUP"

_Name = tuple[int, str, str]
_Task = tuple[int, str]


def digest_of(version: int) -> str:
    """Return the digest of a version; the first is what every preparation is answered with."""
    return f"simulated {version}" if version else "simulated"


class SimulatedInputs:
    """Followed inputs of one node. `inject` gives a message to the agent, which may be dead by then."""

    def __init__(
        self, loop: VirtualLoop, draws: RandomDraws, inject: Callable[[object], None]
    ) -> None:
        self._loop = loop
        self._draws = draws
        self._inject = inject
        #: versions of what inputs are made of, and of what is in place.
        self._sources: dict[_Name, int] = {}
        self._in_place: dict[_Name, int] = {}
        self._placed_ns: dict[_Name, int] = {}
        self._watched: dict[_Task, WatchInputs] = {}
        self._watched_ns: dict[_Task, int] = {}
        #: versions that each run has seen.
        self._seen: dict[TaskRunId, dict[str, int]] = {}
        self._began_ns: dict[TaskRunId, int] = {}
        #: runs that may be ended for a change.
        self._stale: set[TaskRunId] = set()

    @property
    def is_used(self) -> bool:
        """Whether anything is followed."""
        return bool(self._watched)

    def watch(self, effect: WatchInputs) -> None:
        """Follow inputs; what is not as the role knows it is made anew at once."""
        task = (effect.key, effect.task)
        self._watched[task] = effect
        self._watched_ns[task] = self._loop.now_ns
        if not effect.inputs:
            del self._watched[task]
        for one in effect.inputs:
            name = (*task, one.name)
            if name not in self._sources:
                self._sources[name] = 0
                self._plan_change(name)
            if digest_of(self._sources[name]) != effect.digests.get(one.name):
                self._render(name)

    def forget_agent(self) -> None:
        """End what an agent followed, with its life."""
        self._watched.clear()

    def started(self, run: TaskRunId) -> None:
        """Note what a run finds in place."""
        self._began_ns[run] = self._loop.now_ns
        self._seen[run] = self._found(run)

    def reloads(self, run: TaskRunId, signal: str) -> bool:
        """Take a signal that makes a run read its inputs again; False: it is another one."""
        if signal == _RELOAD and run in self._seen:
            self._seen[run] = self._found(run)
        return signal == _RELOAD

    def run_script(self, effect: RunChangeScript) -> None:
        """Run the script of a change, which reads its input."""
        run = (effect.key, effect.task, effect.run)
        if run in self._seen:
            name = (effect.key, effect.task, effect.input)
            self._seen[run][effect.input] = self._in_place.get(name, 0)

    def may_signal(self, run: TaskRunId, signal: str) -> bool:
        """Tell whether a change is a reason for a signal: to a run that had not seen it, or one to read it again.

        Of what was rendered just before a start the agent cannot know whether the run has seen it.
        """
        seen, began_ns = self._seen.get(run, {}), self._began_ns.get(run, 0)
        for name, version in self._in_place.items():
            is_new = self._placed_ns[name] > began_ns - TOLD_WITHIN_NS
            if name[:2] == run[:2] and (is_new or seen.get(name[2], 0) < version):
                self._stale.add(run)
        return run in self._stale or (signal == _RELOAD and run[:2] in self._watched)

    def unseen(self, run: TaskRunId) -> str:
        """Name the first followed input of which a run has not seen the newest version; empty: none."""
        effect = self._watched.get(run[:2])
        for one in effect.inputs if effect is not None else ():
            newest = self._sources.get((*run[:2], one.name), 0)
            if self._seen.get(run, {}).get(one.name, 0) != newest:
                return one.name
        return ""

    def overdue(self) -> dict[TaskRunId, str]:
        """Name an input of each run that should have been told of it by now."""
        found: dict[TaskRunId, str] = {}
        for task, effect in self._watched.items():
            run = (*task, effect.run)
            name = self.unseen(run) if run in self._seen else ""
            at_ns = max(self._placed_ns.get((*task, name), 0), self._watched_ns[task])
            if name and self._loop.now_ns > at_ns + TOLD_BY_NS:
                found[run] = name
        return found

    # ---- inside ----

    def _found(self, run: TaskRunId) -> dict[str, int]:
        """List the versions that are in place for a run."""
        return {name[2]: one for name, one in self._in_place.items() if name[:2] == run[:2]}

    def _plan_change(self, name: _Name) -> None:
        if self._sources[name] < CHANGES_MAX:
            self._loop.after(self._draws.between(200 * MS, 4_000 * MS), self._change, name)

    def _change(self, name: _Name) -> None:
        self._sources[name] += 1
        if name[:2] in self._watched:
            self._render(name)
        self._plan_change(name)

    def _render(self, name: _Name) -> None:
        self._in_place[name] = self._sources[name]
        self._placed_ns[name] = self._loop.now_ns
        effect = self._watched[name[:2]]
        digest = digest_of(self._sources[name])
        told = InputChanged(key=name[0], task=name[1], run=effect.run, input=name[2], digest=digest)
        self._inject(told)
