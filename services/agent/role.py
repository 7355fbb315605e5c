"""The agent: reconciles the tasks of a node with its projection, and reports their states.

Only a newer projection of its own cluster that omits or stops an allocation ends it; silence, absence, an older seq
and another cluster's projection are not orders. Must not know the bus, a process or a clock: tasks are effects
(shared/core/runtime/agent_messages.py), performed by `executor/executor.py` or by the simulation. Beside it:
`node_reconciler.py` (projection and job versions), `tasks/supervisor.py` (start and stop of tasks), `reports.py`
(states that the log has not seen), `tasks/runtime_state.py`.
"""

from collections.abc import Sequence

from schemas.base import NodeId
from schemas.envelope import ENCODER, CommandBatch
from schemas.node_rpc import ActionAsk
from schemas.nodes import HEARTBEAT_NS, Heartbeat, NodeSpec
from services.agent.node_reconciler import AgentLimits, NodeReconciler
from services.agent.reports import Reports
from services.agent.tasks import operator_orders
from services.agent.tasks.actions import ActionCommand, find_action
from services.agent.tasks.agent_end import AgentEnd
from services.agent.tasks.remote_ends import TIMER as REMOTE_TIMER
from services.agent.tasks.remote_ends import start_announced
from services.agent.tasks.runtime_state import AllocRuntime, TaskPhase
from services.agent.tasks.supervisor import AgentStep, Supervisor, record_driver_event
from services.agent.tasks.task_resources import task_cores
from services.agent.tasks.volume_monitor import TIMER as VOLUME_TIMER
from shared.core.runtime.agent_messages import (
    AgentEffect,
    AgentInput,
    Answer,
    ChangeScriptEnded,
    CheckChanged,
    DiskUsed,
    EndTasks,
    InputChanged,
    JournalEntry,
    KillTask,
    NodeFound,
    TaskExited,
    TaskGone,
    TaskNoted,
    TaskPrepared,
    TaskPrepareFailed,
    TaskStarted,
    TaskStartFailed,
)
from shared.core.runtime.failures import describe_failure
from shared.core.runtime.messages import (
    Effect,
    Listen,
    Message,
    Reconnected,
    Send,
    SetTimer,
    Source,
    Timer,
)
from shared.core.runtime.network_messages import NetworkFailed, NetworkLost, NetworkReady
from shared.core.runtime.remote_messages import RemoteEnded
from shared.core.runtime.role import Input
from shared.core.runtime.volume_messages import (
    VolumeCreated,
    VolumeNotMade,
    VolumeNotRemoved,
    VolumeRemoved,
)
from shared.protocol import subjects

#: Name of the source of other nodes' requests for data: the edge answers them (`node_rpc/disk_server.py`).
DISK_SOURCE = "disk"


