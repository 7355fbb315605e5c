"""Tests with real processes wait as tests/bounds.py says: no number bounds a wait, and no passing of time is a test."""

import ast
import asyncio
from collections.abc import Iterator

import pytest

from tests import bounds
from tests.tidy.tree import report, sources

FOLDERS = (
    *("asyncapi", "attacks", "bench", "bus", "clients", "compose", "docker", "docs", "faults"),
    *("gateway", "integration", "packaging"),
)
#: A shorter one is what a test is about: what must run out, or a silence.
SECONDS_MIN = 5
NAMES = {"timeout", "timeout_s", "within_s", "start_timeout_s"}
CLOCKS = {"monotonic", "time", "perf_counter"}
EXCEPT = {
    "tests/clients/python/client.py": "a user's program, which knows nothing of our tests, and asks again",
    "tests/compose/load.py": "a question that a killed service has lost is asked again",
    "tests/docker/engine.py": "a look whether the engine answers, which is repeated",
    "tests/faults/test_damage.py": "the role must end long before, though it may wait so long",
}
WRONG = ("0", "0.5", "-1", "nan", "inf", "long", "1s")


def number(node: ast.expr | None, constants: dict[str, float]) -> float | None:
    """Value of a number, of a module's own constant, or of what is calculated from such alone."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            return constants.get(name)
        case ast.BinOp(left=left, right=right):
            parts = [number(left, constants), number(right, constants)]
            return None if None in parts else max(one for one in parts if one is not None)
        case _:
            return None


def reads_clock(node: ast.AST) -> bool:
    """Whether `monotonic()`, `loop.time()` or the like is called."""
    return any(
        isinstance(one, ast.Call) and not one.args and called(one) in CLOCKS
        for one in ast.walk(node)
    )


def called(call: ast.Call) -> str:
    """Last word of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def bounds_of(node: ast.AST) -> Iterator[ast.expr | None]:
    """What bounds a wait in this node."""
    match node:
        case ast.Call(args=args, keywords=keywords):
            yield from (one.value for one in keywords if one.arg in NAMES)
            name = called(node)
            if (name in {"timeout", "wait", "join", "communicate"} and len(args) == 1) or (
                name in {"wait_for", "wait_until"} and len(args) > 1
            ):
                yield args[-1]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            if reads_clock(left) or reads_clock(right):
                yield from (left, right)
        case ast.arguments():
            given = [*node.posonlyargs, *node.args]
            pairs = zip(given[len(given) - len(node.defaults) :], node.defaults, strict=True)
            for one, value in (*pairs, *zip(node.kwonlyargs, node.kw_defaults, strict=True)):
                if one.arg in NAMES:
                    yield value
        case _:
            pass


def is_a_timing(node: ast.AST) -> bool:
    """Whether it asserts that not more than some time has passed."""
    return isinstance(node, ast.Assert) and any(
        isinstance(one, ast.Compare)
        and isinstance(one.ops[0], ast.Lt | ast.LtE)
        and isinstance(one.left, ast.BinOp)
        and isinstance(one.left.op, ast.Sub)
        and reads_clock(one.left)
        for one in ast.walk(node)
    )


def faults(tree: ast.Module) -> list[str]:
    """Lines of a file that bound a wait by a number or assert a duration, each with what is wrong."""
    constants = {
        target.id: value
        for one in tree.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name) and (value := number(one.value, {})) is not None
    }
    found = []
    for node in ast.walk(tree):
        if is_a_timing(node):
            found.append((node.lineno, "asserts how long something took"))  # type: ignore[attr-defined]
        found += [
            (bound.lineno, f"waits for {ast.unparse(bound)}")
            for bound in bounds_of(node)
            if bound is not None and (number(bound, constants) or 0) >= SECONDS_MIN
        ]
    return [f"{line}: {text}, not for WAIT_S or LONG_S" for line, text in sorted(set(found))]


def test_no_number_bounds_a_wait() -> None:
    """Waits of tests with real processes are bounded by WAIT_S and LONG_S; each exception is still one."""
    wrong, left_out = [], set()
    for one in sources():
        if not one.path.startswith(tuple(f"tests/{folder}/" for folder in FOLDERS)):
            continue
        found = faults(one.tree)
        if one.path in EXCEPT and found:
            left_out.add(one.path)
        else:
            wrong += [f"{one.path}:{text}" for text in found]
    assert not wrong, report(wrong)
    assert left_out == EXCEPT.keys(), "these need no exception any more"


PLANTED = """
STEP_S = 40
run(words, timeout=30)
client.request(one, timeout_s=2 * STEP_S)
async with asyncio.timeout(60):
    await asyncio.wait_for(told.get(), 10)
process.wait(20)
thread.join(STEP_S)
deadline = time.monotonic() + 45
until = loop.time() + 5.0
def ask(self, what, within_s=30.0, *, timeout=99): ...
assert time.monotonic() - began < 2
run(words, timeout=WAIT_S)
client.request(one, timeout_s=0.3)
story.wait("running", 12)
",".join(words)
process.wait(3 * LONG_S)
deadline = monotonic() + WAIT_S
assert time.monotonic() - began >= 0.9
"""


def test_a_number_is_found() -> None:
    """Each planted line is named, and none of the lines that are right."""
    found = faults(ast.parse(PLANTED))
    assert [int(one.split(":")[0]) for one in found] == [3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 12]
    assert "timeout=30" in PLANTED.splitlines()[2] and "asserts how long" in found[-1]


@pytest.mark.parametrize(
    ("text", "factor"), [("", 1), ("1", 1), ("2.5", 2.5), *((one, 0) for one in WRONG)]
)
def test_the_factor_is_a_number_of_at_least_one(text: str, factor: float) -> None:
    """CARAVAN_TEST_WAIT lengthens waits; what is no such number is refused with its name."""
    if factor:
        assert bounds.read_factor(text) == factor
    else:
        with pytest.raises(ValueError, match="CARAVAN_TEST_WAIT"):
            bounds.read_factor(text)


def test_a_wait_ends_when_it_holds_and_names_what_never_came() -> None:
    """Both waits return what they found; on expiry they name it, what is there instead, or the condition's place."""
    assert bounds.until(iter([0, "", "found"]).__next__, every_s=0) == "found"
    assert asyncio.run(bounds.level(iter([0, "", "found"]).__next__, every_s=0)) == "found"
    with pytest.raises(AssertionError, match="not within 0 s: the sun"):
        bounds.until(lambda: False, "the sun", 0)
    with pytest.raises(AssertionError, match="7 of 8"):
        asyncio.run(bounds.level(lambda: False, lambda: "7 of 8", 0))
    with pytest.raises(AssertionError, match=r"test_bounds.py:\d+"):
        bounds.until(lambda: False, within_s=0)


def test_the_last_resort_grows_with_the_waits(pytestconfig: pytest.Config) -> None:
    """Pytest's own timeout, which names nothing, stays above the longest wait, by whatever factor waits are longer."""
    last_resort = float(pytestconfig.getini("timeout"))
    assert last_resort * bounds.FACTOR > bounds.LONG_S
    # A developer may have given another one.
    assert bounds.FACTOR == 1 or pytestconfig.getoption("timeout") > last_resort
