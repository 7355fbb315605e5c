"""News of a job that wait with an older evaluation of it, and are looked at in one go with that.

Decides which news a plan has seen when the older one ends. They stay open until then: the older one may have been
handed out before they came, to a worker that was given up and decides after all, on a snapshot without them.
Must not know what the news are. Next: `role.py`.
"""

from schemas.base import EvalKey


class Joined:
    """News by the evaluation that they joined."""

    def __init__(self) -> None:
        #: for others to read; empty nearly always.
        self.of: dict[EvalKey, dict[EvalKey, int]] = {}
        #: snapshot of the last plan of an evaluation that was joined.
        self._planned: dict[EvalKey, int] = {}

    def __len__(self) -> int:
        """Number of news that wait."""
        return sum(map(len, self.of.values()))

    def join(self, key: EvalKey, older: EvalKey, seq: int) -> None:
        """Let `key`, which needs a snapshot at `seq` or later, wait with an older one."""
        self.of.setdefault(older, {})[key] = seq

    def seq_of(self, older: EvalKey) -> int:
        """What a worker must have seen for all that joined; 0: nothing did."""
        news = self.of.get(older)
        return max(news.values()) if news else 0

    def planned(self, older: EvalKey, snapshot_seq: int) -> None:
        """Take note that a plan of it is in the log, and what it was made on."""
        if older in self.of:
            self._planned[older] = snapshot_seq

    def part(self, older: EvalKey, *, was_tried: bool) -> tuple[list[EvalKey], list[EvalKey]]:
        """Return what the plan that ended an evaluation had seen, and what it had not; both are forgotten here."""
        seen = self._planned.pop(older, 0) if was_tried else 0
        news = self.of.pop(older, {})
        self._planned.pop(older, None)
        told = [key for key, seq in news.items() if seq <= seen]
        return told, [key for key, seq in news.items() if seq > seen]
