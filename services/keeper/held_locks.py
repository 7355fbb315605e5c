"""Locks that hold paths of variables: when each expires unless its holder renews it.

Renewals are no facts, as heartbeats are none: the keeper that leads counts the time, and gives every lock its whole
time when it begins to lead. What it sends when the time is over is decided by the plan applier.
"""

from hashlib import blake2b

from schemas.base import Event
from schemas.variables import (
    ExpireLock,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
)
from shared.core.runtime.deadline_timer import earliest
from shared.core.runtime.replica import Replica
from shared.core.runtime.resend_table import ResendTable


def lock_hash(lock_id: str) -> str:
    """Return what the log has of a lock's id, 32 hex digits: who reads the log does not hold the lock."""
    return blake2b(lock_id.encode(), digest_size=16).hexdigest()


class HeldLocks:
    """Locks by path, while this instance leads. Times are steady, in ns."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._due_ns: dict[str, int] = {}
        #: expiries that the log does not show yet.
        self._asked = ResendTable[str]()

    def __len__(self) -> int:
        return len(self._due_ns)

    def begin(self, now_ns: int) -> None:
        """Give every lock its whole time."""
        locks = self._replica.state.variable_locks.by_path
        self._due_ns = {path: now_ns + one.ttl_ns for path, one in locks.items() if one.lock}
        self._asked.clear()

    def end(self) -> None:
        """Leave it to another instance."""
        self._due_ns.clear()
        self._asked.clear()

    def see(self, event: Event, now_ns: int) -> None:
        """Follow a fact."""
        match event:
            case VariableLocked():
                self._due_ns[event.path] = now_ns + event.ttl_ns
            case VariableLockReleased() | VariableLockExpired():
                self._due_ns.pop(event.path, None)
                self._asked.remove(event.path)
            case _:
                pass

    def renew(self, path: str, lock: str, now_ns: int) -> bool:
        """Give a lock its whole time again; False: it does not hold the path, or its end is on its way to the log."""
        held = self._replica.state.variable_locks.by_path.get(path)
        if held is None or held.lock != lock or path in self._asked:
            return False
        self._due_ns[path] = now_ns + held.ttl_ns
        return True

    def due(self, now_ns: int) -> list[ExpireLock]:
        """Return what is to be sent now, again or for the first time."""
        locks, found = self._replica.state.variable_locks, []
        for path, due_ns in list(self._due_ns.items()):
            if due_ns <= now_ns and path not in self._asked:
                self._asked.add(path, now_ns)
        for path in self._asked.due(now_ns):
            self._asked.sent_again(path, now_ns)
            found.append(ExpireLock(path=path, lock=locks.holder(path)))
        return found

    def hurry(self, now_ns: int) -> None:
        """Send again what the former applier may not have got."""
        self._asked.hurry(now_ns)

    def next_ns(self) -> int:
        """Return when the next is due; 0: none is."""
        waiting = [ns for path, ns in self._due_ns.items() if path not in self._asked]
        return earliest(self._asked.next_ns(), *waiting)
