"""Validation of update, migrate, reschedule, disconnect, scaling and volume blocks, by Nomad's rules.

What these blocks request may not be built yet: a job that accepts to run without is checked all the same, so that it is
valid on the day it is built. Source: Nomad structs.go, Validate of each struct.
"""

from schemas.base import SECOND_NS
from schemas.jobs import SERVICE_JOB_TYPES, ReschedulePolicy
from shared.durations import write_duration
from shared.jobspec.checks.error_list import DURATION_NS_MAX, JOB_COUNT_MAX, ErrorList
from shared.jobspec.nomad.defaults import (
    UPDATE_DEFAULTS,
    resolve_migrate,
    resolve_update,
    sets_nothing,
)
from shared.jobspec.nomad.job import JobSpec, TaskGroup
from shared.jobspec.nomad.placement import VolumeRequest
from shared.jobspec.nomad.policies import DisconnectBlock, UpdateStrategy

HEALTH_CHECKS = ("checks", "task_states", "manual")
ACCESS_MODES = (
    *("single-node-reader-only", "single-node-writer", "multi-node-reader-only"),
    *("multi-node-single-writer", "multi-node-multi-writer"),
)
ATTACHMENT_MODES = ("file-system", "block-device")
RECONCILES = ("best_score", "keep_original", "keep_replacement", "longest_running")
#: Attempts that are added up one by one; a policy with more is judged by its first.
_ATTEMPTS_MAX = 10_000
_PERCENT = 100
RESCHEDULE_INTERVAL_NS_MIN = 15 * SECOND_NS


