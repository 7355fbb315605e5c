"""Wait shapes: two waiting requests have the same shape if neither can be placed where the other cannot.

A shape consists of asks, alternatives, ports, constraints, datacenters, node pool and job type; the count and what only
changes scores are left out. The eval broker groups by shape, the view explains by it, reservations use the queue order.
"""

from collections.abc import Container

from schemas.base import JobId
from schemas.evaluations import Blocked
from schemas.jobs import GroupSpec
from shared.core.state.tables.jobs import Job

#: Equal for two requests that wait for the same; never sorted nor stored.
WaitShape = tuple[object, ...]
#: Position in the queue: minus priority, seq of the last submission, id. The smaller is first.
QueueOrder = tuple[int, int, JobId]
#: MHz, MiB memory and MiB disk of one allocation.
MinimumAsk = tuple[int, int, int]


def queue_order(job: Job) -> QueueOrder:
    """Position of a job in the queue: by priority, then by its last submission."""
    return (-job.priority, job.modify_seq, job.id)


def is_untouched(job: Job) -> bool:
    """Tell whether no plan has changed anything of a job since its first submission."""
    return job.plan_seq == job.create_seq and not job.stopped


def new_job_shape(job: Job) -> WaitShape | None:
    """Shape of a job without placements; None: its evaluation may do more than place."""
    if not is_untouched(job) or job.job_type not in {"service", "batch"} or not job.groups:
        return None
    if any(group.volumes for group in job.groups):
        return None
    # It has no allocations that could exclude nodes.
    return _job_shape(job, JobId(""), job.groups)


def blocked_shape(job: Job, blocked: Blocked) -> WaitShape:
    """Shape of the groups that a blocked evaluation waits for."""
    return _shape(job, tuple(group for group in job.groups if group.name in blocked.waiting))


def asks_of(job: Job, names: Container[str]) -> tuple[MinimumAsk, ...]:
    """Minimum of the three columns that one allocation of each named group takes."""
    return tuple(
        (group.cpu_mhz, group.memory_mib, group.disk_mib)
        for group in job.groups
        if group.name in names
    )


def _shape(job: Job, groups: tuple[GroupSpec, ...]) -> WaitShape:
    # Rules about the job's own allocations, and system jobs, make a shape of its own.
    is_own = (
        job.job_type not in {"service", "batch"} or any(group.volumes for group in groups)
    ) or (
        not is_untouched(job)
        and any(group.distinct_hosts or group.distinct_properties for group in groups)
    )
    return _job_shape(job, job.id if is_own else JobId(""), groups)


def _job_shape(job: Job, own: JobId, groups: tuple[GroupSpec, ...]) -> WaitShape:
    return (job.job_type, job.node_pool, job.datacenters, own, *map(_group_shape, groups))


def _group_shape(group: GroupSpec) -> WaitShape:
    return (
        group.cpu_mhz,
        group.memory_mib,
        group.disk_mib,
        group.alternatives,
        group.static_ports,
        group.dynamic_ports,
        group.constraints,
        group.distinct_hosts,
        group.distinct_properties,
        group.drivers,
    )
