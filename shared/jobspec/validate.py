"""Validation: every fault of a typed job at once, each with its path.

Decides what is a possible job. Must not know the cluster: a driver or a datacenter that nobody has is no fault, the job
waits and says why. Limits are constants here. Next: `unbuilt.py`, `compiling.py`.
"""

from schemas.jobs import JOB_TYPES, ErrorDetail
from shared.jobspec.check_lifecycle import check_lifecycle
from shared.jobspec.check_placement import check_placement
from shared.jobspec.check_resources import (
    RESOURCE_MAX,
    check_asks_together,
    check_group_asks,
    check_resources,
)
from shared.jobspec.defaults import reschedule_of, restart_of
from shared.jobspec.drivers.checks import option_faults
from shared.jobspec.faults import Faults
from shared.jobspec.identifiers import id_fault, name_fault
from shared.jobspec.nomad_json import (
    SECOND_NS,
    Job,
    ReschedulePolicy,
    RestartPolicy,
    Task,
    TaskGroup,
)

#: Allocations one job may want; a count of a billion is a slip, not a wish.
JOB_COUNT_MAX = 1_000_000
GROUPS_MAX = 100
TASKS_MAX = 100
PRIORITY_MAX = 100
DISK_MIB_MIN = 10
#: Ten years: sums of log times and durations stay below int64.
DURATION_NS_MAX = 10 * 366 * 86_400 * SECOND_NS
DELAY_NS_MIN = 5 * SECOND_NS

RECONCILES = ("best_score", "keep_original", "keep_replacement", "longest_running")
RESTART_MODES = ("fail", "delay")
DELAY_FUNCTIONS = ("constant", "exponential", "fibonacci")
_BRACE = ord("{")


def faults_of(job: Job) -> tuple[ErrorDetail, ...]:
    """Find everything wrong with a job."""
    faults = Faults()
    if text := id_fault(job.id):
        faults.add("Job.ID", text)
    if job.type not in JOB_TYPES:
        faults.add("Job.Type", f"must be one of {', '.join(JOB_TYPES)}, was {job.type!r}")
    # Nomad writes 0 for the default.
    faults.within("Job", ".Priority", job.priority, (0, PRIORITY_MAX))
    if text := name_fault(job.node_pool):
        faults.add("Job.NodePool", text)
    for at, one in enumerate(job.datacenters):
        if text := name_fault(one, slashes=True):
            faults.add(f"Job.Datacenters[{at}]", text)
    check_placement(faults, job)
    if job.reschedule is not None:
        _reschedule(faults, job.reschedule, "Job.Reschedule")
    _groups(faults, job)
    return tuple(faults.found)


def has_gateway(group: TaskGroup) -> bool:
    """Tell whether a mesh gateway is all that a group is there for: its task is not written in the job."""
    return any(
        service.connect is not None and service.connect.gateway is not None
        for service in group.services
    )


def _groups(faults: Faults, job: Job) -> None:
    if not job.groups:
        faults.add("Job.TaskGroups", "a job needs at least one task group")
    if len(job.groups) > GROUPS_MAX:
        faults.add("Job.TaskGroups", f"{len(job.groups)} groups, at most {GROUPS_MAX} are allowed")
        return
    check_asks_together(faults, job.groups)
    total = 0
    for at, group in enumerate(job.groups):
        _group(faults, job, group, f"Job.TaskGroups[{at}]")
        total += min(max(group.count, 0), JOB_COUNT_MAX)
    if total > JOB_COUNT_MAX:
        faults.add("Job.TaskGroups", f"{total} allocations, at most {JOB_COUNT_MAX} are allowed")
    if len(job.groups) > 1:
        _unique(faults, [group.name for group in job.groups], "Job.TaskGroups", "task group")


def _group(faults: Faults, job: Job, group: TaskGroup, path: str) -> None:
    if text := name_fault(group.name, slashes=True):
        faults.add(f"{path}.Name", text)
    faults.within(path, ".Count", group.count, (0, JOB_COUNT_MAX))
    if job.type == "system" and group.count > 1:
        faults.add(f"{path}.Count", "must not exceed 1: a system job runs once on each node")
    faults.within(
        path, ".EphemeralDisk.SizeMB", group.ephemeral_disk.size_mib, (DISK_MIB_MIN, RESOURCE_MAX)
    )
    if group.restart is not None:
        _restart(faults, job, group, path=f"{path}.RestartPolicy")
    if group.reschedule is not None:
        _reschedule(faults, group.reschedule, f"{path}.ReschedulePolicy")
    if group.reschedule is not None or job.reschedule is not None:
        _resolved_reschedule(faults, job, group, f"{path}.ReschedulePolicy")
    _disconnect(faults, group, path)
    check_group_asks(faults, group, path)
    check_lifecycle(faults, job, group, path)
    if not group.tasks and not has_gateway(group):
        faults.add(f"{path}.Tasks", "a task group needs at least one task")
    if len(group.tasks) > TASKS_MAX:
        faults.add(f"{path}.Tasks", f"{len(group.tasks)} tasks, at most {TASKS_MAX} are allowed")
        return
    for at, task in enumerate(group.tasks):
        _task(faults, task, f"{path}.Tasks[{at}]")
        if task.restart is not None:
            _restart(faults, job, group, task, path=f"{path}.Tasks[{at}].RestartPolicy")
    if len(group.tasks) > 1:
        _unique(faults, [task.name for task in group.tasks], f"{path}.Tasks", "task")


