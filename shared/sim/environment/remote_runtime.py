"""A simulated runtime beside all nodes: what runs there belongs to no node, and outlives every one of them.

It knows tokens and the highest epoch of each slot, as a driver of the product is to use one: a token is started once,
and a call with a lower epoch changes nothing. `RemoteTracking` is a node's way to it: calls take time, and their
answers may be lost.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from shared.core.runtime.agent_messages import (
    KillTask,
    RecoverTask,
    StartTask,
    TaskGone,
)
from shared.core.runtime.remote_messages import DetachTask, EndRemote, RemoteEnded, RemoteRun
from shared.fleet.simulated_tasks import SimulatedTasks, TaskRun, TaskRunId
from shared.sim.virtual_time import MS, SECOND, RandomDraws, VirtualLoop

#: One call of so many in a thousand reaches the runtime only after a while, when another may track the slot.
_LATE_PER_MILLE, _LATE_NS = 250, 15 * SECOND
#: What has ended is forgotten, its token too.
_FORGETS_NS = 2 * SECOND


class RemoteThing(msgspec.Struct):
    """What runs, or ran, under a token."""

    remote: RemoteRun
    is_alive: bool = True
    exit_code: int | None = None


class RemoteRuntime:
    """The runtime. Every call takes effect at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.after = loop.after
        self.things: dict[str, RemoteThing] = {}
        #: tokens that must never come alive.
        self.refused: set[str] = set()
        #: by slot.
        self.epochs: dict[str, int] = {}
        #: called with what ended: all who track it look.
        self.on_end: list[Callable[[str], None]] = []
        #: called before something is started, and before something alive is ended by order.
        self.on_start: Callable[[RemoteRun], None] = lambda _remote: None
        self.on_kill: Callable[[RemoteRun], None] = lambda _remote: None
        #: called with every call that is obeyed.
        self.on_call: Callable[[RemoteRun], None] = lambda _remote: None

    def enter(self, remote: RemoteRun) -> bool:
        """Take the epoch of a call; false: another tracker has replaced this one, and nothing may be done."""
        highest = self.epochs.get(remote.slot, 0)
        if remote.epoch < highest:
            return False
        self.epochs[remote.slot] = max(highest, remote.epoch)
        return True

    def start(self, remote: RemoteRun) -> RemoteThing | None:
        """Start what a token names, or find it; None: it is refused."""
        if not self.enter(remote):
            return None
        self.on_call(remote)
        if remote.token in self.refused:
            return None
        if remote.token not in self.things:
            if remote.state == "running":
                # It was there, and has ended.
                return None
            self.on_start(remote)
            self.things[remote.token] = RemoteThing(remote)
        return self.things[remote.token]

    def kill(self, remote: RemoteRun) -> None:
        """End what a token names."""
        thing = self.things.get(remote.token)
        if self.enter(remote) and thing is not None and thing.is_alive:
            self.on_kill(remote)
            self.end(remote.token, 137)

    def abandon(self, remote: RemoteRun) -> bool:
        """End what a token names, for good."""
        if not self.enter(remote):
            return False
        self.refused.add(remote.token)
        self.kill(remote)
        return True

    def forget(self, token: str) -> None:
        """Forget what has ended: under its token another thing could be started."""
        self.refused.discard(token)
        if not self.things[token].is_alive:
            del self.things[token]

    def end(self, token: str, exit_code: int) -> None:
        """Let it end."""
        thing = self.things.get(token)
        if thing is not None and thing.is_alive:
            thing.is_alive, thing.exit_code = False, exit_code
            for tell in list(self.on_end):
                tell(token)
            self.after(_FORGETS_NS, lambda: self.forget(token))

    def alive(self) -> list[RemoteRun]:
        """List what runs."""
        return [one.remote for one in self.things.values() if one.is_alive]


