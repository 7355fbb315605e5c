"""The invariants of the simulated world: their names, how often each was checked, and the first that broke."""

#: All invariants. A run of seeds must check each at least once.
INVARIANTS = (
    "no_node_oversubscribed",
    "placed_on_ready_node",
    "one_instance",
    "starts_in_order",
    "stops_in_order",
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
    "drain_waits_for_the_last",
    "drain_keeps_pace",
    "drain_spares_system",
    "late_knows_predecessor",
    "own_room_kept",
    "distinct_kept",
    "data_node_kept",
    "change_told",
    "queue_order_kept",
    "version_by_rule",
    "pace_kept",
    "rollouts_together",
    "operator_heeded",
    "variable_by_rule",
    "variable_put_once",
    "revision_expected",
    "variable_readable",
    "life_used_once",
    "accepted_put_in_log",
    "refused_put_not_in_log",
    "read_is_what_was_put",
    "erased_behind_its_end",
    "key_gone",
    "signing_key_durable",
    "claim_kept",
    "volume_by_rule",
    "remote_once",
    "remote_known",
    "remote_kept",
    "no_remote_left",
    "room_before_start",
    "inputs_before_start",
    "network_before_start",
    "inputs_once",
    "hooks_in_order",
    "step_once",
    "launched_by_rule",
    "dispatched_once",
    "no_step_skipped",
    "no_orphan_task",
    "no_orphan_after_restore",
    "no_id_twice",
    "roles_go_on",
    "converged",
    "newest_request",
)


class InvariantBroken(Exception):
    """An invariant that does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class InvariantChecks:
    """Counts checks, and raises the first failure."""

    __slots__ = ("checks",)

    def __init__(self) -> None:
        self.checks: dict[str, int] = dict.fromkeys(INVARIANTS, 0)

    def hold(self, invariant: str, holds: bool, *detail: object) -> None:  # noqa: FBT001
        """Count a check. Raises InvariantBroken if it fails; `detail` is formatted only then."""
        self.checks[invariant] += 1
        if not holds:
            raise InvariantBroken(invariant, " ".join(str(part) for part in detail))
