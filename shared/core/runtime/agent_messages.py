"""What the agent's role asks of its node and what the node answers: the effects and inputs that no other role has.

services/agent/executor/executor.py performs these on a real node, shared/sim performs the same in virtual time. Read
`role.py` first; services/agent/role.py is the one user. Networks of groups: `network_messages.py`; tasks
that run elsewhere: `remote_messages.py`; volumes: `volume_messages.py`.

What a performer promises:
- Effects are performed in order, and `WriteJournal` is durable (or has failed) before a later effect begins. After a
  failed write the starts of the same batch are answered `TaskStartFailed(recoverable=True)`, nothing is started.
- Every `PrepareTask` is answered once by TaskPrepared or TaskPrepareFailed, also after `CancelPrepare`; inputs that are
  not in the answer left nothing behind that counts. After a failed write it is answered like a start.
- A run is named by (key, task, run). Every `StartTask` is answered once by TaskStarted or TaskStartFailed, and every
  TaskStarted in the end by TaskExited; every `RecoverTask` by TaskStarted(adopted), TaskExited or TaskGone.
- After TaskStartFailed, TaskExited or TaskGone nothing of that run is alive, and nothing of it will come alive.
- Signals and kills of a run that has ended, or never began, do nothing and are not answered.
- An input that WatchInputs follows is made anew when what it was made of changes; InputChanged is given when the new
  content is in place, and at once where it differs from the digest that the effect names. Several changes may be one.
- Every RunChangeScript is answered once by ChangeScriptEnded.
- A crash of the agent loses answers and effects not yet performed; running tasks continue, and what was
  written to the journal is what the next `Agent(journal=…)` is given, in order, with nothing after a torn end.
"""

import msgspec

from schemas.base import Wire
from schemas.nodes import NodeSpec, TaskEvent
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.core.runtime.messages import (
    Answer as Answer,  # noqa: PLC0414 - agents import it from here.
)
from shared.core.runtime.messages import (
    Ask as Ask,  # noqa: PLC0414
)
from shared.core.runtime.network_messages import (
    NetworkFailed,
    NetworkLost,
    NetworkReady,
    PrepareNetwork,
)
from shared.core.runtime.remote_messages import (
    DetachTask,
    EndRemote,
    RemoteEnded,
    RemoteKept,
    RemoteRun,
)
from shared.core.runtime.task_launch import (
    LogLimits as LogLimits,  # noqa: PLC0414
)
from shared.core.runtime.task_launch import (
    TaskLaunch as TaskLaunch,  # noqa: PLC0414
)
from shared.core.runtime.task_launch import (
    TaskNames as TaskNames,  # noqa: PLC0414
)
from shared.core.runtime.task_launch import (
    TaskNetwork as TaskNetwork,  # noqa: PLC0414
)
from shared.core.runtime.task_launch import (
    VolumeBind as VolumeBind,  # noqa: PLC0414
)
from shared.core.runtime.volume_messages import VolumeAnswer, VolumeEffect, VolumeEntry

# ---- the journal: what an agent knows after it was killed ----


class ClusterKept(Wire, frozen=True, kw_only=True, tag_field="kind", tag="cluster"):
    """The newest projection taken as an order; older ones and those of another cluster are not orders."""

    cluster_id: str
    seq: int
    #: incarnation of the log that the seq is of.
    incarnation: int = 0
    #: when the cluster was last heard of, where an allocation asks to be stopped after a silence; else 0.
    heard_ns: int = 0


class EndKept(Wire, frozen=True, kw_only=True):
    """Why an allocation ends, and since when."""

    #: order, failed, leader, done, expired, silence, disk, network; or agent, which ends with this life of the agent.
    cause: str
    reason: str
    at_ns: int


class AllocKept(Wire, frozen=True, kw_only=True, tag_field="kind", tag="alloc"):
    """An allocation that this node has, with what it takes to start its tasks again without the bus."""

    alloc: DesiredAlloc
    #: the agent's own compiled form of the job (services/agent/tasks/resolved_group.py); no one else reads it.
    plan: msgspec.Raw = msgspec.Raw(b"{}")
    #: when this node first heard of it; 0: not known.
    first_ns: int = 0
    end: EndKept | None = None
    #: of the group in mode bridge, with the length of its prefix; empty: it has none (yet).
    address: str = ""
    #: tasks may still run in a namespace that is lost.
    network_lost: bool = False


