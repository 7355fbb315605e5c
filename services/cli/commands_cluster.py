"""The commands about nodes, allocations, evaluations and the cluster. See `words.py`."""

from services.cli.commands_allocs import ALLOC_COMMANDS
from services.cli.words import AT, LIMIT, VERBOSE, Arg, Command, flag, option

_NODE = Arg("node_id", "node or its name; without: all", default="", metavar="ID", complete="node")
_EVAL = Arg("eval_id", "evaluation, or the beginning of its id", metavar="ID", complete="eval")
_NAME = Arg("name", "context", metavar="NAME", complete="context")
_VERDICT = ("request_id", "status", "changed", "seq", "cluster_id")

CLUSTER_COMMANDS = (
    Command(
        ("node", "status"),
        "list nodes, or show one",
        "services.cli.nodes",
        "status",
        (
            _NODE,
            flag("allocs", "also what runs there"),
            flag("stats", "also what it uses now; with ID"),
            LIMIT,
            AT,
            VERBOSE,
        ),
        ("nodes", "total", "seq", "cluster_id"),
        "With ID the keys are nodes, attributes, meta, ports, allocations, allocations_total, seq, cluster_id; with "
        "--allocs allocations is there without ID, too, and with --stats there is stats: what its tasks use, as their "
        "agent measures it.",
        (
            "node status",
            "node status --allocs",
            "node status node-1 --verbose",
            "node status node-1 --stats",
        ),
    ),
    Command(
        ("node", "eligibility"),
        "allow or forbid new allocations on a node",
        "services.cli.nodes",
        "eligibility",
        (
            Arg("node_id", "node or its name", metavar="ID", complete="node"),
            flag("enable", "allow"),
            flag("disable", "forbid; what runs there goes on"),
        ),
        ("node", *_VERDICT),
        "",
        ("node eligibility --disable node-1", "node eligibility --enable node-1"),
    ),
    Command(
        ("node", "drain"),
        "empty a node",
        "services.cli.node_orders",
        "drain",
        (
            Arg("node_id", "node or its name", metavar="ID", complete="node"),
            flag("enable", "begin"),
            flag("disable", "stop doing so; the node takes new allocations again"),
            option(
                "deadline", "what runs there goes on so long, like 90m", default="1h", metavar="D"
            ),
            flag("force", "no deadline: what runs there is stopped at once"),
            flag("no_deadline", "what runs there goes on until it ends by itself"),
            flag("what_if", "do nothing, say what would move where"),
        ),
        ("node", "draining", "deadline_ns", *_VERDICT),
        "The node takes nothing new at once. At the deadline what runs there is stopped, and placed elsewhere as its "
        "job wants: all of it together, system jobs when nothing else is left. Migration at a pace, one after the "
        "other, comes with a later release. A drained node stays so, through restarts of its agent too, until "
        "--disable. With --what-if the answer is that of what-if --drain.",
        (
            "node drain --what-if node-1",
            "node drain --enable node-1",
            "node drain --enable --deadline 10m node-1",
            "node drain --disable node-1",
        ),
    ),
    Command(
        ("node", "meta", "set"),
        "say something about a node, for constraints on meta",
        "services.cli.node_orders",
        "meta_set",
        (
            Arg("node_id", "node or its name", metavar="ID", complete="node"),
            Arg("pairs", "what is said", list, metavar="KEY=VALUE"),
        ),
        ("node", "meta", "operator_meta", *_VERDICT),
        "It is laid over what the agent says, and stays when that registers again. What runs already goes on.",
        ("node meta set node-1 rack=r7 tier=gold",),
    ),
    Command(
        ("node", "meta", "unset"),
        "take something out of a node's meta",
        "services.cli.node_orders",
        "meta_unset",
        (
            Arg("node_id", "node or its name", metavar="ID", complete="node"),
            Arg("keys", "what is taken out, the agent's own too", list, metavar="KEY"),
        ),
        ("node", "meta", "operator_meta", *_VERDICT),
        "",
        ("node meta unset node-1 rack",),
    ),
    Command(
        ("node", "meta", "list"),
        "show a node's meta, and what of it an operator said",
        "services.cli.node_orders",
        "meta_list",
        (Arg("node_id", "node or its name", metavar="ID", complete="node"),),
        ("node", "meta", "operator_meta", *_VERDICT),
        "",
        ("node meta list node-1",),
    ),
    *ALLOC_COMMANDS,
    Command(
        ("eval", "list"),
        "list evaluations, newest first",
        "services.cli.evals",
        "list_all",
        (
            option("job", "of this job only", metavar="ID", complete="job"),
            option(
                "status",
                "pending, blocked, complete, failed or canceled",
                metavar="WORD",
                complete="(pending blocked complete failed canceled)",
            ),
            flag("waiting", "what waits for a place instead, the next one first, and why"),
            LIMIT,
            AT,
            VERBOSE,
        ),
        ("evaluations", "total", "seq", "cluster_id"),
        "With `--waiting` the keys are `waiting`, `total`, `seq`, `cluster_id`; each line of `waiting` has `position` "
        "(1 is next in its pool; 0: nothing there is could hold it), `job`, `group`, `n`, `class`, `priority`, `pool`, "
        "`since_ns`, `reasons`, `wakes` (what would have it tried again), `nodes` (held back for it) and `eval_id`.",
        ("eval list", "eval list --status blocked", "eval list --waiting"),
    ),
    Command(
        ("eval", "status"),
        "show one evaluation",
        "services.cli.evals",
        "status",
        (_EVAL, AT, VERBOSE),
        ("evaluation", "follow_ups", "seq", "cluster_id"),
        "",
        ("eval status 91d0",),
    ),
    Command(
        ("system", "gc"),
        "forget now everything that ended",
        "services.cli.operator",
        "collect",
        (),
        ("collected", *_VERDICT),
        "Ended jobs, allocations, evaluations and nodes that are down; what runs is not touched. The log keeps it all.",
        ("system gc",),
    ),
    Command(
        ("operator", "status"),
        "show who leads, how safe the bus is, and how much there is",
        "services.cli.operator",
        "status",
        (flag("hashes", "also the hashes of all tables"), AT),
        (
            *("seq", "cluster_id", "t_ns", "counts", "epoch", "holder", "fsync", "replicas"),
            *("foreign", "policy", "tables"),
        ),
        "",
        ("operator status", "operator status --hashes"),
    ),
    Command(
        ("operator", "scheduler", "get"),
        "show how the cluster schedules and forgets",
        "services.cli.operator",
        "scheduler_get",
        (AT,),
        ("policy", "policy_hash", "modify_index", "seq", "cluster_id"),
        "",
        ("operator scheduler get",),
    ),
    Command(
        ("operator", "scheduler", "set"),
        "change how the cluster schedules and forgets",
        "services.cli.operator",
        "scheduler_set",
        (
            Arg(
                "changes",
                "field of the policy and its value",
                list,
                metavar="NAME=VALUE",
                complete="(algorithm=binpack algorithm=spread algorithm=fragmentation"
                " anti_affinity=true anti_affinity=false preemption.batch=true preemption.service=true)",
            ),
            option("check_hash", "only if the policy in force has this hash", metavar="HASH"),
        ),
        ("policy", *_VERDICT),
        "The change is an event in the log: a replay decides under the policy of its moment. Times may be written like "
        "90m, and pool_algorithms like batch:spread,web:binpack. What is in a field has a dot: preemption.batch, "
        "pool_algorithms.POOL, remote_drivers.DRIVER.cpu_mhz and .memory_mib; "
        "`remote_drivers.DRIVER=none` takes one out.",
        (
            "operator scheduler set algorithm=spread",
            "operator scheduler set job_keep_ns=4h",
            "operator scheduler set preemption.batch=true",
            "operator scheduler set remote_drivers.ecs.cpu_mhz=10",
        ),
    ),
    Command(
        ("operator", "resource", "set"),
        "say what a node or the cluster offers under a name",
        "services.cli.resources",
        "declare",
        (
            Arg("name", "resource: a name of its own, or device.TYPE", metavar="NAME"),
            option("amount", "so much of it, up to 4 decimals; 0: no more", metavar="N"),
            option("instances", "these, each with a name of its own", metavar="A,B"),
            option(
                "node",
                "of this node; without: of the cluster as a whole",
                metavar="ID",
                complete="node",
            ),
            option("vendor", "of its instances", metavar="WORD"),
            option("model", "of its instances", metavar="WORD"),
            Arg(
                "attribute",
                "for constraints on it; may be given again",
                list,
                (),
                ("--attribute",),
                "KEY=VALUE",
            ),
        ),
        ("node", "pool", *_VERDICT),
        "Jobs ask for it with `custom` or `device` in their resources. What the cluster has as a whole is an amount: "
        "licences. Less than what is in use ends nothing: it shows as excess until enough has ended. In JSON, amounts "
        "are in 1/10,000.",
        (
            "operator resource set licence --amount 20",
            "operator resource set scanner --instances left,right --node node-1",
        ),
    ),
    Command(
        ("operator", "resource", "list"),
        "list what nodes and the cluster offer beside cpu, memory and disk",
        "services.cli.resources",
        "list_all",
        (LIMIT, AT),
        ("pools", "declared", "total", "seq", "cluster_id"),
        "",
        ("operator resource list",),
    ),
    Command(
        ("operator", "bootstrap"),
        "write config and secrets of a cluster of containers",
        "services.cli.bootstrap",
        "bootstrap",
        (
            option("directory", "write here", default="deploy/secrets", metavar="DIR"),
            option("nodes", "ids of agents", default="node-1,node-2,node-3", metavar="ID,..."),
            option("servers", "servers of the bus, 1 or 3", int, default=1, metavar="N"),
            option("port", "port of the bus on this machine", int, default=4222, metavar="N"),
        ),
        ("directory", "cluster_id", "nodes"),
        "Again in the same folder: nodes are added, passwords stay.",
        (
            "operator bootstrap",
            "operator bootstrap --nodes node-1,node-2",
        ),
    ),
    Command(
        ("operator", "create"),
        "create the streams of a new cluster, or check those of an old one",
        "services.cli.bootstrap",
        "create",
        (option("state", "folder that remembers it", default="/var/lib/caravan", metavar="DIR"),),
        ("cluster_id", "streams"),
        "Run by compose before everything else; reads CARAVAN_* like a service, as user admin.",
        ("operator create",),
    ),
    Command(
        ("context", "add"),
        "remember a bus under a name",
        "services.cli.contexts",
        "add",
        (
            Arg("name", "context", metavar="NAME"),
            Arg("url", "the bus", metavar="URL"),
            option("user", "user of the bus", metavar="USER"),
            option(
                "password_file",
                "file with the password of that user",
                metavar="FILE",
                complete="file",
            ),
        ),
        ("name", "url", "file"),
        "One file each in $XDG_CONFIG_HOME/caravan/contexts. The first one added is used from then on.",
        (
            "context add here nats://127.0.0.1:4222",
            "context add prod nats://bus.example:4222 --user public --password-file ~/.caravan-prod",
        ),
    ),
    Command(
        ("context", "use"),
        "talk to this bus from now on",
        "services.cli.contexts",
        "use",
        (_NAME,),
        ("name", "url"),
        "`--context NAME` does it for one command; CARAVAN_NATS_URL wins over what was chosen here.",
        ("context use prod",),
    ),
    Command(
        ("context", "list"),
        "list the buses that have names",
        "services.cli.contexts",
        "list_all",
        (),
        ("contexts", "current"),
        "",
        ("context list",),
    ),
    Command(
        ("context", "rm"),
        "forget a name",
        "services.cli.contexts",
        "remove",
        (_NAME,),
        ("name",),
        "",
        ("context rm prod",),
    ),
)
