"""Which services changed since they were published, found by comparing the instances of marked jobs.

A service is the instances of all jobs that declare it. Many reports change none of them, so a job is looked at when it
is marked, and a large one not at each mark. The list of names says which services have an instance: it is not published
before all services were read once, so that what it leaves out has none. When and how values are published is decided in
`publisher.py`.
"""

from collections.abc import Iterable
from hashlib import blake2b

from schemas.base import JobId
from schemas.envelope import ENCODER
from schemas.projections import (
    ServiceInstance,
    ServiceNamesProjection,
    ServiceProjection,
    ServiceTags,
)
from shared.core.state.state import State
from shared.query.service_catalog import STATUSES, ServiceCatalog

#: Instances in a published value; `query.service` has pages.
INSTANCES_MAX = 1_000
#: Instances that one tick may compare, and the measured cost of one.
INSTANCES_PER_TICK = 2_000
INSTANCE_NS = 20_000
#: Names in the published list, and the cost of one.
NAMES_MAX = 10_000
NAME_NS = 5_000
#: A job is looked at again, and the list published again, after so many times what the last look took.
PAUSE_FACTOR = 10


class ServiceTracker:
    """Marked jobs on one side, services to publish on the other."""

    def __init__(self, state: State) -> None:
        #: services to publish.
        self.due: dict[str, None] = {}
        self._state = state
        self._catalog = ServiceCatalog()
        #: by service: the jobs that declare it.
        self._jobs_of: dict[str, set[JobId]] = {}
        #: by job and service: of the instances that were last seen.
        self._digests: dict[JobId, dict[str, bytes]] = {}
        self._marked: dict[JobId, None] = {}
        self._not_before_ns: dict[JobId, int] = {}
        #: tags of the services that have an instance.
        self._tags: dict[str, tuple[str, ...]] = {}
        #: services whose instances were not read since the beginning.
        self._unread: set[str] = set()
        self._are_names_due = False
        self._names_not_before_ns = 0

    def begin(self) -> None:
        """Forget what was published, and note which jobs declare services."""
        self._jobs_of = {}
        self._tags = {}
        for job_id in self._state.jobs.by_id:
            self._declare(job_id)
        # Also a service that its job no longer declares is published: what stands may be older.
        self._digests = {}
        for name, jobs in self._jobs_of.items():
            for job_id in jobs:
                self._digests.setdefault(job_id, {})[name] = b""
        self._unread = set(self._jobs_of)
        self.names_changed()

    def names_changed(self) -> None:
        """Publish the list of names."""
        self._are_names_due = True

    def published_names(self, names: Iterable[str]) -> None:
        """Publish those of these services again that have no instance: an older list has them."""
        self.due.update((name, None) for name in names if name not in self._jobs_of)

    def mark(self, job_id: JobId) -> None:
        """Look at a job before the next values are published."""
        self._marked[job_id] = None

    def due_ns(self) -> int:
        """Time of the next look or value; 1: now, 0: there is none."""
        if self.due:
            return 1
        times_ns = [self._not_before_ns.get(one, 1) for one in self._marked]
        if self._may_list:
            times_ns.append(max(self._names_not_before_ns, 1))
        return min(times_ns, default=0)

    def look(self, now_ns: int) -> int:
        """Look at marked jobs, within the bounds of a tick. Returns the instances that were compared."""
        compared = 0
        for job_id in list(self._marked):
            if compared >= INSTANCES_PER_TICK:
                break
            if self._not_before_ns.get(job_id, 0) > now_ns:
                continue
            del self._marked[job_id]
            count = self._compare(job_id)
            compared += count
            if count:
                self._not_before_ns[job_id] = now_ns + count * INSTANCE_NS * PAUSE_FACTOR
            else:
                self._not_before_ns.pop(job_id, None)
        return compared

    def projection(self, name: str) -> ServiceProjection:
        """Return a service as it is now."""
        state = self._state
        found: list[ServiceInstance] = []
        for job_id in sorted(self._jobs_of.get(name, ())):
            if job_id not in state.jobs.by_id:
                self._undeclare(job_id, name)
                self._digests.pop(job_id, None)
            found += self._catalog.instances_of(state, job_id).get(name, ())
        self._list(name, found)
        total = len(found)
        if total > INSTANCES_MAX:
            found.sort(key=lambda one: STATUSES.index(one.status))
        return ServiceProjection(
            cluster_id=state.policy.cluster_id,
            seq=state.seq,
            service=name,
            instances=tuple(found[:INSTANCES_MAX]),
            total=total,
            incarnation=state.policy.incarnations.newest,
        )

    def names(self, now_ns: int) -> ServiceNamesProjection | None:
        """Return the names of all services that have an instance; None: the list is not due."""
        if not self._may_list or now_ns < self._names_not_before_ns:
            return None
        self._are_names_due = False
        state, count = self._state, len(self._tags)
        self._names_not_before_ns = now_ns + count * NAME_NS * PAUSE_FACTOR
        return ServiceNamesProjection(
            cluster_id=state.policy.cluster_id,
            seq=state.seq,
            services=tuple(
                ServiceTags(name=name, tags=self._tags[name])
                for name in sorted(self._tags)[:NAMES_MAX]
            ),
            total=count,
            incarnation=state.policy.incarnations.newest,
        )

    # ---- inside ----

    @property
    def _may_list(self) -> bool:
        """Whether the list of names is due. Before the cluster has an id there is no state to list."""
        return bool(self._are_names_due and not self._unread and self._state.policy.cluster_id)

    def _list(self, name: str, instances: list[ServiceInstance]) -> None:
        """Note the tags of a service for the list of names, and whether the list changed."""
        self._unread.discard(name)
        before = self._tags.pop(name, None)
        tags = {tag for one in instances for tag in one.tags}
        after = tuple(sorted(tags)) if instances else None
        if after is not None:
            self._tags[name] = after
        if before != after:
            self._are_names_due = True

    def _declare(self, job_id: JobId) -> frozenset[str]:
        names = self._catalog.declared(self._state, job_id)
        for name in names:
            self._jobs_of.setdefault(name, set()).add(job_id)
        return names

    def _undeclare(self, job_id: JobId, name: str) -> None:
        jobs = self._jobs_of.get(name, set())
        jobs.discard(job_id)
        if not jobs:
            self._jobs_of.pop(name, None)

    def _compare(self, job_id: JobId) -> int:
        """Mark the services of a job whose instances changed; returns how many instances there are."""
        names, before = self._declare(job_id), self._digests.pop(job_id, {})
        if not names and not before:
            return 0
        found = self._catalog.instances_of(self._state, job_id)
        after = {name: _digest(found.get(name, ())) for name in names}
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                self.due[name] = None
            if name not in after:
                self._undeclare(job_id, name)
        if after:
            self._digests[job_id] = after
        return sum(map(len, found.values()))


def _digest(instances: Iterable[ServiceInstance]) -> bytes:
    return blake2b(ENCODER.encode(tuple(instances)), digest_size=16).digest()
