"""What every subject carries: publisher, subscriber, message, and where and how long it is kept.

docs/subjects.md (here) and schemas/asyncapi.json (services/gateway/edge/bus/asyncapi.py) are written from it, and tests
hold it against subjects.py and streams.py. Independent of any bus client.
"""

import msgspec

from schemas.answers import ErrorAnswer
from schemas.base import Wire
from schemas.catalogue import ANSWERS, NODE_RPCS, published_name
from schemas.dead_letter import DeadLetter
from schemas.disks import DiskAsk, DiskSourceAnswer, DiskSourceAsk
from schemas.envelope import CommandBatch, LogRecord
from schemas.evaluations import Leases, Presence
from schemas.gates import Gauge
from schemas.identities import (
    IdentityAnswers,
    IdentityAsk,
    KeyringVerdict,
    RemoveKeyRequest,
    RotateKeyRequest,
)
from schemas.jobs import ParsedJob, Verdict
from schemas.node_rpc import Frame, SessionAnswer, SessionInput
from schemas.nodes import Heartbeat
from schemas.operator import OperatorVerdict
from schemas.projections import (
    JobProjection,
    NodeProjection,
    NodeSummary,
    PlanQuery,
    Query,
    ServiceNamesProjection,
    ServiceProjection,
)
from schemas.shipped_logs import ShippedLogs
from schemas.submissions import (
    JobDispatch,
    JobNamed,
    JobRevert,
    JobScale,
    JobsSubmission,
    JobStart,
    JobSubmission,
    JobText,
    KeptAck,
)
from schemas.usage import UsageMinute
from schemas.variables import (
    DeleteVariableRequest,
    GetVariableRequest,
    LockVariableRequest,
    PutVariableRequest,
    ReleaseLockRequest,
    RenewLockRequest,
    VariableAnswer,
    VariableAnswers,
    VariableAsk,
    VariableProjection,
    VariableVerdict,
)
from shared.protocol import subjects
from shared.protocol.operator_verbs import VERBS
from shared.protocol.subject_patterns import PATTERNS

