"""Rollouts: which jobs are brought up together, and how far each has got.

What follows from the end of a member's deployment is decided in `shared/core/decide/deployments/rollouts.py`. A rollout
that ended never changes again.
"""

from itertools import islice

import msgspec
from msgspec.structs import replace

from schemas.base import DeploymentKey, JobId, RolloutKey
from schemas.deployments import DeploymentEnded
from schemas.rollouts import RolloutEnded, RolloutStarted
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: Ended rollouts that are kept.
ENDED_KEPT = 100
IN_ORDER = "in_order"


class MemberProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One job of a rollout. Fields as in `RolloutMember`."""

    job_id: JobId
    version: int
    before: int = -1
    deployment: DeploymentKey = DeploymentKey(0)
    #: its deployment was successful, or it has none.
    done: bool = False

    @property
    def is_changed(self) -> bool:
        """The rollout brings a new version of it."""
        return self.version != self.before


class RolloutRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Versions of several jobs on their way."""

    key: RolloutKey
    name: str
    #: one of ROLLOUT_ORDERS.
    order: str = "together"
    #: one of ROLLOUT_STATUSES.
    status: str = "running"
    #: of an ended one: why, and the same for people.
    cause: str = ""
    reason: str = ""
    #: in the order of the submission.
    members: tuple[MemberProgress, ...] = ()
    create_seq: int
    modify_seq: int

    @property
    def is_active(self) -> bool:
        """It has not ended."""
        return self.status == "running"

    @property
    def is_in_order(self) -> bool:
        """A member begins when the one before it is done."""
        return self.order == IN_ORDER

    @property
    def next_member(self) -> MemberProgress | None:
        """The first member that is not done; None: all are."""
        return next((one for one in self.members if not one.done), None)

    def member(self, job_id: JobId) -> MemberProgress | None:
        """Return the member of a job."""
        return next((one for one in self.members if one.job_id == job_id), None)


class RolloutTable(EventConsumer):
    """Rollouts, active and ended, oldest first."""

    def __init__(self) -> None:
        self.by_key: dict[RolloutKey, RolloutRecord] = {}
        #: the one that has not ended, by job.
        self.active: dict[JobId, RolloutKey] = {}
        self._ordinal_seq = 0
        self._ordinal = 0
        self._hashes = EntryHashes[RolloutKey]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            RolloutStarted: self._start,
            RolloutEnded: self._end,
            DeploymentEnded: self._settle,
        }

    def active_of(self, job_id: JobId) -> RolloutRecord | None:
        """The rollout of a job that has not ended."""
        key = self.active.get(job_id)
        return None if key is None else self.by_key[key]

    def of_deployment(self, job_id: JobId, key: DeploymentKey) -> RolloutRecord | None:
        """The active rollout that a deployment is of."""
        found = self.active_of(job_id)
        member = None if found is None else found.member(job_id)
        return found if member is not None and member.deployment == key else None

    def next_ordinal(self, seq: int) -> int:
        """Ordinal that the next rollout started by the transaction at `seq` gets."""
        return self._ordinal if self._ordinal_seq == seq else 0

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        return self._hashes.digest(
            lambda keys: encode_entries([self.by_key.get(key) for key in keys])
        )

    def _start(self, event: RolloutStarted, seq: int) -> None:
        self._ordinal_seq, self._ordinal = seq, self.next_ordinal(seq) + 1
        members = tuple(
            MemberProgress(
                job_id=one.job_id,
                version=one.version,
                before=one.before,
                deployment=one.deployment,
                done=not one.deployment,
            )
            for one in event.members
        )
        self._set(
            RolloutRecord(
                key=event.key,
                name=event.name,
                order=event.order,
                members=members,
                create_seq=seq,
                modify_seq=seq,
            )
        )
        for one in members:
            self.active[one.job_id] = event.key

    def _settle(self, event: DeploymentEnded, seq: int) -> None:
        found = self.of_deployment(event.job_id, event.key)
        if found is None or event.status != "successful":
            return
        members = tuple(
            [
                replace(one, done=True) if one.deployment == event.key else one
                for one in found.members
            ]
        )
        self._set(replace(found, members=members, modify_seq=seq))

    def _end(self, event: RolloutEnded, seq: int) -> None:
        old = self.by_key[event.key]
        self._set(
            replace(
                old, status=event.status, cause=event.cause, reason=event.reason, modify_seq=seq
            )
        )
        for one in old.members:
            if self.active.get(one.job_id) == event.key:
                del self.active[one.job_id]
        ended = [key for key, one in self.by_key.items() if not one.is_active]
        for key in islice(ended, max(0, len(ended) - ENDED_KEPT)):
            del self.by_key[key]
            self._hashes.touched.append(key)

    def _set(self, rollout: RolloutRecord) -> None:
        self.by_key[rollout.key] = rollout
        self._hashes.touched.append(rollout.key)
