"""The commands `caravan var …`."""

from services.cli.command_spec import (
    AT_OPTION,
    LIMIT_OPTION,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_PATH = ArgumentSpec("path", "path of the variable", metavar="PATH", complete="variable")
_CHECK_INDEX = option_argument(
    "check_index",
    "only if this is the revision of the path (`var list` shows it); 0: only if the path does not exist",
    metavar="N",
)

COMMANDS = (
    CommandSpec(
        ("var", "put"),
        "store a variable in place of all that its path had",
        "variable.put:put",
        (
            ArgumentSpec(
                "words",
                "the path; then a specification, @FILE or - (stdin), or items NAME=VALUE, or both",
                list,
                metavar="PATH",
                complete="variable",
            ),
            _CHECK_INDEX,
            flag_argument("force", "whatever the revision of the path is"),
            flag_argument("shred_old", "nothing that the path had before can be read any more"),
            option_argument(
                "spec_format",
                "hcl or json: what a specification is written in (default: by the end of its name; stdin: json)",
                flag="--in",
                metavar="WORD",
                complete="(hcl json)",
            ),
        ),
        {"": "variable.put:VarPutResult"},
        details="`caravan var put PATH [@FILE|-] [NAME=VALUE...]`. Without --check-index and --force it is stored over "
        "the `modify_index` of its specification, as `var get --out` writes it, or else only where the path does not "
        "exist. Items of the arguments take precedence; NAME=@FILE and NAME=- take the value from a file or stdin, "
        "NAME= removes an item of the specification. The values are encrypted before they leave this process; those "
        "in arguments can be read by other users of this machine. Path and specification are as in Nomad "
        "(docs/variables.md).",
        examples=(
            "var put app/database @database.nv.hcl",
            "var put app/database password=- < password.txt",
            "var put app/database @database.json --check-index 12",
        ),
        changes=True,
    ),
    CommandSpec(
        ("var", "get"),
        "show a variable with its items",
        "variable.get:get",
        (
            _PATH,
            option_argument("item", "print only the value of this item, as it is", metavar="NAME"),
            option_argument(
                "out_file",
                "write it to a file that only its owner reads: a specification, or the value of --item",
                flag="--out",
                metavar="FILE",
                complete="file",
            ),
        ),
        {"": "variable.get:VarGetResult", "with --out": "variable.get:VarFileResult"},
        details="Values are printed on a terminal. Where stdout is none, --json, --item or --out is required.",
        examples=(
            "var get app/database",
            "var get app/database --item password",
            "var get app/database --out database.json",
        ),
    ),
    CommandSpec(
        ("var", "list"),
        "list variables and locked paths, without their items",
        "variable.get:list_all",
        (
            ArgumentSpec(
                "prefix",
                "beginning of the paths",
                metavar="PREFIX",
                default="",
                complete="variable",
            ),
            LIMIT_OPTION,
            AT_OPTION,
        ),
        {"": "schemas.variable_answers:VariablesAnswer"},
        Needs.LOG,
        "Needs no keeper: paths, sizes, times and locks are in the log in plain. A path without items is listed while "
        "a lock holds it.",
        ("var list", "var list app/"),
    ),
    CommandSpec(
        ("var", "purge"),
        "erase a variable, so that no copy of it can be read any more",
        "variable.put:purge",
        (_PATH, _CHECK_INDEX),
        {"": "variable.put:VarPurgeResult"},
        details="The key that it was encrypted with is erased. A path that does not exist is erased already: exit 0.",
        examples=("var purge app/database", "var purge app/database --check-index 12"),
        changes=True,
    ),
    CommandSpec(
        ("var", "lock"),
        "run a command while the lock of a variable is held",
        "variable.lock:lock",
        (
            _PATH,
            ArgumentSpec(
                "command",
                "command and its arguments, after --; it is not run in a shell",
                list,
                metavar="CMD",
                complete="file",
            ),
            option_argument(
                "ttl",
                "so long after the last renewal the lock expires: 10s to 24h",
                default="15s",
                metavar="DURATION",
            ),
            option_argument(
                "delay",
                "so long after it has expired nothing can take it: 0s to 24h",
                default="15s",
                metavar="DURATION",
            ),
            flag_argument("early_return", "end with 1 where the path is held, instead of waiting"),
            option_argument(
                "backoff",
                "pause between two attempts to take the lock, at least 1s (default: 1s, growing to 5s)",
                metavar="DURATION",
            ),
        ),
        details="The path need not have items. It waits until the lock is free, renews it every third of the ttl, and "
        "gives it back when the command ends; the exit code is the command's, 128 + number where a signal ended it. "
        "Where the lock is lost, or cannot be renewed within the ttl, the command gets SIGTERM, after 5 s SIGKILL, and "
        "the exit code is 1, as it is where the lock is not got. SIGINT, SIGTERM and SIGHUP are passed on. The id of "
        "the lock is in the command's environment alone: `var put` and `var purge` read CARAVAN_VARIABLE_LOCK_ID where "
        "CARAVAN_VARIABLE_LOCK_PATH is their path, and change nothing once the lock is lost.",
        examples=(
            "var lock app/backup -- ./backup.sh",
            "var lock app/leader --ttl 30s --delay 20s -- ./leader",
            "var lock app/backup --early-return -- sh -c './dump.sh && ./upload.sh'",
        ),
        changes=True,
    ),
    CommandSpec(
        ("var", "init"),
        "write an example of a specification",
        "variable.spec:init",
        (
            ArgumentSpec(
                "file",
                "file; one that ends with .json is written in JSON",
                metavar="FILE",
                complete="file",
                default="spec.nv.hcl",
            ),
        ),
        {"": "variable.spec:VarInitResult"},
        Needs.NOTHING,
        "An existing file is not overwritten.",
        ("var init", "var init spec.nv.json"),
    ),
)
