"""Remote tasks: what runs elsewhere for each slot, and which allocation tracks it.

A slot outlives its allocations: it ends when its node says that all its tasks have ended, or when the order to end it
was carried out.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from schemas.base import JobId, NodeId
from schemas.remotes import RemoteMoved, RemotesReported, RemoteTask
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers


class SlotRow(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One slot."""

    job_id: JobId
    group: str
    index: int
    digest: str
    #: tracked, vacant or ending.
    status: str
    #: key of the allocation that tracks it, or that is to end it; 0: none.
    tracker: int
    tasks: dict[str, RemoteTask]
    create_seq: int
    #: the tasks as the tracker found them, which took the slot over.
    handed: dict[str, RemoteTask] = {}
    #: node that is to end it.
    node_id: NodeId = NodeId("")
    epoch: int = 0

    def live_tasks(self) -> dict[str, RemoteTask]:
        """Return the tasks that may still run elsewhere."""
        return {name: one for name, one in self.tasks.items() if one.state != "ended"}


class RemoteTable(EventConsumer):
    """The slots of all jobs."""

    def __init__(self) -> None:
        #: by generation.
        self.by_key: dict[int, SlotRow] = {}
        #: tracker -> generation.
        self.tracked: dict[int, int] = {}
        #: job -> generations, in order of their report.
        self.of_job: dict[JobId, tuple[int, ...]] = {}
        #: generations that a node is to end without an allocation.
        self.endings: dict[int, None] = {}
        self._hashes = EntryHashes[int]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {RemotesReported: self._report, RemoteMoved: self._move}

    def of_tracker(self, key: int) -> SlotRow | None:
        """Return the slot that an allocation tracks, or is to end."""
        generation = self.tracked.get(key)
        return None if generation is None else self.by_key[generation]

    def generations(self, job_id: JobId) -> tuple[int, ...]:
        """Return the slots of a job."""
        return self.of_job.get(job_id, ())

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        rows = self._hashes.digest(lambda keys: encode_entries(_pairs(keys, self.by_key)))
        return blake2b(rows.encode(), digest_size=8).hexdigest()

    def settle(self) -> None:
        """Make what is derived, of a table that was read from a snapshot."""
        self.tracked, self.of_job, self.endings = {}, {}, {}
        for generation, row in self.by_key.items():
            self._index(generation, row)
        self._hashes.touched.extend(self.by_key)

    def _index(self, generation: int, row: SlotRow) -> None:
        self.of_job[row.job_id] = (*self.of_job.get(row.job_id, ()), generation)
        if row.tracker:
            self.tracked[row.tracker] = generation
        if row.node_id:
            self.endings[generation] = None

    def _report(self, event: RemotesReported, seq: int) -> None:
        for slot in event.slots:
            known = self.by_key.get(slot.generation)
            self._hashes.touch(slot.generation)
            if known is not None:
                self.by_key[slot.generation] = msgspec.structs.replace(known, tasks=slot.tasks)
                continue
            row = self.by_key[slot.generation] = SlotRow(
                job_id=slot.job_id,
                group=slot.group,
                index=slot.index,
                digest=slot.digest,
                status="tracked",
                tracker=slot.tracker,
                tasks=slot.tasks,
                create_seq=seq,
            )
            self._index(slot.generation, row)

    def _move(self, event: RemoteMoved, _seq: int) -> None:
        before = self.by_key.get(event.generation)
        if before is None:
            return
        self._hashes.touch(event.generation)
        self.tracked.pop(before.tracker, None)
        self.endings.pop(event.generation, None)
        if event.status == "ended":
            del self.by_key[event.generation]
            left = tuple(one for one in self.of_job[before.job_id] if one != event.generation)
            self.of_job[before.job_id] = left
            if not left:
                del self.of_job[before.job_id]
            return
        if event.tracker:
            self.tracked[event.tracker] = event.generation
        if event.node_id:
            self.endings[event.generation] = None
        is_handed = event.status == "tracked"
        self.by_key[event.generation] = msgspec.structs.replace(
            before,
            status=event.status,
            tracker=event.tracker,
            handed=before.tasks if is_handed else before.handed,
            node_id=event.node_id,
            epoch=event.epoch,
        )


def _pairs(keys: list[int], rows: Mapping[int, SlotRow]) -> list[object]:
    """What is hashed: slots by generation; None for those that are gone."""
    return [(one, rows.get(one)) for one in keys]
