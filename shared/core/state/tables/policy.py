"""Policy: how the cluster schedules and forgets, and which cluster it is."""

from hashlib import blake2b

import msgspec

from schemas.envelope import ENCODER
from schemas.policy import ClusterCreated, IncarnationBegan, LogRolled, Policy, PolicyChanged
from shared.core.state.ids import Incarnations
from shared.core.state.tables.consumer import EventConsumer, EventHandlers


class PolicyTable(EventConsumer):
    """One row: the policy in force."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.policy = Policy()
        #: names the policy in plans.
        self.policy_hash = _hash(self.policy)
        self.log_level = 1
        self.modify_seq = 0
        #: of the log.
        self.generation = 1
        self.incarnations = Incarnations()
        #: the start of the bus that was last written down; empty: none.
        self.bus = ""

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            ClusterCreated: self._create,
            PolicyChanged: self._change,
            LogRolled: self._roll,
            IncarnationBegan: self._begin_incarnation,
        }

    def _create(self, event: ClusterCreated, seq: int) -> None:
        self.cluster_id = event.cluster_id
        self.log_level = event.log_level
        self.bus = event.bus
        self._change(event, seq)

    def _roll(self, event: LogRolled, seq: int) -> None:
        del seq
        self.generation = event.generation

    def _begin_incarnation(self, event: IncarnationBegan, seq: int) -> None:
        self.incarnations = self.incarnations.with_next(event.incarnation, seq)
        self.bus = event.bus or self.bus

    def _change(self, event: ClusterCreated | PolicyChanged, seq: int) -> None:
        self.policy = event.policy
        self.policy_hash = _hash(event.policy)
        self.modify_seq = seq

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        row = (self.cluster_id, _changed(self.policy), self.log_level, self.modify_seq)
        # Logs of before there were generations say nothing of the first one.
        rolled = (self.generation,) if self.generation > 1 else ()
        # Nor do they say where they were written.
        begun = (self.bus, self.incarnations.begun) if self.bus or self.incarnations.begun else ()
        return blake2b(ENCODER.encode((*row, *rolled, *begun)), digest_size=8).hexdigest()


def _hash(policy: Policy) -> str:
    return blake2b(ENCODER.encode(_changed(policy)), digest_size=8).hexdigest()


def _changed(policy: Policy) -> dict[str, object]:
    """Return what differs from the defaults, in order of names: a field that a later release adds changes no old hash.

    Sound because no default ever changes (tests/golden holds that).
    """
    defaults = msgspec.structs.asdict(type(policy)())
    given = msgspec.structs.asdict(policy)
    return {name: given[name] for name in sorted(given) if given[name] != defaults[name]}
