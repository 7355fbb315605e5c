"""Tests about tests: each states its rule in a docstring and can fail."""

import ast

import pytest

from tests.tidy.tree import report, sources

#: A call that fails the test by itself: `then`, `expect_…`, `check_…`, pytest.raises, or a wait for a level, which
#: fails when its time is up.
ASSERTING = (
    *("assert", "check", "expect", "then", "raises", "warns", "fail", "run_state_machine"),
    *("until", "wait", "eventually"),
)


def collected(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Find the functions that pytest collects."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def can_fail(function: ast.AST) -> bool:
    """Say whether a test asserts something, itself or through a callee named for it."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            callee = node.func
            name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
            if name.lstrip("_").startswith(ASSERTING):
                return True
    return False


def test_every_test_states_its_rule() -> None:
    """Every test has a docstring, one sentence that says which rule it holds."""
    silent = [
        f"{one.path}:{node.lineno} {node.name}"
        for one in sources()
        if one.path.startswith("tests/")
        for node in collected(one.tree)
        if not ast.get_docstring(node)
    ]
    assert not silent, report(silent)


def test_every_test_can_fail() -> None:
    """Every test asserts something."""
    toothless = [
        f"{one.path}:{node.lineno} {node.name}"
        for one in sources()
        if one.path.startswith("tests/")
        for node in collected(one.tree)
        if not can_fail(node)
    ]
    assert not toothless, report(toothless)


@pytest.mark.parametrize(
    ("body", "fails"),
    [
        ("assert x", True),
        ("with pytest.raises(E): x()", True),
        ("given(a).when(b).then(c)", True),
        ("x()", False),
    ],
)
def test_a_toothless_test_is_found(body: str, *, fails: bool) -> None:
    """A body without an assertion is told from one that has it."""
    assert can_fail(ast.parse(body)) is fails
