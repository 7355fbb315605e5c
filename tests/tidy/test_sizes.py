"""Sizes that keep a file readable in one sitting. Limits are where a test fails, not where one should aim."""

import ast

import pytest

from tests.tidy.tree import ROOT, report, shipped, sources

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
LINE_COLUMNS_MAX = 120
PUBLIC_METHODS_MAX = 12
POSITIONAL_MAX = 4
STATE_LINES_MAX = 150

#: Methods that a library calls, with the parameters it chose (nats-py's client).
FOREIGN_SIGNATURES = {"_process_msg"}

#: Written by `python -m schemas.generate`: as long as the wire is wide.
GENERATED = {
    "clients/python/caravan_client/messages.py",
    "clients/python/caravan_client/queries.py",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> list[Function]:
    """Find every function and method."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def test_files_are_short() -> None:
    """A Python file ends before line 600; one that grows is split by what it decides."""
    lengths = {
        one.path: len(one.text.splitlines()) for one in sources() if one.path not in GENERATED
    }
    long = [f"{path}: {n} lines" for path, n in lengths.items() if n > FILE_LINES_MAX]
    assert not long, report(long)


def test_functions_are_short() -> None:
    """A function, docstring included, has at most 60 lines."""
    long = [
        f"{one.path}:{node.lineno} {node.name}: {size} lines"
        for one in sources()
        for node in functions(one.tree)
        if (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, report(long)


def test_lines_are_narrow() -> None:
    """No line passes 120 columns: the formatter keeps code at 100, tables and texts may pass it a little."""
    wide = [
        f"{one.path}:{number}: {len(line)} columns"
        for one in sources()
        for number, line in enumerate(one.text.splitlines(), start=1)
        if len(line) > LINE_COLUMNS_MAX
    ]
    assert not wide, report(wide)


def test_classes_are_small() -> None:
    """A class has fewer than 13 public methods; properties count, magic methods do not."""
    wide = []
    for one in shipped():
        for node in ast.walk(one.tree):
            if isinstance(node, ast.ClassDef):
                public = [
                    item.name
                    for item in node.body
                    if isinstance(item, Function) and not item.name.startswith("_")
                ]
                if len(public) > PUBLIC_METHODS_MAX:
                    wide.append(f"{one.path}:{node.lineno} {node.name}: {len(public)} methods")
    assert not wide, report(wide)


def test_many_parameters_are_named() -> None:
    """More than four parameters are keyword-only, self and cls not counted."""
    loose = []
    for one in shipped():
        for node in functions(one.tree):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > POSITIONAL_MAX and node.name not in FOREIGN_SIGNATURES:
                loose.append(f"{one.path}:{node.lineno} {node.name}: {count} positional")
    assert not loose, report(loose)


def test_state_stays_a_record_of_tables() -> None:
    """shared/core/state/state.py routes events to tables in at most 150 lines, for ever."""
    state = ROOT / "shared" / "core" / "state" / "state.py"
    assert len(state.read_text(encoding="utf-8").splitlines()) <= STATE_LINES_MAX


def test_the_rules_can_fail() -> None:
    """The finder of functions sees nested and asynchronous ones, or the rules above would hold of nothing."""
    tree = ast.parse("class A:\n    async def b(self):\n        def c(): pass\n")
    assert [node.name for node in functions(tree)] == ["b", "c"]
    with pytest.raises(AssertionError):
        assert not ["x: 601 lines"], report(["x: 601 lines"])
