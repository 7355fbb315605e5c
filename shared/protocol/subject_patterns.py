"""Names of `subjects.py` that are no single subject of the contract: wildcards, streams, and requests to JetStream."""

import msgspec


class SubjectPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A name of subjects.py that is not a subject of its own: a wildcard, a stream's name, the server's API."""

    name: str
    what: str


PATTERNS: tuple[SubjectPattern, ...] = tuple(
    SubjectPattern(name=name, what=what)
    for name, what in (
        ("log_all", "all records of a generation: what LOG_n holds"),
        ("log_stream", "name of a generation's stream"),
        ("JOBS_ALL", "the drop box: what JOBS holds"),
        ("API_JOBS_ALL", "submissions by request: what intake listens on"),
        ("API_VARIABLES", "requests about variables: what the keeper listens on"),
        ("API_KEYRING", "requests about keys: what the keeper listens on, too"),
        ("API_ALL", "all requests: what PUBLIC may publish"),
        ("NODE_RPC_ALL", "node RPC on all nodes: what NODES exports to PUBLIC"),
        ("command_filter", "what the applier's consumer of a command kind reads"),
        ("REPORTS", "reports of all nodes"),
        ("LEASES", "leases of all workers: what EVAL holds"),
        ("NODES", "projections of all nodes: what NODE holds"),
        ("VIEWS", "everything published for readers: what VIEW holds"),
        ("VIEW_JOBS", "projections of all jobs: what a view lists of VIEW at its start"),
        ("VIEW_NODES", "summaries of all nodes: what a view lists, too"),
        ("VIEW_SERVICES", "where all services are: what agents may read of VIEW, with their names"),
        ("VIEW_VARIABLES", "revisions of all variables: what agents may read of VIEW, too"),
        ("NODE_VARIABLES", "what all nodes ask about variables: what the keeper listens on"),
        ("NODE_IDENTITIES", "what all nodes ask to be signed: what the keeper listens on, too"),
        ("NODE_DISK_SOURCES", "what all nodes ask about disks: what view listens on, too"),
        ("HEARTBEATS", "heartbeats of all nodes"),
        ("USAGES", "what the tasks of all nodes used: what USAGE holds"),
        ("node_shipped_logs", "output of all tasks of a node: what its agent publishes"),
        ("SHIPPED_LOGS", "output of the tasks of all nodes: what LOGS holds"),
        ("GAUGES", "values of all gauges: what the timekeeper listens on"),
        ("PRESENCES", "presence of all instances"),
        ("presences", "presence of a role's instances"),
        ("QUERIES", "all questions of clients: what view listens on"),
        ("NODE_QUERIES", "questions of all nodes: what view listens on, too"),
        ("DEAD_ALL", "all dead letters: what DEAD holds"),
        ("SNAPSHOTS", "the state at some checkpoints, stored by views: what SNAP holds"),
        ("SNAPSHOT_SETS", "all snapshots that are whole"),
        ("snapshot_set", "the manifest of the snapshot at a checkpoint, stored last; JSON"),
        ("snapshot_chunk", "a piece of one table's bytes, at most 480 KiB"),
        ("snapshot_chunks", "all pieces of one table"),
        ("snapshot_parts", "all pieces of one snapshot"),
        ("snapshot_seq", "index of the checkpoint's token in such a subject"),
        ("last_token", "index of the id's token in a subject"),
        (
            "leader",
            "the holder of a leadership: a key of KV_LEADER, in memory, expires after 2 s without renewal",
        ),
        ("LEADERS", "all leaderships: what KV_LEADER holds"),
        ("key_entry", "a wrapped key of the keeper: written once, erased with what it opens"),
        ("KEYS", "all wrapped keys: what KEYS holds"),
        ("js_stream_info", "JetStream: settings and state of a stream"),
        (
            "js_stream_create",
            "JetStream: create a stream; each role in CORE ensures the memory streams",
        ),
        (
            "js_stream_update",
            "JetStream: note where the log begins; the administrator only",
        ),
        ("js_stream_delete", "JetStream: delete a stream; the administrator only"),
        (
            "js_stream_purge",
            "JetStream: intake purges submissions with a verdict, a view all but its newest snapshots",
        ),
        ("js_message_get", "JetStream: one message from the stream's leader"),
        ("js_message_delete", "JetStream: release a leadership"),
        ("js_direct_get", "JetStream: read LOG, NODE, VIEW, SNAP, USAGE and LOGS from any replica"),
        ("js_consumer_create", "JetStream: create a consumer"),
        ("js_consumer_next", "JetStream: pull messages"),
        ("SYS_JETSTREAM", "the plan applier asks the server whether it fsyncs"),
    )
)
