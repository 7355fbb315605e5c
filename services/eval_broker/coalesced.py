"""Newer evaluations of a job that are decided together with an older one of the same job.

Decides which of them the plan of the older evaluation has covered, by its snapshot. They stay open until then: the
older one may have been leased before they were created, and its worker may still decide on a snapshot without them.
Independent of the reason of an evaluation. Next: `role.py`.
"""

from schemas.base import EvalKey


class CoalescedEvaluations:
    """Joined evaluations by the older one that they joined."""

    def __init__(self) -> None:
        #: older key -> joined key -> seq of the snapshot it needs; usually empty. Read by the role.
        self.of: dict[EvalKey, dict[EvalKey, int]] = {}
        #: snapshot of the last plan of an evaluation that was joined.
        self._planned: dict[EvalKey, int] = {}

    def __len__(self) -> int:
        """Number of joined evaluations."""
        return sum(map(len, self.of.values()))

    def join(self, key: EvalKey, older: EvalKey, seq: int) -> None:
        """Let `key`, which needs a snapshot at `seq` or later, wait with an older one."""
        self.of.setdefault(older, {})[key] = seq

    def min_seq_of(self, older: EvalKey) -> int:
        """Seq of the snapshot that a worker needs for everything joined to `older`; 0: nothing is joined."""
        news = self.of.get(older)
        return max(news.values()) if news else 0

    def planned(self, older: EvalKey, snapshot_seq: int) -> None:
        """Record that the plan of `older` is in the log, and the seq of its snapshot."""
        if older in self.of:
            self._planned[older] = snapshot_seq

    def part(self, older: EvalKey, *, was_tried: bool) -> tuple[list[EvalKey], list[EvalKey]]:
        """Return what the plan of an ended evaluation covered, and what it did not; remove both."""
        seen = self._planned.pop(older, 0) if was_tried else 0
        news = self.of.pop(older, {})
        self._planned.pop(older, None)
        told = [key for key, seq in news.items() if seq <= seen]
        return told, [key for key, seq in news.items() if seq > seen]