class TaskKept(Wire, frozen=True, kw_only=True, tag_field="kind", tag="task"):
    """Where a task stands; the last one of (key, task) counts. On disk before a start; else written when it changes."""

    key: int
    task: str
    #: the run that is about to start, or that ended; runs count from 1.
    run: int = 0
    #: pending, running or dead; "running" also covers a run about to start.
    state: str = "pending"
    failed: bool = False
    #: order of this node to end: a restart of the agent does not start it again.
    stopping: bool = False
    restarts: int = 0
    #: restarts within the policy's present interval, and when that began.
    interval_restarts: int = 0
    interval_start_ns: int = 0
    exit_code: int | None = None
    signal: int = 0
    #: its life so far, for people.
    events: tuple[TaskEvent, ...] = ()
    #: input -> digest of what was prepared for it, which no later life prepares again.
    prepared: dict[str, str] = {}
    #: inputs that changed under the run, of which its change_mode is still due.
    changed: tuple[str, ...] = ()
    #: of what runs elsewhere; null: it is not of a remote driver, or never started.
    remote: RemoteKept | None = None


class HealthKept(Wire, frozen=True, kw_only=True, tag_field="kind", tag="health"):
    """Where the health of an allocation stands; the last one of a key counts. Instants are of the agent's clock."""

    key: int
    #: of its job: another version is another deployment, and its health begins anew.
    version: int = 0
    #: from when its healthy_deadline counts.
    began_ns: int = 0
    #: since when all its tasks have run, and the sum of their runs then; 0: they do not all run.
    ready_ns: int = 0
    runs: int = 0
    #: since when all its checks have passed; 0: they do not all pass.
    passing_ns: int = 0
    #: 0 unknown, 1 healthy, 2 unhealthy; for good once it is known.
    health: int = 0
    reason: str = ""
    #: boot of the machine's kernel in which the clocks ran.
    boot: str = ""
    #: by name, the last statuses of its checks.
    checks: dict[str, str] = {}


class AllocForgotten(Wire, frozen=True, kw_only=True, tag_field="kind", tag="forgotten"):
    """Nothing of this allocation is kept any more."""

    key: int


JournalEntry = ClusterKept | AllocKept | TaskKept | HealthKept | AllocForgotten | VolumeEntry


# ---- effects ----


