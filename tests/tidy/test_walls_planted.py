"""Every wall falls when it should: a planted violation breaks each tidy rule, import contract and lint exemption."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import LONG_S
from tests.tidy.planted import FILES, PLANTS, write_tree
from tests.tidy.tree import ROOT, files, report

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
CONTRACTS: list[dict[str, Any]] = CONFIG["importlinter"]["contracts"]
EXEMPTIONS: dict[str, list[str]] = CONFIG["ruff"]["lint"]["per-file-ignores"]
TOOLS = Path(sys.executable).parent
#: Tests about the finders of other tests, with their own examples.
SELF_TESTS = {
    "test_names.py::test_subjects_are_told_from_tags",
    "test_sizes.py::test_the_rules_can_fail",
    "test_tests.py::test_a_toothless_test_is_found",
}

pytestmark = pytest.mark.timeout(2 * LONG_S)


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a tool on the planted tree and nothing else."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(cwd), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
    )


# ---- tidy rules ----


def outcomes(top: Path) -> dict[str, str]:
    """Run the tidy rules of a tree: test -> PASSED or FAILED."""
    options = ("-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly")
    tests = [f"tests/tidy/{name}" for name in FILES]
    done = run(sys.executable, "-m", "pytest", *options, *tests, cwd=top)
    pattern = r"^(PASSED|FAILED) tests/tidy/(\S+)"
    return {test: verdict for verdict, test in re.findall(pattern, done.stdout, re.MULTILINE)}


def test_tidy_rules_hold_in_a_sound_tree(tmp_path: Path) -> None:
    """The small tree without violations passes every rule, so that what fails below fails for its plant."""
    write_tree(tmp_path, {})
    found = outcomes(tmp_path)
    assert set(PLANTS) <= set(found)
    assert {test for test, verdict in found.items() if verdict != "PASSED"} == set()


def test_each_planted_violation_fails_its_rule(tmp_path: Path) -> None:
    """Each tidy rule fails on the violation that is planted for it."""
    write_tree(tmp_path, {path: text for plant in PLANTS.values() for path, text in plant.items()})
    found = outcomes(tmp_path)
    standing = [rule for rule in PLANTS if found.get(rule) != "FAILED"]
    assert not standing, report(standing)


def test_each_tidy_rule_has_a_plant() -> None:
    """A rule added to these files gets a planted violation here."""
    rules = {
        f"{name}::{node.name}"
        for name in FILES
        for node in ast.parse((ROOT / "tests" / "tidy" / name).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert rules - SELF_TESTS == {rule.partition("[")[0] for rule in PLANTS}


# ---- import contracts ----


def modules_matching(pattern: str) -> list[str]:
    """Find the modules of this tree that a contract's expression names."""
    paths = [name for name in files() if name.endswith(".py")]
    names = [name[:-3].removesuffix("/__init__").replace("/", ".") for name in paths]
    expression = re.escape(pattern).replace(r"\*\*", ".+").replace(r"\*", "[^.]+")
    return sorted({name for name in names if re.fullmatch(expression, name)})


def layers_of(contract: dict[str, Any]) -> list[list[str]]:
    """Name the modules of each layer of a contract, from the highest; those of one layer may import each other."""
    containers = [f"{container}." for container in contract.get("containers", [])] or [""]
    return [
        [f"{container}{name.strip()}" for container in containers for name in layer.split(":")]
        for layer in contract.get("layers", [])
    ]


def sources_of(contract: dict[str, Any]) -> list[str]:
    """Name the modules that a contract holds back."""
    if contract["type"] == "layers":
        return [name for layer in layers_of(contract)[1:] for name in layer]
    patterns = contract.get("source_modules", contract.get("modules", []))
    return [name for pattern in patterns for name in modules_matching(pattern)]


def forbidden_to(contract: dict[str, Any], source: str) -> list[str]:
    """Name what a module of a contract must not import, each alone a violation."""
    if contract["type"] == "layers":
        layers = layers_of(contract)
        own = next(place for place, layer in enumerate(layers) if source in layer)
        return [name for layer in layers[:own] for name in layer]
    if contract["type"] == "independence":
        return [other for other in sources_of(contract) if other != source][:1]
    return list(contract["forbidden_modules"])


