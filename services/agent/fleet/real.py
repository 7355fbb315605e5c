"""A fleet of real agents: the agent's own role for every node, over tasks that live by a profile.

Decides how long a simulated task runs and how it ends, by the same draws as `lean.py`; everything else is the agent's.
Journals are not kept: a process that dies is a machine that lost its disk. Must not know the bus or a clock. For some
hundreds of nodes: each has every object that an agent has.
"""

import heapq
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from schemas.nodes import NodeSpec
from services.agent.desired import Settings
from services.agent.fleet.jobs import manner_of
from services.agent.fleet.outages import Outages
from services.agent.role import Agent
from services.agent.spec import GroupPlan
from shared.bus import subjects
from shared.core.role import (
    Ack,
    Answer,
    Ask,
    Effect,
    Input,
    Listen,
    Message,
    Reconnected,
    Send,
    SetTimer,
    Source,
    Stop,
    Timer,
)
from shared.core.tasks import (
    AgentEffect,
    AgentInput,
    KillTask,
    SignalTask,
    StartTask,
    TaskExited,
    TaskStarted,
    TaskStartFailed,
)
from shared.fleet import laws
from shared.fleet.profile import (
    RUN,
    RUN_FAILS,
    START,
    START_FAILS,
    STEADY,
    STOP,
    Habits,
    Manner,
)

_SIGTERM = 15
_JOB_VERSION = subjects.query("job_version")
#: A task's event, and the agent that it is for, by life.
Event = tuple[int, int, int, int, AgentInput]


class _Kind(msgspec.Struct):
    """What of a job's text is not in the plan of a group."""

    job_type: str = msgspec.field(name="Type", default="service")


