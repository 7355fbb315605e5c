"""A fleet of real agents: the agent's own role for every node, over simulated tasks.

Tasks follow the profile with the same draws as the columnar fleet. Journals are not kept: a restarted fleet is a set of
machines that lost their disks. For some hundreds of nodes: each has every object of an agent.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np

from services.agent.fleet.simulated_fleet import SimulatedFleet
from services.agent.fleet.task_profiles import JOB_VERSION_DECODER, task_profile_of
from services.agent.node_reconciler import AgentLimits
from services.agent.role import Agent
from services.agent.tasks.resolved_group import ResolvedGroup
from shared.core.runtime.agent_messages import (
    AgentEffect,
    AgentInput,
    KillTask,
    PrepareTask,
    RunChangeScript,
    SignalTask,
    StartTask,
    WatchChecks,
    prepared_inputs,
    simulated_answers,
)
from shared.core.runtime.messages import (
    Ack,
    Answer,
    Ask,
    Effect,
    Message,
    Reconnected,
    Send,
    SetTimer,
    Stop,
    Timer,
)
from shared.core.runtime.network_messages import PrepareNetwork
from shared.core.runtime.role import Input
from shared.fleet import distributions
from shared.fleet.profile import RUN_FOREVER, TaskProfile
from shared.fleet.simulated_tasks import SimulatedTasks, TaskRun, TaskRunId
from shared.protocol import subjects

_SIGTERM = 15
_JOB_VERSION = subjects.query("job_version")
#: When, order, node, its boot, what happens then: None where it is void by that time.
ScheduledTaskEvent = tuple[int, int, int, int, Callable[[], AgentInput | None]]


class _TaskSchedule:
    """The tasks of all nodes, and what happens to them, in order of time."""

    def __init__(self, seed: int, nodes: int) -> None:
        self._seed = seed
        self._nodes = [SimulatedTasks() for _ in range(nodes)]
        self._events: list[ScheduledTaskEvent] = []
        self._count = 0
        #: profile of each run that has not ended.
        self._profiles: dict[tuple[int, TaskRunId], TaskProfile] = {}

    def next_ns(self) -> int:
        """When the next event is due; 0: never."""
        return self._events[0][0] if self._events else 0

    def take(self, now_ns: int) -> list[tuple[int, AgentInput]]:
        """Let happen what is due by now: the events of tasks in order, with their nodes."""
        out = []
        while self._events and self._events[0][0] <= now_ns:
            _, _, node, boot, happen = heapq.heappop(self._events)
            event = happen() if boot == self._nodes[node].boot else None
            if event is not None:
                out.append((node, event))
        return out

    def _at(self, at_ns: int, node: int, happen: Callable[[], AgentInput | None]) -> None:
        self._count += 1
        event = (at_ns, self._count, node, self._nodes[node].boot, happen)
        heapq.heappush(self._events, event)

    def start(self, effect: StartTask, task_profile: TaskProfile, node: int, now_ns: int) -> None:
        """Start a run: schedule its start and its end."""
        tasks, name = self._nodes[node], (effect.key, effect.task, effect.run)
        keys = np.asarray([effect.key])
        after, fails = task_profile.draw_starts(self._seed, keys)
        at_ns = now_ns + int(after[0])
        if fails[0]:
            why = "start failure set by the fleet profile"
            # Of a run that is not kept: nothing can end it.
            self._at(at_ns, node, partial(tasks.fail_start, TaskRun(name), why, recoverable=False))
            return
        run = tasks.start(name)
        self._profiles[node, name] = task_profile
        self._at(at_ns, node, partial(self._come_up, node, run))
        if not task_profile.runs.is_never:
            lasts, fails = task_profile.draw_runs(self._seed, keys)
            code = (task_profile.exit_code or 1) if fails[0] else 0
            self._at(at_ns + int(lasts[0]), node, partial(self._end, node, run, code))

    def end(self, effect: SignalTask | KillTask, node: int, now_ns: int) -> None:
        """Stop a run; a kill takes effect at once."""
        name = (effect.key, effect.task, effect.run)
        run = self._nodes[node].runs.get(name)
        if run is None:
            return
        wait = 0
        if isinstance(effect, SignalTask):
            stops = self._profiles[node, name].draw_stops(self._seed, np.asarray([effect.key]))
            wait = int(stops[0])
        self._at(now_ns + wait, node, partial(self._end, node, run, 128 + _SIGTERM, _SIGTERM))

    def _come_up(self, node: int, run: TaskRun) -> AgentInput | None:
        tasks = self._nodes[node]
        return tasks.come_up(run) if tasks.may_come_up(run, tasks.boot) else None

    def _end(self, node: int, run: TaskRun, code: int, signal: int = 0) -> AgentInput | None:
        tasks = self._nodes[node]
        exited = tasks.end(run, tasks.boot, code, signal)
        if exited is not None:
            del tasks.runs[run.name], self._profiles[node, run.name]
        return exited

    def lose_power(self, node: int) -> None:
        """Lose all tasks of a node."""
        tasks = self._nodes[node]
        tasks.lose_power()
        for name in tasks.runs:
            del self._profiles[node, name]
        tasks.runs.clear()


class AgentFleet(SimulatedFleet):
    """A fleet of agents."""

    def _set_up(self, seed: int) -> None:
        self._tasks = _TaskSchedule(seed, len(self._specs))
        self._agents = [self._agent(at, 0) for at in range(len(self._specs))]
        self._now_ns = 0
        #: answers about job versions, and the nodes waiting for one.
        self._texts: dict[str, bytes] = {}
        self._waiting: dict[str, list[int]] = {}
        self._task_profiles: dict[tuple[str, int, str, str], TaskProfile] = {}

    def _agent(self, at: int, nth: int) -> Agent:
        spec = self._specs[at]
        return Agent(
            node_id=spec.node_id,
            instance=f"{self.instance}-{spec.node_id}",
            host_id=f"host-{spec.node_id}",
            boot_id=self._boots(at, nth),
            spec=spec,
            settings=AgentLimits(kept_allocs_max=0, brief=True),
        )

    def metrics(self) -> dict[str, float]:
        """Sums of the metrics of all agents."""
        sums: dict[str, float] = {}
        for agent in self._agents:
            for name, value in agent.metrics().items():
                sums[name] = sums.get(name, 0.0) + value
        return {
            **sums,
            **super().metrics(),
            "caravan_fleet_registered": sums["caravan_agent_registered"],
            "caravan_fleet_allocations": sums["caravan_agent_tasks_running"],
            "caravan_fleet_starts_total": sums["caravan_agent_starts_total"],
        }

    def step(self, inputs: Sequence[Input], now_ns: int) -> list[Effect]:
        """Route inputs to agents, and perform their effects."""
        self._now_ns = now_ns
        out: list[Effect] = []
        given: dict[int, list[Input | AgentInput]] = {}
        if not self._is_begun:
            self._is_begun = True
            self._outages.begin(now_ns)
            given = {at: [] for at in range(len(self._agents))}
        for one in inputs:
            self._sort(one, given, out)
        self._fail(now_ns, given)
        self._run(given, now_ns, out)
        while events := self._tasks.take(now_ns):
            given = {}
            for node, event in events:
                given.setdefault(node, []).append(event)
            self._run(given, now_ns, out)
        self._set("tasks", self._tasks.next_ns(), out)
        self._set("outage", self._outages.next_ns(), out)
        return out

    def _sort(
        self, one: Input, given: dict[int, list[Input | AgentInput]], out: list[Effect]
    ) -> None:
        """Route one input to its agents."""
        match one:
            case Message():
                at = self._number_of.get(one.subject)
                if at is None or self._outages.is_away(at):
                    out.append(Ack(one.token))
                else:
                    given.setdefault(at, []).append(one)
            case Timer():
                self._timers.pop(one.name, None)
                at_text, tab, name = one.name.partition("\t")
                if tab and not self._outages.is_away(int(at_text)):
                    timer = msgspec.structs.replace(one, name=name)
                    given.setdefault(int(at_text), []).append(timer)
            case Answer():
                at_text, tab, name = one.name.partition("\t")
                answer = Answer(name=name, data=one.data)
                if tab and at_text:
                    given.setdefault(int(at_text), []).append(answer)
                    return
                if one.data is not None:
                    self._texts[name] = one.data
                for at in self._waiting.pop(name, []):
                    given.setdefault(at, []).append(answer)
            case Reconnected():
                for at in range(len(self._agents)):
                    given.setdefault(at, []).append(one)
            case _:
                pass

    def _fail(self, now_ns: int, given: dict[int, list[Input | AgentInput]]) -> None:
        for at in self._outages.take_failed(now_ns):
            self._tasks.lose_power(at)
            given.pop(at, None)
        for at, nth in self._outages.returned(now_ns):
            self._agents[at] = self._agent(at, nth)
            given.setdefault(at, [])

    def _run(
        self, given: dict[int, list[Input | AgentInput]], now_ns: int, out: list[Effect]
    ) -> None:
        while given:
            again: dict[int, list[Input | AgentInput]] = {}
            for at, inputs in given.items():
                if self._specs[at].node_id in self.refused:
                    continue
                for effect in self._agents[at].step(inputs, now_ns):
                    self._perform(at, effect, again, out)
            given = again

    def _perform(
        self,
        at: int,
        effect: Effect | AgentEffect,
        again: dict[int, list[Input | AgentInput]],
        out: list[Effect],
    ) -> None:
        match effect:
            case PrepareTask():
                again.setdefault(at, []).append(prepared_inputs(effect))
            case StartTask():
                task_profile = self._task_profile(at, effect)
                self._tasks.start(effect, task_profile, at, self._now_ns)
            case SignalTask() | KillTask():
                self._tasks.end(effect, at, self._now_ns)
            case WatchChecks() | RunChangeScript() | PrepareNetwork():
                again.setdefault(at, []).extend(simulated_answers(effect))
            case Ask() if effect.subject == subjects.node_query(self._specs[at].node_id):
                if effect.name in self._texts:
                    known = Answer(name=effect.name, data=self._texts[effect.name])
                    again.setdefault(at, []).append(known)
                elif effect.name in self._waiting:
                    self._waiting[effect.name].append(at)
                else:
                    self._waiting[effect.name] = [at]
                    # One question for all nodes, under the fleet's own name.
                    shared = f"\t{effect.name}"
                    out.append(msgspec.structs.replace(effect, name=shared, subject=_JOB_VERSION))
            case Ask():
                out.append(msgspec.structs.replace(effect, name=f"{at}\t{effect.name}"))
            case SetTimer():
                out.append(msgspec.structs.replace(effect, name=f"{at}\t{effect.name}"))
            case Stop():
                self.refused[self._specs[at].node_id] = effect.reason
                if len(self.refused) == len(self._specs):
                    out.append(effect)
            case Send() | Ack():
                out.append(effect)
            case _:
                # Directories, journals and logs are not simulated.
                pass

    def _task_profile(self, at: int, effect: StartTask) -> TaskProfile:
        """Return the profile of a task: that of its allocation; hook tasks end at once, sidecars never."""
        alloc = self._agents[at].alloc(effect.key)
        if alloc is None or alloc.plan is None:
            return RUN_FOREVER
        job = alloc.desired
        name = (job.job_id, job.version, job.group, effect.task)
        if name not in self._task_profiles:
            plan = alloc.plan
            self._task_profiles[name] = self._made(job.job_id, job.version, plan, effect.task)
        return self._task_profiles[name]

    def _made(self, job_id: str, version: int, plan: ResolvedGroup, task: str) -> TaskProfile:
        (found,) = (one for one in plan.tasks if one.name == task)
        if found.hook and found.sidecar:
            return RUN_FOREVER
        if found.hook:
            return TaskProfile(
                distributions.fixed(0), 0, distributions.fixed(0), 0, distributions.fixed(0)
            )
        answer = JOB_VERSION_DECODER.decode(self._texts[f"{version} {job_id}"])
        return task_profile_of(self._node_profile, job_id, answer.spec, plan)
