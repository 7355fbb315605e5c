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
        "list variables by path, without their items",
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
        "Needs no keeper: paths, sizes and times are in the log in plain.",
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
