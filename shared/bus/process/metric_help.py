"""The meaning of every metric: HELP in `/metrics`, and the column of docs/metrics.md (a test compares the two)."""

METRIC_HELP = {
    "caravan_shell_ready_info": "connected, and the log read to its end; `/health` answers 200",
    "caravan_shell_problems": "problems that `/health` names, which then answers 503",
    "caravan_shell_bus_servers": "servers of the bus that keep the log",
    "caravan_shell_bus_servers_current": "those of them that are there and hold everything; 0 while none leads the log",
    "caravan_shell_bus_blocked_seconds": (
        "for how long nothing can be committed, by the contact between the servers and the answers of the log's "
        "leader; 0: commits are possible"
    ),
    "caravan_shell_lag_records": "records of the log not read yet",
    "caravan_shell_step_seconds": "duration of the decision on one batch of inputs",
    "caravan_shell_inputs_total": "inputs passed to the role",
    "caravan_shell_effects_total": "effects returned by the role",
    "caravan_shell_waiting_inputs": "inputs waiting for the next step",
    "caravan_shell_connects_total": "connections to the bus, including the first",
    "caravan_shell_sends_dropped_total": (
        "messages not sent because the bus was unreachable; their senders resend them"
    ),
    "caravan_shell_replies_refused_total": (
        "replies not sent because their subject is reserved for the cluster"
    ),
    "caravan_shell_messages_failed_total": (
        "messages refused because they could not be decoded, or because their handling raised an error"
    ),
    "process_cpu_seconds_total": "user and system processor time of the process",
    "process_start_time_seconds": "start of the process, since 1970",
    "process_resident_memory_bytes": "resident memory of the process",
    "process_virtual_memory_bytes": "virtual memory of the process",
    "process_open_fds": "open file descriptors",
    "process_max_fds": "limit of open file descriptors",
    "caravan_view_scrub_damage_info": (
        "the background read of the stored log found damage; `operator status` shows it"
    ),
    "caravan_view_scrub_position_seq": "position of the background read",
    "caravan_view_scrub_passes_total": "background reads of the whole log without damage",
    "caravan_plan_applier_active": (
        "this instance holds the write lease; the sum over all instances is 1"
    ),
    "caravan_plan_applier_epoch": "seq of the active applier's lease, as read by this instance",
    "caravan_plan_applier_reservations": "jobs with reserved nodes",
    "caravan_plan_applier_nodes_held_back": "nodes reserved for these jobs",
    "caravan_plan_applier_append_seconds": (
        "time from sending a transaction to its durable acknowledgement"
    ),
    "caravan_plan_applier_queue_depth": "commands waiting; label `kind`",
    "caravan_plan_applier_commands_total": "commands decided",
    "caravan_plan_applier_transactions_total": "transactions appended",
    "caravan_plan_applier_events_total": "events in the appended transactions",
    "caravan_plan_applier_plans_refused_total": (
        "plans refused as a whole: stale, or their evaluation had ended"
    ),
    "caravan_plan_applier_plans_cut_total": (
        "plans committed in part because a node had too little capacity"
    ),
    "caravan_plan_applier_evictions_total": "allocations evicted for jobs of higher priority",
    "caravan_plan_applier_evictions_spared_total": (
        "planned evictions not done: the victim had ended, or its resources were no longer needed"
    ),
    "caravan_plan_applier_rebuilds_total": (
        "rebuilds of the state after a refused or unanswered append"
    ),
    "caravan_plan_applier_dead_total": "commands that could not be decoded, sent to DEAD",
    "caravan_plan_applier_clock_off_seconds": (
        "difference between this machine's clock and the clock of the bus"
    ),
    "caravan_plan_applier_clock_alarm": "the difference to the clock of the bus is more than 5 s",
    "caravan_plan_applier_log_ahead_seconds": (
        "how far log time is ahead of this machine's clock: it advances at half pace meanwhile"
    ),
    "caravan_log_fill_ratio": (
        "size of the log's newest generation divided by its limit; above 0.9 new work is refused"
    ),
    "caravan_log_fill_alarm_info": "the fill ratio is 0.7 or more",
    "caravan_log_seq": "last record applied",
    "caravan_log_foreign_total": (
        "records in the log that are not valid transactions, or come from a replaced applier"
    ),
    "caravan_eval_broker_acting_bool": "this instance is active",
    "caravan_eval_broker_ready_evaluations": "evaluations that can be leased now",
    "caravan_eval_broker_unacked_evaluations": "evaluations leased and not ended",
    "caravan_eval_broker_pending_evaluations": (
        "evaluations waiting for another evaluation of their job"
    ),
    "caravan_eval_broker_waiting_evaluations": "evaluations delayed until a time",
    "caravan_eval_broker_cancelable_evaluations": (
        "evaluations to be ended without a plan because a newer one replaces them"
    ),
    "caravan_eval_broker_blocked_evaluations": "evaluations waiting for capacity",
    "caravan_eval_broker_parked_evaluations": (
        "pending evaluations behind others of their shape, of which some are leased or one is blocked"
    ),
    "caravan_eval_broker_shapes": "shapes with waiting or leased evaluations",
    "caravan_eval_broker_blocked_cpu_mhz": (
        "CPU requested by unplaced allocations of blocked evaluations"
    ),
    "caravan_eval_broker_blocked_memory_mib": (
        "memory requested by unplaced allocations of blocked evaluations"
    ),
    "caravan_eval_broker_wait_seconds": "time from ready to leased",
    "caravan_eval_broker_process_seconds": "time from leased to the end in the log",
    "caravan_eval_broker_workers": "schedulers with recent presence messages",
    "caravan_eval_broker_leases_total": "evaluations leased",
    "caravan_eval_broker_leases_doubted_total": (
        "leases moved to other workers after a short silence of their worker"
    ),
    "caravan_eval_broker_leases_expired_total": (
        "leases whose deadline passed, or whose worker stopped sending presence messages"
    ),
    "caravan_eval_broker_leases_returned_total": "leases returned by their worker",
    "caravan_eval_broker_leases_reminded_total": (
        "leases resent because their worker did not list them"
    ),
    "caravan_eval_broker_evaluations_failed_total": "evaluations failed after too many attempts",
    "caravan_eval_broker_plans_refused_total": "refused plans seen in the log",
    "caravan_eval_broker_dead_messages_total": (
        "presence messages that could not be decoded, sent to DEAD"
    ),
    "caravan_eval_broker_applied_seq": "last record applied",
    "caravan_scheduler_leases_total": "evaluations received",
    "caravan_scheduler_leases_waiting": "leases received and not decided yet",
    "caravan_scheduler_leases_returned_total": (
        "leases returned because the replica did not catch up in time"
    ),
    "caravan_scheduler_wait_seconds": (
        "time from receiving a lease to deciding it, while the replica catches up"
    ),
    "caravan_scheduler_evaluations_decided_total": (
        "evaluations decided; their duration is `caravan_shell_step_seconds`"
    ),
    "caravan_scheduler_evaluations_failed_total": (
        "evaluations whose decision raised an error; the reason is in the log"
    ),
    "caravan_scheduler_placements_proposed_total": "allocations proposed",
    "caravan_scheduler_plans_submitted_total": "plans sent",
    "caravan_scheduler_plans_outstanding": "plan parts sent whose outcome is not in the log yet",
    "caravan_scheduler_plans_resent_total": "plan parts resent after 0.5 s",
    "caravan_scheduler_plans_refused_total": (
        "plans of this worker refused because another plan was committed first"
    ),
    "caravan_scheduler_plans_cut_total": "plans of this worker committed in part",
    "caravan_scheduler_overlay_allocations": (
        "proposed allocations counted as placed until their outcome is in the log"
    ),
    "caravan_scheduler_dead_messages_total": "leases that could not be decoded, sent to DEAD",
    "caravan_scheduler_applied_seq": "last record applied",
    "caravan_intake_submissions_total": "submissions received",
    "caravan_intake_invalid_total": "submissions refused as malformed or invalid",
    "caravan_intake_refused_total": (
        "submissions refused because their id was used for other content"
    ),
    "caravan_intake_parsed_total": "job files converted to JSON by `api.jobs.parse`",
    "caravan_intake_pending_submissions": (
        "submissions forwarded whose outcome is not in the log yet"
    ),
    "caravan_intake_pending_replies_total": (
        "replies with status `pending`, because the verdict took more than 5 s"
    ),
    "caravan_intake_resends_total": "commands resent after 0.5 s",
    "caravan_intake_pending_bytes": (
        "size of the submissions whose outcome is not in the log yet; the limit is 256 MiB"
    ),
    "caravan_intake_drop_box_outstanding_messages": (
        "messages read from the drop box whose outcome is not in the log yet"
    ),
    "caravan_intake_drop_box_position_seq": "position in the drop box, as recorded in the log",
    "caravan_intake_dead_letters_total": "messages that could not be decoded, sent to DEAD",
    "caravan_heartbeat_up_nodes": "nodes that are not down",
    "caravan_heartbeat_down_nodes": "nodes that are down",
    "caravan_heartbeat_disconnected_nodes": (
        "disconnected nodes: silent, with allocations that tolerate it"
    ),
    "caravan_heartbeat_heartbeats_total": "heartbeats received",
    "caravan_heartbeat_strangers_total": "heartbeats of nodes or boots that are not in the log",
    "caravan_heartbeat_declared_down_total": "nodes declared down",
    "caravan_heartbeat_declared_ready_total": "nodes declared ready again",
    "caravan_gateway_requests_total": "HTTP requests",
    "caravan_gateway_refused_total": "HTTP requests that were answered with an error",
    "caravan_gateway_seq": "position in the log up to which answers are complete",
    "caravan_gateway_waiting_queries": "topics that blocking queries wait for",
    "caravan_gateway_deliveries_total": "requests to webhooks and trace receivers that were accepted",
    "caravan_gateway_deliveries_failed_total": "requests to them that were not accepted",
    "caravan_gateway_outgoing_disabled": ("disabled webhooks and trace receivers"),
    "caravan_gateway_outgoing_lag_records": (
        "records that the slowest of them is behind; a standby has none"
    ),
    "caravan_gateway_bus_messages_total": "messages that the gateway's broker handled",
    "caravan_gateway_bus_failed_total": "messages whose handling failed",
    "caravan_gateway_bus_seconds_total": "time of handling them",
    "caravan_timekeeper_waiting_deadlines": (
        "deadlines in the future; of a standby, launches that it may send"
    ),
    "caravan_timekeeper_unconfirmed_commands": "commands sent whose outcome is not in the log yet",
    "caravan_timekeeper_commands_total": "commands sent because a deadline was due",
    "caravan_timekeeper_standby_commands_total": (
        "commands that it sent as a standby, because the log showed no progress; resends count, too"
    ),
    "caravan_timekeeper_resends_total": "commands resent",
    "caravan_timekeeper_gauges_total": "values of gauges that were received",
    "caravan_heartbeat_graces_total": (
        "times every node got a new deadline because this monitor had paused or started"
    ),
    "caravan_heartbeat_masses_total": (
        "times most nodes fell silent at once, so that the bus is suspected first"
    ),
    "caravan_heartbeat_mass_silence_info": "most nodes are silent",
    "caravan_heartbeat_ahead_of_log_info": (
        "a node has applied a later seq than the log holds: the log is an older copy"
    ),
    "caravan_view_jobs": "jobs in the state",
    "caravan_view_nodes": "nodes in the state",
    "caravan_view_evaluations": "evaluations in the state",
    "caravan_view_allocations": "allocations by client status; label `status`",
    "caravan_view_seq": "last record applied",
    "caravan_view_foreign_records": "as `caravan_log_foreign_total`, as read by this instance",
    "caravan_view_checkpoints_compared": (
        "checkpoints with equal hashes; a different one stops the process"
    ),
    "caravan_view_allocations_told_total": "allocations in the published desired sets of nodes",
    "caravan_view_puts_total": "projections published",
    "caravan_view_puts_refused_total": (
        "projections not published because another instance had published a newer one"
    ),
    "caravan_view_values_too_large_total": (
        "projections too large for a message; each subject is reported once as a dead letter"
    ),
    "caravan_view_marks_waiting": "changed projections that are not published yet",
    "caravan_view_queries_total": "queries answered",
    "caravan_view_queries_invalid_total": "queries that could not be decoded",
    "caravan_view_operator_wishes_waiting": (
        "operator requests forwarded whose outcome is not in the log yet"
    ),
    "caravan_view_queries_held": "queries waiting for the state to reach their `min_seq`",
    "caravan_view_snapshot_seq": (
        "checkpoint of the newest snapshot that this view wrote, found or started from; 0: none"
    ),
    "caravan_view_snapshots_written_total": "snapshots stored",
    "caravan_view_snapshots_failed_total": "snapshots that the bus did not store",
    "caravan_view_snapshots_bytes_total": "bytes encoded for snapshots",
    "caravan_agent_registered": "this boot of the node is registered in the log",
    "caravan_agent_allocations": "allocations on this node",
    "caravan_agent_tasks_running": "running tasks",
    "caravan_agent_tasks_waiting": "tasks waiting for their next start",
    "caravan_agent_tasks_dead": "tasks that have ended and are not restarted",
    "caravan_agent_starts_total": "tasks started",
    "caravan_agent_start_failures_total": "tasks that could not be started",
    "caravan_agent_tasks_memory_bytes": "memory of running tasks, without caches of files",
    "caravan_agent_tasks_cpu_seconds_total": "processor time of tasks",
    "caravan_agent_tasks_throttled_seconds_total": "time that tasks waited because of a processor limit",
    "caravan_agent_tasks_oom_kills_total": "kills of processes of tasks for lack of memory",
    "caravan_agent_reports_unseen": "allocation states that are not in the log yet",
    "caravan_agent_report_number": "number of the last report of this boot",
    "caravan_agent_projection_seq": "seq of the applied projection",
    "caravan_agent_log_rollbacks_total": "times the log was replaced by an older copy",
    "caravan_agent_projections_ignored_total": "projections not applied; label `reason`",
}