class Agent:
    """The role. `journal` is what earlier lives wrote, in order; `boot_id` is new with every process.

    `kernel_boot` is new with every boot of the machine; empty: not known.
    """

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
        settings: AgentLimits | None = None,
        kernel_boot: str = "",
    ) -> None:
        self.instance = instance
        self.node_id = NodeId(node_id)
        self.boot_id = boot_id
        settings = settings or AgentLimits()
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
        self._desired = NodeReconciler(
            node_id=node_id,
            host_id=host_id,
            boot_id=boot_id,
            reports=self._reports,
            supervisor=self._supervisor,
            settings=settings,
            kernel_boot=kernel_boot,
        )
        self._desired.remote_ends.instance = instance
        self._desired.restore(journal)
        self._end = AgentEnd(self._supervisor, self._desired.allocs)
        #: messages that could not be read, or during which something was raised.
        self.failed_messages = 0
        self._awake = False
        self._report_timer_ns = 0
        self._look_ns = 0

    @property
    def cluster_id(self) -> str:
        """Which cluster it belongs to; empty: none was heard of yet."""
        return self._desired.cluster_id

    def sources(self) -> tuple[Source, ...]:
        """Its own projection, of which the shell delivers the last value first; and operators' orders to tasks."""
        return (
            Listen("projection", subjects.node(self.node_id)),
            Listen(operator_orders.SOURCE, subjects.node_rpc(self.node_id, "*")),
            Listen(DISK_SOURCE, subjects.node_disk(self.node_id, "*", "*")),
        )

    def step(self, inputs: Sequence[Input | AgentInput], now_ns: int) -> list[Effect | AgentEffect]:
        """Take what happened. The first step, even an empty one, adopts what earlier lives started."""
        turn = AgentStep(now_ns)
        if not self._awake:
            self._awake = True
            self._desired.wake(turn)
            self._beat(turn)
        for one in inputs:
            self._take(one, turn)
        self._desired.silence.stop_overdue(self._supervisor, turn)
        start_announced(self._supervisor, self._reports, self._desired.allocs, turn)
        self._desired.update_health(turn)
        self._plan_look(turn)
        self._desired.make_room(turn)
        self._desired.forget_ended(turn)
        self._desired.networks.sync(self._supervisor.changed, turn)
        self._end.update(turn)
        self._report(turn)
        return turn.effects()

    def metrics(self) -> dict[str, float]:
        """Gauges and counters."""
        allocs = self._desired.allocs.values()
        phases = [task.phase for alloc in allocs for task in alloc.tasks.values()]
        return {
            "caravan_agent_allocations": len(self._desired.allocs),
            "caravan_agent_tasks_running": phases.count(TaskPhase.RUNNING),
            "caravan_agent_tasks_waiting": phases.count(TaskPhase.WAITING),
            "caravan_agent_tasks_dead": phases.count(TaskPhase.DEAD),
            "caravan_agent_starts_total": self._supervisor.starts,
            "caravan_agent_start_failures_total": self._supervisor.failures,
            "caravan_agent_reports_unseen": self._reports.unseen,
            "caravan_agent_report_number": self._reports.number,
            "caravan_agent_registered": float(self._reports.is_registered),
            "caravan_agent_projection_seq": self._desired.seq,
            **self._desired.counters(),
        }

    def alloc(self, key: int) -> AllocRuntime | None:
        """Find an allocation of this node; for simulations of its tasks."""
        return self._desired.allocs.get(key)

    def action(self, ask: ActionAsk) -> ActionCommand:
        """Find the command of an action of a task that runs. Raises CommandInvalid."""
        return find_action(ask, self._desired.allocs.values(), self._supervisor.node)

    def asked(self, alloc_id: str, task: str) -> tuple[int, int]:
        """Return what the job asks for a task: MHz and MiB; zeros for a task that is not here."""
        allocs = self._desired.allocs.values()
        alloc = next((one for one in allocs if one.desired.alloc_id == alloc_id), None)
        if alloc is None or task not in alloc.tasks:
            return 0, 0
        plan = alloc.tasks[task].plan
        cores = len(task_cores(alloc.desired, plan))
        return cores * self.core_mhz() or plan.cpu_mhz, plan.memory_mib

    def core_mhz(self) -> int:
        """Return the clock of a core of this node; 0: not known."""
        text = self._supervisor.node.attributes.get("cpu.frequency", "")
        return int(text) if text.isdigit() else 0

    def awaited(self) -> dict[str, str]:
        """Say what the end of the agent waits for, for each group, `job.group`."""
        return self._end.awaited()

    # ---- inputs ----

    def _take(self, one: Input | AgentInput, turn: AgentStep) -> None:
        match one:
            case Message():
                self._take_message(one, turn)
            case Answer():
                self._desired.take_answer(one, turn)
            case Timer():
                self._take_timer(one, turn)
            case TaskPrepared() | TaskPrepareFailed() | InputChanged() | ChangeScriptEnded():
                self._take_inputs(one, turn)
            case TaskStarted() | TaskStartFailed() | TaskExited() | TaskGone():
                self._take_event(one, turn)
            case TaskNoted():
                owner = self._desired.allocs.get(one.key)
                if owner is not None:
                    record_driver_event(owner, one, self._reports, turn.now_ns)
            case DiskUsed():
                measured = self._desired.allocs.get(one.key)
                if measured is not None:
                    self._supervisor.disk_used(measured, one, turn)
            case NodeFound():
                self._desired.node_found(one.spec, turn)
            case EndTasks():
                self._end.begin(one, turn)
            case Reconnected():
                self._reports.hurry()
                self._desired.fetch_again(turn)
            case _:
                self._take_change(one, turn)

    def _take_message(self, message: Message, turn: AgentStep) -> None:
        """Take an order of the cluster or of an operator; neither can end the agent, even if it raises."""
        reason = message.fault
        if not reason:
            try:
                self._obey(message, turn)
            except Exception as err:  # noqa: BLE001 - one bad message must not stop the tasks.
                reason = describe_failure(err)
        if reason:
            self.failed_messages += 1
            turn.act(operator_orders.refuse_order(message, reason))

    def _obey(self, message: Message, turn: AgentStep) -> None:
        if message.source == "projection":
            self._desired.take_projection(message, turn)
        elif message.source == operator_orders.SOURCE:
            allocs = self._desired.allocs.values()
            operator_orders.handle_order(
                message, allocs, self._supervisor, touch=self._reports.touch, turn=turn
            )

    def _take_timer(self, timer: Timer, turn: AgentStep) -> None:
        kind, _, rest = timer.name.partition(" ")
        if kind == "heartbeat":
            self._beat(turn)
        elif kind == "look":
            self._desired.look(turn)
            self._look_ns = 0
        elif kind == "fetch":
            self._desired.fetch_again(turn)
        elif kind == VOLUME_TIMER:
            self._desired.volumes.retry()
        elif kind == REMOTE_TIMER:
            self._desired.remote_ends.again(self._desired.cluster_id, turn)
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

    def _take_change(self, event: Input | AgentInput, turn: AgentStep) -> None:
        """Take what the node says of checks, networks and volumes, and of what runs elsewhere."""
        match event:
            case CheckChanged():
                self._desired.checks.changed(event, turn)
            case RemoteEnded():
                self._desired.remote_ends.ended(self._desired.cluster_id, event, turn)
            case NetworkReady() | NetworkFailed() | NetworkLost():
                self._desired.networks.take(event, turn)
            case VolumeCreated() | VolumeNotMade() | VolumeRemoved() | VolumeNotRemoved():
                if self._desired.volumes.take(event, turn):
                    self._desired.node_found(None, turn)
            case _:
                pass

    def _take_inputs(
        self,
        event: TaskPrepared | TaskPrepareFailed | InputChanged | ChangeScriptEnded,
        turn: AgentStep,
    ) -> None:
        if isinstance(event, InputChanged):
            self._desired.inputs.changed(event, turn)
            return
        if isinstance(event, ChangeScriptEnded):
            self._desired.inputs.script_ended(event, turn)
            return
        alloc = self._desired.allocs.get(event.key)
        task = alloc.tasks.get(event.task) if alloc else None
        if alloc is None or task is None or task.run != event.run:
            return
        if task.phase is not TaskPhase.PREPARING:
            return
        if isinstance(event, TaskPrepared):
            self._supervisor.prepared(alloc, task, event, turn)
        else:
            self._supervisor.start_failed(alloc, task, event, turn)

    def _take_event(
        self, event: TaskStarted | TaskStartFailed | TaskExited | TaskGone, turn: AgentStep
    ) -> None:
        alloc = self._desired.allocs.get(event.key)
        task = alloc.tasks.get(event.task) if alloc else None
        if alloc is None or task is None or task.run != event.run:
            # A driver speaks of a run that is not the task's present one: it must not live beside it.
            if isinstance(event, TaskStarted):
                turn.act(KillTask(key=event.key, task=event.task, run=event.run))
            return
        if task.phase not in (TaskPhase.STARTING, TaskPhase.RECOVERING, TaskPhase.RUNNING):
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

    def _beat(self, turn: AgentStep) -> None:
        beat = Heartbeat(
            node_id=self.node_id,
            boot_id=self.boot_id,
            seq=self._desired.seq,
            incarnation=self._desired.incarnation,
        )
        turn.act(
            Send(subjects.heartbeat(self.node_id), ENCODER.encode(beat)),
            SetTimer("heartbeat", turn.now_ns + HEARTBEAT_NS),
        )

    def _plan_look(self, turn: AgentStep) -> None:
        due_ns = turn.now_ns + self._desired.silence.poll_interval_ns()
        if not self._look_ns or due_ns < self._look_ns:
            self._look_ns = due_ns
            turn.act(SetTimer("look", due_ns))

    def _report(self, turn: AgentStep) -> None:
        due_ns = self._reports.due_ns()
        if due_ns and due_ns <= turn.now_ns:
            report = self._reports.compose(self._desired.report_of, turn.now_ns)
            batch = CommandBatch(sender=self.instance, commands=(report,))
            turn.act(Send(subjects.report(self.node_id), ENCODER.encode(batch)))
            due_ns = self._reports.due_ns()
            if self._reports.is_unacknowledged:
                self._desired.look(turn)
        if due_ns != self._report_timer_ns:
            self._report_timer_ns = due_ns
            turn.act(SetTimer("report", due_ns))
