"""The commands `caravan operator …`, `caravan system …` and `caravan context …`."""

from services.cli.command_spec import (
    AT_OPTION,
    LIMIT_OPTION,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_NAME = ArgumentSpec("name", "name of the context", metavar="NAME", complete="context")
_POLICY_WORDS = (
    "(algorithm=binpack algorithm=spread algorithm=fragmentation"
    " anti_affinity=true anti_affinity=false preemption.batch=true preemption.service=true)"
)

_STREAM = ArgumentSpec("stream", "JOBS or CMD", metavar="STREAM", complete="(JOBS CMD)")
_SEQ = ArgumentSpec("seq", "position of the message in its stream", int, metavar="SEQ")
_ADMIN = "Requires the administrator's password (CARAVAN_CREDENTIALS)."

COMMANDS = (
    CommandSpec(
        ("system", "gc"),
        "delete everything that has ended from the state now",
        "operator.scheduler:collect",
        (),
        {"": "operator.scheduler:GcResult"},
        details="Deletes dead jobs, ended allocations and evaluations, and down nodes; running allocations are not "
        "affected. The log keeps all of them.",
        examples=("system gc",),
        changes=True,
    ),
    CommandSpec(
        ("operator", "status"),
        "show the servers of the bus, the leader, alarms, and object counts",
        "operator.status:status",
        (
            flag_argument("hashes", "also show the hashes of all tables"),
            option_argument(
                "wait",
                "wait first: `quorum`, until commits are possible; `current`, until every server holds everything, too",
                metavar="STATE",
                complete="(current quorum)",
            ),
            option_argument(
                "timeout",
                "how long to wait, from the start of the command; 0: for one answer",
                default="5m",
                metavar="DURATION",
            ),
            option_argument(
                "server",
                "this server of the bus alone, which `--wait current` then waits for",
                metavar="NAME",
            ),
            AT_OPTION,
        ),
        {"": "schemas.answers:ClusterAnswer"},
        Needs.LOG,
        "Exit 0: every server of the bus holds everything. Exit 2: commits are possible, but a server is away or lacks "
        "something. Exit 1: nothing can be committed, as while no server leads the log, or no server of the bus has "
        "answered. Statuses of the last answer are shown as `was current`. `--wait` goes by what the "
        "servers said after it began, never by an older answer; it exits 0, or 1 after the timeout. With `--server` "
        "the exit code is about that server; an unknown name exits 1 and lists the servers.",
        (
            "operator status",
            "operator status --wait current",
            "operator status --server nats-2",
            "operator status --hashes",
        ),
    ),
    CommandSpec(
        ("operator", "scheduler", "get"),
        "show the scheduling and garbage collection policy",
        "operator.scheduler:scheduler_get",
        (AT_OPTION,),
        {"": "schemas.answers:PolicyAnswer"},
        Needs.LOG,
        examples=("operator scheduler get",),
    ),
    CommandSpec(
        ("operator", "scheduler", "set"),
        "change the scheduling and garbage collection policy",
        "operator.scheduler:scheduler_set",
        (
            ArgumentSpec(
                "changes",
                "policy field and its value",
                list,
                metavar="NAME=VALUE",
                complete=_POLICY_WORDS,
            ),
            option_argument(
                "check_hash", "change only if the current policy has this hash", metavar="HASH"
            ),
        ),
        {"": "operator.scheduler:SchedulerSetResult"},
        details="The change is an event in the log, so that a replay decides under the policy of its moment. "
        "Durations may be written like 90m, and pool_algorithms like batch:spread,web:binpack. Nested fields use a "
        "dot: `preemption.batch`, `pool_algorithms.POOL`, `remote_drivers.DRIVER.cpu_mhz` and `.memory_mib`; "
        "`remote_drivers.DRIVER=none` removes an entry.",
        examples=(
            "operator scheduler set algorithm=spread",
            "operator scheduler set job_keep_ns=4h",
            "operator scheduler set preemption.batch=true",
            "operator scheduler set remote_drivers.ecs.cpu_mhz=10",
        ),
        changes=True,
    ),
    CommandSpec(
        ("operator", "resource", "set"),
        "declare a custom resource of a node or of the cluster",
        "operator.resources:declare",
        (
            ArgumentSpec("name", "resource: a custom name, or device.TYPE", metavar="NAME"),
            option_argument(
                "amount", "amount, up to 4 decimals; 0: remove the resource", metavar="N"
            ),
            option_argument("instances", "named instances instead of an amount", metavar="A,B"),
            option_argument("node", "node (default: the cluster as a whole)", complete="node"),
            option_argument("vendor", "vendor of the instances", metavar="WORD"),
            option_argument("model", "model of the instances", metavar="WORD"),
            option_argument(
                "attribute",
                "attribute for constraints; repeatable",
                list,
                metavar="KEY=VALUE",
            ),
        ),
        {"": "operator.resources:ResourceSetResult"},
        details="Jobs request it with `custom` or `device` in their resources. A resource of the cluster as a whole "
        "is an amount, for example licences. Declaring less than is in use stops nothing: the difference is shown "
        "as excess until enough allocations have ended. In JSON, amounts are in 1/10,000.",
        examples=(
            "operator resource set licence --amount 20",
            "operator resource set scanner --instances left,right --node node-1",
        ),
        changes=True,
    ),
    CommandSpec(
        ("operator", "resource", "list"),
        "list resources beside CPU, memory and disk, and the operators' declarations",
        "operator.resources:list_all",
        (LIMIT_OPTION, AT_OPTION),
        {"": "schemas.node_answers:ResourcesAnswer"},
        Needs.LOG,
        "Sums over all nodes. In JSON, amounts are in 1/10,000.",
        ("operator resource list",),
    ),
    CommandSpec(
        ("operator", "message", "list"),
        "list the messages that wait in the drop box (JOBS) or for the plan applier (CMD)",
        "operator.messages:list_all",
        (_STREAM, LIMIT_OPTION),
        {"": "operator.messages:MessageListResult"},
        details=f"Oldest first. {_ADMIN}",
        examples=("operator message list JOBS",),
    ),
    CommandSpec(
        ("operator", "message", "show"),
        "show one waiting message: subject, headers and body as they are stored",
        "operator.messages:show",
        (_STREAM, _SEQ),
        {"": "operator.messages:MessageShowResult"},
        details=_ADMIN,
        examples=("operator message show JOBS 12",),
    ),
    CommandSpec(
        ("operator", "message", "drop"),
        "delete one waiting message",
        "operator.messages:drop",
        (_STREAM, _SEQ),
        {"": "operator.messages:MessageDropResult"},
        details=f"It gets neither a verdict nor a dead letter; the messages behind it are handled. {_ADMIN}",
        examples=("operator message drop JOBS 12",),
    ),
    CommandSpec(
        ("operator", "bootstrap"),
        "write configuration and secrets of a cluster of containers",
        "operator.bootstrap:bootstrap",
        (
            option_argument(
                "directory",
                "output folder",
                default="deploy/secrets",
                metavar="DIR",
                complete="file",
            ),
            option_argument(
                "nodes", "node ids of the agents", default="node-1,node-2,node-3", metavar="ID,..."
            ),
            option_argument(
                "clients",
                "names of more users like public, each with its own url-NAME",
                metavar="NAME,...",
            ),
            option_argument("servers", "number of bus servers, 1 or 3", int, default=1),
            option_argument("port", "port of the bus on this machine", int, default=4222),
        ),
        {"": "operator.bootstrap:BootstrapResult"},
        Needs.NOTHING,
        "Running it again in the same folder adds nodes and clients and keeps the passwords. "
        "Next steps: docs/operations.md.",
        (
            "operator bootstrap",
            "operator bootstrap --nodes node-1,node-2",
            "operator bootstrap --clients ci,alice",
        ),
    ),
    CommandSpec(
        ("operator", "create"),
        "create the streams of a new cluster, or check those of an existing one",
        "operator.bootstrap:create",
        (
            option_argument(
                "state",
                "folder that records that the cluster was created",
                default="/var/lib/caravan",
                metavar="DIR",
                complete="file",
            ),
        ),
        {"": "operator.bootstrap:CreateResult"},
        Needs.NOTHING,
        "compose runs it before all services. Reads CARAVAN_* like a service, as user admin. Exit 1 if the streams "
        "of an existing cluster are missing.",
        ("operator create",),
    ),
    CommandSpec(
        ("context", "add"),
        "save a bus under a name",
        "operator.contexts:add",
        (
            ArgumentSpec("name", "name of the context", metavar="NAME"),
            ArgumentSpec("url", "URL of the bus", metavar="URL"),
            option_argument("user", "user of the bus", metavar="USER"),
            option_argument(
                "password_file",
                "file with the password of that user",
                metavar="FILE",
                complete="file",
            ),
        ),
        {"": "operator.contexts:ContextAddResult"},
        Needs.NOTHING,
        "Each context is a file in $XDG_CONFIG_HOME/caravan/contexts. The first one becomes the current context.",
        (
            "context add here nats://127.0.0.1:4222",
            "context add prod nats://bus.example:4222 --user public --password-file ~/.caravan-prod",
        ),
    ),
    CommandSpec(
        ("context", "use"),
        "set the current context",
        "operator.contexts:use",
        (_NAME,),
        {"": "operator.contexts:ContextUseResult"},
        Needs.NOTHING,
        "`--context NAME` selects a context for one command; CARAVAN_NATS_URL overrides the current context.",
        ("context use prod",),
    ),
    CommandSpec(
        ("context", "list"),
        "list contexts and running clusters, and show which one is in force",
        "operator.contexts:list_all",
        (),
        {"": "operator.contexts:ContextListResult"},
        Needs.NOTHING,
        "A running `caravan up` of this user is the context up-PORT. Among several clusters a command that changes one "
        "requires --context, CARAVAN_NATS_URL or a current context.",
        ("context list",),
    ),
    CommandSpec(
        ("context", "env"),
        "print CARAVAN_NATS_URL with user and password, for a shell and for clients in other languages",
        "operator.contexts:env",
        (
            ArgumentSpec(
                "name",
                "name of the context; without it the one in force",
                metavar="NAME",
                complete="context",
                default="",
            ),
        ),
        {"": "operator.contexts:ContextEnvResult"},
        Needs.NOTHING,
        "The output holds a password.",
        ("context env", "context env up-4222"),
    ),
    CommandSpec(
        ("context", "rm"),
        "delete a context",
        "operator.contexts:remove",
        (_NAME,),
        {"": "operator.contexts:ContextRemoveResult"},
        Needs.NOTHING,
        examples=("context rm prod",),
    ),
)