class TaskInput(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a task is given before it starts. The role sees its digest, never its content."""

    #: unique in its task, for the journal and for people: `artifact[0]`.
    name: str
    #: which handler prepares it (services/agent/inputs/).
    kind: str
    #: JSON of its kind, interpolated but for directories.
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    #: prepared before every start, not once in the life of the allocation.
    each_start: bool = False
    #: lies in `secrets/`, which may be memory: prepared again in another life of the agent.
    in_memory: bool = False


class WriteJournal(msgspec.Struct, frozen=True):
    """Append entries; with `sync` they are on disk before the next effect is performed."""

    entries: tuple[JournalEntry, ...]
    sync: bool = True


class PrepareTask(msgspec.Struct, frozen=True, kw_only=True):
    """Make the directories of a task, and in them the inputs that it does not have yet."""

    key: int
    alloc_id: str
    task: str
    run: int
    launch: TaskLaunch
    inputs: tuple[TaskInput, ...]
    #: as in StartTask.
    inherit: str = ""


class CancelPrepare(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a run are not needed any more; TaskPrepareFailed follows, unless they are there already."""

    key: int
    task: str
    run: int


class StartTask(msgspec.Struct, frozen=True, kw_only=True):
    """Start a run of a task."""

    key: int
    #: shown id, names the allocation's directory.
    alloc_id: str
    task: str
    run: int
    driver: str
    launch: TaskLaunch
    #: shown id of an allocation of this node that is over: its data moves here, if it is still there.
    inherit: str = ""
    #: all of them are prepared.
    inputs: tuple[TaskInput, ...] = ()
    #: of a task that runs elsewhere.
    remote: RemoteRun | None = None


class RecoverTask(msgspec.Struct, frozen=True, kw_only=True):
    """Find a run that an earlier life of this agent started, or may have started."""

    key: int
    alloc_id: str
    task: str
    run: int
    driver: str
    logs: LogLimits = LogLimits()
    remote: RemoteRun | None = None


class SignalTask(msgspec.Struct, frozen=True, kw_only=True):
    """Send a signal, by name (SIGTERM), to a run."""

    key: int
    task: str
    run: int
    signal: str


class KillTask(msgspec.Struct, frozen=True, kw_only=True):
    """End a run and everything that it started, now; TaskExited follows."""

    key: int
    task: str
    run: int


class CloseAlloc(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks of an allocation are dead for good: its secrets go now, the rest stays to be read."""

    key: int
    alloc_id: str


class LimitLogs(msgspec.Struct, frozen=True, kw_only=True):
    """From now on keep so much of the output of a run that is alive."""

    key: int
    task: str
    run: int
    logs: LogLimits


class CheckSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a service, with all references resolved."""

    #: unique in its allocation.
    name: str
    #: what runs: results name it, and those of another run count for nothing.
    run: int
    #: tcp, http, grpc or script.
    kind: str
    #: the task in which a script runs.
    task: str = ""
    address: str = ""
    port: int = 0
    #: http or https.
    protocol: str = "http"
    method: str = "GET"
    path: str = ""
    header: dict[str, tuple[str, ...]] = {}
    body: str = ""
    tls_skip_verify: bool = False
    #: empty: the server as a whole.
    grpc_service: str = ""
    grpc_use_tls: bool = False
    command: tuple[str, ...] = ()
    interval_ns: int = 10_000_000_000
    timeout_ns: int = 1_000_000_000


class WatchChecks(msgspec.Struct, frozen=True, kw_only=True):
    """From now on make these checks of an allocation, and no others; those already being made continue."""

    key: int
    alloc_id: str
    checks: tuple[CheckSpec, ...]


class WatchInputs(msgspec.Struct, frozen=True, kw_only=True):
    """From now on follow these inputs of a task, and no others of it; those already followed continue."""

    key: int
    alloc_id: str
    task: str
    run: int
    launch: TaskLaunch
    inputs: tuple[TaskInput, ...] = ()
    #: input -> digest of what the role knows to be in place.
    digests: dict[str, str] = {}


class RunChangeScript(msgspec.Struct, frozen=True, kw_only=True):
    """Run a command in a task, because one of its inputs changed."""

    key: int
    alloc_id: str
    task: str
    run: int
    input: str
    command: tuple[str, ...]
    timeout_ns: int


class SweepAllocs(msgspec.Struct, frozen=True):
    """Delete what allocations left that are not among these: their removal was cut short by a crash."""

    kept: tuple[str, ...]


class RemoveAlloc(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the directories of an allocation; none of its tasks runs."""

    key: int
    alloc_id: str


class TasksEnded(msgspec.Struct, frozen=True):
    """After EndTasks: no task runs any more, and nothing will be started in this life of the agent."""


AgentEffect = (
    WriteJournal
    | PrepareTask
    | CancelPrepare
    | StartTask
    | RecoverTask
    | SignalTask
    | KillTask
    | LimitLogs
    | CloseAlloc
    | RemoveAlloc
    | SweepAllocs
    | WatchChecks
    | WatchInputs
    | RunChangeScript
    | TasksEnded
    | PrepareNetwork
    | DetachTask
    | EndRemote
    | VolumeEffect
    | Ask
)


# ---- inputs ----


class TaskPrepared(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a PrepareTask are there: input -> keyed digest."""

    key: int
    task: str
    run: int
    digests: dict[str, str]


class TaskPrepareFailed(msgspec.Struct, frozen=True, kw_only=True):
    """An input cannot be prepared. Not `recoverable`: another try would fail the same way."""

    key: int
    task: str
    run: int
    input: str
    reason: str
    recoverable: bool = True
    #: of the task event.
    kind: str = "Setup Failure"
    #: inputs that are there all the same.
    digests: dict[str, str] = {}


class InputChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A followed input was made anew; its content is in place."""

    key: int
    task: str
    run: int
    input: str
    digest: str


class ChangeScriptEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A RunChangeScript is over. `reason`: why it failed; empty: it did not."""

    key: int
    task: str
    run: int
    input: str
    reason: str = ""


class TaskStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The run is alive. `adopted`: it was found alive after a restart of the agent."""

    key: int
    task: str
    run: int
    pid: int = 0
    adopted: bool = False
    #: of what runs elsewhere.
    handle: msgspec.Raw = msgspec.Raw(b"null")


class TaskStartFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The run did not come alive. Not `recoverable`: another try would fail the same way (command not found)."""

    key: int
    task: str
    run: int
    reason: str
    recoverable: bool = True
    #: whether it came alive elsewhere is not known.
    is_open: bool = False


class TaskExited(msgspec.Struct, frozen=True, kw_only=True):
    """The run ended. `exit_code` None: unknown; `signal` 0: not by a signal."""

    key: int
    task: str
    run: int
    exit_code: int | None = None
    signal: int = 0
    reason: str = ""
    #: how many of its processes could not be ended.
    left: int = 0
    #: no signal of the agent reached it.
    by_itself: bool = False
    #: it runs on elsewhere, and is not tracked here any more.
    is_detached: bool = False


class TaskGone(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to RecoverTask: nothing is there. `started` False: it never came alive, and never will."""

    key: int
    task: str
    run: int
    started: bool
    reason: str = ""
    #: counts against its restart policy.
    charged: bool = True
    #: whether it runs elsewhere is not known.
    is_open: bool = False


class DiskUsed(msgspec.Struct, frozen=True, kw_only=True):
    """What the directories of an allocation take. `is_partial`: too many files to count them all; at least this."""

    key: int
    used_mib: int
    is_partial: bool = False


class TaskNoted(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a run that people want to know: an image is fetched, a health check fails."""

    key: int
    task: str
    run: int
    kind: str
    message: str


class CheckChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A check has another status, or its first. `status`: passing, warning or critical; `output` is cut."""

    key: int
    check: str
    run: int
    status: str
    output: str = ""


def prepared_inputs(effect: PrepareTask) -> TaskPrepared:
    """Return what a simulated node answers: each input is there at once."""
    digests = {one.name: "simulated" for one in effect.inputs}
    return TaskPrepared(key=effect.key, task=effect.task, run=effect.run, digests=digests)


def simulated_answers(
    effect: WatchChecks | RunChangeScript | PrepareNetwork,
) -> list[CheckChanged | ChangeScriptEnded | NetworkReady]:
    """Return what a simulated task answers: each check passes, so does a script, and a network is there."""
    if isinstance(effect, PrepareNetwork):
        return [NetworkReady(key=effect.key)]
    if isinstance(effect, RunChangeScript):
        key, task, run = effect.key, effect.task, effect.run
        return [ChangeScriptEnded(key=key, task=task, run=run, input=effect.input)]
    return [
        CheckChanged(key=effect.key, check=one.name, run=one.run, status="passing")
        for one in effect.checks
    ]


class NodeFound(msgspec.Struct, frozen=True, kw_only=True):
    """The node was looked at again, and is not what it was: a driver came or went, there is more or less disk."""

    spec: NodeSpec


class EndTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The agent ends, and its tasks with it, each as its job says; the next life starts them again.

    `at_once`: kill what runs. TasksEnded follows.
    """

    at_once: bool = False


AgentInput = (
    TaskPrepared
    | TaskPrepareFailed
    | InputChanged
    | ChangeScriptEnded
    | TaskStarted
    | TaskStartFailed
    | TaskExited
    | TaskGone
    | TaskNoted
    | DiskUsed
    | CheckChanged
    | NetworkReady
    | NetworkFailed
    | RemoteEnded
    | NetworkLost
    | VolumeAnswer
    | Answer
    | NodeFound
    | EndTasks
)