ANY_CLIENT = "any client, in any language"
_AGENTS_TOO = f"agents, {ANY_CLIENT}"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a subject, or a family of them with `{parameters}`."""

    #: of the function in subjects.py that builds it.
    made_by: str
    address: str
    says: str
    subscriber: str
    message_type: type[Wire]
    #: empty: no reply.
    answers: tuple[type[Wire], ...] = ()
    #: empty: core NATS, never stored.
    stream: str = ""
    kept: str = "not kept"
    what: str


def _parameterized(subject: str) -> str:
    """Turn the capital tokens of a subject that was built with sample ids into parameters."""
    tokens = [f"{{{one.lower()}}}" if one.isupper() else one for one in subject.split(".")]
    return ".".join(tokens)


def _log() -> tuple[Subject, ...]:
    what = {
        "tx": "A transaction: events that happened together.",
        "lease": "The new holder of the write lease: the epoch of all records behind it.",
        "checkpoint": "The hashes of all tables at this seq.",
        "roll": "The last record of a generation: the log continues in the stream that begins at the next seq.",
    }
    return tuple(
        Subject(
            made_by="log",
            address=subjects.log(0, kind).replace("0", "{generation}"),
            says="plan_applier",
            subscriber="every role and `caravan log`, by replay",
            message_type=LogRecord,
            stream="LOG_{generation}",
            kept="permanently, fsynced; refused when full",
            what=what[kind],
        )
        for kind in subjects.LOG_KINDS
    )


def _jobs() -> tuple[Subject, ...]:
    verbs = {
        "submit": "Register a job, or a new version of it.",
        "submit_together": "Register several jobs as one rollout: all of them, or none.",
        "stop": "Stop a job.",
        "evaluate": "Evaluate a job again.",
        "dispatch": "Make a child of a parameterized job, with a payload and meta of its own.",
        "revert": "Register the text of an older version of a job again, as the next version.",
        "scale": "Register a job with another count of a group, as the next version.",
        "start": "Run a stopped job again, as the next version.",
        "validate": "Say what is wrong with a job; nothing is registered.",
        "parse": "Turn a job file into JSON; nothing is registered.",
    }
    carried: dict[str, type[Wire]] = {
        "submit": JobSubmission,
        "submit_together": JobsSubmission,
        "validate": JobSubmission,
        "parse": JobText,
        "dispatch": JobDispatch,
        "revert": JobRevert,
        "scale": JobScale,
        "start": JobStart,
    }
    dropped = tuple(
        Subject(
            made_by="jobs",
            address=subjects.jobs(verb),
            says=ANY_CLIENT,
            subscriber="intake, from the position that the log knows",
            message_type=carried.get(verb, JobNamed),
            answers=(KeptAck,),
            stream="JOBS",
            kept="until its verdict is in the log, fsynced; at most 1 GiB, then refused",
            what=f"{verbs[verb]} Drop box: the answer means kept, the verdict is on `view.submission.<id>`.",
        )
        for verb in subjects.DROP_BOX_VERBS
    )
    asked = tuple(
        Subject(
            made_by="api_jobs",
            address=subjects.api_jobs(verb),
            says=ANY_CLIENT,
            subscriber="intake, one of the queue group",
            message_type=carried.get(verb, JobNamed),
            answers=(ParsedJob,) if verb == "parse" else (Verdict,),
            what=verbs[verb]
            if verb == "parse"
            else f"{verbs[verb]} The answer is the verdict; pending: ask again under the same id.",
        )
        for verb in subjects.API_JOB_VERBS
    )
    return dropped + asked


def _commands() -> tuple[Subject, ...]:
    senders = {
        "plan": ("scheduler", "Plans to commit."),
        "evaluation": ("eval_broker", "Evaluations to wake or to end."),
        "job": ("intake", "Submissions that are valid as such."),
        "operator": ("view", "Requests of operators."),
        "variable": ("keeper", "Ciphertext of variables, ends of their lives, public keys."),
        "liveness": ("heartbeat", "Nodes that fell silent or came back."),
        "timer": ("timekeeper", "Deadlines that are due."),
        "report": (
            "the agent of that node",
            "Registration, and every state not yet seen in the log.",
        ),
    }
    return tuple(
        Subject(
            made_by="report" if kind == "report" else "command",
            address=_parameterized(
                subjects.report("NODE") if kind == "report" else subjects.command(kind)
            ),
            says=senders[kind][0],
            subscriber="plan_applier",
            message_type=CommandBatch,
            stream="CMD",
            kept="in memory until delivered; at most 256 MiB, then refused; the sender keeps it, too",
            what=f"{senders[kind][1]} Sent again until the log shows the effect or the refusal.",
        )
        for kind in subjects.COMMAND_KINDS
    )


def _operators() -> tuple[Subject, ...]:
    return tuple(
        Subject(
            made_by="api",
            address=subjects.api(row.noun, row.verb),
            says=ANY_CLIENT,
            subscriber="view, one of the queue group",
            message_type=row.request,
            answers=(OperatorVerdict,),
            what=f"{row.summary} Answered once the log shows it; pending: ask again.",
        )
        for row in VERBS
    )


def _variables() -> tuple[Subject, ...]:
    """Requests to the keeper: items travel sealed, both ways."""
    kinds: dict[str, tuple[type[Wire], type[Wire], str]] = {
        "put": (PutVariableRequest, VariableVerdict, "Store items under a path."),
        "get": (GetVariableRequest, VariableAnswer, "Read the items of a path."),
        "delete": (DeleteVariableRequest, VariableVerdict, "Erase a path and its items."),
        "lock": (LockVariableRequest, VariableVerdict, "Hold a path, or renew the lock that does."),
        "renew": (RenewLockRequest, VariableVerdict, "Say that the holder of a lock is there."),
        "release": (ReleaseLockRequest, VariableVerdict, "Give a lock back."),
    }
    of_node = Subject(
        made_by="node_variables",
        address=_parameterized(subjects.node_variables("NODE")),
        says="the agent of that node",
        subscriber="keeper, the one that leads",
        message_type=VariableAsk,
        answers=(VariableAnswers,),
        what="Read variables for a task of an allocation on that node.",
    )
    of_clients = tuple(
        Subject(
            made_by="api",
            address=subjects.api("variable", verb),
            says=ANY_CLIENT,
            subscriber="keeper, the one that leads",
            message_type=kinds[verb][0],
            answers=(kinds[verb][1],),
            what=kinds[verb][2],
        )
        for verb in subjects.API_VARIABLE_VERBS
    )
    return (*of_clients, of_node)


def _keys_and_identities() -> tuple[Subject, ...]:
    """Requests about the keeper's keys, and questions of nodes for what it signs."""
    kinds: dict[str, tuple[type[Wire], str]] = {
        "rotate": (RotateKeyRequest, "Make another key, which is in force from then on."),
        "remove": (RemoveKeyRequest, "Take away a signing key that is not in force."),
    }
    of_node = Subject(
        made_by="node_identities",
        address=_parameterized(subjects.node_identities("NODE")),
        says="the agent of that node",
        subscriber="keeper, the one that leads",
        message_type=IdentityAsk,
        answers=(IdentityAnswers,),
        what="Sign identities for a task of an allocation on that node.",
    )
    of_clients = tuple(
        Subject(
            made_by="api",
            address=subjects.api("keyring", verb),
            says=ANY_CLIENT,
            subscriber="keeper, the one that leads",
            message_type=kinds[verb][0],
            answers=(KeyringVerdict,),
            what=kinds[verb][1],
        )
        for verb in subjects.API_KEYRING_VERBS
    )
    return (*of_clients, of_node)


