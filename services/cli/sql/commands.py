"""The command `caravan sql`, and its options that `caravan job timeline` shares."""

from services.cli.command_spec import ArgumentSpec, CommandSpec, flag_argument, option_argument

EXPORT_DIR_OPTION = option_argument(
    "directory",
    "read an export (caravan log export) instead of the live log",
    flag="--dir",
    metavar="DIR",
    complete="file",
)
LIVE_FLAG = flag_argument("live", "with --dir: also read the newer records of the live log")

COMMANDS = (
    CommandSpec(
        ("sql",),
        "query the log in SQL; without a query start a shell",
        "sql.query:sql",
        (
            ArgumentSpec(
                "question",
                "SQL query; '-', or no query with piped input, reads stdin",
                default="",
                metavar="QUERY",
            ),
            EXPORT_DIR_OPTION,
            LIVE_FLAG,
            ArgumentSpec("comma", "print comma-separated values", bool, False, ("--csv",)),
            option_argument("limit", "maximum number of table rows; 0: all", int, default=1000),
        ),
        {"": "sql.answer_table:SqlAnswer"},
        details="Tables, macros and examples: docs/sql.md. Queries are read-only and cannot open other files. "
        "Exit 2: a part of the log could not be read, and the answer is without it.",
        examples=(
            "sql 'SELECT type, count(*) FROM events GROUP BY ALL'",
            "sql 'FROM usage_at(1000)' --dir ./archive --csv",
            "sql --dir ./archive --live",
        ),
    ),
)