def check_policies(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    """Find what is impossible in the policies of one group."""
    _update(faults, job, group, path)
    _migrate(faults, job, group, path)
    if group.disconnect is not None:
        _disconnect(faults, job, group.disconnect, f"{path}.Disconnect")
    if group.max_client_disconnect_ns and group.stop_after_client_disconnect_ns:
        text = "excludes MaxClientDisconnect; remove one of them"
        faults.add(f"{path}.StopAfterClientDisconnect", text)
    if group.scaling is not None:
        _scaling(faults, group, f"{path}.Scaling")
    for name in sorted(group.volumes):
        _volume(faults, group.volumes[name], f"{path}.Volumes[{name[:60]}]")


def _update(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    here = f"{path}.Update" if not sets_nothing(group.update) else "Job.Update"
    is_set = not (sets_nothing(group.update) and sets_nothing(job.update))
    if job.type not in SERVICE_JOB_TYPES:
        if is_set:
            faults.add(here, f"a {job.type} job has no update block")
        return
    found = resolve_update(job, group) if is_set else UPDATE_DEFAULTS
    if is_set:
        _update_values(faults, found, here)
        if found.canary:
            _canaries(faults, job, group, f"{here}.Canary")
    for at, task in enumerate(group.tasks):
        if found.progress_deadline_ns and task.kill_timeout_ns > found.progress_deadline_ns:
            seconds = found.progress_deadline_ns / SECOND_NS
            text = f"must not be longer than the progress_deadline of {seconds:g} s"
            faults.add(f"{path}.Tasks[{at}].KillTimeout", text)


def _update_values(faults: ErrorList, found: UpdateStrategy, path: str) -> None:
    if found.health_check not in HEALTH_CHECKS:
        _one_of(faults, f"{path}.HealthCheck", HEALTH_CHECKS, found.health_check)
    healthy, deadline = found.min_healthy_time_ns or 0, found.healthy_deadline_ns or 0
    progress = found.progress_deadline_ns or 0
    _bounded(faults, f"{path}.MaxParallel", found.max_parallel or 0, JOB_COUNT_MAX)
    _bounded(faults, f"{path}.Canary", found.canary or 0, JOB_COUNT_MAX)
    faults.within_span(path, ".MinHealthyTime", healthy, (0, DURATION_NS_MAX))
    faults.within_span(path, ".ProgressDeadline", progress, (0, DURATION_NS_MAX))
    if deadline <= 0:
        faults.add(f"{path}.HealthyDeadline", "must be more than 0")
    elif healthy >= deadline:
        faults.add(f"{path}.MinHealthyTime", "must be shorter than HealthyDeadline")
    elif progress and deadline >= progress:
        faults.add(f"{path}.HealthyDeadline", "must be shorter than ProgressDeadline")
    elif deadline > DURATION_NS_MAX:
        faults.add(
            f"{path}.HealthyDeadline",
            f"must be at most {write_duration(DURATION_NS_MAX)}, was {write_duration(deadline)}",
        )
    if (found.stagger_ns or 0) <= 0:
        faults.add(f"{path}.Stagger", "must be more than 0")
    if found.auto_promote and not found.canary:
        faults.add(f"{path}.AutoPromote", "needs canaries; set canary")


def _canaries(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    canary = resolve_update(job, group).canary or 0
    if job.type == "system" and canary > _PERCENT:
        faults.add(path, f"is a percentage in a system job: 0 to 100, was {canary}")
    for word, names in (
        ("per_alloc", [name for name, one in group.volumes.items() if one.per_alloc]),
        ("sticky", [name for name, one in group.volumes.items() if one.sticky]),
    ):
        if names:
            text = f"excludes {word}, which volume {min(names)[:60]} has; remove one of them"
            faults.add(path, text)


def _bounded(faults: ErrorList, path: str, value: int, most: int) -> None:
    if value < 0:
        faults.add(path, "must not be negative")
    elif value > most:
        faults.add(path, f"must be at most {most}, was {value}")


def _migrate(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    blocks = ((group.migrate, f"{path}.Migrate"), (job.migrate, "Job.Migrate"))
    where = [here for block, here in blocks if not sets_nothing(block)]
    if not where:
        return
    if job.type != "service":
        for here in where:
            faults.add(here, f"a {job.type} job has no migrate block")
        return
    found, here = resolve_migrate(job, group), where[0]
    if found.health_check not in HEALTH_CHECKS[:2]:
        _one_of(faults, f"{here}.HealthCheck", HEALTH_CHECKS[:2], found.health_check)
    _bounded(faults, f"{here}.MaxParallel", found.max_parallel or 0, JOB_COUNT_MAX)
    _bounded(faults, f"{here}.HealthyDeadline", found.healthy_deadline_ns or 0, DURATION_NS_MAX)
    if not 0 <= (found.min_healthy_time_ns or 0) <= (found.healthy_deadline_ns or 0):
        faults.add(f"{here}.MinHealthyTime", "must be 0 to HealthyDeadline")


def _disconnect(faults: ErrorList, job: JobSpec, block: DisconnectBlock, path: str) -> None:
    if block.reconcile not in RECONCILES:
        _one_of(faults, f"{path}.Reconcile", RECONCILES, block.reconcile)
    if (block.stop_on_client_after_ns or 0) < 0:
        faults.add(f"{path}.StopOnClientAfter", "must not be negative")
    elif block.stop_on_client_after_ns:
        if job.type not in {"service", "batch"}:
            text = f"is only for service and batch jobs, not {job.type}"
            faults.add(f"{path}.StopOnClientAfter", text)
        if block.lost_after_ns:
            text = "excludes LostAfter; remove one of them"
            faults.add(f"{path}.StopOnClientAfter", text)


def _scaling(faults: ErrorList, group: TaskGroup, path: str) -> None:
    block = group.scaling
    assert block is not None
    lowest = group.count if block.min is None else block.min
    if block.max is None:
        faults.add(f"{path}.Max", "must be set")
        return
    if lowest < 0 or block.max < lowest:
        faults.add(f"{path}.Max", f"must be at least Min ({lowest}), was {block.max}")
    elif not lowest <= group.count <= block.max:
        count = path.removesuffix(".Scaling") + ".Count"
        text = f"must be {lowest} to {block.max} by the scaling block, was {group.count}"
        faults.add(count, text)


def _volume(faults: ErrorList, volume: VolumeRequest, path: str) -> None:
    if volume.type not in {"host", "csi"}:
        faults.add(f"{path}.Type", f"must be host or csi, was {volume.type[:80]!r}")
    if not volume.source:
        faults.add(f"{path}.Source", "must not be empty")
    for name, value, known in (
        ("AccessMode", volume.access_mode, ACCESS_MODES),
        ("AttachmentMode", volume.attachment_mode, ATTACHMENT_MODES),
    ):
        if volume.type == "csi" and value not in known:
            _one_of(faults, f"{path}.{name}", known, value)


def _one_of(faults: ErrorList, path: str, known: tuple[str, ...], value: str | None) -> None:
    faults.add(path, f"must be one of {', '.join(known)}, was {(value or '')[:80]!r}")


def reschedule_error(found: ReschedulePolicy) -> str:
    """Explain why a limited policy with valid values cannot make its attempts; empty: it can."""
    delay, most = found.delay_ns, found.max_delay_ns
    attempts = min(found.attempts, _ATTEMPTS_MAX)
    if found.delay_function == "constant":
        possible = found.interval_ns // delay
    elif found.delay_function == "exponential":
        possible = _possible(found.interval_ns, _doubled(delay, most, attempts))
    else:
        possible = _possible(found.interval_ns + 1, _fibonacci(delay, most, attempts))
    if possible >= attempts:
        return ""
    return f"only {possible} of {found.attempts} attempts with these delays fit in the interval"


def _possible(interval_ns: int, ends: list[int]) -> int:
    """Count the attempts that end within the interval."""
    return sum(1 for end in ends if end < interval_ns)


def _doubled(delay: int, most: int, attempts: int) -> list[int]:
    """The time that Nomad allots up to each attempt: the delay itself until it reaches its bound, then sums."""
    ends: list[int] = []
    total = 0
    for nth in range(attempts):
        following = delay << min(nth, 63)
        total = total + most if following > most else following
        ends.append(total)
    return ends


def _fibonacci(delay: int, most: int, attempts: int) -> list[int]:
    """The same, where each delay is the sum of the two before."""
    ends = [delay, delay]
    is_bounded = False
    for nth in range(2, attempts):
        following = ends[nth - 1] + (most if is_bounded else ends[nth - 2])
        if not is_bounded and following > most:
            following, is_bounded = most, True
        ends.append(following)
    return ends[:attempts]