def _node_rpc() -> tuple[Subject, ...]:
    whats = {
        "logs": "Output of a task, as a stream of answers.",
        "exec": "Run a command beside a task: its output is a stream of answers.",
        "action": "Run an action of a task, whose command is in the job: its output is a stream of answers.",
        "session": "Input of such a stream, its acknowledgements, and keep-alives of its reader.",
        "fs_list": "List a directory of an allocation.",
        "fs_stat": "Describe a file of an allocation.",
        "fs_read": "Read a part of a file of an allocation.",
        "stats": "Current resource use of tasks.",
        "restart": "Restart tasks; this does not count as a failure.",
        "signal": "Send a signal to tasks.",
    }
    return tuple(
        Subject(
            made_by="node_rpc",
            address=_parameterized(subjects.node_rpc("NODE", verb)),
            says=ANY_CLIENT,
            subscriber="the agent of that node",
            message_type=NODE_RPCS[verb][0],
            answers=(NODE_RPCS[verb][1],),
            what=f"{whats[verb]} No responder: the node is disconnected.",
        )
        for verb in subjects.NODE_RPC_VERBS
    )


def _disks() -> tuple[Subject, ...]:
    source = Subject(
        made_by="node_disk_sources",
        address=_parameterized(subjects.node_disk_sources("NODE")),
        says="the agent of that node",
        subscriber="view, one of the queue group",
        message_type=DiskSourceAsk,
        answers=(DiskSourceAnswer,),
        what="What an allocation replaces, and on which nodes both are: who may have the data of its disk.",
    )
    kinds: dict[str, tuple[type[Wire], type[Wire], str]] = {
        "snapshot": (DiskAsk, Frame, "The data of an ended allocation, as a stream of answers."),
        "session": (SessionInput, SessionAnswer, "Acknowledgements of such a stream."),
    }
    asked = tuple(
        Subject(
            made_by="node_disk",
            address=_parameterized(subjects.node_disk("NODE", "ASKER", verb)),
            says="the agent of the second node",
            subscriber="the agent of the first node",
            message_type=kinds[verb][0],
            answers=(kinds[verb][1],),
            what=f"{kinds[verb][2]} No responder: the node is disconnected.",
        )
        for verb in subjects.NODE_DISK_VERBS
    )
    return (source, *asked)


