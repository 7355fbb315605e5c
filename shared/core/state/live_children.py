"""Which launched children of periodic jobs have allocations that have not ended: read at each launch.

Children are known by their names alone, so that the table of allocations needs no other table. Derived: neither hashed
nor kept in snapshots.
"""

from collections.abc import Collection

from schemas.base import JobId

#: In the name of a launched child, between the parent's and the second of the launch.
MARK = "/periodic-"


class LiveChildren:
    """Counts of allocations that have not ended, by parent and child."""

    def __init__(self) -> None:
        self._by_parent: dict[str, dict[JobId, int]] = {}

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        return bool(self._by_parent)

    def of(self, parent: JobId) -> Collection[JobId]:
        """Return the live children of a job, and jobs that are only named so."""
        return self._by_parent.get(parent, ())

    def count(self, job_id: JobId, change: int) -> None:
        """Count allocations of a job that begin, or, negative, end; of other jobs than launched children nothing."""
        parent, mark, _ = job_id.rpartition(MARK)
        if not mark:
            return
        children = self._by_parent.setdefault(parent, {})
        children[job_id] = children.get(job_id, 0) + change
        if not children[job_id]:
            del children[job_id]
        if not children:
            del self._by_parent[parent]
