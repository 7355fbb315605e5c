"""The drop box: messages of JOBS on their way into the log, in their order.

Decides positions, resends and when to purge. Each command names its own position and the one before it, and the plan
applier accepts it only when the position in the log is the one before it: so a lost command delays the later ones, and
all of them are sent again in order. Read credits bound how many are on the way.
"""

import msgspec

from schemas.base import SECOND_NS
from services.intake.pending_submissions import RESENDS_NS

PURGE_NS = SECOND_NS


class DropBoxCommand(msgspec.Struct, gc=False):
    """One command of the drop box that the log does not show yet."""

    token: int
    data: bytes


class DropBox:
    """Outstanding messages of the drop box by their position in JOBS."""

    def __init__(self) -> None:
        self.is_open = False
        #: position of the newest message taken.
        self.last = 0
        self._out: dict[int, DropBoxCommand] = {}
        self._level = 0
        self._due_ns = 0
        self._purged = 0
        self._purge_ns = 0

    def __len__(self) -> int:
        return len(self._out)

    def open(self, position: int) -> int:
        """Start after `position`. Returns where to read from."""
        self.is_open = True
        self.last = position
        self._purged = 0
        self._out.clear()
        self._level = 0
        return position + 1

    def size(self) -> int:
        """Bytes of the commands that the log does not show yet; there are few."""
        return sum([len(one.data) for one in self._out.values()])

    def close(self) -> None:
        """Forget what is on the way: the next holder reads it again."""
        self.is_open = False
        self._out.clear()
        self._purge_ns = 0

    def add(self, position: int, token: int, data: bytes, now_ns: int) -> None:
        """Note a command that is being sent."""
        assert position > self.last, (position, self.last)
        if not self._out:
            self._level = 0
            self._due_ns = now_ns + RESENDS_NS[0]
        self.last = position
        self._out[position] = DropBoxCommand(token, data)

    def advance(self, position: int, now_ns: int) -> list[int]:
        """Take out what the log shows. Returns the tokens to acknowledge."""
        tokens = []
        while self._out:
            first = next(iter(self._out))
            if first > position:
                break
            tokens.append(self._out.pop(first).token)
        if tokens:
            self._level = 0
            self._due_ns = now_ns + RESENDS_NS[0]
        if position > self._purged and not self._purge_ns and self.is_open:
            self._purge_ns = now_ns + PURGE_NS
        return tokens

    def due(self, now_ns: int) -> list[bytes]:
        """Take the commands to be sent again: all of them, in order, when nothing moved for a while."""
        if not self._out or self._due_ns > now_ns:
            return []
        self._level = min(self._level + 1, len(RESENDS_NS) - 1)
        self._due_ns = now_ns + RESENDS_NS[self._level]
        return [one.data for one in self._out.values()]

    def purge(self, position: int, now_ns: int) -> bool:
        """Say whether to purge everything up to the logged `position` now."""
        if not self._purge_ns or self._purge_ns > now_ns:
            return False
        self._purge_ns = 0
        self._purged = position
        return True

    def hurry(self, now_ns: int) -> None:
        """Make everything due now."""
        self._due_ns = now_ns
        self._purge_ns = min(self._purge_ns, now_ns)

    def next_ns(self) -> int:
        """Return when something is due next; 0: nothing."""
        heads = [self._due_ns] if self._out else []
        if self._purge_ns:
            heads.append(self._purge_ns)
        return min(heads, default=0)
