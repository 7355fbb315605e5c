"""What the simulated world holds true: names of invariants, how often each was checked, and the first that broke.

Decides nothing about the cluster. Next: `books.py`, `oracle.py`.
"""

#: Every invariant; a run of seeds in which one was never checked has not shown anything about it.
INVARIANTS = (
    "no_node_oversubscribed",
    "placed_on_ready_node",
    "legal_state_path",
    "count_not_exceeded",
    "names_unique",
    "submission_once",
    "no_acknowledged_job_lost",
    "one_terminal_fact",
    "forgotten_when_over",
    "no_write_by_old_epoch",
    "state_equals_log",
    "hashes_equal",
    "no_task_twice",
    "no_stale_order",
    "evicted_by_rule",
    "operator_heeded",
    "room_before_start",
    "hooks_in_order",
    "step_once",
    "no_step_skipped",
    "no_orphan_task",
    "roles_go_on",
    "converged",
)


class Broken(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class Ledger:
    """Counts of checks; the one place where a finding is raised."""

    __slots__ = ("checks",)

    def __init__(self) -> None:
        self.checks: dict[str, int] = dict.fromkeys(INVARIANTS, 0)

    def hold(self, invariant: str, holds: bool, *detail: object) -> None:  # noqa: FBT001
        """Count a check. Raises Broken where it fails; `detail` is only then made into text."""
        self.checks[invariant] += 1
        if not holds:
            raise Broken(invariant, " ".join(str(part) for part in detail))
