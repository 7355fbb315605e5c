"""The commands `caravan log …`, `caravan replay` and `caravan dead list`."""

from services.cli.command_spec import (
    AT_OPTION,
    FOLLOW_FLAG,
    JOB_OPTION,
    LIMIT_OPTION,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_GENERATION = ArgumentSpec("generation", "number of the generation", int, metavar="GENERATION")
_ARCHIVE = ArgumentSpec(
    "archive",
    "export that holds the generation (caravan log export)",
    metavar="DIR",
    complete="file",
)
_GENERATION_RESULT = {"": "log.drop:GenerationResult"}

COMMANDS = (
    CommandSpec(
        ("log", "tail"),
        "print the last events of the log, one line each",
        "log.tail:tail",
        (
            ArgumentSpec("count", "number of events", int, 10, ("-n", "--count"), "N"),
            FOLLOW_FLAG._replace(help="keep printing new events"),
            JOB_OPTION,
            option_argument("node", "only this node", complete="node"),
            option_argument(
                "kind", "only event types with this prefix; repeatable", list, metavar="WORD"
            ),
        ),
        {"": "log.tail:LogTailResult"},
        Needs.LOG,
        "With --json and --follow one object is printed for each event. --job and --node read the log from its "
        "beginning.",
        (
            "log tail -n 50",
            "log tail -f",
            "log tail --job hello --kind plan --kind evaluation",
        ),
    ),
    CommandSpec(
        ("log", "verify"),
        "read the whole log and verify it",
        "log.verify:verify",
        (
            flag_argument(
                "decisions", "also repeat every scheduling decision on its snapshot and compare"
            ),
        ),
        {"": "log.verify:LogProof"},
        Needs.LOG,
        "Exit 1: a replayed state differs from a checkpoint, a decision differs, or with --decisions none was "
        "compared. Exit 2: the log, or a part of the archive, is damaged or cannot be read, or the log ends before "
        "a seq that a view or a snapshot has seen; the proof names the records that it holds for. After a drop, states "
        "are verified from the oldest snapshot on.",
        (
            "log verify",
            "log verify --decisions",
            "log verify --json | jq .tables",
        ),
    ),
    CommandSpec(
        ("log", "export"),
        "write the log as Parquet files",
        "log.export:export",
        (
            ArgumentSpec(
                "directory",
                "export folder; an existing export is continued",
                metavar="DIR",
                complete="file",
            ),
            flag_argument("compact", "then merge small adjacent segments"),
        ),
        {"": "log.export:ExportResult"},
        details="Each run appends segments; finished segments never change. Exit 2: the log is damaged; everything "
        "before the damage is exported.",
        examples=("log export ./archive", "log export ./archive --compact"),
    ),
    CommandSpec(
        ("log", "trace"),
        "write the spans of evaluations and allocations as OpenTelemetry traces",
        "log.trace:trace",
        (
            option_argument(
                "otlp",
                "file of OTLP/JSON lines to write",
                metavar="FILE",
                complete="file",
            ),
            option_argument(
                "sample",
                "share of the jobs to export, chosen by the hash of the job id; 1: all",
                default="1",
                metavar="SHARE",
            ),
            AT_OPTION._replace(help="end at a seq or a time like 2026-01-31T12:00:00"),
        ),
        {"": "log.trace:TraceResult"},
        Needs.LOG,
        "Ids of spans are computed from the log, so that a repeated export overwrites the first. Reads the log from "
        "its beginning.",
        (
            "log trace --otlp spans.jsonl",
            "log trace --otlp spans.jsonl --at 2026-01-31T12:00:00 --sample 0.1",
        ),
    ),
    CommandSpec(
        ("log", "roll"),
        "close the newest generation of the log and continue in a new stream",
        "log.drop:roll",
        (
            option_argument(
                "generation",
                "close this generation (default: the newest); no effect if it is closed",
                int,
                default=0,
            ),
        ),
        {"": "log.drop:LogRollResult"},
        details="Services follow without a restart, and record numbers continue. A full log is rolled "
        "automatically. A closed generation can be dropped (log drop).",
        examples=("log roll", "log roll --generation 1"),
        changes=True,
    ),
    CommandSpec(
        ("log", "drop"),
        "delete the oldest generation of the log from the bus",
        "log.drop:drop",
        (_GENERATION, _ARCHIVE),
        _GENERATION_RESULT,
        details="Refused unless the generation is the oldest and closed, the archive holds every record of it byte "
        "for byte, and a newer snapshot can be restored. Requires the administrator's password "
        "(CARAVAN_CREDENTIALS). New services then start from a snapshot; a newer release may need the deleted "
        "records (log restore).",
        examples=("log drop 1 ./archive",),
        changes=True,
    ),
    CommandSpec(
        ("log", "restore"),
        "copy a dropped generation of the log back to the bus",
        "log.drop:restore",
        (_GENERATION, _ARCHIVE),
        _GENERATION_RESULT,
        details="For a release that cannot read the snapshots of its predecessor and replays the log from its "
        "beginning. Restore the newest dropped generation first.",
        examples=("log restore 1 ./archive",),
        changes=True,
    ),
    CommandSpec(
        ("log", "accept-loss"),
        "accept that the beginning of the log is lost, so that services start again",
        "log.accept_loss:accept",
        (
            ArgumentSpec(
                "first",
                "seq of the first record that remains, as the error of the stopped service names it",
                int,
                metavar="SEQ",
            ),
            option_argument("reason", "why, for the record in the log"),
        ),
        {"": "log.accept_loss:AcceptedLoss"},
        details="Services refuse a log whose beginning or whole oldest generation is missing without a `log drop`. "
        "Restore a copy of the data directory if there is one. Refused unless the log begins at SEQ and a snapshot "
        "after the loss can be restored. Requires the administrator's password (CARAVAN_CREDENTIALS). Records the "
        "loss as `log.loss_accepted` once the services run. Exit 2: accepted, not recorded in the log yet; run it "
        "again.",
        examples=("log accept-loss 17 --reason 'disk of node 3 was replaced'",),
        changes=True,
    ),
    CommandSpec(
        ("replay",),
        "rebuild the state at a moment",
        "log.replay:replay",
        (
            option_argument(
                "to", "seq, or time like 2026-01-31T12:00:00 (default: the end)", metavar="SEQ|TIME"
            ),
            flag_argument("step", "print each event"),
            option_argument(
                "begin", "with --step: first seq to print", flag="--from", metavar="SEQ"
            ),
            JOB_OPTION._replace(help="with --step: only this job: id or a unique prefix"),
            option_argument("node", "with --step: only this node", complete="node"),
            option_argument(
                "diff",
                "compare two moments; the second is OTHER, or a second --diff",
                list,
                metavar="SEQ|TIME",
            ),
            ArgumentSpec("other", "with --diff: the second moment", default="", metavar="OTHER"),
            flag_argument("whole", "start at the first record instead of a snapshot"),
        ),
        {"": "log.replay:ReplayResult", "with --diff": "shared.query.state_diff:StateDiff"},
        Needs.LOG,
        "Starts at the newest snapshot before that moment unless --step or --whole is given; `begun_seq` is the "
        "first record applied.",
        (
            "replay --to 100",
            "replay --step --from 90 --to 100",
            "replay --diff 100 200",
            "replay --to 2026-01-31T12:00:00",
        ),
    ),
    CommandSpec(
        ("dead", "list"),
        "list messages that could not be decoded",
        "log.dead_letters:list_all",
        (LIMIT_OPTION,),
        {"": "schemas.answers:DeadAnswer"},
        examples=("dead list",),
    ),
)
