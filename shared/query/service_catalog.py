"""Services and their instances, derived from the state: `query.services` and `query.service`.

Nothing is registered: an instance exists while its allocation should run and does, as its job's version declares it.
Its status is that of its checks, as the agent reported them. At any past seq the answer is that of then.
"""

from collections.abc import Iterator, Sequence

import msgspec

from schemas.allocations import HEALTHS
from schemas.answers import ServiceAnswer, ServicesAnswer
from schemas.base import JobId
from schemas.node_answers import TaskShown
from schemas.projections import Query, ServiceInstance, ServiceLine
from shared.core.state.ids import alloc_id
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, RUNNING, UNKNOWN
from shared.errors import CommandInvalid
from shared.jobspec.compile.ports import group_networks
from shared.jobspec.nomad.job import JOB_DECODER, JobSpec, TaskGroup
from shared.jobspec.service_names import (
    declared_services,
    name_values,
    named_checks,
    port_number,
    resolved,
    service_name,
)
from shared.query.resource_usage import alloc_ports

#: From good to bad: an instance has the worst status of its checks.
STATUSES = ("passing", "warning", "pending", "critical", "unknown")
#: How the canonical text of a job with services has them.
_HAS_SERVICES = b'"Services":[{'
_TASKS = msgspec.json.Decoder(dict[str, TaskShown])
_IP_ATTRIBUTE, _HOST_NETWORK = "unique.network.ip-address", "host_network."


class ServiceCatalog:
    """Services of jobs, read once for each version that declares some."""

    def __init__(self) -> None:
        #: versions with services, by job and text.
        self._jobs: dict[JobId, dict[bytes, JobSpec]] = {}

    def services(self, state: State, query: Query) -> ServicesAnswer:
        """List services by name; `id` is the beginning of their names."""
        found: dict[str, list[ServiceInstance]] = {}
        for one in self._instances(state, query.job_id):
            if one.service.startswith(query.id):
                found.setdefault(one.service, []).append(one)
        lines = [_line(name, found[name]) for name in sorted(found)]
        page = tuple(lines[query.offset : query.offset + query.limit])
        return ServicesAnswer(seq=state.seq, services=page, total=len(lines))

    def service(self, state: State, query: Query) -> ServiceAnswer:
        """List the instances of one service. Raises CommandInvalid: there is none of this name."""
        if not query.id:
            raise CommandInvalid("invalid", "name a service", "id")
        every = [one for one in self._instances(state, query.job_id) if one.service == query.id]
        if not every:
            raise CommandInvalid("not_found", f"no service {query.id!r} has an instance that runs")
        kept = [
            one
            for one in every
            if query.status in {"", one.status} and query.node_id in {"", one.node}
        ]
        page = tuple(kept[query.offset : query.offset + query.limit])
        return ServiceAnswer(seq=state.seq, name=query.id, instances=page, total=len(kept))

    def declared(self, state: State, job_id: JobId) -> frozenset[str]:
        """Name the services that the kept versions of a job declare."""
        return frozenset(
            service_name(job.name or job.id, group.name, one.service, one.task)
            for job in self._versions(state, job_id).values()
            for group in job.groups
            for one in declared_services(group)
        )

    def instances_of(self, state: State, job_id: JobId) -> dict[str, list[ServiceInstance]]:
        """List the instances of a job by service, then by group, index, and place in the job."""
        found: dict[str, list[ServiceInstance]] = {}
        for one in self._job_instances(state, job_id):
            found.setdefault(one.service, []).append(one)
        return found

    # ---- inside ----

    def _versions(self, state: State, job_id: JobId) -> dict[bytes, JobSpec]:
        known = self._jobs.pop(job_id, {})
        texts = [one.spec for one in state.jobs.versions.get(job_id, ())]
        found = {
            text: known.get(text) or JOB_DECODER.decode(text)
            for text in texts
            if _HAS_SERVICES in text
        }
        if found:
            self._jobs[job_id] = found
        return found

    def _instances(self, state: State, job_id: str) -> Iterator[ServiceInstance]:
        """List all instances by job, group, index, and place in the job."""
        if job_id and JobId(job_id) not in state.jobs.by_id:
            raise CommandInvalid("not_found", f"no job {job_id!r}")
        if job_id:
            yield from self._job_instances(state, JobId(job_id))
            return
        for name in [one for one in self._jobs if one not in state.jobs.by_id]:
            del self._jobs[name]
        for name in sorted(state.jobs.by_id):
            yield from self._job_instances(state, name)

    def _job_instances(self, state: State, job_id: JobId) -> Iterator[ServiceInstance]:
        versions = self._versions(state, job_id)
        if not versions:
            return
        table = state.allocations
        rows = table.rows_of(job_id)
        client = table.client[rows]
        live = (table.desired[rows] == RUN) & ((client == RUNNING) | (client == UNKNOWN))
        places = [
            (table.groups.names[int(table.group[row])], int(table.index[row]), row)
            for row in rows[live].tolist()
        ]
        for group, _, row in sorted(places):
            version = table.groups.versions[int(table.group[row])]
            job = versions.get(state.jobs.spec(job_id, version) or b"")
            spec = None if job is None else _group_of(job, group)
            if job is not None and spec is not None:
                yield from _of_alloc(state, job, spec, row)


