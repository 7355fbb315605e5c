"""The agent: keeps a node's tasks equal to its projection and says what became of them.

Decides what is an order. Silence, absence, an older seq and another cluster's projection are none; only a newer
projection that omits or stops an allocation ends it. Must not know the bus, a process or a clock: tasks are effects
(shared/core/tasks.py), performed by `edge.py` or by the simulated world. Beside it: `desired.py` (the projection and
job versions), `supervise.py` (the life of a task), `reports.py` (what the log has not seen), `workload.py`.
"""

from collections.abc import Sequence

from schemas.base import NodeId
from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import Heartbeat, NodeSpec
from services.agent import hands
from services.agent.desired import Desired, Settings
from services.agent.reports import Reports
from services.agent.supervise import Supervisor, Turn, noted
from services.agent.workload import Alloc, Phase
from shared.bus import subjects
from shared.core.role import (
    Effect,
    Input,
    Listen,
    Message,
    Reconnected,
    Send,
    SetTimer,
    Source,
    Timer,
)
from shared.core.tasks import (
    AgentEffect,
    AgentInput,
    Answer,
    DiskUsed,
    JournalEntry,
    KillTask,
    NodeFound,
    TaskExited,
    TaskGone,
    TaskNoted,
    TaskStarted,
    TaskStartFailed,
)

HEARTBEAT_NS = 1_000_000_000


