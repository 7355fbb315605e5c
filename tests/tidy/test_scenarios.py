"""Every scenario of the design of change over time has a test.

Scenarios are named by a letter and a number (R reconciler, S system, W deployments, H health, D drains, P periodic,
X state, E end to end). A test names those that it covers at the beginning of its docstring (`R3, R6: …`), or in the id
of a parameter (`id="R7 up"`). What differs from Nomad on purpose is in docs/fidelity.md.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1] / "unit"
#: How many scenarios each letter has.
COUNTS = {"R": 43, "S": 12, "W": 12, "H": 7, "D": 11, "P": 6, "X": 4, "E": 2}
SCENARIOS = tuple(f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1))
#: Tests of the same names: a report of a benchmark names these, too.
ELSEWHERE = frozenset({"cli", "query", "schemas", "view"})
_NAMES = re.compile(r"((?:[RSWHDPXE]\d+(?:, | and )?)+)(?=[: ]|$)")


def scenarios_of(source: str) -> Iterator[tuple[str, str]]:
    """Pairs of a scenario and a test that names it."""
    tree = ast.parse(source)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        texts = [ast.get_docstring(node) or ""]
        for part in node.decorator_list:
            texts += [
                word.value.value
                for word in ast.walk(part)
                if isinstance(word, ast.keyword)
                and word.arg == "id"
                and isinstance(word.value, ast.Constant)
                and isinstance(word.value.value, str)
            ]
        for text in texts:
            named = _NAMES.match(text)
            for name in re.findall(r"[A-Z]\d+", named.group(1) if named else ""):
                yield name, node.name


def covered() -> dict[str, list[str]]:
    """Tests of each scenario; the table is printed by `python -m tests.tidy.test_scenarios`."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path.relative_to(TESTS).parts[0] in ELSEWHERE:
            continue
        for name, test in scenarios_of(path.read_text()):
            found.setdefault(name, []).append(f"{path.relative_to(TESTS)}::{test}")
    return found


def test_every_scenario_has_a_test() -> None:
    """None of the 97 is left out."""
    assert len(SCENARIOS) == 97
    found = covered()
    assert [name for name in SCENARIOS if name not in found] == []


def test_names_are_read_from_docstrings_and_ids() -> None:
    """A name in the middle of a sentence, or of a function that is no test, does not count."""
    source = (
        "@pytest.mark.parametrize('n', [pytest.param(1, id='R7 up'), pytest.param(2, id='R')])\n"
        "def test_a(n):\n    'R3, R6: both.'\n"
        "def test_b():\n    'Not as in W5: nothing.'\n"
        "def helper():\n    'W6: no test.'\n"
    )
    assert {name for name, _ in scenarios_of(source)} == {"R3", "R6", "R7"}


if __name__ == "__main__":
    for scenario, tests in sorted(covered().items(), key=lambda one: SCENARIOS.index(one[0])):
        print(scenario, *tests)
