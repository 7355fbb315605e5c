"""Nomad's JSON job, typed: the fields we act on, under Nomad's names, with Nomad's defaults.

Decides names, types, units and defaults. What stands in a job beside these fields is kept in the spec as it is and
named in a warning (`unbuilt.py`). Durations are whole nanoseconds, as in Nomad's JSON; defaults that depend on the
job's type are None here and resolved in `defaults.py`. Roles and agents read stored specs with `JOB_DECODER`.
Next: `validate.py`.
"""

from typing import Any

import msgspec
from msgspec import field

SECOND_NS = 1_000_000_000

_EMPTY = msgspec.Raw(b"{}")


class Json(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A block of a job. Fields without a place here are ignored in decoding.

    Out of the garbage collector's sight (gc=False): decoded values are trees, and thousands are decoded a second.
    """


class Constraint(Json, frozen=True, kw_only=True):
    """`left operator right`; both sides may hold `${…}` references."""

    left: str = field(name="LTarget", default="")
    operator: str = field(name="Operand", default="=")
    right: str = field(name="RTarget", default="")


class Resources(Json, frozen=True, kw_only=True):
    """What one task asks for."""

    cpu_mhz: int = field(name="CPU", default=100)
    memory_mib: int = field(name="MemoryMB", default=300)
    #: 0: no limit above `memory_mib`; -1: unlimited.
    memory_max_mib: int = field(name="MemoryMaxMB", default=0)


class EphemeralDisk(Json, frozen=True, kw_only=True):
    """Disk of one allocation: scheduled, not enforced."""

    size_mib: int = field(name="SizeMB", default=300)


class RestartPolicy(Json, frozen=True, kw_only=True):
    """How an agent restarts a task in place. None: the default of the job's type, see `restart_of`."""

    attempts: int | None = field(name="Attempts", default=None)
    interval_ns: int | None = field(name="Interval", default=None)
    delay_ns: int | None = field(name="Delay", default=None)
    #: fail or delay.
    mode: str | None = field(name="Mode", default=None)


class ReschedulePolicy(Json, frozen=True, kw_only=True):
    """When a failed allocation is replaced elsewhere. None: the default of the type, see `reschedule_of`."""

    attempts: int | None = field(name="Attempts", default=None)
    interval_ns: int | None = field(name="Interval", default=None)
    delay_ns: int | None = field(name="Delay", default=None)
    #: constant, exponential or fibonacci.
    delay_function: str | None = field(name="DelayFunction", default=None)
    max_delay_ns: int | None = field(name="MaxDelay", default=None)
    unlimited: bool | None = field(name="Unlimited", default=None)


class Task(Json, frozen=True, kw_only=True):
    """One process or container."""

    name: str = field(name="Name", default="")
    driver: str = field(name="Driver", default="")
    #: the driver's own matter, as JSON.
    config: msgspec.Raw = field(name="Config", default=_EMPTY)
    env: dict[str, str] = field(name="Env", default_factory=dict)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)
    resources: Resources = field(name="Resources", default=Resources())
    constraints: tuple[Constraint, ...] = field(name="Constraints", default=())
    restart: RestartPolicy | None = field(name="RestartPolicy", default=None)
    kill_timeout_ns: int = field(name="KillTimeout", default=5 * SECOND_NS)
    #: empty: the agent's own user.
    user: str = field(name="User", default="")
    #: its end ends the others of the group.
    leader: bool = field(name="Leader", default=False)
    #: empty: the driver's default (SIGINT; SIGTERM in containers).
    kill_signal: str = field(name="KillSignal", default="")


class TaskGroup(Json, frozen=True, kw_only=True):
    """Tasks that share one node; `count` of them are wanted."""

    name: str = field(name="Name", default="")
    count: int = field(name="Count", default=1)
    tasks: tuple[Task, ...] = field(name="Tasks", default=())
    constraints: tuple[Constraint, ...] = field(name="Constraints", default=())
    ephemeral_disk: EphemeralDisk = field(name="EphemeralDisk", default=EphemeralDisk())
    restart: RestartPolicy | None = field(name="RestartPolicy", default=None)
    reschedule: ReschedulePolicy | None = field(name="ReschedulePolicy", default=None)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)


class Job(Json, frozen=True, kw_only=True):
    """What a submitter wants to run."""

    id: str = field(name="ID", default="")
    #: for people; empty: the id.
    name: str = field(name="Name", default="")
    type: str = field(name="Type", default="service")
    #: 0: the default, 50.
    priority: int = field(name="Priority", default=50)
    #: globs allowed.
    datacenters: tuple[str, ...] = field(name="Datacenters", default=("*",))
    node_pool: str = field(name="NodePool", default="default")
    all_at_once: bool = field(name="AllAtOnce", default=False)
    constraints: tuple[Constraint, ...] = field(name="Constraints", default=())
    groups: tuple[TaskGroup, ...] = field(name="TaskGroups", default=())
    reschedule: ReschedulePolicy | None = field(name="Reschedule", default=None)
    meta: dict[str, str] = field(name="Meta", default_factory=dict)


JOB_DECODER: msgspec.json.Decoder[Job] = msgspec.json.Decoder(Job)


def meta_of(job: Job, group: TaskGroup, task: Task) -> dict[str, str]:
    """Merge meta from job to group to task: the inner one wins."""
    return {**job.meta, **group.meta, **task.meta}


def config_of(task: Task) -> dict[str, Any]:
    """Decode the driver's config. Raises msgspec.DecodeError when it is no object."""
    return msgspec.json.decode(task.config, type=dict[str, Any])
