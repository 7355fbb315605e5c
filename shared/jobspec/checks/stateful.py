"""Validation of `stateful`: what contradicts an ordered group with one instance of each index is refused, by name."""

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.defaults import resolve_migrate, resolve_update
from shared.jobspec.nomad.job import JobSpec, TaskGroup


def check_stateful(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    """Find what a stateful group cannot have."""
    if not group.stateful:
        return
    here = f"{path}.Stateful"
    if job.type != "service":
        faults.add(here, f"is only for service jobs, not {job.type}")
        return
    if job.all_at_once:
        faults.add(here, "excludes AllAtOnce: a stateful group starts one instance after the other")
    if job.parameterized is not None or job.periodic is not None:
        faults.add(here, "is not for jobs that are dispatched or launched by time")
    _update(faults, job, group, path)
    _disconnect(faults, group, path)


def _update(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    update, migrate = resolve_update(job, group), resolve_migrate(job, group)
    if update.canary:
        faults.add(
            f"{path}.Update.Canary",
            "excludes Stateful: a canary would be a second instance of an index",
        )
    if (update.max_parallel or 0) > 1:
        text = f"must be 0 or 1 in a stateful group, which replaces one at a time, was {update.max_parallel}"
        faults.add(f"{path}.Update.MaxParallel", text)
    if update.health_check == "manual":
        text = "must not be manual in a stateful group: the next instance waits for the health of the one before"
        faults.add(f"{path}.Update.HealthCheck", text)
    if (migrate.max_parallel or 0) > 1:
        text = f"must be 0 or 1 in a stateful group, which moves one at a time, was {migrate.max_parallel}"
        faults.add(f"{path}.Migrate.MaxParallel", text)


def _disconnect(faults: ErrorList, group: TaskGroup, path: str) -> None:
    text = (
        "excludes Stateful: an instance that is out of reach is never taken for lost by time alone"
    )
    block = group.disconnect
    if group.max_client_disconnect_ns:
        faults.add(f"{path}.MaxClientDisconnect", text)
    if block is not None and block.lost_after_ns:
        faults.add(f"{path}.Disconnect.LostAfter", text)
    if block is not None and block.reconcile != "best_score":
        faults.add(
            f"{path}.Disconnect.Reconcile",
            "excludes Stateful: there are never two instances to choose from",
        )
