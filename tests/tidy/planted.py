"""Violations to plant: one for each tidy rule, and the small sound tree that they are planted into."""

import shutil
import subprocess
from pathlib import Path

from tests.tidy.tree import ROOT

DOC = '"""A module."""\n'
LOCK = "a==1 \\\n    --hash=sha256:0\n"
COMMANDS = ("demo", "test")

#: A tree in which every rule holds.
SOUND = {
    "README.md": "```sh\n"
    + "".join(f"python3 deploy/bootstrap.py {c}\n" for c in COMMANDS)
    + "```\n",
    "deploy/requirements.txt": LOCK,
    **{f"docs/checklists/{n}.md": "See `deploy/requirements.txt`.\n" for n in range(15)},
    "shared/core/state/state.py": DOC,
    "services/cli/main.py": DOC,
    "services/scheduler/role.py": DOC,
    "deploy/bootstrap.py": DOC,
    **{f"{package}/__init__.py": DOC for package in ("services", "shared", "schemas")},
    **{f"{package}/__init__.py": DOC for package in ("shared/core", "shared/core/state")},
    **{f"services/{package}/__init__.py": DOC for package in ("cli", "scheduler")},
}

_LONG = "def long():\n" + "    x = 1\n" * 60
_WIDE_CLASS = "class Wide:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(13))
_SMALL = {
    path: text
    for n in range(60)
    for path, text in (
        (f"shared/small_{n}.py", DOC),
        (f"shared/user_{n}.py", DOC + f"import shared.small_{n}\n" + "x = 1\n" * 40),
    )
}
_TWICE = {
    f"shared/{part}.py": DOC + "".join(f"class Twice{n}: ...\n" for n in range(9))
    for part in ("one", "other")
}

