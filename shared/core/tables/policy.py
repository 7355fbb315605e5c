"""Policy: how the cluster schedules and forgets, and which cluster it is."""

from hashlib import blake2b

import msgspec

from schemas.base import Event
from schemas.envelope import ENCODER
from schemas.policy import ClusterCreated, LogRolled, Policy, PolicyChanged


class PolicyTable:
    """One row: the policy in force."""

    handles = (ClusterCreated, PolicyChanged, LogRolled)

    def __init__(self) -> None:
        self.cluster_id = ""
        self.policy = Policy()
        #: names the policy in plans.
        self.policy_hash = _hash(self.policy)
        self.log_level = 1
        self.modify_seq = 0
        #: of the log.
        self.generation = 1

    def evolve(self, event: Event, seq: int) -> None:
        """Apply one fact."""
        if isinstance(event, LogRolled):
            self.generation = event.generation
            return
        if isinstance(event, ClusterCreated):
            self.cluster_id = event.cluster_id
            self.log_level = event.log_level
        assert isinstance(event, ClusterCreated | PolicyChanged)
        self.policy = event.policy
        self.policy_hash = _hash(event.policy)
        self.modify_seq = seq

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        row = (self.cluster_id, _changed(self.policy), self.log_level, self.modify_seq)
        # Logs of before there were generations say nothing of the first one.
        rolled = (self.generation,) if self.generation > 1 else ()
        return blake2b(ENCODER.encode((*row, *rolled)), digest_size=8).hexdigest()


def _hash(policy: Policy) -> str:
    return blake2b(ENCODER.encode(_changed(policy)), digest_size=8).hexdigest()


def _changed(policy: Policy) -> dict[str, object]:
    """Return what differs from the defaults, in order of names: a field that a later release adds changes no old hash.

    Sound because no default ever changes (tests/golden holds that).
    """
    defaults = msgspec.structs.asdict(type(policy)())
    given = msgspec.structs.asdict(policy)
    return {name: given[name] for name in sorted(given) if given[name] != defaults[name]}
