"""A simulated node: tasks in virtual time, and the agent's journal, which survives the agent.

Draws decide how long a task runs and whether it fails. Tasks survive a crash of the agent; only the journal up to its
last synced entry survives a power loss.
"""

from collections.abc import Callable

import msgspec

from shared.core.runtime import agent_messages
from shared.core.runtime.network_messages import PrepareNetwork
from shared.core.runtime.remote_messages import DetachTask, EndRemote
from shared.core.runtime.volume_messages import CreateVolume, DeleteVolume
from shared.fleet.simulated_tasks import SimulatedTasks, TaskRun, TaskRunId
from shared.sim.environment.remote_runtime import RemoteRuntime, RemoteTracking
from shared.sim.environment.simulated_inputs import TOLD_WITHIN_NS, SimulatedInputs
from shared.sim.environment.simulated_networks import SimulatedNetworks
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.environment.simulated_volumes import SimulatedVolumes
from shared.sim.virtual_time import MS, SECOND, RandomDraws


class _Config(msgspec.Struct):
    """Config of a simulated task. The first argument is its run time in ms; 0: until it is stopped."""

    args: tuple[str, ...] = ("0",)


class SimulatedNode:
    """One machine. `runs` holds every run ever started, by name."""

    def __init__(self, context: SimulationContext, node_id: str, draws: RandomDraws) -> None:
        self.context = context
        self.node_id = node_id
        self.is_dead = False
        #: what it offers beside its driver.
        self.attributes: dict[str, str] = {}
        self._tasks = SimulatedTasks()
        self.runs = self._tasks.runs
        self.journal: list[agent_messages.JournalEntry] = []
        self.process: SimulatedProcess | None = None
        self.fail_per_mille = 0
        #: inputs that are there: key, task, input; and which of them are gone with the life of the agent.
        self.inputs: set[tuple[int, str, str]] = set()
        self._in_memory: set[tuple[int, str, str]] = set()
        #: called with every run that starts.
        self.on_start: Callable[[SimulatedNode, TaskRunId], None] | None = None
        self._synced = 0
        #: preparations under way, with the life that is answered.
        self._preparing: dict[TaskRunId, int] = {}
        self._draws = draws
        self.followed = SimulatedInputs(context.loop, draws, self._tell_agent)
        self.networks = SimulatedNetworks(
            context.loop, draws, self._tell_agent, lambda: draws.hit(self.fail_per_mille)
        )
        self.volumes = SimulatedVolumes(
            context.loop, draws, self._tell_agent, lambda: draws.hit(self.fail_per_mille)
        )
        #: what runs elsewhere; None: no task does.
        self.remotes: RemoteTracking | None = None
        self._performers: dict[type, Callable[..., None]] = {
            agent_messages.WriteJournal: self._write,
            agent_messages.PrepareTask: self._prepare,
            agent_messages.CancelPrepare: self._cancel,
            agent_messages.StartTask: self._start,
            agent_messages.RecoverTask: self._recover,
            agent_messages.SignalTask: self._signal,
            agent_messages.KillTask: self._kill,
            agent_messages.LimitLogs: self._remove,
            agent_messages.CloseAlloc: self.networks.close,
            agent_messages.RemoveAlloc: self._remove,
            agent_messages.SweepAllocs: self._remove,
            agent_messages.WatchChecks: self._check,
            agent_messages.WatchInputs: self.followed.watch,
            agent_messages.RunChangeScript: self._run_script,
            PrepareNetwork: self.networks.prepare,
            CreateVolume: self.volumes.create,
            DeleteVolume: self.volumes.delete,
            DetachTask: self._detach,
            EndRemote: self._end_remote,
        }

    def perform(self, effect: object) -> None:
        """Perform one effect of the agent."""
        self._performers[type(effect)](effect)

    def alive(self) -> list[TaskRunId]:
        """Names of the runs that are alive."""
        return self._tasks.alive()

    def crash_agent(self, *, power_lost: bool) -> None:
        """Kill the agent; with `power_lost` the whole node, which loses unsynced data."""
        assert self.process is not None
        self.process.crash()
        self.inputs -= self._in_memory
        self._in_memory.clear()
        self.followed.forget_agent()
        self.networks.forget_agent()
        self.volumes.forget_agent()
        for run in self.runs.values():
            run.life = 0
        if len(self.journal) > self._synced:
            kept = self._synced + self._draws.below(len(self.journal) - self._synced + 1)
            if kept < len(self.journal):
                self.context.message_faults.faults["journal_tail_lost"] += 1
            del self.journal[kept:]
        self._synced = len(self.journal)
        if power_lost:
            self.is_dead = True
            self._tasks.lose_power()
            if self.remotes is not None:
                self.remotes.lose_power()
            self.networks.lose_power()

    def start_agent(self) -> None:
        """Start the agent, and the node if it was off."""
        assert self.process is not None
        self.is_dead = False
        if self.process.role is None:
            self.process.start()

    # ---- effects ----

    def _write(self, effect: agent_messages.WriteJournal) -> None:
        self.journal += effect.entries
        if effect.sync:
            self._synced = len(self.journal)

    def kept_inputs(self, key: int, task: str) -> frozenset[str]:
        """Inputs that the journal says are prepared."""
        for entry in reversed(self.journal):
            if isinstance(entry, agent_messages.TaskKept) and (entry.key, entry.task) == (
                key,
                task,
            ):
                return frozenset(entry.prepared)
        return frozenset()

    def _prepare(self, effect: agent_messages.PrepareTask) -> None:
        """Prepare for a while; an agent that is killed meanwhile leaves any part of it."""
        assert self.process is not None
        name = (effect.key, effect.task, effect.run)
        self._preparing[name] = self.process.life
        delay = self._draws.between(MS, 1_500 * MS)
        self.context.loop.after(delay, self._prepared, effect, self.process.life)

    def _prepared(self, effect: agent_messages.PrepareTask, life: int) -> None:
        name = (effect.key, effect.task, effect.run)
        assert self.process is not None
        if self.process.role is None or self.process.life != life:
            self.context.message_faults.faults["preparation_lost"] += 1
            self._preparing.pop(name, None)
            return
        if self._preparing.pop(name, None) != life:
            return
        failed = ""
        digests = {}
        for one in effect.inputs:
            if self._draws.hit(self.fail_per_mille):
                failed = one.name
                continue
            digests[one.name] = "simulated"
            self.inputs.add((effect.key, effect.task, one.name))
            if one.in_memory:
                self._in_memory.add((effect.key, effect.task, one.name))
        key, task, run = name
        if not failed:
            done = agent_messages.TaskPrepared(key=key, task=task, run=run, digests=digests)
            self._answer(life, done)
            return
        self.context.message_faults.faults["input_failed"] += 1
        # A failed start, as one that the driver refused.
        self._tasks.fail_start(self._tasks.start(name, life), "unreachable")
        self._refuse(name, life, failed, digests)

    def _cancel(self, effect: agent_messages.CancelPrepare) -> None:
        name = (effect.key, effect.task, effect.run)
        life = self._preparing.pop(name, 0)
        if life:
            self._refuse(name, life, "", {})

    def _refuse(self, name: TaskRunId, life: int, input_: str, digests: dict[str, str]) -> None:
        key, task, run = name
        failed = agent_messages.TaskPrepareFailed(
            key=key, task=task, run=run, input=input_, reason="unreachable", digests=digests
        )
        self._answer(life, failed)

    def _answer(self, life: int, given: object) -> None:
        assert self.process is not None
        self.context.loop.after(MS, self.process.take, life, given)

    def _start(self, effect: agent_messages.StartTask) -> None:
        assert self.process is not None
        if effect.remote is not None and self.remotes is not None:
            self.remotes.fail_per_mille = self.fail_per_mille
            self.remotes.start(effect, self.process.life)
            return
        name = (effect.key, effect.task, effect.run)
        run = self._tasks.start(name, self.process.life)
        config = msgspec.json.decode(bytes(effect.launch.config), type=_Config)
        fails = self._draws.hit(self.fail_per_mille)
        delay = self._draws.between(MS, 40 * MS)
        self.context.loop.after(
            delay, self._came_up, run, self._tasks.boot, int(config.args[0]), fails
        )

    def _came_up(self, run: TaskRun, boot: int, run_ms: int, fails: bool) -> None:  # noqa: FBT001
        if not self._tasks.may_come_up(run, boot):
            return
        if fails and self._draws.hit(300):
            self.context.message_faults.faults["task_failed"] += 1
            self._tell(run, self._tasks.fail_start(run, "no such command"))
            return
        started = self._tasks.come_up(run, pid=1000 + len(self.runs))
        self.followed.started(run.name)
        if self.on_start is not None:
            self.on_start(self, run.name)
        self._tell(run, started)
        if fails:
            self.context.message_faults.faults["task_failed"] += 1
            # Never later than by itself: what ends after 50 ms would count as healthy otherwise.
            ends_ns = min(self._draws.below(3 * SECOND), run_ms * MS or 3 * SECOND)
            self.context.loop.after(ends_ns, self._end, run, boot, 1, 0)
        elif run_ms:
            self.context.loop.after(run_ms * MS, self._end, run, boot, 0, 0)

    def _end(self, run: TaskRun, boot: int, exit_code: int | None, signal: int) -> None:
        exited = self._tasks.end(run, boot, exit_code, signal)
        if exited is not None:
            self._tell(run, exited)

    def _recover(self, effect: agent_messages.RecoverTask) -> None:
        assert self.process is not None
        if effect.remote is not None and self.remotes is not None:
            self.remotes.recover(effect, self.process.life)
            return
        key, task, number = effect.key, effect.task, effect.run
        run = self.runs.get((key, task, number))
        if run is None:
            run = self._tasks.start((key, task, number))
            run.exit_code = -1
        run.life = self.process.life
        if run.is_alive:
            self._tell(
                run, agent_messages.TaskStarted(key=key, task=task, run=number, adopted=True)
            )
        elif run.is_started and run.is_over:
            self._tell(run, run.exited())
        else:
            # The run never started, or the node lost power; a pending start is cancelled.
            run.exit_code = -1
            self._tell(
                run, agent_messages.TaskGone(key=key, task=task, run=number, started=run.is_started)
            )

    def _signal(self, effect: agent_messages.SignalTask) -> None:
        run = self.runs.get((effect.key, effect.task, effect.run))
        if self.remotes is not None and self.remotes.tracks((effect.key, effect.task, effect.run)):
            self.remotes.kill(
                agent_messages.KillTask(key=effect.key, task=effect.task, run=effect.run)
            )
            return
        if self.followed.reloads((effect.key, effect.task, effect.run), effect.signal):
            return
        # One task in eight ignores signals and must be killed.
        if run is not None and run.is_alive and self._draws.below(8):
            delay = self._draws.between(MS, 300 * MS)
            self.context.loop.after(delay, self._end, run, self._tasks.boot, None, 15)

    def _kill(self, effect: agent_messages.KillTask) -> None:
        run = self.runs.get((effect.key, effect.task, effect.run))
        if self.remotes is not None and self.remotes.tracks((effect.key, effect.task, effect.run)):
            self.remotes.kill(effect)
        elif run is not None and run.is_alive:
            self.context.loop.after(
                self._draws.between(MS, 5 * MS), self._end, run, self._tasks.boot, None, 9
            )

    def track(self, runtime: RemoteRuntime) -> None:
        """Let tasks run elsewhere."""
        remotes = RemoteTracking(
            loop=self.context.loop,
            draws=self._draws,
            runtime=runtime,
            tasks=self._tasks,
            tell=self._tell,
        )
        remotes.on_start = self._tracked
        self.remotes = remotes

    def _tracked(self, name: TaskRunId) -> None:
        self.followed.started(name)
        if self.on_start is not None:
            self.on_start(self, name)

    def _detach(self, effect: DetachTask) -> None:
        assert self.remotes is not None
        self.remotes.detach(effect)

    def _end_remote(self, effect: EndRemote) -> None:
        assert self.remotes is not None
        self.remotes.end(effect, self._tell_agent)

    def _check(self, effect: agent_messages.WatchChecks) -> None:
        assert self.process is not None
        for one in agent_messages.simulated_answers(effect):
            self.context.loop.after(MS, self.process.take, self.process.life, one)

    def _run_script(self, effect: agent_messages.RunChangeScript) -> None:
        self.followed.run_script(effect)
        for one in agent_messages.simulated_answers(effect):
            self._tell_agent(one)

    def _remove(self, effect: object) -> None:
        """Do nothing: directories and logs are not simulated, and the oracle checks that nothing runs."""

    def _tell_agent(self, given: object) -> None:
        assert self.process is not None
        delay = self._draws.between(MS, TOLD_WITHIN_NS)
        self.context.loop.after(delay, self.process.take, self.process.life, given)

    def _tell(self, run: TaskRun, given: object) -> None:
        assert self.process is not None
        if run.life:
            delay = self._draws.between(50_000, MS)
            self.context.loop.after(delay, self.process.take, run.life, given)
