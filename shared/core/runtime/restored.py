"""The input that starts a role at a checkpoint instead of at the first record of the log."""

import msgspec

from schemas.base import JobId
from schemas.envelope import LeaseHeld
from shared.core.runtime.replica import Replica


class SnapshotExtras(msgspec.Struct, frozen=True, kw_only=True):
    """What roles keep beside the tables and cannot derive from them."""

    #: log time since when a job has evaluations that have not ended.
    since_ns: tuple[tuple[JobId, int], ...] = ()
    #: which seq was written when, as the plan applier's Horizon keeps it.
    marks: tuple[tuple[int, int], ...] = ()


class Restored(msgspec.Struct, frozen=True):
    """The state at a checkpoint, checked against the log; delivered before any Record, which continue after it."""

    replica: Replica
    asides: SnapshotExtras
    lease: LeaseHeld
