"""Validation of a typed job: all errors at once, each with its path.

Independent of the cluster: a driver or datacenter that no node has is valid, the job waits and says why. Limits are
constants here. Next: `unsupported_fields.py`, `compile/groups.py`.
"""

import re

from schemas.base import SECOND_NS
from schemas.jobs import JOB_TYPES, SYSTEM_JOB_TYPES, ErrorDetail
from shared.jobspec.checks.artifacts import check_artifacts
from shared.jobspec.checks.error_list import DURATION_NS_MAX, JOB_COUNT_MAX, ErrorList
from shared.jobspec.checks.gates import check_gates
from shared.jobspec.checks.identifiers import id_error, name_error
from shared.jobspec.checks.identities import check_identities
from shared.jobspec.checks.job_description import check_description
from shared.jobspec.checks.launches import check_launches
from shared.jobspec.checks.lifecycle import check_lifecycle
from shared.jobspec.checks.placement import check_placement
from shared.jobspec.checks.policies import (
    RESCHEDULE_INTERVAL_NS_MIN,
    check_policies,
    reschedule_error,
)
from shared.jobspec.checks.resources import (
    RESOURCE_MAX,
    check_group_asks,
    check_job_asks,
    check_resources,
)
from shared.jobspec.checks.secrets import check_secrets
from shared.jobspec.checks.service_identities import check_service_identities
from shared.jobspec.checks.services import check_services
from shared.jobspec.checks.stateful import check_stateful
from shared.jobspec.checks.templates import check_templates
from shared.jobspec.checks.vault import check_vault
from shared.jobspec.checks.volumes import check_volumes
from shared.jobspec.drivers.registry import check_options
from shared.jobspec.nomad.defaults import resolve_reschedule, resolve_restart
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.policies import RescheduleBlock, RestartBlock
from shared.signal_names import signal_error

GROUPS_MAX = 100
TASKS_MAX = 100
PRIORITY_MAX = 100
DISK_MIB_MIN = 10
LOG_FILES_MAX = 1_000_000
DELAY_NS_MIN = 5 * SECOND_NS

RESTART_MODES = ("fail", "delay")
DELAY_FUNCTIONS = ("constant", "exponential", "fibonacci")
_BRACE = ord("{")
ACTION_NAME_MAX = 128
_ACTION_NAME = re.compile(rf"[^\0\s]{{1,{ACTION_NAME_MAX}}}")


def job_errors(job: JobSpec, unbuilt: list[ErrorDetail] | None = None) -> tuple[ErrorDetail, ...]:
    """Find everything wrong with a job; into `unbuilt` what is not built in values of supported fields."""
    faults = ErrorList()
    if text := id_error(job.id):
        faults.add("Job.ID", text)
    if job.type not in JOB_TYPES:
        faults.add("Job.Type", f"must be one of {', '.join(JOB_TYPES)}, was {job.type!r}")
    # Nomad writes 0 for the default.
    faults.within("Job", ".Priority", job.priority, (0, PRIORITY_MAX))
    if text := name_error(job.node_pool):
        faults.add("Job.NodePool", text)
    for at, one in enumerate(job.datacenters):
        if text := name_error(one, slashes=True):
            faults.add(f"Job.Datacenters[{at}]", text)
    check_launches(faults, job)
    check_gates(faults, job)
    check_placement(faults, job)
    if job.reschedule is not None:
        _reschedule(faults, job.reschedule, "Job.Reschedule")
    if job.ui is not None:
        check_description(faults, job.ui)
    _groups(faults, job)
    check_templates(faults, job)
    check_secrets(faults, job)
    if unbuilt is not None:
        unbuilt += faults.unbuilt
    return tuple(faults.found)


def is_gateway_only(group: TaskGroup) -> bool:
    """Return whether a mesh gateway is all that a group is there for: its task is not written in the job."""
    return any(
        service.connect is not None and service.connect.gateway is not None
        for service in group.services
    )


