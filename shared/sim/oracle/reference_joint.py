"""Rollouts of several jobs as read from the log, in plain dicts that share no code with the tables.

A part of the reference model. It checks that a job is in one active rollout, that canaries of its members are promoted
together, that later members wait in order, and that after a failure every member is as it was before.
"""

from schemas import jobs, rollouts
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.oracle.reference_rollouts import ReferenceDeployment, ReferenceRollouts

_RULE = "rollouts_together"


class ReferenceJointMember(rollouts.RolloutMember, frozen=True, kw_only=True):
    """A member, and what its job was before."""

    text: bytes | None
    was_stopped: bool


class ReferenceJointRollout:
    """One rollout."""

    def __init__(self, order: str, members: list[ReferenceJointMember]) -> None:
        self.order = order
        self.members = members


class ReferenceJoint:
    """All rollouts of the log that are active."""

    def __init__(self, ledger: InvariantChecks, deployments: ReferenceRollouts) -> None:
        self._ledger = ledger
        self._deployments = deployments
        self.active: dict[int, ReferenceJointRollout] = {}
        self._stopped: dict[str, bool] = {}
        #: text of each version, and the newest.
        self._texts: dict[tuple[str, int], bytes] = {}
        self._newest: dict[str, int] = {}
        #: members that must go back in this transaction.
        self._returning: dict[str, ReferenceJointMember] = {}

    def apply(self, event: object) -> None:
        """Take an event, and check it."""
        match event:
            case rollouts.RolloutStarted():
                self._start(event)
            case rollouts.RolloutEnded():
                self._end(event)
            case jobs.JobRegistered():
                self._register(event)
            case jobs.JobStopped():
                self._stopped[event.job_id] = True
                member = self._returning.get(event.job_id)
                if member is not None and member.text is None:
                    del self._returning[event.job_id]
            case jobs.JobsCollected():
                # The next job of that name is another one.
                for job_id in event.job_ids:
                    self._stopped.pop(job_id, None)
                    self._newest.pop(job_id, None)
            case _:
                pass

    def close(self) -> None:
        """Check what holds at the end of a transaction."""
        hold = self._ledger.hold
        hold(_RULE, not self._returning, "did not go back:", *self._returning)
        for one in self.active.values():
            for member in one.members:
                same = self._newest.get(member.job_id) == member.version
                is_there = same and not self._stopped.get(member.job_id)
                hold(_RULE, is_there, member, "changed alone, and continues")
            if one.order == "in_order":
                self._check_order(one)
            else:
                groups = [g for found in self._of(one) for g in found.groups.values() if g.canaries]
                promoted = {group.is_promoted for group in groups}
                hold(_RULE, len(promoted) < 2, "promoted a part of", one.members)

    def _of(self, one: ReferenceJointRollout) -> list[ReferenceDeployment]:
        keys = [member.deployment for member in one.members if member.deployment]
        return [self._deployments.by_key[key] for key in keys]

    def _check_order(self, one: ReferenceJointRollout) -> None:
        waits = False
        for found in self._of(one):
            if found.status == "successful":
                continue
            is_held = "rollout" in found.held_by
            self._ledger.hold(_RULE, is_held == waits, found.job_id, "is held:", is_held)
            waits = True

    def _start(self, event: rollouts.RolloutStarted) -> None:
        members = [
            ReferenceJointMember(
                job_id=one.job_id,
                version=one.version,
                before=one.before,
                deployment=one.deployment,
                text=self._texts.get((one.job_id, one.before)),
                was_stopped=self._stopped.get(one.job_id, False),
            )
            for one in event.members
        ]
        known = {member.job_id for one in self.active.values() for member in one.members}
        alone = known.isdisjoint(member.job_id for member in members)
        self._ledger.hold(_RULE, alone, "a second active rollout", event)
        self.active[event.key] = ReferenceJointRollout(event.order, members)

    def _end(self, event: rollouts.RolloutEnded) -> None:
        one = self.active.pop(event.key)
        if event.status == "successful":
            done = all(found.status == "successful" for found in self._of(one))
            self._ledger.hold(_RULE, done, "successful too early", event)
        if event.status == "failed":
            changed = [member for member in one.members if member.version != member.before]
            self._returning |= {member.job_id: member for member in changed}

    def _register(self, event: jobs.JobRegistered) -> None:
        member = self._returning.pop(event.job_id, None)
        if member is not None:
            back = (bytes(event.spec), event.stopped) == (member.text, member.was_stopped)
            self._ledger.hold(_RULE, back, "goes back to another text", event)
        self._texts[event.job_id, event.version] = bytes(event.spec)
        if self._newest.get(event.job_id) != event.version:
            self._stopped[event.job_id] = event.stopped
        self._newest[event.job_id] = event.version