#: Rule (file and test) -> the files that break it. Strings are cut so that no rule finds them here.
PLANTS: dict[str, dict[str, str]] = {
    "test_docs.py::test_links_lead_somewhere": {"docs/page.md": "[gone](gone.md)\n"},
    "test_docs.py::test_checklists_name_files_that_exist": {
        "docs/checklists/0.md": "See `shared/gone.py`.\n"
    },
    "test_docs.py::test_texts_name_files_that_exist": {
        "shared/pointer.py": '"""Next: `gone.py`."""\n'
    },
    "test_docs.py::test_readme_has_the_two_commands": {"README.md": "```sh\nmake\n```\n"},
    "test_docs.py::test_locks_hold_every_dependency": {"deploy/requirements-dev.txt": "a==1\n"},
    "test_imports.py::test_small_modules_have_a_reason": _SMALL,
    "test_imports.py::test_listed_small_modules_are_small": {
        "services/cli/entry_point.py": DOC + "x = 1\n" * 40
    },
    "test_names.py::test_subjects_are_built_in_one_place": {
        "shared/subject.py": DOC + 'x = "cmd.plan"\n'
    },
    "test_names.py::test_modules_say_what_they_hold": {"bench/utils.py": DOC},
    "test_names.py::test_the_core_never_asks_for_hidden_order": {
        "shared/core/order.py": DOC + "x = hash(1)\n"
    },
    "test_names.py::test_debt_has_a_number": {"bench/debt.py": DOC + "# TO" + "DO: later\n"},
    "test_names.py::test_class_names_are_unique": _TWICE,
    "test_names.py::test_the_fields_of_a_job_are_copied_in_one_place": {
        "shared/copied.py": DOC + "def f(x):\n    return RegisterJob(priority=x.priority)\n"
    },
    "test_names.py::test_drivers_are_told_apart_in_one_table": {
        "shared/jobspec/drivers/registry.py": DOC + 'DRIVERS = {"exec": 1, "docker": 2}\n',
        "shared/named.py": DOC + 'x = task.driver == "docker"\n',
    },
    "test_names.py::test_pages_of_the_console_are_listed_once": {
        "services/gateway/console/lib/router.js": 'const MENU = [["a"], ["b"], ["c"]];\n',
        "services/gateway/console/lib/stray.js": 'const PAGES = ["a", "b", "c"];\n',
    },
    "test_names.py::test_sets_of_words_are_named_once": {
        "schemas/words.py": DOC + 'KINDS = frozenset({"a", "b"})\n',
        "shared/words.py": DOC + 'x = y in ["b", "a"]\n',
    },
    "test_prose.py::test_no_machine_is_named": {"docs/machine.md": "/ho" + "me/user\n"},
    "test_prose.py::test_no_registry_is_named": {"docs/index.md": "--ind" + "ex-url\n"},
    "test_prose.py::test_the_project_speaks_of_itself": {"docs/maker.md": "Chat" + "GPT\n"},
    "test_prose.py::test_shipped_modules_say_what_they_decide": {"shared/silent.py": "x = 1\n"},
    "test_prose.py::test_sentences_name_their_subject[product]": {
        "shared/riddle.py": '"""Nobody is here."""\n'
    },
    "test_prose.py::test_sentences_name_their_subject[tests]": {
        "tests/riddle.py": DOC + 'x = f"nobody has {DOC}"\n'
    },
    "test_sizes.py::test_files_are_short": {"bench/long.py": DOC + "x = 1\n" * 600},
    "test_sizes.py::test_functions_are_short": {"bench/function.py": DOC + _LONG},
    "test_sizes.py::test_lines_are_narrow": {"bench/wide.py": DOC + f"x = {'1' * 120}\n"},
    "test_sizes.py::test_classes_are_small": {"shared/wide_class.py": DOC + _WIDE_CLASS},
    "test_sizes.py::test_many_parameters_are_named": {
        "shared/loose.py": DOC + "def f(a, b, c, d, e): ...\n"
    },
    "test_sizes.py::test_state_stays_a_record_of_tables": {
        "shared/core/state/state.py": DOC + "import asyncio\n" + "x = 1\n" * 150
    },
    "test_tests.py::test_every_test_states_its_rule": {
        "tests/test_silent.py": "def test_x():\n    assert 1\n"
    },
    "test_tests.py::test_every_test_can_fail": {
        "tests/test_toothless.py": 'def test_y():\n    """Y."""\n'
    },
    "test_walls.py::test_slim_processes_stay_slim[services.cli.main]": {
        "services/cli/main.py": DOC + "import docker\n"
    },
    "test_walls.py::test_slim_processes_stay_slim[services.scheduler.role]": {
        "services/scheduler/role.py": DOC + "def f():\n    pass\nimport fast_depends\n"
    },
    "test_walls.py::test_the_python_client_is_a_package_of_its_own": {
        "clients/python/caravan_client/late.py": DOC + "def f():\n    from schemas import base\n"
    },
    # Planted into state.py above.
    "test_walls.py::test_the_core_brings_no_bus": {},
}

#: Rules that run in the small tree. The others of tests/tidy look at one file of deploy/ each, and have a test of
#: their own that feeds them a wrong one.
FILES = sorted({rule.partition("::")[0] for rule in PLANTS})


def write_tree(top: Path, planted: dict[str, str]) -> None:
    """Write the small tree with this tree's tidy rules, and plant files into it."""
    shutil.copytree(
        ROOT / "tests" / "tidy",
        top / "tests" / "tidy",
        ignore=shutil.ignore_patterns("__pycache__", "*planted*", "test_deploy.py"),
    )
    shutil.copy(ROOT / "pyproject.toml", top)
    (top / "tests" / "__init__.py").touch()
    shutil.copy(ROOT / "tests" / "bounds.py", top / "tests")
    for path, text in {**SOUND, **planted}.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text)
    (top / ".gitignore").write_text("__pycache__/\n")
    subprocess.run(["git", "init", "--quiet", str(top)], check=True)