def _groups(faults: ErrorList, job: JobSpec) -> None:
    if not job.groups:
        faults.add("Job.TaskGroups", "a job needs at least one task group")
    if len(job.groups) > GROUPS_MAX:
        faults.add("Job.TaskGroups", f"{len(job.groups)} groups, at most {GROUPS_MAX} are allowed")
        return
    check_job_asks(faults, job.groups)
    total = 0
    for at, group in enumerate(job.groups):
        _group(faults, job, group, f"Job.TaskGroups[{at}]")
        total += min(max(group.count, 0), JOB_COUNT_MAX)
    if total > JOB_COUNT_MAX:
        faults.add("Job.TaskGroups", f"{total} allocations, at most {JOB_COUNT_MAX} are allowed")
    if len(job.groups) > 1:
        _unique(faults, [group.name for group in job.groups], "Job.TaskGroups", "task group")


def _group(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    if text := name_error(group.name, slashes=True):
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
    check_policies(faults, job, group, path)
    check_stateful(faults, job, group, path)
    check_group_asks(faults, group, path)
    check_lifecycle(faults, job, group, path)
    check_services(faults, job, group, path)
    check_volumes(faults, job, group, path)
    if not group.tasks and not is_gateway_only(group):
        faults.add(f"{path}.Tasks", "a task group needs at least one task")
    if len(group.tasks) > TASKS_MAX:
        faults.add(f"{path}.Tasks", f"{len(group.tasks)} tasks, at most {TASKS_MAX} are allowed")
        return
    for at, task in enumerate(group.tasks):
        _task(faults, task, f"{path}.Tasks[{at}]")
        _logs(faults, group, task, f"{path}.Tasks[{at}].LogConfig")
        if task.restart is not None:
            _restart(faults, job, group, task, path=f"{path}.Tasks[{at}].RestartPolicy")
    if len(group.tasks) > 1:
        _unique(faults, [task.name for task in group.tasks], f"{path}.Tasks", "task")
    check_service_identities(faults, job, group, path)


def _disconnect(faults: ErrorList, group: TaskGroup, path: str) -> None:
    block = group.disconnect
    if block is not None:
        here = f"{path}.Disconnect"
        faults.within_span(here, ".LostAfter", block.lost_after_ns or 0, (0, DURATION_NS_MAX))
        for name, old in (
            ("MaxClientDisconnect", group.max_client_disconnect_ns),
            ("StopAfterClientDisconnect", group.stop_after_client_disconnect_ns),
        ):
            if old is not None:
                faults.add(
                    f"{path}.{name}", "is already set in the disconnect block; remove one of them"
                )
    old = group.max_client_disconnect_ns
    faults.within_span(path, ".MaxClientDisconnect", old or 0, (0, DURATION_NS_MAX))


def _task(faults: ErrorList, task: TaskSpec, path: str) -> None:
    if text := name_error(task.name):
        faults.add(f"{path}.Name", text)
    if text := name_error(task.driver):
        faults.add(f"{path}.Driver", text)
    if memoryview(task.config)[0] != _BRACE:
        faults.add(f"{path}.Config", "must be an object")
    else:
        for where, text in check_options(task.driver, task.config):
            faults.add(f"{path}.Config.{where}", text)
    check_resources(faults, task.resources, path)
    check_artifacts(faults, task, path)
    _actions(faults, task, path)
    if task.identity is not None or task.identities:
        check_identities(faults, task, path)
    if task.vault is not None:
        check_vault(faults, task, path)
    if task.kill_signal and (text := signal_error(task.kill_signal)):
        faults.add(f"{path}.KillSignal", text)
    faults.within_span(path, ".KillTimeout", task.kill_timeout_ns, (0, DURATION_NS_MAX))
    for key in sorted(task.env):
        if not key or "=" in key:
            faults.add(f"{path}.Env", f"{key!r} is not a valid name of an environment variable")


def _actions(faults: ErrorList, task: TaskSpec, path: str) -> None:
    for at, one in enumerate(task.actions):
        if not _ACTION_NAME.fullmatch(one.name):
            text = f"must be 1 to {ACTION_NAME_MAX} characters without whitespace"
            faults.add(f"{path}.Actions[{at}].Name", f"{text}, was {one.name[:80]!r}")
        if not one.command:
            faults.add(f"{path}.Actions[{at}].Command", "must not be empty")
    _unique(faults, [one.name for one in task.actions], f"{path}.Actions", "action")


def _logs(faults: ErrorList, group: TaskGroup, task: TaskSpec, path: str) -> None:
    logs = task.logs
    faults.within(path, ".MaxFiles", logs.max_files, (1, LOG_FILES_MAX))
    faults.within(path, ".MaxFileSizeMB", logs.max_file_size_mb, (1, RESOURCE_MAX))
    if logs.ship and (logs.disabled or logs.enabled is False):
        faults.add(f"{path}.Ship", "needs the files of the output, which are disabled")
    total, disk = logs.max_files * logs.max_file_size_mb, group.ephemeral_disk.size_mib
    if total >= disk >= DISK_MIB_MIN:
        text = (
            f"{total} MiB of logs do not fit on the ephemeral disk of {disk} MiB; it must be larger"
        )
        faults.add(path, text)


def _restart(
    faults: ErrorList, job: JobSpec, group: TaskGroup, task: TaskSpec | None = None, *, path: str
) -> None:
    block: RestartBlock | None = group.restart if task is None else task.restart
    if block is not None and block.mode is not None and block.mode not in RESTART_MODES:
        faults.add(f"{path}.Mode", f"must be fail or delay, was {block.mode!r}")
    found = resolve_restart(job.type, group, task)
    before = len(faults.found)
    faults.within(path, ".Attempts", found.attempts, (0, JOB_COUNT_MAX))
    faults.within_span(path, ".Delay", found.delay_ns, (0, DURATION_NS_MAX))
    faults.within_span(path, ".Interval", found.interval_ns, (DELAY_NS_MIN, DURATION_NS_MAX))
    if not found.attempts and found.mode == "delay":
        faults.add(f"{path}.Mode", "mode delay requires attempts above 0; use fail")
    if len(faults.found) == before and found.attempts * found.delay_ns > found.interval_ns:
        faults.add(path, f"{found.attempts} restarts with this delay do not fit in the interval")


def _reschedule(faults: ErrorList, block: RescheduleBlock, path: str) -> None:
    if block.delay_function is not None and block.delay_function not in DELAY_FUNCTIONS:
        faults.add(
            f"{path}.DelayFunction",
            f"must be one of {', '.join(DELAY_FUNCTIONS)}, was {block.delay_function!r}",
        )
    if block.attempts and block.unlimited:
        faults.add(path, "Attempts and Unlimited contradict each other")


def _resolved_reschedule(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    found = resolve_reschedule(job, group)
    if job.type in SYSTEM_JOB_TYPES and (found.attempts or found.unlimited):
        faults.add(path, f"a {job.type} job has no reschedule block")
        return
    faults.within(path, ".Attempts", found.attempts, (0, JOB_COUNT_MAX))
    if not found.attempts and not found.unlimited:
        return
    before = len(faults.found)
    if not found.unlimited:
        lowest = RESCHEDULE_INTERVAL_NS_MIN
        faults.within_span(path, ".Interval", found.interval_ns, (lowest, DURATION_NS_MAX))
    faults.within_span(path, ".Delay", found.delay_ns, (DELAY_NS_MIN, DURATION_NS_MAX))
    if found.delay_function != "constant":
        faults.within_span(path, ".MaxDelay", found.max_delay_ns, (found.delay_ns, DURATION_NS_MAX))
    is_sound = len(faults.found) == before and found.delay_function in DELAY_FUNCTIONS
    if is_sound and not found.unlimited and (text := reschedule_error(found)):
        faults.add(path, text)


def _unique(faults: ErrorList, names: list[str], path: str, what: str) -> None:
    seen: set[str] = set()
    for at, name in enumerate(names):
        if name in seen:
            faults.add(f"{path}[{at}].Name", f"another {what} is named {name!r}")
        seen.add(name)
