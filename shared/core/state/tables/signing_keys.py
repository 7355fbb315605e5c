"""Public keys that verify identities of tasks: the newest one signs, every one that is here verifies (ADR 38).

An id that was removed is remembered: a late copy of the command that made it known does not bring it back.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from schemas.identities import SigningKeyCreated, SigningKeyRemoved
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers


class SigningKeyRow(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A public key."""

    algorithm: str
    #: SubjectPublicKeyInfo, DER.
    public: bytes
    create_seq: int
    create_ns: int


class SigningKeyTable(EventConsumer):
    """Keys that verify, and the ids of those that do no more."""

    def __init__(self) -> None:
        #: in the order of creation; the newest signs.
        self.by_id: dict[str, SigningKeyRow] = {}
        #: the seq of the removal, by id.
        self.removed: dict[str, int] = {}
        self._keys = EntryHashes[str]()
        self._removed = EntryHashes[str]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {SigningKeyCreated: self._create, SigningKeyRemoved: self._remove}

    @property
    def newest(self) -> str:
        """Id of the key that signs; empty: there is none."""
        return next(reversed(self.by_id), "")

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        keys = self._keys.digest(lambda ids: encode_entries(_pairs(ids, self.by_id)))
        removed = self._removed.digest(lambda ids: encode_entries(_pairs(ids, self.removed)))
        return blake2b(f"{keys}{removed}".encode(), digest_size=8).hexdigest()

    def settle(self) -> None:
        """Make what is derived, of a table that was read from a snapshot."""
        self._keys.touched.extend(self.by_id)
        self._removed.touched.extend(self.removed)

    def _create(self, event: SigningKeyCreated, seq: int) -> None:
        if event.key_id in self.by_id or event.key_id in self.removed:
            return
        row = SigningKeyRow(event.algorithm, event.public, seq, event.at_ns)
        self.by_id[event.key_id] = row
        self._keys.touch(event.key_id)

    def _remove(self, event: SigningKeyRemoved, seq: int) -> None:
        if self.by_id.pop(event.key_id, None) is None:
            return
        self._keys.touch(event.key_id)
        self.removed[event.key_id] = seq
        self._removed.touch(event.key_id)


def _pairs(ids: list[str], entries: Mapping[str, object]) -> list[object]:
    """What is hashed: entries with their ids; None for those that are gone."""
    return [(one, entries[one]) if one in entries else None for one in ids]
