"""Shapes: what two waiting items have in common when neither can be placed where the other cannot.

Decides what belongs to a shape (asks, alternatives, ports, constraints, datacenters, node pool, job type; not the
count, nor what only changes scores) and who stands before whom. Must not know nodes, nor whether anything fits. The
eval broker groups by it, the view explains with it, reservations order by it.
"""

from collections.abc import Container

from schemas.base import JobId
from schemas.evaluations import Blocked
from schemas.jobs import GroupSpec
from shared.core.tables.jobs import Job

#: Equal where two items wait for the same; it is never sorted nor written down.
Shape = tuple[object, ...]
#: Place in the queue: minus priority, seq of the last submission, id. The smaller goes first.
Order = tuple[int, int, JobId]
#: MHz, MiB memory and MiB disk of one allocation.
Ask = tuple[int, int, int]


def order_of(job: Job) -> Order:
    """Say where a job stands in the queue: by priority, then by when it was asked for as it is."""
    return (-job.priority, job.modify_seq, job.id)


def is_untouched(job: Job) -> bool:
    """Tell whether no plan ever changed anything of a job that stands as it was first submitted."""
    return job.plan_seq == job.create_seq and not job.stopped


def whole_shape(job: Job) -> Shape | None:
    """Shape of a job of which nothing was placed yet; None: its evaluation may find other work than placing."""
    if not is_untouched(job) or job.job_type not in {"service", "batch"} or not job.groups:
        return None
    # It has no allocations that could forbid anything.
    return _joined(job, JobId(""), job.groups)


def waiting_shape(job: Job, blocked: Blocked) -> Shape:
    """Shape of what a blocked evaluation of a job waits for."""
    return _shape(job, tuple(group for group in job.groups if group.name in blocked.waiting))


def asks_of(job: Job, names: Container[str]) -> tuple[Ask, ...]:
    """What one allocation of each named group takes at the least, whatever else it asks for."""
    return tuple(
        (group.cpu_mhz, group.memory_mib, group.disk_mib)
        for group in job.groups
        if group.name in names
    )


def _shape(job: Job, groups: tuple[GroupSpec, ...]) -> Shape:
    # What the job's own allocations forbid, and what is placed on every node, is nobody else's shape.
    is_own = job.job_type not in {"service", "batch"} or (
        not is_untouched(job)
        and any(group.distinct_hosts or group.distinct_properties for group in groups)
    )
    return _joined(job, job.id if is_own else JobId(""), groups)


def _joined(job: Job, own: JobId, groups: tuple[GroupSpec, ...]) -> Shape:
    return (job.job_type, job.node_pool, job.datacenters, own, *map(_of_group, groups))


def _of_group(group: GroupSpec) -> Shape:
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
