"""Names of services and checks, and where a group declares them: its own block and those of its tasks.

Source: Nomad's defaults for services. Used by validation, agents and the listing of services.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from schemas.projections import ServiceInstance
from shared.jobspec.nomad.job import TaskGroup
from shared.jobspec.nomad.services import Check, Service

#: Types of checks that agents make.
CHECK_KINDS = ("http", "tcp", "grpc", "script")
PORT_MAX, _PORT_DIGITS_MAX = 65_535, 5
_REFERENCE = re.compile(r"\$\{\s*([A-Za-z_]+)\s*\}")


class DeclaredService(NamedTuple):
    """A service block and its place in the job."""

    service: Service
    #: the task whose block it is in; empty: the group's.
    task: str
    #: of its block, below the group's path.
    path: str


def declared_services(group: TaskGroup) -> Iterator[DeclaredService]:
    """List the services of a group, then those of its tasks."""
    for at, service in enumerate(group.services):
        yield DeclaredService(service, "", f".Services[{at}]")
    for number, task in enumerate(group.tasks):
        for at, service in enumerate(task.services):
            yield DeclaredService(service, task.name, f".Tasks[{number}].Services[{at}]")


def name_values(job_name: str, group: str, task: str) -> dict[str, str]:
    """Return the values of references in a service's name."""
    last = task or "group"
    return {
        "JOB": job_name,
        "TASKGROUP": group,
        "TASK": task,
        "BASE": f"{job_name}-{group}-{last}",
        "NOMAD_JOB_NAME": job_name,
        "NOMAD_GROUP_NAME": group,
        "NOMAD_TASK_NAME": task,
    }


def service_name(job_name: str, group: str, service: Service, task: str) -> str:
    """Return the name of a service; unless it has one: job, group and task."""
    values = name_values(job_name, group, task)
    return resolved(service.name, values) if service.name else values["BASE"]


def resolved(text: str, values: Mapping[str, str]) -> str:
    """Replace `${NAME}` by its value; unknown references stay."""
    if "${" not in text:
        return text
    return _REFERENCE.sub(lambda found: values.get(found.group(1), found.group(0)), text)


def port_number(label: str) -> int:
    """Read the number of a port that a service or check names by it; 0: it is none, whatever digits it has."""
    is_number = label.isascii() and label.isdecimal() and len(label) <= _PORT_DIGITS_MAX
    return int(label) if is_number and int(label) <= PORT_MAX else 0


def registration_id(one: ServiceInstance) -> str:
    """Return the id of an instance, in the form of Nomad's registrations."""
    return f"_nomad-{one.task or 'group'}-{one.alloc}-{one.service}-{one.port}"


class NamedCheck(NamedTuple):
    """A check, its service, and its name among all checks of the group."""

    owner: DeclaredService
    check: Check
    name: str


def named_checks(job_name: str, group: TaskGroup) -> list[NamedCheck]:
    """List the checks of a group's services that can be made, each with a name of its own: service/check."""
    found: list[NamedCheck] = []
    taken: set[str] = set()
    for one in declared_services(group):
        prefix = service_name(job_name, group.name, one.service, one.task)
        for at, check in enumerate(one.service.checks):
            if check.type.lower() not in CHECK_KINDS:
                # Accepted by a release in which services had no effect.
                continue
            name = f"{prefix}/{check.name or f'{check.type.lower()}-{at}'}"
            name = name if name not in taken else f"{name}-{len(taken)}"
            taken.add(name)
            found.append(NamedCheck(one, check, name))
    return found
