"""Log lines of an allocation's life: received, stopping; and the names that its other log lines carry.

The role cannot log, so the lines follow what it writes to the journal.
"""

from collections.abc import Iterable

import msgspec
import structlog

from shared.core.runtime.agent_messages import (
    AllocForgotten,
    AllocKept,
    ClusterKept,
    JournalEntry,
)

_log = structlog.get_logger()


class _Plan(msgspec.Struct):
    """What is read of the compiled form of a job."""

    job_parent: str = ""


class AllocStory:
    """The last journal entry of each allocation. `entries`: what earlier agent processes wrote."""

    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self._kept: dict[int, AllocKept] = {}
        self._seq = 0
        for entry in entries:
            self._follow(entry)

    def _follow(self, entry: JournalEntry) -> None:
        if isinstance(entry, ClusterKept):
            self._seq = entry.seq
        elif isinstance(entry, AllocKept):
            self._kept[entry.alloc.key] = entry
        elif isinstance(entry, AllocForgotten):
            self._kept.pop(entry.key, None)

    def names(self, key: int) -> dict[str, object]:
        """Job, group, version, allocation, and log position of the projection that is followed."""
        entry = self._kept.get(key)
        if entry is None:
            return {"key": key, "seq": self._seq}
        alloc = entry.alloc
        names = {"job": alloc.job_id, "group": alloc.group, "version": alloc.version}
        return {**names, "alloc": alloc.alloc_id, "seq": self._seq}

    def variable_names(self, key: int) -> tuple[str, str]:
        """Return the job and the group after which variables of an allocation are named; empty: it is not known."""
        entry = self._kept.get(key)
        if entry is None:
            return "", ""
        plan = msgspec.json.decode(entry.plan, type=_Plan)
        return plan.job_parent or entry.alloc.job_id, entry.alloc.group

    def log(self, entries: Iterable[JournalEntry]) -> None:
        """Log the events of new entries."""
        for entry in entries:
            before = self._kept.get(entry.alloc.key) if isinstance(entry, AllocKept) else None
            self._follow(entry)
            if not isinstance(entry, AllocKept):
                continue
            if before is None or before.alloc.version != entry.alloc.version:
                _log.info("allocation.received", **self.names(entry.alloc.key))
            if entry.end is not None and (before is None or before.end is None):
                end = {"cause": entry.end.cause, "reason": entry.end.reason}
                _log.info("allocation.stopping", **self.names(entry.alloc.key), **end)