class _Tasks:
    """Simulated drivers of all nodes: what happens to runs, and when."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._events: list[Event] = []
        self._count = 0
        #: how long the end of a run takes, by node and run.
        self._alive: dict[tuple[int, int, str, int], Manner] = {}

    def next_ns(self) -> int:
        """When something happens; 0: nothing will."""
        return self._events[0][0] if self._events else 0

    def take(self, now_ns: int) -> list[Event]:
        """Take what happens by now, in order."""
        out = []
        while self._events and self._events[0][0] <= now_ns:
            out.append(heapq.heappop(self._events))
        return out

    def _tell(self, at_ns: int, node: int, life: int, event: AgentInput) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_ns, self._count, node, life, event))

    def start(
        self, effect: StartTask, manner: Manner, *, node: int, life: int, now_ns: int
    ) -> None:
        """Begin a run: when it comes alive, and when it ends."""
        key, task, run = effect.key, effect.task, effect.run
        at_ns = now_ns + self._draw(START, manner.starts, effect.key)
        if self._happens(START_FAILS, manner.start_fails, effect.key):
            why = "the profile wants it so"
            failed = TaskStartFailed(key=key, task=task, run=run, reason=why, recoverable=False)
            self._tell(at_ns, node, life, failed)
            return
        self._alive[node, effect.key, effect.task, effect.run] = manner
        self._tell(at_ns, node, life, TaskStarted(key=key, task=task, run=run))
        if not manner.runs.is_never:
            fails = self._happens(RUN_FAILS, manner.run_fails, effect.key)
            code = manner.exit_code or int(fails)
            ended = TaskExited(key=key, task=task, run=run, exit_code=code)
            lasts = self._draw(RUN, manner.runs, effect.key)
            self._tell(at_ns + lasts, node, life, ended)

    def end(self, effect: SignalTask | KillTask, *, node: int, life: int, now_ns: int) -> None:
        """End a run, at once where it is killed."""
        manner = self._alive.get((node, effect.key, effect.task, effect.run))
        if manner is None:
            return
        wait = 0 if isinstance(effect, KillTask) else self._draw(STOP, manner.stops, effect.key)
        ended = TaskExited(
            key=effect.key, task=effect.task, run=effect.run, exit_code=143, signal=_SIGTERM
        )
        self._tell(now_ns + wait, node, life, ended)

    def is_news(self, node: int, event: AgentInput) -> bool:
        """Tell whether an end is the first of its run."""
        if not isinstance(event, TaskExited):
            return True
        return self._alive.pop((node, event.key, event.task, event.run), None) is not None

    def _draw(self, purpose: int, law: laws.Law, key: int) -> int:
        return int(law.draw(laws.hashes(self._seed, purpose, np.asarray([key])))[0])

    def _happens(self, purpose: int, share: int, key: int) -> bool:
        return bool(laws.happens(laws.hashes(self._seed, purpose, np.asarray([key])), share)[0])


class Flock:
    """The role. `boots(node, nth)` names the boot of a node: new with every process and outage."""

    name = "fleet"
    leader_key = ""
    next_seq = 0

    def __init__(
        self,
        specs: Sequence[NodeSpec],
        habits: Habits,
        *,
        instance: str,
        boots: Callable[[int, int], str],
        seed: int = 0,
    ) -> None:
        self.instance = instance
        self._specs = specs
        self._habits = habits
        self._boots = boots
        self._tasks = _Tasks(seed)
        self._outages = Outages(habits, seed, len(specs))
        self._lives = [0] * len(specs)
        self._agents = [self._agent(at, 0) for at in range(len(specs))]
        self._node_at = {subjects.node(spec.node_id): at for at, spec in enumerate(specs)}
        self._awake = False
        self._now_ns = 0
        #: answers about job versions, and who waits for one.
        self._texts: dict[str, bytes] = {}
        self._waiting: dict[str, list[int]] = {}
        self._manners: dict[tuple[str, int, str, str], Manner] = {}
        self._set: dict[str, int] = {}
        self.refused: dict[str, str] = {}

    def _agent(self, at: int, nth: int) -> Agent:
        spec = self._specs[at]
        return Agent(
            node_id=spec.node_id,
            instance=f"{self.instance}-{spec.node_id}",
            host_id=f"host-{spec.node_id}",
            boot_id=self._boots(at, nth),
            spec=spec,
            settings=Settings(kept_allocs_max=0, brief=True),
        )

    def sources(self) -> tuple[Source, ...]:
        """The projections of its nodes; of each the shell delivers the last value first."""
        return tuple(Listen("projection", subject) for subject in self._node_at)

    def metrics(self) -> dict[str, float]:
        """Sums over all agents."""
        sums: dict[str, float] = {}
        for agent in self._agents:
            for name, value in agent.metrics().items():
                sums[name] = sums.get(name, 0.0) + value
        return {
            **sums,
            "caravan_fleet_nodes": float(len(self._agents)),
            "caravan_fleet_registered": sums["caravan_agent_registered"],
            "caravan_fleet_refused": float(len(self.refused)),
            "caravan_fleet_away": float(len(self._outages)),
            "caravan_fleet_allocations": sums["caravan_agent_tasks_running_count"],
            "caravan_fleet_starts_total": sums["caravan_agent_starts_total"],
        }

    def step(self, inputs: Sequence[Input], now_ns: int) -> list[Effect]:
        """Hand each agent what is its, and perform what it wants of its node."""
        self._now_ns = now_ns
        out: list[Effect] = []
        given: dict[int, list[Input | AgentInput]] = {}
        if not self._awake:
            self._awake = True
            self._outages.begin(now_ns)
            given = {at: [] for at in range(len(self._agents))}
        for one in inputs:
            self._sort(one, given, out)
        self._fail(now_ns, given)
        self._run(given, now_ns, out)
        while events := self._tasks.take(now_ns):
            given = {}
            for _, _, node, life, event in events:
                if life == self._lives[node] and self._tasks.is_news(node, event):
                    given.setdefault(node, []).append(event)
            self._run(given, now_ns, out)
        self._alarm("tasks", self._tasks.next_ns(), out)
        self._alarm("outage", self._outages.next_ns(), out)
        return out

    def _alarm(self, name: str, at_ns: int, out: list[Effect]) -> None:
        if self._set.get(name, 0) != at_ns:
            self._set[name] = at_ns
            out.append(SetTimer(name, at_ns))

    def _sort(
        self, one: Input, given: dict[int, list[Input | AgentInput]], out: list[Effect]
    ) -> None:
        """Find whose an input is."""
        match one:
            case Message():
                at = self._node_at.get(one.subject)
                if at is None or self._outages.is_away(at):
                    out.append(Ack(one.token))
                else:
                    given.setdefault(at, []).append(one)
            case Timer():
                self._set.pop(one.name, None)
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
        for at in self._outages.fallen(now_ns):
            self._lives[at] += 1
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
            case StartTask():
                manner = self._manner(at, effect)
                life = self._lives[at]
                self._tasks.start(effect, manner, node=at, life=life, now_ns=self._now_ns)
            case SignalTask() | KillTask():
                self._tasks.end(effect, node=at, life=self._lives[at], now_ns=self._now_ns)
            case Ask() if effect.subject == _JOB_VERSION:
                if effect.name in self._texts:
                    known = Answer(name=effect.name, data=self._texts[effect.name])
                    again.setdefault(at, []).append(known)
                elif effect.name in self._waiting:
                    self._waiting[effect.name].append(at)
                else:
                    self._waiting[effect.name] = [at]
                    out.append(msgspec.structs.replace(effect, name=f"\t{effect.name}"))
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
                # Directories, journals and logs are not there.
                pass

    def _manner(self, at: int, effect: StartTask) -> Manner:
        """Say how a task lives: its allocation's way; one around it is done at once, a sidecar never."""
        alloc = self._agents[at].alloc(effect.key)
        if alloc is None or alloc.plan is None:
            return STEADY
        job = alloc.desired
        name = (job.job_id, job.version, job.group, effect.task)
        if name not in self._manners:
            plan = alloc.plan
            self._manners[name] = self._made(job.job_id, job.version, plan, effect.task)
        return self._manners[name]

    def _made(self, job_id: str, version: int, plan: GroupPlan, task: str) -> Manner:
        (found,) = (one for one in plan.tasks if one.name == task)
        if found.hook and found.sidecar:
            return STEADY
        if found.hook:
            return Manner(laws.fixed(0), 0, laws.fixed(0), 0, laws.fixed(0))
        answer = msgspec.json.decode(self._texts[f"{version} {job_id}"], type=_Answered)
        return manner_of(self._habits, job_id, answer.spec.job_type, plan)


class _Answered(msgspec.Struct):
    spec: _Kind