class Agent:
    """The role. `journal` is what earlier lives wrote, in order; `boot_id` is new with every process."""

    name = "agent"
    #: an agent has no twin: its data directory is its own.
    leader_key = ""
    #: it does not follow the log.
    next_seq = 0

    def __init__(
        self,
        *,
        node_id: str,
        instance: str,
        host_id: str,
        boot_id: str,
        spec: NodeSpec,
        journal: Sequence[JournalEntry] = (),
        settings: Settings | None = None,
    ) -> None:
        self.instance = instance
        self.node_id = NodeId(node_id)
        self.boot_id = boot_id
        settings = settings or Settings()
        self._reports = Reports(
            node_id=self.node_id,
            host_id=host_id,
            boot_id=boot_id,
            spec=spec,
            brief=settings.brief,
        )
        self._supervisor = Supervisor(
            node=spec, reports=self._reports, disk_over_is_fatal=settings.disk_kill
        )
        self._desired = Desired(
            node_id=node_id,
            host_id=host_id,
            boot_id=boot_id,
            reports=self._reports,
            supervisor=self._supervisor,
            settings=settings,
        )
        self._desired.restore(journal)
        self._awake = False
        self._report_timer_ns = 0
        self._look_ns = 0

    def sources(self) -> tuple[Source, ...]:
        """Its own projection, of which the shell delivers the last value first; and operators' orders to tasks."""
        return (
            Listen("projection", subjects.node(self.node_id)),
            Listen(hands.SOURCE, subjects.hands(self.node_id, "*")),
        )

    def step(self, inputs: Sequence[Input | AgentInput], now_ns: int) -> list[Effect | AgentEffect]:
        """Take what happened. The first step, even an empty one, adopts what earlier lives started."""
        turn = Turn(now_ns)
        if not self._awake:
            self._awake = True
            self._desired.wake(turn)
            self._beat(turn)
        for one in inputs:
            self._take(one, turn)
        self._desired.silence.mind(self._supervisor, turn)
        self._plan_look(turn)
        self._desired.make_room(turn)
        self._desired.tidy(turn)
        self._report(turn)
        return turn.effects()

    def metrics(self) -> dict[str, float]:
        """Gauges and counters."""
        allocs = self._desired.allocs.values()
        phases = [task.phase for alloc in allocs for task in alloc.tasks.values()]
        return {
            "caravan_agent_allocations_count": len(self._desired.allocs),
            "caravan_agent_tasks_running_count": phases.count(Phase.RUNNING),
            "caravan_agent_tasks_waiting_count": phases.count(Phase.WAITING),
            "caravan_agent_tasks_dead_count": phases.count(Phase.DEAD),
            "caravan_agent_starts_total": self._supervisor.starts,
            "caravan_agent_start_failures_total": self._supervisor.failures,
            "caravan_agent_reports_unseen_count": self._reports.unseen,
            "caravan_agent_report_number": self._reports.number,
            "caravan_agent_registered": float(self._reports.is_registered),
            "caravan_agent_projection_seq": self._desired.seq,
            **self._desired.counters(),
        }

    def alloc(self, key: int) -> Alloc | None:
        """Find an allocation of this node. Who simulates its tasks asks."""
        return self._desired.allocs.get(key)

    # ---- inputs ----

    def _take(self, one: Input | AgentInput, turn: Turn) -> None:
        match one:
            case Message(source="projection"):
                self._desired.take_projection(one, turn)
            case Message(source=hands.SOURCE):
                allocs = self._desired.allocs.values()
                hands.take_order(
                    one, allocs, self._supervisor, touch=self._reports.touch, turn=turn
                )
            case Answer():
                self._desired.take_answer(one, turn)
            case Timer():
                self._take_timer(one, turn)
            case TaskStarted() | TaskStartFailed() | TaskExited() | TaskGone():
                self._take_event(one, turn)
            case TaskNoted():
                owner = self._desired.allocs.get(one.key)
                if owner is not None:
                    noted(owner, one, self._reports, turn.now_ns)
            case DiskUsed():
                measured = self._desired.allocs.get(one.key)
                if measured is not None:
                    self._supervisor.disk_used(measured, one, turn)
            case NodeFound():
                self._desired.node_found(one.spec)
            case Reconnected():
                self._reports.hurry()
                self._desired.fetch_again(turn)
            case _:
                pass

    def _take_timer(self, timer: Timer, turn: Turn) -> None:
        kind, _, rest = timer.name.partition(" ")
        if kind == "heartbeat":
            self._beat(turn)
        elif kind == "look":
            self._desired.look(turn)
            self._look_ns = 0
        elif kind == "fetch":
            self._desired.fetch_again(turn)
        elif kind == "report":
            self._report_timer_ns = 0
        elif kind == "task":
            key, _, name = rest.partition(" ")
            alloc = self._desired.allocs.get(int(key))
            if alloc is not None and name in alloc.tasks:
                self._supervisor.timer(alloc, alloc.tasks[name], timer.deadline_ns, turn)
        elif kind == "alloc":
            alloc = self._desired.allocs.get(int(rest))
            if alloc is not None and timer.deadline_ns == alloc.due_ns:
                self._supervisor.alloc_timer(alloc, turn)

    def _take_event(
        self, event: TaskStarted | TaskStartFailed | TaskExited | TaskGone, turn: Turn
    ) -> None:
        alloc = self._desired.allocs.get(event.key)
        task = alloc.tasks.get(event.task) if alloc else None
        if alloc is None or task is None or task.run != event.run:
            # A driver speaks of a run that is not the task's present one: it must not live beside it.
            if isinstance(event, TaskStarted):
                turn.act(KillTask(key=event.key, task=event.task, run=event.run))
            return
        if task.phase not in (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING):
            return
        match event:
            case TaskStarted():
                self._supervisor.started(alloc, task, event, turn)
            case TaskStartFailed():
                self._supervisor.start_failed(alloc, task, event, turn)
            case TaskExited():
                self._supervisor.exited(alloc, task, event, turn)
            case TaskGone():
                self._supervisor.gone(alloc, task, event, turn)

    # ---- what goes up ----

    def _beat(self, turn: Turn) -> None:
        beat = Heartbeat(node_id=self.node_id, boot_id=self.boot_id, seq=self._desired.seq)
        turn.act(
            Send(subjects.heartbeat(self.node_id), ENCODER.encode(beat)),
            SetTimer("heartbeat", turn.now_ns + HEARTBEAT_NS),
        )

    def _plan_look(self, turn: Turn) -> None:
        due_ns = turn.now_ns + self._desired.silence.look_pause_ns()
        if not self._look_ns or due_ns < self._look_ns:
            self._look_ns = due_ns
            turn.act(SetTimer("look", due_ns))

    def _report(self, turn: Turn) -> None:
        due_ns = self._reports.due_ns()
        if due_ns and due_ns <= turn.now_ns:
            report = self._reports.compose(self._desired.report_of, turn.now_ns)
            batch = CommandBatch(sender=self.instance, commands=(report,))
            turn.act(Send(subjects.report(self.node_id), ENCODER.encode(batch)))
            due_ns = self._reports.due_ns()
            if self._reports.is_unheard:
                self._desired.look(turn)
        if due_ns != self._report_timer_ns:
            self._report_timer_ns = due_ns
            turn.act(SetTimer("report", due_ns))
