"""Launches: for each periodic job the instant that was handled last, its newest launches, and which job made which.

Everything that the timekeeper needs is here, so that it replays neither texts nor groups of jobs.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from schemas.base import JobId
from schemas.jobs import JobRegistered, JobsCollected, JobStopped, PeriodicBlock
from schemas.launches import JobLaunched, JobPayload, LaunchSkipped
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: Launches, and skipped ones, that are remembered of a job.
LAUNCHES_KEPT = 10
SKIPS_KEPT = 5
K = TypeVar("K", bound=str)


class Launch(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One child."""

    at_ns: int
    child_id: JobId
    forced: bool = False


class Skip(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Instants without a child; as in LaunchSkipped."""

    at_ns: int
    why: str
    missed: int = 0


class PeriodicParent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A periodic job, as its newest version has it."""

    version: int
    #: seq of the submission that made this version.
    modify_seq: int
    periodic: PeriodicBlock
    #: planned instants up to here are over: launched, skipped, or before this version.
    handled_ns: int = 0
    stopped: bool = False
    #: newest last.
    launches: tuple[Launch, ...] = ()
    skips: tuple[Skip, ...] = ()

    @property
    def is_launching(self) -> bool:
        """Whether children are launched at its instants."""
        return self.periodic.enabled and not self.stopped


class LaunchTable(EventConsumer):
    """Periodic jobs, and the children of all jobs that have some."""

    def __init__(self) -> None:
        self.by_parent: dict[JobId, PeriodicParent] = {}
        #: child -> the job that made it, in the order in which they were made.
        self.parent_of: dict[JobId, JobId] = {}
        #: the same by parent, oldest first; a parent may be gone.
        self.children: dict[JobId, dict[JobId, None]] = {}
        #: `token_key` -> the child that was dispatched with it.
        self.tokens: dict[str, JobId] = {}
        self._tokens_of: dict[JobId, str] = {}
        #: what children were dispatched with.
        self.payloads: dict[JobId, bytes] = {}
        self._parents = EntryHashes[JobId]()
        self._children = EntryHashes[JobId]()
        self._payloads = EntryHashes[JobId]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            JobRegistered: self._register,
            JobStopped: self._stop,
            JobsCollected: self._collect,
            JobLaunched: self._launch,
            LaunchSkipped: self._skip,
            JobPayload: self._give,
        }

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        parents = self._parents.digest(lambda keys: encode_entries(_pairs(keys, self.by_parent)))
        children = self._children.digest(lambda keys: encode_entries(self._made(keys)))
        payloads = self._payloads.digest(lambda keys: encode_entries(_pairs(keys, self.payloads)))
        return blake2b(f"{parents}{children}{payloads}".encode(), digest_size=8).hexdigest()

    def _made(self, keys: list[JobId]) -> list[object]:
        """What is hashed of children: their parents and tokens; None for those that are gone."""
        parent_of, tokens = self.parent_of, self._tokens_of
        return [
            (key, parent_of[key], tokens.get(key, "")) if key in parent_of else None for key in keys
        ]

    def _register(self, event: JobRegistered, seq: int) -> None:
        job_id = event.job_id
        if event.parent and job_id not in self.parent_of:
            self.parent_of[job_id] = event.parent
            self.children.setdefault(event.parent, {})[job_id] = None
            self._children.touch(job_id)
            if event.dispatch_token:
                key = token_key(event.parent, event.dispatch_token)
                self.tokens[key] = job_id
                self._tokens_of[job_id] = key
        # A job that is not periodic any more was stopped before. The timekeeper does not even read its registration.
        if event.periodic is None or event.parameterized is not None:
            return
        old = self.by_parent.get(job_id)
        if old is not None and old.version == event.version:
            return
        fields = {
            "version": event.version,
            "modify_seq": seq,
            "periodic": event.periodic,
            "handled_ns": event.launches_after_ns,
            "stopped": event.stopped,
        }
        found = PeriodicParent(**fields) if old is None else replace(old, **fields)  # type: ignore[arg-type]
        self._put(job_id, found)

    def _stop(self, event: JobStopped, seq: int) -> None:
        del seq
        old = self.by_parent.get(event.job_id)
        if old is not None:
            self._put(event.job_id, replace(old, stopped=True))

    def _collect(self, event: JobsCollected, seq: int) -> None:
        del seq
        for job_id in event.job_ids:
            if self.by_parent.pop(job_id, None) is not None:
                self._parents.touch(job_id)
            parent = self.parent_of.pop(job_id, None)
            if parent is None:
                continue
            self._children.touch(job_id)
            token = self._tokens_of.pop(job_id, "")
            if token and self.tokens.get(token) == job_id:
                del self.tokens[token]
            if self.payloads.pop(job_id, None) is not None:
                self._payloads.touch(job_id)
            del self.children[parent][job_id]
            if not self.children[parent]:
                del self.children[parent]

    def _launch(self, event: JobLaunched, seq: int) -> None:
        del seq
        old = self.by_parent[event.parent]
        new = Launch(event.at_ns, event.child_id, event.forced)
        self._put(
            event.parent,
            replace(
                old,
                launches=(*old.launches, new)[-LAUNCHES_KEPT:],
                handled_ns=old.handled_ns if event.forced else event.at_ns,
            ),
        )

    def _skip(self, event: LaunchSkipped, seq: int) -> None:
        del seq
        old = self.by_parent[event.parent]
        skips = (*old.skips, Skip(event.at_ns, event.why, event.missed))[-SKIPS_KEPT:]
        # Missed ones come with the launch that catches up for them.
        handled_ns = old.handled_ns if event.why == "missed" else event.at_ns
        self._put(event.parent, replace(old, skips=skips, handled_ns=handled_ns))

    def _give(self, event: JobPayload, seq: int) -> None:
        del seq
        self.payloads[event.job_id] = event.data
        self._payloads.touch(event.job_id)

    def _put(self, job_id: JobId, parent: PeriodicParent) -> None:
        self.by_parent[job_id] = parent
        self._parents.touch(job_id)


def token_key(parent: str, token: str) -> str:
    """Name a token of a job; no id has a line break."""
    return f"{parent}\n{token}"


def by_parent(parent_of: Mapping[JobId, JobId]) -> dict[JobId, dict[JobId, None]]:
    """Return the children of each parent, oldest first."""
    found: dict[JobId, dict[JobId, None]] = {}
    for child, parent in parent_of.items():
        found.setdefault(parent, {})[child] = None
    return found


def _pairs(keys: list[K], entries: Mapping[K, object]) -> list[object]:
    """What is hashed: entries with their keys; None for those that are gone."""
    return [(key, entries[key]) if key in entries else None for key in keys]
