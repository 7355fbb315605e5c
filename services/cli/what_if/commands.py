"""The command `caravan what-if`."""

from services.cli.command_spec import CommandSpec, Needs, option_argument

COMMANDS = (
    CommandSpec(
        ("what-if",),
        "fork the log, change something, and compare the outcomes",
        "what_if.what_if:what_if",
        (
            option_argument(
                "begin",
                "fork after this moment (default: after the last record)",
                flag="--from",
                metavar="SEQ|TIME",
            ),
            option_argument(
                "until",
                "end of the run (default: the end of the log, then until nothing is pending)",
                metavar="SEQ|TIME|+D",
            ),
            option_argument(
                "policy",
                "change the policy: one field, or a YAML or JSON file of fields; repeatable",
                list,
                metavar="NAME=VALUE|FILE",
            ),
            option_argument(
                "add_nodes",
                "add N nodes like an existing one, or those of a profile file; repeatable",
                list,
                metavar="NxNODE|FILE",
            ),
            option_argument(
                "remove_nodes",
                "remove this node at the fork; repeatable",
                list,
                metavar="NODE",
                complete="node",
            ),
            option_argument(
                "drain",
                "drain this node, at once or with a deadline; repeatable",
                list,
                metavar="NODE[=D]",
                complete="node",
            ),
            option_argument(
                "priority",
                "change the priority of a job; repeatable",
                list,
                metavar="JOB=N",
                complete="job",
            ),
            option_argument(
                "update",
                "change a field of a job's update block: max_parallel, min_healthy_time, canary, ...; repeatable",
                list,
                metavar="JOB.FIELD=VALUE",
            ),
            option_argument(
                "deployment",
                "promote, fail, pause or resume a job's deployment, D after the fork; repeatable",
                list,
                metavar="JOB=VERB[@+D]",
            ),
            option_argument(
                "job",
                "register the job of this file at the fork; repeatable",
                list,
                metavar="FILE",
                complete="file",
            ),
            option_argument(
                "workers", "number of scheduler workers; 0: as recorded", int, default=0
            ),
            option_argument(
                "durations",
                "durations of tasks: recorded (where known) or resampled",
                default="recorded",
                metavar="WHICH",
                complete="(recorded resampled)",
            ),
            option_argument(
                "directory",
                "write the log of the fork to this new folder, as an export",
                flag="--out",
                metavar="DIR",
                complete="file",
            ),
        ),
        {"": "shared.whatif.report:WhatIfReport"},
        Needs.LOG,
        "First every recorded decision after the fork is repeated on its own snapshot; a divergence is exit 1. Then "
        "the log is forked: external events (submissions, operator requests, nodes) are replayed, and the real roles "
        "decide in virtual time, once unchanged and once with the changes; the two runs are compared. The cluster is "
        "not affected. Tasks last as long as recorded, else as long as finished tasks of their group or job, else "
        "forever. --remove-nodes, --drain and --priority also take comma-separated lists. Of each deployment the time "
        "that it took and the fewest healthy allocations meanwhile are compared.",
        (
            "what-if --drain node-1",
            "what-if --from 120 --policy algorithm=spread",
            "what-if --from 120 --add-nodes 2xnode-1 --priority report=80",
            "what-if --job web.nomad.hcl",
            "what-if --from 120 --update shop.max_parallel=3 --update shop.min_healthy_time=5s",
            "what-if --from 2026-01-31T12:00:00 --remove-nodes node-1 --until +10m --out ./fork",
        ),
    ),
)
