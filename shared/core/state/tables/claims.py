"""Claims on volumes: on which node the allocations of an index of a group run, because its volume lies there.

A claim ends by the word of an operator, or with its job. The allocations that use it are in their own table.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from schemas.base import JobId, NodeId
from schemas.jobs import JobsCollected
from schemas.volumes import ClaimMade, ClaimReleased
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: job, group and index.
IndexKey = tuple[JobId, str, int]


class ClaimRow(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A claim of an index on the volume of a name."""

    node_id: NodeId
    create_seq: int
    #: no other index or group may claim it, too.
    is_exclusive: bool = False


class ClaimTable(EventConsumer):
    """The claims of all jobs."""

    def __init__(self) -> None:
        #: name of a volume -> claim, by index; in the order in which indexes claimed first.
        self.by_index: dict[IndexKey, dict[str, ClaimRow]] = {}
        self._hashes = EntryHashes[IndexKey]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {ClaimMade: self._make, ClaimReleased: self._release, JobsCollected: self._collect}

    def of_index(self, job_id: JobId, group: str, index: int) -> Mapping[str, ClaimRow]:
        """The claims of an index, by name of the volume."""
        return self.by_index.get((job_id, group, index), {})

    def holders(self, volume: str, node_id: NodeId) -> list[tuple[IndexKey, ClaimRow]]:
        """Who claims the volume of this name on a node."""
        return [
            (key, rows[volume])
            for key, rows in self.by_index.items()
            if volume in rows and rows[volume].node_id == node_id
        ]

    def closed_nodes(self, key: IndexKey, volume: str, *, is_exclusive: bool) -> list[NodeId]:
        """Nodes whose volume of this name another index claims, and one of the two shares with none; sorted."""
        found = {
            rows[volume].node_id
            for other, rows in self.by_index.items()
            if other != key and volume in rows and (is_exclusive or rows[volume].is_exclusive)
        }
        return sorted(found)

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        claims = self._hashes.digest(lambda keys: encode_entries(_pairs(keys, self.by_index)))
        return blake2b(claims.encode(), digest_size=8).hexdigest()

    def settle(self) -> None:
        """Make what is derived, of a table that was read from a snapshot."""
        self._hashes.touched.extend(self.by_index)

    def _make(self, event: ClaimMade, seq: int) -> None:
        key = (event.job_id, event.group, event.index)
        row = ClaimRow(event.node_id, seq, event.is_exclusive)
        self.by_index[key] = {**self.by_index.get(key, {}), event.volume: row}
        self._hashes.touch(key)

    def _release(self, event: ClaimReleased, _seq: int) -> None:
        self._drop((event.job_id, event.group, event.index))

    def _collect(self, event: JobsCollected, _seq: int) -> None:
        if not self.by_index:
            return
        gone = frozenset(event.job_ids)
        for key in [one for one in self.by_index if one[0] in gone]:
            self._drop(key)

    def _drop(self, key: IndexKey) -> None:
        if self.by_index.pop(key, None) is not None:
            self._hashes.touch(key)


def _pairs(
    keys: list[IndexKey], entries: Mapping[IndexKey, Mapping[str, ClaimRow]]
) -> list[object]:
    """What is hashed: claims by name with their index; None for those that are gone."""
    return [(one, sorted(entries[one].items())) if one in entries else None for one in keys]
