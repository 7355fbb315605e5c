"""Backlog: how many evaluations wait for workers, told to whoever lets work in.

Decides when it is told: ten times a second while there are many, and once more when there are few again. Must not know
what the others make of it. Nothing hangs on a message that is lost: the next one says it again. Next: `role.py`.
"""

from schemas.envelope import ENCODER
from schemas.evaluations import Presence
from shared.bus import subjects
from shared.core.role import Send

#: From so many on it is told: half of what intake lets wait.
TOLD_FROM = 2_000
TOLD_NS = 100_000_000


class Backlog:
    """When the backlog was told last."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        #: by the last word.
        self._was_high = False
        #: steady time of the next word; 0: nothing to say.
        self.due_ns = 0

    def told(self, waiting: int, seq: int, now_ns: int) -> list[Send]:
        """Say how many wait, where it is time to. `now_ns` is steady time."""
        is_high = waiting >= TOLD_FROM
        if not (is_high or self._was_high) or now_ns < self.due_ns:
            return []
        self._was_high = is_high
        self.due_ns = now_ns + TOLD_NS if is_high else 0
        body = Presence(role="eval_broker", instance=self._instance, seq=seq, waiting=waiting)
        return [Send(subjects.presence("eval_broker", "backlog"), ENCODER.encode(body))]