def _queries() -> tuple[Subject, ...]:
    asks = {"job_version": "a fleet, " + ANY_CLIENT}
    own = Subject(
        made_by="node_query",
        address=_parameterized(subjects.node_query("NODE")),
        says="the agent of that node",
        subscriber="view, one of the queue group",
        message_type=Query,
        answers=(ANSWERS["job_version"], ErrorAnswer),
        what="The text of a job that has an allocation on that node.",
    )
    asked = tuple(
        Subject(
            made_by="query",
            address=subjects.query(noun),
            says=asks.get(noun, ANY_CLIENT),
            subscriber="view, one of the queue group",
            message_type=PlanQuery if noun == "plan" else Query,
            answers=(ANSWERS[noun], ErrorAnswer),
            what="What registering a job would do; nothing is kept."
            if noun == "plan"
            else "A question about the state, at least as new as `min_seq`.",
        )
        for noun in subjects.QUERY_NOUNS
    )
    return (*asked, own)


def _projections() -> tuple[Subject, ...]:
    """Last values of the state."""

    def value(made_by: str, subject: str, carries: type[Wire], **other: str) -> Subject:
        return Subject(
            made_by=made_by,
            address=_parameterized(subject),
            says="view",
            subscriber=other.get("hears", ANY_CLIENT),
            message_type=carries,
            stream="NODE" if made_by == "node" else "VIEW",
            kept=other.get("kept", "in memory, the last value; an hour once it left the state"),
            what=other["what"],
        )

    return (
        value(
            "node",
            subjects.node("NODE"),
            NodeProjection,
            hears="the agent of that node",
            what="Everything the node should run. It stops what is omitted.",
        ),
        value("view_job", subjects.view_job("JOB"), JobProjection, what="A job in numbers."),
        value("view_node", subjects.view_node("NODE"), NodeSummary, what="A node in numbers."),
        value(
            "view_service",
            subjects.view_service("SERVICE"),
            ServiceProjection,
            hears=_AGENTS_TOO,
            kept="in memory, the last value; an hour once it has no instance",
            what="The instances of a service, with the status of their checks.",
        ),
        value(
            "VIEW_SERVICE_NAMES",
            subjects.VIEW_SERVICE_NAMES,
            ServiceNamesProjection,
            hears=_AGENTS_TOO,
            kept="in memory, the last value",
            what="The names of all services that have an instance, with their tags.",
        ),
        value(
            "view_variable",
            subjects.view_variable("PATH"),
            VariableProjection,
            hears=_AGENTS_TOO,
            kept="in memory, the last value; an hour once it is deleted",
            what="Which revision a variable has. A path of many slashes is named by its hash.",
        ),
        value(
            "view_submission",
            subjects.view_submission("SUBMISSION"),
            Verdict,
            kept="in memory, one hour",
            what="The verdict of a submission.",
        ),
    )


def _leases_and_liveness() -> tuple[Subject, ...]:
    return (
        Subject(
            made_by="leases",
            address=_parameterized(subjects.leases("WORKER")),
            says="eval_broker",
            subscriber="that scheduler worker",
            message_type=Leases,
            stream="EVAL",
            kept="in memory until delivered; at most 64 MiB, then refused; leased again after 5 s",
            what="Evaluations handed to one worker for a time.",
        ),
        Subject(
            made_by="heartbeat",
            address=_parameterized(subjects.heartbeat("NODE")),
            says="the agent of that node, every second",
            subscriber="heartbeat",
            message_type=Heartbeat,
            what="The node is alive. A change of its state is an event, silence is not.",
        ),
        Subject(
            made_by="gauge",
            address=_parameterized(subjects.gauge("GAUGE")),
            says=ANY_CLIENT,
            subscriber="timekeeper",
            message_type=Gauge,
            what="The value of a gauge now; jobs name it in gates of their updates. Silence closes these gates.",
        ),
        Subject(
            made_by="presence",
            address=_parameterized(subjects.presence("ROLE", "INSTANCE")),
            says="that instance, five times a second; the eval broker under the name `backlog` while many wait",
            subscriber="eval_broker, intake",
            message_type=Presence,
            what="The instance is alive; its replay position, and the leases that it returns.",
        ),
        Subject(
            made_by="dead",
            address=_parameterized(subjects.dead("SUBJECT")),
            says="any role",
            subscriber="view, to answer `query.dead`",
            message_type=DeadLetter,
            stream="DEAD",
            kept="7 days, at most 1 GiB, the oldest leave first",
            what="A message that could not be decoded, with the reason.",
        ),
    )


