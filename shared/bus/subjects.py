"""Every subject string is built here, and nowhere else (held by tests/tidy).

Pure text: roles and both shells import it. docs/subjects.md is the table for people.
"""

from shared.bus.names import id_token

LOG_KINDS = ("tx", "lease", "checkpoint")
#: Order in which the plan applier drains them.
COMMAND_KINDS = ("plan", "evaluation", "job", "operator", "liveness", "report")
JOB_VERBS = ("submit", "stop", "evaluate")
API_JOB_VERBS = (*JOB_VERBS, "validate")
QUERY_NOUNS = (
    "jobs",
    "job",
    "job_version",
    "nodes",
    "node",
    "allocs",
    "alloc",
    "evals",
    "eval",
    "cluster",
    "dead",
)


def log(generation: int, kind: str) -> str:
    """Subject of a log record; kind is tx, lease or checkpoint."""
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
    """The asked door for one verb."""
    return f"api.jobs.{verb}"


API_JOBS_ALL = "api.jobs.*"


def api(noun: str, verb: str) -> str:
    """Operator verbs: noun is operator, node, system or dead."""
    return f"api.{noun}.{verb}"


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


def view_submission(submission_id: str) -> str:
    """The verdict of a submission."""
    return f"view.submission.{id_token(submission_id)}"


def dead(subject: str) -> str:
    """Where an undecodable message of `subject` is kept."""
    return f"dead.{id_token(subject[:60])}"


def heartbeat(node_id: str) -> str:
    """A node's heartbeat, never stored."""
    return f"hb.{id_token(node_id)}"


HEARTBEATS = "hb.*"


def presence(role: str, instance: str) -> str:
    """An instance's sign of life, never stored."""
    return f"presence.{role}.{id_token(instance)}"


def presences(role: str) -> str:
    """Signs of life of all instances of a role."""
    return f"presence.{role}.*"


def query(noun: str) -> str:
    """A request answered by `view`."""
    return f"query.{noun}"


QUERIES = "query.*"


def last_token(subject: str) -> str:
    """The last token of a subject, where ids stand."""
    return subject.rsplit(".", 1)[-1]
