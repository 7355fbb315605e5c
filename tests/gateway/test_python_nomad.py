"""The own tests of python-nomad 2.1.0, run against the gateway of a real cluster."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import not_tested
from tests.bounds import LONG_S, WAIT_S
from tests.bus.up import Up
from tests.gateway.python_nomad.expected import EXPECTED

HERE = Path(__file__).parent / "python_nomad"
CACHE = Path(os.environ.get("CARAVAN_CACHE") or Path(__file__).parents[2] / ".cache")
SUITE = "python_nomad-2.1.0"
FILES = ("example.json", "example.nomad", "example_batch_parameterized.json")
_RESULT = re.compile(r"^tests/(test_\w+\.py::\S+) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


def prepared() -> Path:
    """The suite and what it imports, fetched by hash into the cache, once."""
    lock_file = HERE / "requirements.txt"
    folder = CACHE / f"python-nomad-{hashlib.sha256(lock_file.read_bytes()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            install = ("install", "--no-deps", "--require-hashes", "-r", str(lock_file))
            target = ("--target", str(folder / "packages"), "--upgrade")
            source = (
                *("download", "--no-deps"),
                *("--no-binary", "python-nomad"),
            )
            rest = ("--require-hashes", "-r", str(lock_file), "-d", str(folder / "source"))
            for command in ((*_PIP, *install, *target), (*_PIP, *source, *rest)):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    not_tested.missing_tool(f"python-nomad's suite: {done.stderr[-300:]}")
            (folder / "done").touch()
    return folder


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster whose node has the name that the suite looks for."""
    running = Up(tmp_path, gateway=True, CARAVAN_AGENT_NAME="pynomad1")
    yield running
    running.end()


def test_each_test_passes_or_has_a_reason(up: Up, tmp_path: Path) -> None:
    """All tests run; those that fail are those of the list, no more and no fewer."""
    folder = prepared()
    with tarfile.open(folder / "source" / f"{SUITE}.tar.gz") as archive:
        archive.extractall(tmp_path)
    work = tmp_path / "suite"
    shutil.copytree(tmp_path / SUITE / "tests", work / "tests")
    (work / "tests" / "__init__.py").touch()
    shutil.copy(HERE / "suite_common.py", work / "tests" / "common.py")
    shutil.copy(HERE / "suite_conftest.py", work / "tests" / "conftest.py")
    for name in FILES:
        shutil.copy(HERE / name, work / name)
    address = up.data_dir / "logs" / "gateway.url"
    up.until(address.exists, "the gateway listens")
    up.until(lambda: up.ask("nodes").get("total") == 1, "a node")
    url = urlsplit(address.read_text().strip())
    password = (up.data_dir / "credentials" / "public").read_text().strip()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "NOMAD_IP": str(url.hostname),
        "NOMAD_PORT": str(url.port),
        "NOMAD_VERSION": "2.0.5",
        "NOMAD_TEST_TOKEN": f"public:{password}",
        # The library of the wheel is the one whose tests run.
        "PYTHONPATH": f"{folder / 'packages'}:{work}",
        "WAIT_S": str(WAIT_S),
    }
    # No failed test is tried again, although the suite asks for it.
    options = (
        "-v",
        "-p",
        "no:flaky",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-c",
        "/dev/null",
        # These ask a public address for an answer that cannot come; they are about the library alone.
        "-k",
        "not connection_error",
    )
    command = (sys.executable, "-m", "pytest", *options, "--rootdir", str(work), "tests")
    done = subprocess.run(
        command, cwd=work, env=env, capture_output=True, text=True, timeout=3 * LONG_S, check=False
    )
    results = dict(_RESULT.findall(done.stdout))
    failed = {name for name, result in results.items() if result in ("FAILED", "ERROR")}
    assert len(results) > 280, done.stdout[-3000:] + done.stderr[-1000:]
    told = done.stdout[-6000:]
    assert failed - EXPECTED.keys() == set(), told
    assert EXPECTED.keys() - failed == set(), "these pass, so they leave the list"