def _of_tasks() -> tuple[Subject, ...]:
    return (
        Subject(
            made_by="usage",
            address=_parameterized(subjects.usage("NODE")),
            says="the agent of that node, each minute in which a task runs",
            subscriber="any client, by direct get: `caravan sql`",
            message_type=UsageMinute,
            stream="USAGE",
            kept="in memory, a day, at most 256 MiB, the oldest leave first",
            what="What the tasks of the node used in a minute.",
        ),
        Subject(
            made_by="shipped_logs",
            address=_parameterized(subjects.shipped_logs("NODE", "ALLOC", "TASK")),
            says="the agent of that node, each second in which a task with `logs { ship = true }` writes",
            subscriber="any client, by direct get: `caravan alloc logs --shipped`",
            message_type=ShippedLogs,
            stream="LOGS",
            kept="7 days, at most 1 GiB, the oldest leave first",
            what="Lines of the output of the task. The agent sends them again until LOGS has acknowledged them.",
        ),
    )


SUBJECTS: tuple[Subject, ...] = (
    *_log(),
    *_jobs(),
    *_commands(),
    *_operators(),
    *_variables(),
    *_keys_and_identities(),
    *_node_rpc(),
    *_disks(),
    *_queries(),
    *_projections(),
    *_leases_and_liveness(),
    *_of_tasks(),
)


def markdown() -> str:
    """Write docs/subjects.md."""
    out = [
        "# Subjects",
        "",
        "<!-- Written by `python -m services.gateway.edge.bus.asyncapi` from shared/protocol/contract.py; tested. -->",
        "",
        "Every subject is built in `shared/protocol/subjects.py` and nowhere else. Ids enter a subject as one",
        "reversible token (`shared/protocol/id_tokens.py`): letters, digits, `-` and `_` as they are, any other",
        "byte as `~XX`. All bodies are JSON: [events.md](events.md), [schemas/json](../schemas/json), and as",
        "AsyncAPI [schemas/asyncapi.json](../schemas/asyncapi.json). Streams are declared in",
        "`shared/bus/jetstream/streams.py`; the server's accounts (`shared/bus/server/accounts.py`) enforce",
        "which user may publish and subscribe.",
        "",
        "| subject | publisher | subscriber | message | answer | stream | kept | built by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in SUBJECTS:
        answer = " or ".join(_link(struct) for struct in one.answers) or "none"
        cells = (
            f"`{one.address}`",
            one.says,
            one.subscriber,
            _link(one.message_type),
            answer,
            one.stream or "none",
            one.kept,
            f"`{one.made_by}`",
        )
        out.append(f"| {' | '.join(cells)} |")
    out += ["", "## What each is for", "", "| subject | |", "|---|---|"]
    out += [f"| `{one.address}` | {one.what} |" for one in SUBJECTS]
    out += ["", "## The other names of subjects.py", "", "| name | |", "|---|---|"]
    out += [f"| `{one.name}` | {one.what} |" for one in PATTERNS]
    return "\n".join(out) + "\n"


def _link(struct: type[Wire]) -> str:
    name = published_name(struct)
    return f"[{name}](events.md#{name.lower()})"
