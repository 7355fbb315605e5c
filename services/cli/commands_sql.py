"""The commands that ask the log in SQL. See `words.py`."""

from services.cli.words import Arg, Command, flag, option

_DIR = Arg(
    "directory",
    "an export (caravan log export) instead of the live log",
    default="",
    flags=("--dir",),
    metavar="DIR",
)
_LIVE = Arg(
    "live",
    "with --dir: and what the live log has beyond it",
    bool,
    default=False,
    flags=("--live",),
)

EXPORT = Command(
    ("log", "export"),
    "write the log as Parquet files",
    "services.cli.exports",
    "export",
    (
        Arg("directory", "folder of the export; a second run goes on", metavar="DIR"),
        flag("compact", "then put small segments that are neighbours together"),
    ),
    (
        *("dir", "cluster_id", "first_seq", "last_seq", "segments", "records", "events", "rows"),
        *("bytes", "head", "problem", "compacted"),
    ),
    "Each run adds segments behind the last one, and never touches a finished one. Exit 2: the log is damaged, and "
    "exported up to there.",
    ("log export ./archive", "log export ./archive --compact"),
)

SQL = Command(
    ("sql",),
    "ask the log in SQL; without a question a shell",
    "services.cli.sqls",
    "sql",
    (
        Arg("question", "a SELECT; - or nothing: from stdin", default="", metavar="QUESTION"),
        _DIR,
        _LIVE,
        Arg("comma", "print comma-separated values", bool, False, ("--csv",)),
        option("limit", "rows of a table at the most, 0: all", int, default=1000, metavar="N"),
    ),
    ("columns", "types", "rows", "row_count", "problems", "seq", "cluster_id"),
    "Tables, macros and fifteen questions: docs/sql.md. Nothing can be written, and no other file read.",
    (
        "sql 'SELECT type, count(*) FROM events GROUP BY ALL'",
        "sql 'FROM usage_at(1000)' --dir ./archive --csv",
        "sql --dir ./archive --live",
    ),
)

TIMELINE = Command(
    ("job", "timeline"),
    "show every state of a job, why it waited, and how long",
    "services.cli.sql_timeline",
    "timeline",
    (
        Arg("job_id", "job", metavar="ID", complete="job"),
        _DIR,
        _LIVE,
        option("trace", "also write a trace for chrome://tracing or Perfetto", metavar="FILE"),
    ),
    ("job_id", "intervals", "waited_s", "trace", "seq", "cluster_id"),
    "",
    ("job timeline hello", "job timeline hello --trace hello.trace.json"),
)