def _group_of(job: JobSpec, name: str) -> TaskGroup | None:
    return next((one for one in job.groups if one.name == name), None)


def _of_alloc(state: State, job: JobSpec, group: TaskGroup, row: int) -> Iterator[ServiceInstance]:
    """List the instances of one allocation; those of a task that does not run are none."""
    table, fleet = state.allocations, state.fleet
    tasks = _TASKS.decode(table.details.get(row, b"{}"))
    node = int(table.node[row])
    is_unknown = int(table.client[row]) == UNKNOWN
    ports = alloc_ports(state, row)
    attributes = fleet.specs[node].attributes
    checks = named_checks(job.name or job.id, group)
    for one in declared_services(group):
        mine = [check.name for check in checks if check.owner == one]
        owner = one.task or one.service.task_name
        if owner in tasks and tasks[owner].state != "running" and not is_unknown:
            continue
        name = service_name(job.name or job.id, group.name, one.service, one.task)
        values = {
            **name_values(job.name or job.id, group.name, one.task),
            "NOMAD_ALLOC_INDEX": str(int(table.index[row])),
        }
        canary = bool(table.canary[row])
        tags = (one.service.canary_tags if canary else ()) or one.service.tags
        meta = (one.service.canary_meta if canary else {}) or one.service.meta
        label = one.service.port_label
        yield ServiceInstance(
            service=name,
            address=resolved(one.service.address, values) or _address(group, label, attributes),
            port=port_number(label) or ports.get(label, 0),
            tags=tuple(resolved(tag, values) for tag in tags),
            meta={key: resolved(text, values) for key, text in meta.items()},
            status="unknown" if is_unknown else _status(mine, tasks),
            job=job.id,
            group=group.name,
            task=one.task,
            index=int(table.index[row]),
            version=table.groups.versions[int(table.group[row])],
            node=fleet.ids[node],
            alloc=alloc_id(int(table.key[row])),
            health=HEALTHS[int(table.health[row])],
            datacenter=fleet.specs[node].datacenter,
        )


def node_addresses(attributes: dict[str, str]) -> dict[str, str]:
    """Return those attributes of a node that addresses of instances are made of."""
    return {
        name: text
        for name, text in attributes.items()
        if name == _IP_ATTRIBUTE or name.startswith(_HOST_NETWORK)
    }


def _address(group: TaskGroup, label: str, attributes: dict[str, str]) -> str:
    """Return the node's address, or that of the network by name that a port is in."""
    for _, network in group_networks(group):
        for port in (*network.reserved_ports, *network.dynamic_ports):
            if port.label == label and port.host_network:
                found = attributes.get(_HOST_NETWORK + port.host_network, "")
                if found:
                    return found
    return attributes.get(_IP_ATTRIBUTE, "")


def _status(checks: list[str], tasks: dict[str, TaskShown]) -> str:
    """Return the worst status of these checks; without any it passes."""
    reported = {check: status for task in tasks.values() for check, status in task.checks.items()}
    worst = 0
    for check in checks:
        status = reported.get(check, "pending")
        worst = max(worst, STATUSES.index(status) if status in STATUSES else 0)
    return STATUSES[worst]


def _line(name: str, instances: Sequence[ServiceInstance]) -> ServiceLine:
    return ServiceLine(
        name=name,
        instances=len(instances),
        passing=sum(one.status == "passing" for one in instances),
        tags=tuple(sorted({tag for one in instances for tag in one.tags})),
        jobs=tuple(sorted({one.job for one in instances})),
    )
