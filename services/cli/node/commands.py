"""The commands `caravan node …`."""

from services.cli.command_spec import (
    AT_OPTION,
    LIMIT_OPTION,
    NODE_ARGUMENT,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_META_RESULT = {"": "node.meta:NodeMetaResult"}

COMMANDS = (
    CommandSpec(
        ("node", "status"),
        "list nodes, or show one",
        "node.status:status",
        (
            NODE_ARGUMENT._replace(
                default="", help="node: id, unique prefix or name; omit to list all"
            ),
            flag_argument("allocs", "also list running allocations"),
            flag_argument("stats", "also show the current resource use; requires ID"),
            LIMIT_OPTION,
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {"": "node.status:NodeListResult", "with ID": "node.status:NodeStatusResult"},
        Needs.LOG,
        "`allocations` of the list is only there with --allocs, `stats` only with --stats.",
        (
            "node status",
            "node status --allocs",
            "node status node-1 --verbose",
            "node status node-1 --stats",
        ),
    ),
    CommandSpec(
        ("node", "eligibility"),
        "allow or forbid new allocations on a node",
        "node.status:eligibility",
        (
            NODE_ARGUMENT,
            flag_argument("enable", "allow new allocations"),
            flag_argument("disable", "forbid new allocations; running ones stay"),
        ),
        {"": "node.status:NodeEligibilityResult"},
        examples=("node eligibility --disable node-1", "node eligibility --enable node-1"),
        changes=True,
    ),
    CommandSpec(
        ("node", "drain"),
        "drain a node",
        "node.drain:drain",
        (
            NODE_ARGUMENT._replace(default="", help="node: id, unique prefix or name; or --self"),
            flag_argument("enable", "start draining, or change the drain"),
            flag_argument("disable", "stop draining; the node accepts new allocations again"),
            flag_argument("monitor", "follow the drain until it ends; alone, only follow"),
            option_argument(
                "deadline",
                "time until running allocations are stopped, like 90m (default 1h)",
                metavar="D",
            ),
            flag_argument("force", "stop running allocations at once"),
            flag_argument("no_deadline", "no deadline: allocations that cannot move keep running"),
            flag_argument("ignore_system", "leave allocations of system jobs on the node"),
            flag_argument("keep_ineligible", "with --disable: accept no new allocations yet"),
            option_argument("message", "message shown with the drain", flag="-m", metavar="TEXT"),
            ArgumentSpec(
                "this_node",
                "the node that runs on this machine",
                bool,
                default=False,
                flags=("--self",),
            ),
            flag_argument("yes", "accepted for compatibility: there is no prompt"),
            flag_argument("what_if", "change nothing; show the migrations, like `what-if --drain`"),
        ),
        {
            "": "node.drain:NodeDrainResult",
            "with --monitor": "node.drain:NodeDrainMonitorResult",
            "with --what-if": "shared.whatif.report:WhatIfReport",
        },
        details="A draining node accepts no new allocations. Allocations of services move at the pace of their "
        "`migrate` block, each once its replacement is placed; at the deadline all that remains is stopped. Batch "
        "allocations run until the deadline and are not replaced; system jobs leave last. The drain ends with the "
        "last allocation, and the node stays ineligible until --disable. The drain survives restarts of the agent.",
        examples=(
            "node drain --what-if node-1",
            "node drain --enable node-1",
            "node drain --enable --deadline 10m -m 'new disk' node-1",
            "node drain --monitor node-1",
            "node drain --disable node-1",
        ),
        changes=True,
    ),
    CommandSpec(
        ("node", "confirm-dead"),
        "confirm that nothing runs any more on a node that is out of reach",
        "node.confirm_dead:confirm_dead",
        (NODE_ARGUMENT,),
        {"": "node.confirm_dead:NodeConfirmDeadResult"},
        details="What is stateful on the node is then replaced elsewhere. Say it only of a machine that has no power, "
        "or whose tasks have surely ended: a node that is merely cut off runs on, and there would be two instances. "
        "Refused while the node is up. It holds until the node is heard of again.",
        examples=("node confirm-dead node-1",),
        changes=True,
    ),
    CommandSpec(
        ("node", "meta", "set"),
        "set node metadata, for constraints on meta",
        "node.meta:meta_set",
        (
            NODE_ARGUMENT,
            ArgumentSpec("pairs", "metadata to set", list, metavar="KEY=VALUE"),
        ),
        _META_RESULT,
        details="Overrides the metadata that the agent reports, and survives its next registration. Running "
        "allocations are not affected.",
        examples=("node meta set node-1 rack=r7 tier=gold",),
        changes=True,
    ),
    CommandSpec(
        ("node", "meta", "unset"),
        "remove node metadata",
        "node.meta:meta_unset",
        (
            NODE_ARGUMENT,
            ArgumentSpec(
                "keys", "keys to remove, also those that the agent reports", list, metavar="KEY"
            ),
        ),
        _META_RESULT,
        examples=("node meta unset node-1 rack",),
        changes=True,
    ),
    CommandSpec(
        ("node", "meta", "list"),
        "show node metadata and the operator's changes to it",
        "node.meta:meta_list",
        (NODE_ARGUMENT,),
        _META_RESULT,
        examples=("node meta list node-1",),
    ),
)
