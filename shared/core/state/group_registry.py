"""The numbers of task groups: what an allocation points to, so that a plan of thousands costs no object each."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from schemas.base import JobId
from schemas.jobs import GroupSpec, JobRegistered
from shared.core.columns import RowPool, grown
from shared.core.resources.asks import ExtraAsks, extra_asks_of

#: job, version, name of the group.
GroupKey = tuple[JobId, int, str]


class GroupRegistry:
    """Task groups of job versions, numbered: what an allocation's `group` column points to."""

    def __init__(self) -> None:
        self.job_ids: list[JobId] = []
        self.names: list[str] = []
        self.versions: list[int] = []
        #: what forces a replacement when it differs (GroupSpec.digest).
        self.digests: list[str] = []
        #: (G, 3) ask of one allocation.
        self.ask = np.zeros((0, 3), dtype=np.int64)
        #: what it asks for beside them; None: nothing.
        self.extras: list[ExtraAsks | None] = []
        #: (G,) priority that the job has now, whatever the version.
        self.priority = np.zeros(0, dtype=np.int32)
        #: allocations that point here.
        self.held: list[int] = []
        #: numbers of groups of which an index is one instance at the most.
        self.stateful: dict[int, None] = {}
        #: of all versions of a job, in the order of registration: the last is of the newest, unless that has none.
        self._refs: dict[JobId, tuple[int, ...]] = {}
        #: newest versions that have no groups.
        self._bare: dict[JobId, int] = {}
        self._pool = RowPool()

    @property
    def ref_of(self) -> Mapping[GroupKey, int]:
        """The same as `ref`, like a dict."""
        return GroupRefMap(self)

    def ref(self, job_id: JobId, version: int, name: str) -> int:
        """Number of a group. Raises KeyError."""
        names, versions = self.names, self.versions
        for ref in self._refs[job_id]:
            if names[ref] == name and versions[ref] == version:
                return ref
        raise KeyError((job_id, version, name))

    def refs(self) -> Mapping[JobId, tuple[int, ...]]:
        """Numbers of all versions' groups, by job. Do not write to it."""
        return self._refs

    def key(self, ref: int) -> GroupKey:
        """What a number means."""
        return self.job_ids[ref], self.versions[ref], self.names[ref]

    def newest(self, job_id: JobId) -> int | None:
        """The newest version of a job that is known here."""
        if self._bare and job_id in self._bare:
            return self._bare[job_id]
        refs = self._refs.get(job_id)
        return self.versions[refs[-1]] if refs else None

    def add(self, event: JobRegistered) -> None:
        """Number the groups of a job version that is new, forget those of older ones that nothing points to."""
        job_id = event.job_id
        older = self._refs.get(job_id, ())
        if older:
            self._drop(job_id, [ref for ref in older if not self.held[ref]])
            older = self._refs.get(job_id, ())
            self.priority[list(older)] = event.priority
        if not event.groups:
            self._bare[job_id] = event.version
            return
        if self._bare:
            self._bare.pop(job_id, None)
        new = tuple([self._number(event, group) for group in event.groups])
        self._refs[job_id] = (*older, *new) if older else new

    def _number(self, event: JobRegistered, group: GroupSpec) -> int:
        ref = self._pool.take_one()
        if ref == len(self.names):
            self.job_ids.append(event.job_id)
            self.names.append(group.name)
            self.versions.append(event.version)
            self.digests.append(group.digest)
            self.extras.append(extra_asks_of(group))
            self.held.append(0)
            if ref >= len(self.ask):
                self.ask = grown(self.ask, ref + 1)
                self.priority = grown(self.priority, ref + 1)
        else:
            self.job_ids[ref], self.versions[ref] = event.job_id, event.version
            self.names[ref], self.digests[ref] = group.name, group.digest
            self.extras[ref] = extra_asks_of(group)
        self.stateful.pop(ref, None)
        if group.stateful:
            self.stateful[ref] = None
        self.ask[ref] = (group.cpu_mhz, group.memory_mib, group.disk_mib)
        self.priority[ref] = event.priority
        return ref

    def of_job(self, job_id: JobId) -> tuple[GroupKey, ...]:
        """Keys of all versions' groups of a job."""
        return tuple([self.key(ref) for ref in self._refs.get(job_id, ())])

    def hold(self, ref: int, count: int) -> None:
        """Count allocations that point to a group; a superseded one that nothing points to is forgotten."""
        self.held[ref] += count
        if not self.held[ref] and self.newest(self.job_ids[ref]) != self.versions[ref]:
            self._drop(self.job_ids[ref], [ref])

    def drop(self, job_id: JobId) -> None:
        """Forget a job that has no allocations."""
        self._bare.pop(job_id, None)
        self._drop(job_id, self._refs.get(job_id, ()))

    def _drop(self, job_id: JobId, refs: Sequence[int]) -> None:
        if not refs:
            return
        kept = tuple([ref for ref in self._refs[job_id] if ref not in refs])
        if kept:
            self._refs[job_id] = kept
        else:
            del self._refs[job_id]
        # Above every priority: a free row never counts as one that could be evicted.
        gone = np.asarray(refs, dtype=np.int32)
        self.priority[gone] = np.iinfo(np.int32).max
        self._pool.free(gone)


class GroupRefMap(Mapping[GroupKey, int]):
    """Numbers of groups by what they mean: read from the columns, so that a group costs no entry of its own."""

    def __init__(self, groups: GroupRegistry) -> None:
        self._groups = groups

    def __getitem__(self, key: GroupKey) -> int:
        return self._groups.ref(*key)

    def __iter__(self) -> Iterator[GroupKey]:
        return map(self._groups.key, chain.from_iterable(self._groups.refs().values()))

    def __len__(self) -> int:
        return sum(map(len, self._groups.refs().values()))
