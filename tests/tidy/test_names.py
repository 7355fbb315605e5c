"""Names: modules say what they hold, subjects are built in one place, the hidden order of Python stays out."""

import ast
import re

import pytest

from tests.tidy.tree import ROOT, files, report, shipped, sources

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers", "tools"}
SUBJECTS_FILE = "shared/protocol/subjects.py"

#: A whole literal that can only be a subject. Event tags (`job.registered`) and log names share the first word.
WHOLE = re.compile(
    r"""
    log\.(\d+|\*|>)(\..*)?
    | jobs\.(submit|stop|scale|dispatch|revert|evaluate|\*|>)
    | cmd\.(plan|evaluation|job|operator|liveness|report(\..*)?|\*|>)
    | view\.(job|submission|node|\*|>)(\..*)?
    | api\.(jobs|operator|node|system|dead|\*|>)(\..*)?
    | query\.[a-z_]+ | query\.[*>]
    | (eval|node|dead|hb|presence)\.[*>]
    | presence\.[a-z_]+\..+
    """,
    re.VERBOSE,
)
#: The constant start of an f-string, or of a concatenation, that can only lead to a subject.
START = re.compile(
    r"(log|eval|node|dead|hb|presence|jobs|query|cmd|api)\."
    r"|cmd\.report\.|view\.(job|submission|node)\.|api\.\w+\.|presence\.\w+\."
)
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def leads(node: ast.AST) -> bool:
    """Say whether a constant is the start of a subject."""
    return isinstance(node, ast.Constant) and bool(START.fullmatch(str(node.value)))


def subject_literals(tree: ast.AST) -> list[tuple[int, str]]:
    """Find string literals that are subjects: (line, text). Docstrings and names of log lines are none."""
    skipped: set[int] = set()
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in LOG_CALLS and node.args:
                skipped.add(id(node.args[0]))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            if node.values and leads(node.values[0]):
                found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):
            found += [(node.lineno, f"{node.left.value} +")] * leads(node.left)
        elif isinstance(node, ast.Constant) and WHOLE.fullmatch(str(node.value)):
            found.append((node.lineno, str(node.value)))
    return found


@pytest.mark.parametrize(
    ("code", "trips"),
    [
        ('x = "log.1.tx"', True),
        ('x = "cmd.plan"', True),
        ('x = f"hb.{node}"', True),
        ('x = "node." + name', True),
        ('x = "presence.*"', True),
        ('x = "job.registered"', False),
        ('x = "node.registered"', False),
        ('x = "eval.created"', False),
        ('log.info("query.answered")', False),
        ('"""log.1.tx"""', False),
    ],
)
def test_subjects_are_told_from_tags(code: str, *, trips: bool) -> None:
    """A subject literal is found; an event tag, a log name and a docstring are left alone."""
    assert bool(subject_literals(ast.parse(code))) is trips


def test_subjects_are_built_in_one_place() -> None:
    """Every subject string of the product stands in shared/protocol/subjects.py."""
    stray = [
        f"{one.path}:{line} {text!r}"
        for one in shipped()
        if one.path != SUBJECTS_FILE
        for line, text in subject_literals(one.tree)
    ]
    assert not stray, report(stray)


def test_modules_say_what_they_hold() -> None:
    """No module or package is named for being useful (`utils`, `helpers`, `common`, `manager`)."""
    parts = {part.removesuffix(".py") for one in sources() for part in one.path.split("/")}
    assert not parts & VAGUE


def test_the_core_never_asks_for_hidden_order() -> None:
    """The core and the roles never call hash(), id() or vars(): their answers differ from process to process."""
    stray = [
        f"{one.path}:{node.lineno} {node.func.id}()"
        for one in shipped()
        if one.path.startswith("shared/core/") or one.path.endswith("/role.py")
        for node in ast.walk(one.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"hash", "id", "vars"}
    ]
    assert not stray, report(stray)


def test_debt_has_a_number() -> None:
    """A to-do in the code names the issue that will pay it: `TODO(#12)`."""
    debt = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
    owed = [
        f"{one.path}:{number} {line.strip()}"
        for one in sources()
        if not one.path.startswith("tests/tidy/")
        for number, line in enumerate(one.text.splitlines(), start=1)
        if debt.search(line)
    ]
    assert not owed, report(owed)


#: Public class names with more than one definition: this number only goes down, to 0.
DUPLICATES_MAX = 0


def test_class_names_are_unique() -> None:
    """A public class name is defined once in the three packages and bench."""
    found: dict[str, list[str]] = {}
    for one in sources():
        if one.path.startswith(("schemas/", "shared/", "services/", "bench/")):
            for node in one.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(one.path)
    twice = [f"{name}: {', '.join(paths)}" for name, paths in found.items() if len(paths) > 1]
    assert len(twice) <= DUPLICATES_MAX, report(twice)


#: Where a submission becomes a command, and where a command or a kept version becomes a fact or a command.
REGISTRATIONS = {"shared/jobspec/submission.py", "shared/core/decide/job_fields.py"}


