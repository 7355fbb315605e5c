"""What an agent keeps of a job: one group's tasks, with every default resolved.

Decides which fields of Nomad's JSON matter on a node. Must not know how a driver uses them. The compiled form stands
in the agent's own journal (`AllocKept.plan`), so that tasks start again without the bus. Next: `environment.py`.
"""

import msgspec

from schemas.base import Wire
from shared.errors import CommandInvalid
from shared.jobspec import nomad_json
from shared.jobspec.defaults import restart_of
from shared.jobspec.nomad_json import meta_of

#: An agent waits at most this long between the kill signal and the kill (Nomad's max_kill_timeout).
KILL_TIMEOUT_MAX_NS = 30_000_000_000
MIB = 1024 * 1024
#: Types whose tasks are done when they exit with 0.
_FINITE = ("batch", "sysbatch")


class _Task(nomad_json.Task, frozen=True, kw_only=True):
    user: str = msgspec.field(name="User", default="")
    leader: bool = msgspec.field(name="Leader", default=False)


class _Group(nomad_json.TaskGroup, frozen=True, kw_only=True):
    tasks: tuple[_Task, ...] = msgspec.field(name="Tasks", default=())


class _Job(nomad_json.Job, frozen=True, kw_only=True):
    groups: tuple[_Group, ...] = msgspec.field(name="TaskGroups", default=())


_DECODER = msgspec.json.Decoder(_Job)


class RestartPlan(Wire, frozen=True, kw_only=True):
    """How often, and when, a task is started again in place."""

    attempts: int
    interval_ns: int
    delay_ns: int
    #: fail or delay: what happens when the attempts of an interval are used up.
    mode: str
    #: whether exit 0 is a reason to start again (service), or the end (batch).
    on_success: bool


class TaskPlan(Wire, frozen=True, kw_only=True):
    """One task. Units: MHz, MiB."""

    name: str
    driver: str
    config: msgspec.Raw = msgspec.Raw(b"{}")
    env: dict[str, str] = {}
    meta: dict[str, str] = {}
    user: str = ""
    leader: bool = False
    cpu_mhz: int = 0
    memory_mib: int = 0
    kill_timeout_ns: int = 5_000_000_000
    #: empty: the driver's own.
    kill_signal: str = ""
    #: of each output: files kept, size of one, or nothing at all.
    log_files: int = 10
    log_file_bytes: int = 10 * MIB
    log_disabled: bool = False
    restart: RestartPlan


class GroupPlan(Wire, frozen=True, kw_only=True):
    """One group of one job version."""

    job_name: str
    tasks: tuple[TaskPlan, ...]


PLAN_DECODER = msgspec.json.Decoder(GroupPlan)


def group_plan(spec: bytes, group: str) -> GroupPlan:
    """Compile a group of a job. Raises CommandInvalid when the text is no job or has no such group or task."""
    try:
        job = _DECODER.decode(spec)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise CommandInvalid("invalid", f"job cannot be read: {err}") from err
    found = next((one for one in job.groups if one.name == group), None)
    if found is None:
        raise CommandInvalid("invalid", f"job {job.id} has no group {group!r}")
    names = [task.name for task in found.tasks]
    if not names or "" in names or len(set(names)) != len(names):
        raise CommandInvalid(
            "invalid", f"group {group!r} needs tasks with different names, was {names}"
        )
    return GroupPlan(
        job_name=job.name or job.id,
        tasks=tuple(_task_plan(job, found, task) for task in found.tasks),
    )


def _task_plan(job: _Job, group: _Group, task: _Task) -> TaskPlan:
    restart = restart_of(job.type, group, task)
    return TaskPlan(
        name=task.name,
        driver=task.driver,
        config=msgspec.Raw(bytes(task.config)),
        env=task.env,
        meta=meta_of(job, group, task),
        user=task.user,
        leader=task.leader,
        cpu_mhz=task.resources.cpu_mhz,
        memory_mib=task.resources.memory_mib,
        kill_timeout_ns=min(max(task.kill_timeout_ns, 0), KILL_TIMEOUT_MAX_NS),
        kill_signal=task.kill_signal,
        log_files=max(task.logs.max_files, 1),
        log_file_bytes=max(task.logs.max_file_size_mb, 1) * MIB,
        log_disabled=task.logs.disabled or task.logs.enabled is False,
        restart=RestartPlan(
            attempts=restart.attempts,
            interval_ns=restart.interval_ns,
            delay_ns=restart.delay_ns,
            mode=restart.mode,
            on_success=job.type not in _FINITE,
        ),
    )
