"""Validation of the identities of services. Source: Nomad services.go, Validate.

In Nomad the token of a service is for Consul alone. Here it is given to the task of the service, by `file` and `env` as
that of the task's own blocks: so a group's service with several tasks has to name one.
"""

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.identities import IDENTITIES_MAX, check_identity, identity_name_error
from shared.jobspec.checks.templates import place_in_allocation
from shared.jobspec.identities import (
    DeclaredIdentity,
    identity_file,
    service_identities,
    task_identities,
    token_task,
)
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.protocol.identity_names import DEFAULT_IDENTITY, VAULT_IDENTITY


class _TaskTokens:
    """What a task is given so far: names of its identities, and files that are written for it."""

    def __init__(self, task: TaskSpec) -> None:
        own = task_identities(task)
        self.names = {one.name for one in own}
        self.files = {place_in_allocation(one.destination) for one in task.templates}
        self.files |= {
            place_in_allocation(place)
            for one in own
            if (place := identity_file(one.name, one.block))
        }
        if task.vault is not None and not task.vault.disable_file:
            self.files.add(place_in_allocation("secrets/vault_token"))


def check_service_identities(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    """Check the identities of the services of a group and its tasks."""
    found = list(service_identities(job.name or job.id, group))
    if not found:
        return
    given = {task.name: _TaskTokens(task) for task in group.tasks}
    for service, one in found:
        here = f"{path}.{one.path}"
        task = token_task(group, service)
        tokens = given.get(task)
        if tokens is None:
            _without_task(faults, one, task, here=here)
            check_identity(faults, one, here, set())
            continue
        if one.name in tokens.names:
            text = f"another identity that task {task!r} is given is named {one.name[:80]!r}"
            faults.add(f"{here}.Name", text)
        tokens.names.add(one.name)
        if len(tokens.names) > IDENTITIES_MAX:
            text = f"task {task!r} is given more than {IDENTITIES_MAX} identities"
            faults.add(here, text)
            return
        _name(faults, one, here)
        check_identity(faults, one, here, tokens.files)


def _name(faults: ErrorList, one: DeclaredIdentity, path: str) -> None:
    is_given = one.block.env or one.block.file
    if (one.block.name or is_given) and (text := identity_name_error(one.name)):
        faults.add(f"{path}.Name", text if one.block.name else f"{text}; set it")
    if one.name in (DEFAULT_IDENTITY, VAULT_IDENTITY):
        faults.add(f"{path}.Name", f"{one.name} is an identity of the task, not of a service")
    if one.block.service_name not in ("", one.service):
        text = f"must be the name of the service, {one.service[:80]!r}, or absent"
        faults.add(f"{path}.ServiceName", text)


def _without_task(faults: ErrorList, one: DeclaredIdentity, task: str, *, here: str) -> None:
    """A token that is to be given needs a task; one that is not is of no use, as in Nomad without Consul."""
    _name(faults, one, here)
    if (one.block.env or one.block.file) and not task:
        text = f"service {one.service[:80]!r} must set task, which gets the token: the group has several"
        faults.add(f"{here.removesuffix('.Identity')}.TaskName", text)
