"""The scheduler workers and brokers that show presence on the bus. Independent of FastStream and of the clock."""

from typing import NamedTuple

from schemas.evaluations import Presence

#: A service without a word for so long is not listed. Presence is shown five times a second.
SILENT_S = 5.0
#: Services kept; the bus permits presence to services of the cluster alone.
_KNOWN_MAX = 10_000


class SeenService(NamedTuple):
    """A service, and when it was heard last, in seconds of the caller's clock."""

    presence: Presence
    heard_s: float


class PresentServices:
    """Services by role and instance."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], SeenService] = {}

    def note(self, presence: Presence, now_s: float) -> None:
        """Record a presence; an instance that leaves is removed."""
        key = (presence.role, presence.instance)
        if not presence.active:
            self._seen.pop(key, None)
        elif key in self._seen or len(self._seen) < _KNOWN_MAX:
            self._seen[key] = SeenService(presence, now_s)

    def present(self, now_s: float) -> list[Presence]:
        """What was heard of lately, by role and instance; the others are forgotten."""
        for key in [key for key, one in self._seen.items() if now_s - one.heard_s > SILENT_S]:
            del self._seen[key]
        return [self._seen[key].presence for key in sorted(self._seen)]