def write_modules(top: Path) -> None:
    """Write this tree's modules as empty files, with the imports that contracts expect to ignore."""
    for name in files():
        if name.endswith(".py") and name.startswith(("services/", "shared/", "schemas/")):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).touch()
    (top / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    ignored = {rule for contract in CONTRACTS for rule in contract.get("ignore_imports", ())}
    for rule in sorted(ignored):
        pattern, _, target = rule.partition(" -> ")
        found = modules_matching(pattern)
        source = "services.scheduler.role" if "services.scheduler.role" in found else found[-1]
        with path_of(top, source).open("a") as module:
            module.write(f"import {target}\n")


def path_of(top: Path, module: str) -> Path:
    """Find the file of a module, or of a package."""
    path = top / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def lint_imports(top: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the contracts over a tree."""
    return run(TOOLS / "lint-imports", "--no-logo", "--no-cache", *options, cwd=top)


def test_contracts_name_what_exists() -> None:
    """Every module that a contract names exists: a rename must not take a wall away in silence."""
    ours = ("services", "shared", "schemas")
    keys = ("source_modules", "modules", "containers", "forbidden_modules")
    named = [
        (contract["id"], pattern)
        for contract in CONTRACTS
        for pattern in (
            *(name for key in keys for name in contract.get(key, ())),
            *(name for layer in layers_of(contract) for name in layer),
        )
    ]
    missing = [
        f"{contract}: {pattern}"
        for contract, pattern in named
        if pattern.partition(".")[0] in ours and not modules_matching(pattern)
    ]
    assert not missing, report(missing)


def test_contracts_hold_in_a_sound_tree(tmp_path: Path) -> None:
    """This tree's modules without their imports keep every contract."""
    write_modules(tmp_path)
    done = lint_imports(tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"{len(CONTRACTS)} kept, 0 broken" in done.stdout


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["id"])
def test_each_contract_breaks(contract: dict[str, Any], tmp_path: Path) -> None:
    """Each module that a contract holds back breaks it by each import that is forbidden."""
    write_modules(tmp_path)
    planted = []
    for source in sources_of(contract):
        targets = forbidden_to(contract, source)
        with path_of(tmp_path, source).open("a") as module:
            module.write("".join(f"import {target}\n" for target in targets))
        planted += [f"{source} -> {target}" for target in targets]
    done = lint_imports(tmp_path, "--contract", contract["id"])
    assert done.returncode == 1, done.stdout + done.stderr
    shown = re.sub(r"\s+", " ", done.stdout)
    standing = [one for one in planted if one not in shown]
    assert planted
    assert not standing, report(standing)


@pytest.mark.parametrize(
    "contract",
    [one for one in CONTRACTS if one.get("exhaustive")],
    ids=lambda contract: contract["id"],
)
def test_a_module_without_a_layer_breaks(contract: dict[str, Any], tmp_path: Path) -> None:
    """A contract that names every module of a package breaks by one more, until that has its layer."""
    write_modules(tmp_path)
    for container in contract["containers"]:
        (path_of(tmp_path, container).parent / "planted.py").touch()
    done = lint_imports(tmp_path, "--contract", contract["id"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("planted") == len(contract["containers"]), done.stdout


# ---- lint exemptions ----

#: A violation of each rule that some path is exempted from.
VIOLATIONS = {
    "ARG001": "def f(x): return 1",
    "ARG002": "class A:\n    def f(self, x): return 1",
    "D100": "x = 1",
    "D101": "class A: x = 1",
    "D102": "class A:\n    def f(self): return 1",
    "D103": "def f(): return 1",
    "D104": "x = 1",
    "D401": 'def f():\n    """Returns one."""',
    "INP001": "x = 1",
    "PLC0415": "def f():\n    import os",
    "PLR0915": "def f():\n" + "    x = 1\n" * 60,
    "PT018": "def test_x():\n    assert a and b",
    "PTH": "import os\nos.path.exists('x')",
    "S": "exec('x')",
    "S603": "import subprocess\nsubprocess.run(x)",
    "S606": "import os\nos.execv('/bin/x', [])",
    "S607": "import subprocess\nsubprocess.run(['ls'])",
    "S608": "x = f'SELECT {a} FROM t'",
    "SLF001": "x._y",
    "T201": "print(1)",
    "TID251": "import time\ntime.time()",
}
#: Rules about files: where their violation is planted.
PLANTED_AT = {
    "D104": "shared/core/planted/__init__.py",
    "INP001": "shared/nowhere/planted.py",
    "PT018": "shared/core/test_planted.py",
}
EXEMPTED = sorted({code for codes in EXEMPTIONS.values() for code in codes})


def matches(pattern: str, names: Iterable[str]) -> list[str]:
    """Find the files that an exemption covers."""
    return [name for name in names if fnmatch(name, pattern.replace("**", "*"))]


@pytest.mark.parametrize("pattern", EXEMPTIONS)
def test_exemptions_cover_files(pattern: str) -> None:
    """Each path that is exempted from a lint rule exists."""
    assert matches(pattern, [name for name in files() if name.endswith(".py")])


@pytest.mark.parametrize("code", EXEMPTED)
def test_what_some_may_others_may_not(code: str, tmp_path: Path) -> None:
    """A rule that some paths are exempted from finds its violation in the core."""
    path = tmp_path / PLANTED_AT.get(code, "shared/core/planted.py")
    path.parent.mkdir(parents=True)
    path.write_text(VIOLATIONS[code] + "\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    command = ("check", "--no-cache", "--select", code, "--output-format", "json", path)
    done = run(TOOLS / "ruff", *command, cwd=tmp_path)
    assert {one["code"][: len(code)] for one in json.loads(done.stdout)} == {code}


# ---- dependencies ----


def test_an_undeclared_import_is_found(tmp_path: Path) -> None:
    """An import of a package that pyproject.toml does not declare, or only for development, is an error."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "planted.py").write_text("import anyio\nimport hypothesis\n")
    done = run(sys.executable, "-m", "deptry", "--no-ansi", "shared", cwd=tmp_path)
    assert done.returncode == 1
    assert "DEP003 'anyio'" in done.stderr
    assert "DEP004 'hypothesis'" in done.stderr