class RemoteTracking:
    """The runs of one node that are elsewhere. `tell`: hands the answer about a run to its agent."""

    def __init__(
        self,
        *,
        loop: VirtualLoop,
        draws: RandomDraws,
        runtime: RemoteRuntime,
        tasks: SimulatedTasks,
        tell: Callable[[TaskRun, object], None],
    ) -> None:
        self._loop = loop
        self._draws = draws
        self._runtime = runtime
        self._tasks = tasks
        self._tell = tell
        #: what each run of this node is elsewhere.
        self._tracked: dict[TaskRunId, RemoteRun] = {}
        #: how many calls there were about each slot: a node's calls arrive in their order, or never.
        self._calls: Counter[str] = Counter()
        self.fail_per_mille = 0
        #: called with every run that is tracked from then on.
        self.on_start: Callable[[TaskRunId], None] = lambda _name: None
        runtime.on_end.append(self._ended)

    def start(self, effect: StartTask, life: int) -> None:
        """Start or find what runs elsewhere."""
        run = self._tasks.start((effect.key, effect.task, effect.run), life)
        remote = effect.remote
        assert remote is not None
        self._calls[remote.slot] += 1
        is_lost = self._draws.hit(self.fail_per_mille)
        is_late = bool(self.fail_per_mille) and self._draws.hit(_LATE_PER_MILLE)
        delay = self._draws.between(MS, _LATE_NS if is_late else 40 * MS)
        if is_lost and self._draws.hit(500):
            # The call never arrives.
            self._loop.after(delay, self._unanswered, run)
            return
        call = self._calls[remote.slot]
        self._loop.after(delay, self._arrives, run, remote, (self._tasks.boot, call), is_lost)

    def _unanswered(self, run: TaskRun) -> None:
        if self._tasks.may_come_up(run, self._tasks.boot):
            failed = self._tasks.fail_start(run, "the runtime does not answer")
            self._tell(run, msgspec.structs.replace(failed, is_open=True))

    def _arrives(
        self,
        run: TaskRun,
        remote: RemoteRun,
        sent: tuple[int, int],
        is_lost: bool,  # noqa: FBT001
    ) -> None:
        """Let the call reach the runtime, whether its node lives or not. `sent`: boot, and number of the call."""
        boot, call = sent
        if call != self._calls[remote.slot]:
            return
        thing = self._runtime.start(remote)
        if thing is not None and self.fail_per_mille and self._draws.hit(100):
            # It ends by itself.
            ends_ns = self._draws.between(100 * MS, 3 * SECOND)
            self._loop.after(ends_ns, self._runtime.end, remote.token, 1)
        if not self._tasks.may_come_up(run, boot):
            return
        if thing is None:
            self._tell(run, self._tasks.fail_start(run, "another tracker has replaced this one"))
        elif is_lost:
            self._unanswered(run)
        else:
            self._come_up(run, remote, thing)

    def _come_up(self, run: TaskRun, remote: RemoteRun, thing: RemoteThing) -> None:
        self._tracked[run.name] = remote
        started = self._tasks.come_up(run)
        self.on_start(run.name)
        handle = msgspec.Raw(msgspec.json.encode({"at": remote.token[:8]}))
        self._tell(run, msgspec.structs.replace(started, handle=handle))
        if not thing.is_alive:
            self._ended(remote.token)

    def recover(self, effect: RecoverTask, life: int) -> None:
        """Find what an earlier life has started; a start that is still on its way arrives all the same."""
        remote = effect.remote
        assert remote is not None
        self._calls[remote.slot] += 1
        name = (effect.key, effect.task, effect.run)
        before = self._tasks.runs.get(name)
        run = self._tasks.start(name, life)
        if before is not None and not before.is_over:
            # Its answer does not count any more.
            before.is_alive, before.exit_code = False, -1
        thing = self._runtime.things.get(remote.token)
        if not self._runtime.enter(remote) or thing is None:
            key, task, number = name
            run.exit_code = -1
            was_there = remote.state == "running"
            self._tell(run, TaskGone(key=key, task=task, run=number, started=was_there))
            return
        self._tracked[name] = remote
        started = self._tasks.come_up(run)
        self._tell(run, msgspec.structs.replace(started, adopted=True))
        if not thing.is_alive:
            self._ended(remote.token)

    def tracks(self, name: TaskRunId) -> bool:
        """Say whether a run is elsewhere."""
        return name in self._tracked

    def kill(self, effect: KillTask) -> None:
        """End what runs elsewhere."""
        remote = self._tracked[effect.key, effect.task, effect.run]
        self._calls[remote.slot] += 1
        is_late = self._draws.hit(4 * self.fail_per_mille)
        delay = self._draws.between(MS, _LATE_NS if is_late else 300 * MS)
        self._loop.after(delay, self._runtime.kill, remote)

    def detach(self, effect: DetachTask) -> None:
        """Stop tracking a run."""
        name = (effect.key, effect.task, effect.run)
        run = self._tasks.runs.get(name)
        if run is not None and run.is_alive and self._tracked.pop(name, None) is not None:
            exited = self._tasks.end(run, self._tasks.boot, 0)
            assert exited is not None
            self._tell(run, msgspec.structs.replace(exited, exit_code=None, is_detached=True))

    def end(self, effect: EndRemote, answer: Callable[[object], None]) -> None:
        """End what no allocation tracks; the answer may be lost."""

        def arrives() -> None:
            if self._runtime.abandon(effect.remote) and not self._draws.hit(self.fail_per_mille):
                answer(RemoteEnded(remote=effect.remote, task=effect.task))

        self._loop.after(self._draws.between(MS, 300 * MS), arrives)

    def _ended(self, token: str) -> None:
        for name, remote in list(self._tracked.items()):
            if remote.token != token:
                continue
            del self._tracked[name]
            run = self._tasks.runs.get(name)
            thing = self._runtime.things[token]
            if run is not None and run.is_alive:
                exited = self._tasks.end(run, self._tasks.boot, thing.exit_code)
                if exited is not None:
                    self._tell(run, exited)

    def lose_power(self) -> None:
        """Forget all; what runs elsewhere runs on."""
        self._tracked.clear()
