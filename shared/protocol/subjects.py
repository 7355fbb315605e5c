"""Every subject string is built here, and nowhere else (held by tests/tidy).

Pure text: roles and both shells import it. docs/subjects.md is the table for people.
"""

from hashlib import sha256

from shared.protocol.id_tokens import id_token

LOG_KINDS = ("tx", "lease", "checkpoint", "roll")
#: Order in which the plan applier drains them.
COMMAND_KINDS = (
    *("plan", "evaluation", "job", "operator", "variable"),
    *("liveness", "report", "timer"),
)
API_VARIABLE_VERBS = ("put", "get", "delete", "lock", "renew", "release")
DROP_BOX_VERBS = ("submit", "stop", "evaluate", "dispatch", "revert", "scale", "start")
API_JOB_VERBS = (*DROP_BOX_VERBS, "submit_together", "validate", "parse")
QUERY_NOUNS = (
    "jobs",
    "job",
    "job_version",
    "job_versions",
    "plan",
    "why_not",
    "policy",
    "nodes",
    "node",
    "allocs",
    "alloc",
    "evals",
    "eval",
    "deployments",
    "deployment",
    "rollouts",
    "rollout",
    "services",
    "service",
    "waiting",
    "cluster",
    "resources",
    "submission",
    "variables",
    "keys",
    "signing_keys",
    "claims",
    "volumes",
    "dead",
)


def log(generation: int, kind: str) -> str:
    """Subject of a log record; kind is tx, lease, checkpoint or roll."""
    return f"log.{generation}.{kind}"


def log_all(generation: int) -> str:
    """All records of one generation."""
    return f"log.{generation}.>"


def log_stream(generation: int) -> str:
    """Name of a generation's stream."""
    return f"LOG_{generation}"


def jobs(verb: str) -> str:
    """The drop box for one verb."""
    return f"jobs.{verb}"


JOBS_ALL = "jobs.*"


def api_jobs(verb: str) -> str:
    """Requests of one verb about jobs."""
    return f"api.jobs.{verb}"


API_JOBS_ALL = "api.jobs.*"
#: Requests about variables, answered by the keeper.
API_VARIABLES = "api.variable.*"
API_KEYRING_VERBS = ("rotate", "remove")
#: Requests about the keeper's keys, answered by it.
API_KEYRING = "api.keyring.*"


def api(noun: str, verb: str) -> str:
    """Operator verbs: noun is operator, node, alloc, deployment or system; verb `*`: all of a noun."""
    return f"api.{noun}.{verb}"


#: What an agent does for an operator, asked over the bus.
NODE_RPC_VERBS = (
    "logs",
    "exec",
    "action",
    "session",
    "fs_list",
    "fs_stat",
    "fs_read",
    "stats",
    "restart",
    "signal",
)


def node_rpc(node_id: str, verb: str) -> str:
    """One verb of a node's agent; verb `*`: all of them."""
    return f"hands.{id_token(node_id)}.{verb}"


NODE_RPC_ALL = "hands.*.*"
#: What an agent asks of another one, for the disk of an allocation.
NODE_DISK_VERBS = ("snapshot", "session")


def node_disk(node_id: str, asker: str, verb: str) -> str:
    """One verb of a node's agent for that of another node, whose user may name no other asker; `*`: all."""
    return f"disk.{_token_or_all(node_id)}.{_token_or_all(asker)}.{verb}"


def _token_or_all(node_id: str) -> str:
    return node_id if node_id == "*" else id_token(node_id)


def command(kind: str) -> str:
    """Commands of one kind, for the plan applier."""
    return f"cmd.{kind}"


def report(node_id: str) -> str:
    """Reports of one node."""
    return f"cmd.report.{id_token(node_id)}"


REPORTS = "cmd.report.*"


def command_filter(kind: str) -> str:
    """What the applier's consumer of a kind reads."""
    return REPORTS if kind == "report" else command(kind)


def leases(worker: str) -> str:
    """Leases for one scheduler worker."""
    return f"eval.{id_token(worker)}"


def node(node_id: str) -> str:
    """A node's projection."""
    return f"node.{id_token(node_id)}"


def view_job(job_id: str) -> str:
    """A job's projection."""
    return f"view.job.{id_token(job_id)}"


def view_node(node_id: str) -> str:
    """A node's summary."""
    return f"view.node.{id_token(node_id)}"


VIEW_JOBS = "view.job.*"
VIEW_NODES = "view.node.*"


def view_service(name: str) -> str:
    """Where the instances of a service are."""
    return f"view.service.{id_token(name)}"


#: Where the instances of every service are, and the names of all services.
VIEW_SERVICES = "view.service.*"
VIEW_SERVICE_NAMES = "view.services"


def view_variable(path: str) -> str:
    """Which revision a variable has. A slash takes three bytes of a token: a path of many is named by a hash."""
    try:
        token = id_token(path)
    except ValueError:
        # No id has such a token: nothing but `~` and two digits begins with a `~`.
        token = f"~h{sha256(path.encode()).hexdigest()}"
    return f"view.variable.{token}"


VIEW_VARIABLES = "view.variable.*"


def view_submission(submission_id: str) -> str:
    """The verdict of a submission."""
    return f"view.submission.{id_token(submission_id)}"


def dead(subject: str) -> str:
    """Where an undecodable message of `subject` is kept; any text has such a place."""
    for length in range(60, 0, -1):
        try:
            return f"dead.{id_token(subject[:length])}"
        except ValueError:
            # Of other letters than ours fewer fit into a token.
            continue
    return "dead.unnamed"


def heartbeat(node_id: str) -> str:
    """A node's heartbeat, never stored."""
    return f"hb.{id_token(node_id)}"


HEARTBEATS = "hb.*"