def test_the_fields_of_a_job_are_copied_in_one_place() -> None:
    """Only two modules make `RegisterJob` or `JobRegistered` field by field; the others call or replace."""
    stray = [
        f"{one.path}:{node.lineno} {node.func.id}()"
        for one in shipped()
        if one.path not in REGISTRATIONS
        for node in ast.walk(one.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"JobRegistered", "RegisterJob"}
    ]
    assert not stray, report(stray)


#: The table of drivers, and the folders that are about single drivers.
DRIVERS_FILE = "shared/jobspec/drivers/registry.py"
DRIVERS_FOLDERS = ("shared/jobspec/drivers/", "services/agent/drivers/")


def driver_names() -> frozenset[str]:
    """Return the names in the table of drivers."""
    tables = [
        node.value
        for one in sources()
        if one.path == DRIVERS_FILE
        for node in one.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DRIVERS"
    ]
    return frozenset(
        str(key.value)
        for table in tables
        if isinstance(table, ast.Dict)
        for key in table.keys
        if isinstance(key, ast.Constant)
    )


def names_drivers(node: ast.AST, drivers: frozenset[str]) -> bool:
    """Say whether code compares a driver with a name, or is a collection of names of drivers."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        texts = {str(one.value) for one in sides if isinstance(one, ast.Constant)}
        is_driver = any(ast.unparse(one).endswith("driver") for one in sides)
        return is_driver and bool(texts & drivers)
    if isinstance(node, ast.Dict):
        parts: list[ast.expr] = [key for key in node.keys if key is not None]
    elif isinstance(node, ast.Set | ast.List | ast.Tuple):
        parts = node.elts
    else:
        return False
    words = [one.value for one in parts if isinstance(one, ast.Constant)]
    known = sum(word in drivers for word in words)
    return known > 1 or 0 < known == len(parts)


def test_drivers_are_told_apart_in_one_table() -> None:
    """What depends on the name of a driver is a field of the table of drivers, not a list elsewhere."""
    drivers = driver_names()
    stray = [
        f"{one.path}:{node.lineno} {ast.unparse(node)}"
        for one in shipped()
        if not one.path.startswith(DRIVERS_FOLDERS)
        for node in ast.walk(one.tree)
        if isinstance(node, ast.expr) and names_drivers(node, drivers)
    ]
    assert not stray, report(stray)


CONSOLE = "services/gateway/console/"
MENU_FILE = f"{CONSOLE}lib/router.js"
_MENU = re.compile(r"const MENU = (.+?);", re.DOTALL)
_ARRAY = re.compile(r"= (\[[^;{]*\]);")
_WORD = re.compile(r'"([a-z-]+)"')


def test_pages_of_the_console_are_listed_once() -> None:
    """The menu, the dialog "go to" and the addresses of the console take their pages from one list."""
    texts = {
        name: (ROOT / name).read_text()
        for name in files()
        if name.startswith(CONSOLE) and name.endswith(".js")
    }
    found = _MENU.search(texts.get(MENU_FILE, ""))
    pages = set(_WORD.findall(found[1])) if found else set()
    stray = [
        f"{name}: {array}"
        for name, text in texts.items()
        for array in _ARRAY.findall(text)
        if name != MENU_FILE and len(pages & set(_WORD.findall(array))) > 2
    ]
    assert not stray, report(stray)


#: Keeps its own copies, so that a wrong set in schemas/ shows in a run of the simulated world.
ORACLE = "shared/sim/oracle/"


def words_of(node: ast.AST) -> frozenset[str]:
    """Return the texts of a literal set, list or tuple of at least two texts; empty: it is something else."""
    if not isinstance(node, ast.Set | ast.List | ast.Tuple) or len(node.elts) < 2:
        return frozenset()
    texts = [one.value for one in node.elts if isinstance(one, ast.Constant)]
    is_text = len(texts) == len(node.elts) and all(isinstance(text, str) for text in texts)
    return frozenset(map(str, texts)) if is_text else frozenset()


def named_sets(tree: ast.Module) -> dict[frozenset[str], str]:
    """Find the constants of a module that hold words: JOB_TYPES = ("service", …), a frozenset or a dict of them."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if (
                isinstance(value, ast.Call)
                and ast.unparse(value.func) == "frozenset"
                and value.args
            ):
                value = value.args[0]
            name = node.targets[0].id
            if isinstance(value, ast.Dict) and None not in value.keys:
                value = ast.List(elts=value.keys)
            if (words := words_of(value)) and not name.startswith("_"):
                found[words] = name
    return found


def test_sets_of_words_are_named_once() -> None:
    """A set of words that schemas/ names, such as the types of jobs, is not written out again elsewhere."""
    named = {
        words: name
        for one in sources()
        if one.path.startswith("schemas/")
        for words, name in named_sets(one.tree).items()
    }
    stray = []
    for one in sources():
        if one.path.startswith(ORACLE) or not one.path.startswith(
            ("bench/", "services/", "shared/")
        ):
            continue
        # A type spells its words out.
        types = {
            id(node.slice)
            for node in ast.walk(one.tree)
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
        }
        stray += [
            f"{one.path}:{node.lineno}: {named[words]} of schemas/"
            for node in ast.walk(one.tree)
            if id(node) not in types
            and isinstance(node, ast.expr)
            and (words := words_of(node)) in named
        ]
    assert not stray, report(stray)
