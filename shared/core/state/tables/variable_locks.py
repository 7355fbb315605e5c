"""Locks of variables: which lock holds a path, and until when a path stays free behind one that has expired."""

from hashlib import blake2b

import msgspec

from schemas.variables import VariableLocked, VariableLockExpired, VariableLockReleased
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers


class LockRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The lock that holds a path, or until when none may."""

    #: empty: it has expired.
    lock: str = ""
    ttl_ns: int = 0
    delay_ns: int = 0
    #: seq at which it was taken.
    since_seq: int = 0
    #: of one that has expired: log time before which the path cannot be locked.
    free_ns: int = 0


class LockTable(EventConsumer):
    """Paths that are locked, or may not be locked yet."""

    def __init__(self) -> None:
        #: by path; one that was given back is gone.
        self.by_path: dict[str, LockRow] = {}
        self._hashes = EntryHashes[str]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            VariableLocked: self._lock,
            VariableLockReleased: self._release,
            VariableLockExpired: self._expire,
        }

    def holder(self, path: str) -> str:
        """Hash of the id of the lock that holds a path; empty: none does."""
        found = self.by_path.get(path)
        return "" if found is None else found.lock

    def held(self, prefix: str = "") -> list[str]:
        """Paths that a lock holds and that begin with a prefix, sorted."""
        return sorted(
            path for path, one in self.by_path.items() if one.lock and path.startswith(prefix)
        )

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""

        def texts(keys: list[str]) -> list[bytes]:
            held = self.by_path
            return encode_entries([(key, held[key]) if key in held else None for key in keys])

        return blake2b(self._hashes.digest(texts).encode(), digest_size=8).hexdigest()

    def settle(self) -> None:
        """Make what is derived, of a table that was read from a snapshot."""
        self._hashes.touched.extend(self.by_path)

    def _lock(self, event: VariableLocked, seq: int) -> None:
        over = [path for path, one in self.by_path.items() if 0 < one.free_ns <= event.at_ns]
        for path in over:
            self._remove(path)
        row = LockRow(lock=event.lock, ttl_ns=event.ttl_ns, delay_ns=event.delay_ns, since_seq=seq)
        self._put(event.path, row)

    def _release(self, event: VariableLockReleased, seq: int) -> None:
        del seq
        self._remove(event.path)

    def _expire(self, event: VariableLockExpired, seq: int) -> None:
        del seq
        self._put(event.path, LockRow(free_ns=event.free_ns))

    def _put(self, path: str, row: LockRow) -> None:
        self.by_path[path] = row
        self._hashes.touch(path)

    def _remove(self, path: str) -> None:
        del self.by_path[path]
        self._hashes.touch(path)
