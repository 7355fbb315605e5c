"""What was sent to the plan applier and must be sent again until the log shows it: when each is due.

Holds times alone, by key; the caller makes the command of a key anew. Entries stay in the order in which they were
added, and so are resent. Every entry is looked at to find those that are due: for a few hundred of them.

Not for tables that differ: submissions of intake (thousands, ordered by due time), plans of a worker (resent by number,
bounded in bytes), keys of the eval broker (ordered by their last send), and requests at the view (its wall clock, and
an answer that is due, too).
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from shared.core.runtime.deadline_timer import RESEND_NS

K = TypeVar("K", bound=Hashable)


class ResendTable(Generic[K]):
    """Due times by key, in steady ns. Pauses begin with RESEND_NS and double up to `pause_max_ns`."""

    def __init__(self, pause_max_ns: int = RESEND_NS) -> None:
        self._pause_max_ns = pause_max_ns
        self._due_ns: dict[K, int] = {}
        self._pause_ns: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._due_ns)

    def __contains__(self, key: K) -> bool:
        return key in self._due_ns

    def add(self, key: K, due_ns: int) -> None:
        """Add what is sent now, or is to be sent first at `due_ns`."""
        self._due_ns[key] = due_ns
        self._pause_ns[key] = RESEND_NS

    def sent_again(self, key: K, now_ns: int) -> None:
        """Record that an entry is sent again, and lengthen its pause."""
        pause_ns = min(2 * self._pause_ns[key], self._pause_max_ns)
        self._pause_ns[key] = pause_ns
        self._due_ns[key] = now_ns + pause_ns

    def remove(self, key: K) -> None:
        """Remove what the log shows, if it is here."""
        if self._due_ns.pop(key, None) is not None:
            del self._pause_ns[key]

    def clear(self) -> None:
        """Remove everything."""
        self._due_ns.clear()
        self._pause_ns.clear()

    def hurry(self, due_ns: int) -> None:
        """Make everything due at a time, with the first pause again: another writer may have got none of it."""
        self._due_ns = dict.fromkeys(self._due_ns, due_ns)
        self._pause_ns = dict.fromkeys(self._pause_ns, RESEND_NS)

    def due(self, now_ns: int) -> list[K]:
        """Return the keys to send again now, in order."""
        return [key for key, due_ns in self._due_ns.items() if due_ns <= now_ns]

    def next_ns(self) -> int:
        """Return when the first is due; 0: none is in the table."""
        return min(self._due_ns.values(), default=0)
