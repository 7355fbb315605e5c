"""Given, when, then for the agent's role: builders of what it hears, and a tiny node that answers its effects."""

from collections.abc import Iterable
from typing import Any, Self

import msgspec

from schemas.envelope import COMMANDS_DECODER, ENCODER
from schemas.job_answers import JobVersionAnswer
from schemas.nodes import AllocReport, NodeSpec, ReportNode
from services.agent.role import Agent
from shared.core.runtime import agent_messages
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.core.runtime.messages import Message, Send, SetTimer, Stop, Timer
from shared.core.state.ids import alloc_id
from tests.projected import projected

SECOND = 1_000_000_000
START_NS = 1_000 * SECOND
CLUSTER = "c1"


def task_json(name: str = "main", driver: str = "raw_exec", **more: Any) -> dict[str, Any]:
    """One task in Nomad's JSON."""
    return {"Name": name, "Driver": driver, "Config": {"command": "sleep"}, **more}


def job_json(
    *tasks_json: dict[str, Any],
    kind: str = "service",
    restart: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A job `j` with one group `g`."""
    group: dict[str, Any] = {"Name": "g", "Tasks": list(tasks_json or [task_json()])}
    if restart is not None:
        group["RestartPolicy"] = restart
    return {"ID": "j", "Name": "j", "Type": kind, "TaskGroups": [group], **more}


def alloc(
    key: int = 7, *, version: int = 0, desired: str = "run", index: int = 0, **more: Any
) -> DesiredAlloc:
    """An allocation that the node should have."""
    return DesiredAlloc(
        key=key,
        row=key % 100,
        alloc_id=alloc_id(key),
        job_id="j",
        version=version,
        group="g",
        index=index,
        desired=desired,
        **more,
    )


class Story:
    """An agent under test. Everything that it did since the last `did()` is kept, journal and timers forever."""

    def __init__(
        self,
        *,
        job: dict[str, Any] | None = None,
        journal: Iterable[agent_messages.JournalEntry] = (),
        boot: str = "b1",
        node: str = "n1",
        heard: bool = True,
        now_ns: int = START_NS,
        spec: NodeSpec | None = None,
        **settings: Any,
    ) -> None:
        self.job: dict[str, Any] | None = job or job_json()
        #: what the job was dispatched with.
        self.payload = b""
        self.parent = ""
        self.value: bytes | None = None
        self.journal = list(journal)
        self.boot = boot
        self.now_ns = now_ns
        self.timers: dict[str, int] = {}
        self.done: list[Any] = []
        self.agent = Agent(
            node_id=node,
            instance="i1",
            host_id="h1",
            boot_id=boot,
            spec=spec or NodeSpec(node_id=node, cpu_mhz=1000, memory_mib=1000),
            journal=tuple(self.journal),
            **settings,
        )
        self.step()
        if heard:
            self.hear(1)

    def restarted(self, boot: str = "b2", **more: Any) -> "Story":
        """Another life of the same agent, from the journal alone."""
        return Story(job=self.job, journal=self.journal, boot=boot, heard=False, **more)

    def step(self, *inputs: Any) -> Self:
        """Feed inputs; answer questions about the job at once."""
        todo = list(inputs)
        first = True
        while first or todo:
            first = False
            effects = self.agent.step(todo, self.now_ns)
            todo = []
            for effect in effects:
                self.done.append(effect)
                if isinstance(effect, agent_messages.WriteJournal):
                    self.journal += effect.entries
                elif isinstance(effect, SetTimer):
                    self.timers[effect.name] = effect.at_ns
                elif isinstance(effect, agent_messages.Ask) and self.job is not None:
                    todo.append(self.answer(effect))
        return self

    def answer(self, ask: agent_messages.Ask) -> agent_messages.Answer:
        """What view says about a job version; the projection itself comes by `hear`, or by `value`."""
        if ask.name == "projection":
            return agent_messages.Answer(name=ask.name, data=self.value)
        version, _, job_id = ask.name.partition(" ")
        spec = msgspec.Raw(ENCODER.encode(self.job))
        found = JobVersionAnswer(
            seq=1,
            job_id=job_id,
            version=int(version),
            spec=spec,
            payload=self.payload,
            parent=self.parent,
        )
        return agent_messages.Answer(name=ask.name, data=ENCODER.encode(found))

    def hear(self, seq: int, *allocs: DesiredAlloc, **more: Any) -> Self:
        """A projection arrives."""
        fields: dict[str, Any] = {
            "cluster_id": CLUSTER,
            "node_id": "n1",
            "boot_id": self.boot,
            "host_id": "h1",
        }
        said = projected(allocs, seq=seq, **{**fields, **more})
        return self.hear_bytes(ENCODER.encode(said))

    def hear_bytes(self, data: bytes) -> Self:
        """Whatever arrives where projections do."""
        return self.step(Message("projection", "node.n1", data, token=1))

    def wait(self, seconds: float) -> Self:
        """Let time pass, timers fire in order."""
        until = self.now_ns + int(seconds * SECOND)
        while True:
            due = [(at, name) for name, at in self.timers.items() if 0 < at <= until]
            if not due:
                break
            at, name = min(due)
            self.now_ns = max(self.now_ns, at)
            del self.timers[name]
            self.step(Timer(name, at))
        self.now_ns = until
        return self

    def started(self, task: str = "main", run: int = 1, key: int = 7, **more: Any) -> Self:
        """A run came alive."""
        return self.step(
            agent_messages.TaskStarted(key=key, task=task, run=run, pid=100 + run, **more)
        )

    def exited(
        self, code: int | None, task: str = "main", run: int = 1, key: int = 7, *, signal: int = 0
    ) -> Self:
        """A run ended."""
        return self.step(
            agent_messages.TaskExited(key=key, task=task, run=run, exit_code=code, signal=signal)
        )

    def did(self, *kinds: type) -> list[Any]:
        """Effects of these kinds since the last call."""
        found = [one for one in self.done if isinstance(one, kinds)]
        self.done = [one for one in self.done if not isinstance(one, kinds)]
        return found

    def starts(self) -> list[tuple[str, int]]:
        """(task, run) of every start since the last call."""
        return [(one.task, one.run) for one in self.did(agent_messages.StartTask)]

    def reports(self) -> list[ReportNode]:
        """Reports since the last call."""
        sends = [one for one in self.done if isinstance(one, Send) and "report" in one.subject]
        self.done = [one for one in self.done if one not in sends]
        return [c for one in sends for c in COMMANDS_DECODER.decode(one.data).commands]

    def state(self, key: int = 7) -> AllocReport:
        """What the agent would say of an allocation now."""
        return self.agent._desired.report_of(key)

    def stopped(self) -> list[str]:
        """Reasons for which the agent stopped itself since the last call."""
        return [one.reason for one in self.did(Stop)]