def usage(node_id: str) -> str:
    """What the tasks of one node used, a minute a message."""
    return f"usage.{id_token(node_id)}"


USAGES = "usage.*"


def shipped_logs(node_id: str, alloc_id: str, task: str) -> str:
    """Output of one task, sent by its node: lines since the last message."""
    return f"logs.{id_token(node_id)}.{id_token(alloc_id)}.{id_token(task)}"


def node_shipped_logs(node_id: str) -> str:
    """Output of every task of one node: what its agent may publish."""
    return f"logs.{id_token(node_id)}.*.*"


SHIPPED_LOGS = "logs.*.*.*"


def gauge(name: str) -> str:
    """The value of a gauge, never stored; names may have dots."""
    return f"gauge.{name}"


GAUGES = "gauge.>"


def presence(role: str, instance: str) -> str:
    """An instance's sign of life, never stored."""
    return f"presence.{role}.{id_token(instance)}"


PRESENCES = "presence.>"


def presences(role: str) -> str:
    """Signs of life of all instances of a role."""
    return f"presence.{role}.*"


def query(noun: str) -> str:
    """A request answered by `view`."""
    return f"query.{noun}"


QUERIES = "query.*"


def node_query(node_id: str) -> str:
    """A node's own question for a job version; view answers about jobs that have an allocation there."""
    return f"query.job_version.{id_token(node_id)}"


NODE_QUERIES = "query.job_version.*"


def node_variables(node_id: str) -> str:
    """A node's own question for variables of a task that it runs; the keeper answers."""
    return f"ask.{id_token(node_id)}.variable"


NODE_VARIABLES = "ask.*.variable"


def node_identities(node_id: str) -> str:
    """A node's own question for signed identities of a task that it runs; the keeper answers."""
    return f"ask.{id_token(node_id)}.identity"


NODE_IDENTITIES = "ask.*.identity"


def node_disk_sources(node_id: str) -> str:
    """A node's own question where the data of an allocation comes from, or may go; the view answers."""
    return f"ask.{id_token(node_id)}.disk_source"


NODE_DISK_SOURCES = "ask.*.disk_source"


def last_token(subject: str) -> str:
    """The last token of a subject, where ids stand."""
    return subject.rsplit(".", 1)[-1]


def snapshot_set(seq: int) -> str:
    """What says that the snapshot at a checkpoint is whole."""
    return f"snap.set.{seq}"


def snapshot_chunk(seq: int, table: str, digest: str, nth: int) -> str:
    """One piece of a table's bytes; `digest` is of all of them."""
    return f"snap.part.{seq}.{id_token(table)}.{id_token(digest)}.{nth}"


def snapshot_chunks(seq: int, table: str, digest: str) -> str:
    """All pieces of one table. Raises ValueError for what is not a name."""
    return f"snap.part.{seq}.{id_token(table)}.{id_token(digest)}.*"


def snapshot_parts(seq: int) -> str:
    """All pieces of the snapshot at a checkpoint."""
    return f"snap.part.{seq}.>"


def snapshot_seq(subject: str) -> int:
    """Return which checkpoint a subject of a snapshot is of; 0: it is none."""
    tokens = subject.split(".")
    return int(tokens[2]) if len(tokens) > 2 and tokens[2].isdigit() else 0


SNAPSHOTS = "snap.>"
SNAPSHOT_SETS = "snap.set.*"
#: What streams hold and accounts export.
LEASES = "eval.*"
NODES = "node.*"
VIEWS = "view.>"
DEAD_ALL = "dead.*"
API_ALL = "api.>"
LEADERS = "$KV.LEADER.>"
KEYS = "$KV.KEYS.>"


def key_entry(name: str) -> str:
    """One entry of the keeper's key store; `door.*`: all of a kind."""
    return f"$KV.KEYS.{name}"


def leader(key: str) -> str:
    """Who holds the leadership `key`."""
    return f"$KV.LEADER.{key}"


def js_stream_info(stream: str) -> str:
    """Ask for a stream's settings and state."""
    return f"$JS.API.STREAM.INFO.{stream}"


def js_stream_create(stream: str) -> str:
    """Create a stream."""
    return f"$JS.API.STREAM.CREATE.{stream}"


def js_stream_update(stream: str) -> str:
    """Change a stream's settings: only the bus's administrator may."""
    return f"$JS.API.STREAM.UPDATE.{stream}"


def js_stream_delete(stream: str) -> str:
    """Delete a stream: only the bus's administrator may."""
    return f"$JS.API.STREAM.DELETE.{stream}"


def js_stream_purge(stream: str) -> str:
    """Drop messages of a stream from its beginning."""
    return f"$JS.API.STREAM.PURGE.{stream}"


def js_message_get(stream: str) -> str:
    """Read one message, from the stream's leader."""
    return f"$JS.API.STREAM.MSG.GET.{stream}"


def js_message_delete(stream: str) -> str:
    """Delete one message."""
    return f"$JS.API.STREAM.MSG.DELETE.{stream}"


def js_direct_get(stream: str, subject: str = "") -> str:
    """Read messages from any replica: by request body, or the last one of `subject`."""
    return f"$JS.API.DIRECT.GET.{stream}.{subject}" if subject else f"$JS.API.DIRECT.GET.{stream}"


def js_consumer_create(stream: str, name: str, subject: str = "") -> str:
    """Create a consumer, filtered by `subject` where one is given."""
    tail = f".{subject}" if subject else ""
    return f"$JS.API.CONSUMER.CREATE.{stream}.{name}{tail}"


def js_consumer_next(stream: str, name: str) -> str:
    """Pull messages from a consumer."""
    return f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"


#: What the server itself knows of its JetStream: settings, sync_always among them.
SYS_JETSTREAM = "$SYS.REQ.SERVER.PING.JSZ"