def _disconnect(faults: Faults, group: TaskGroup, path: str) -> None:
    block = group.disconnect
    if block is not None:
        here = f"{path}.Disconnect"
        if block.reconcile not in RECONCILES:
            text = f"must be one of {', '.join(RECONCILES)}, was {block.reconcile[:80]!r}"
            faults.add(f"{here}.Reconcile", text)
        faults.within(here, ".LostAfter", block.lost_after_ns or 0, (0, DURATION_NS_MAX))
        for name, old in (
            ("MaxClientDisconnect", group.max_client_disconnect_ns),
            ("StopAfterClientDisconnect", group.stop_after_client_disconnect_ns),
        ):
            if old is not None:
                faults.add(f"{path}.{name}", "the disconnect block says it, do not say it twice")
    old = group.max_client_disconnect_ns
    faults.within(path, ".MaxClientDisconnect", old or 0, (0, DURATION_NS_MAX))


def _task(faults: Faults, task: Task, path: str) -> None:
    if text := name_fault(task.name):
        faults.add(f"{path}.Name", text)
    if text := name_fault(task.driver):
        faults.add(f"{path}.Driver", text)
    if memoryview(task.config)[0] != _BRACE:
        faults.add(f"{path}.Config", "must be an object")
    else:
        for where, text in option_faults(task.driver, task.config):
            faults.add(f"{path}.Config.{where}", text)
    check_resources(faults, task.resources, path)
    faults.within(path, ".KillTimeout", task.kill_timeout_ns, (0, DURATION_NS_MAX))
    for key in sorted(task.env):
        if not key or "=" in key:
            faults.add(f"{path}.Env", f"{key!r} cannot name an environment variable")


def _restart(
    faults: Faults, job: Job, group: TaskGroup, task: Task | None = None, *, path: str
) -> None:
    block: RestartPolicy | None = group.restart if task is None else task.restart
    if block is not None and block.mode is not None and block.mode not in RESTART_MODES:
        faults.add(f"{path}.Mode", f"must be fail or delay, was {block.mode!r}")
    found = restart_of(job.type, group, task)
    before = len(faults.found)
    faults.within(path, ".Attempts", found.attempts, (0, JOB_COUNT_MAX))
    faults.within(path, ".Delay", found.delay_ns, (0, DURATION_NS_MAX))
    lowest = DELAY_NS_MIN if found.attempts else 0
    faults.within(path, ".Interval", found.interval_ns, (lowest, DURATION_NS_MAX))
    if len(faults.found) == before and found.attempts * found.delay_ns > found.interval_ns:
        faults.add(path, f"{found.attempts} restarts with this delay do not fit into the interval")


def _reschedule(faults: Faults, block: ReschedulePolicy, path: str) -> None:
    if block.delay_function is not None and block.delay_function not in DELAY_FUNCTIONS:
        faults.add(
            f"{path}.DelayFunction",
            f"must be one of {', '.join(DELAY_FUNCTIONS)}, was {block.delay_function!r}",
        )
    if block.attempts and block.unlimited:
        faults.add(path, "Attempts and Unlimited contradict each other")


def _resolved_reschedule(faults: Faults, job: Job, group: TaskGroup, path: str) -> None:
    found = reschedule_of(job, group)
    faults.within(path, ".Attempts", found.attempts, (0, JOB_COUNT_MAX))
    if not found.attempts and not found.unlimited:
        return
    if not found.unlimited:
        faults.within(path, ".Interval", found.interval_ns, (1, DURATION_NS_MAX))
    faults.within(path, ".Delay", found.delay_ns, (DELAY_NS_MIN, DURATION_NS_MAX))
    if found.delay_function != "constant":
        faults.within(path, ".MaxDelay", found.max_delay_ns, (found.delay_ns, DURATION_NS_MAX))


def _unique(faults: Faults, names: list[str], path: str, what: str) -> None:
    seen: set[str] = set()
    for at, name in enumerate(names):
        if name in seen:
            faults.add(f"{path}[{at}].Name", f"another {what} is named {name!r}")
        seen.add(name)
