"""The AsyncAPI document is accepted by the official parser; tests/unit/schemas/test_bus_contract.py has the rest."""

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from schemas import generate
from services.gateway.edge.bus import asyncapi
from shared.protocol import contract
from tests import not_tested
from tests.bounds import LONG_S, WAIT_S

HERE = Path(__file__).parent
#: The parser and what it needs, installed once per lock; git ignores it.
CACHE = generate.ROOT / ".cache" / "asyncapi"


def test_the_lock_names_no_address() -> None:
    """Where packages come from is the installing machine's choice; each is held by its hash."""
    lock = json.loads((HERE / "package-lock.json").read_text())
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert [name for name, one in packages.items() if "integrity" not in one] == []
    assert "://" not in (HERE / "package-lock.json").read_text()


def parser_folder() -> Path:
    """Install the parser where that can be done; skips, saying why, where it cannot."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        not_tested.missing_tool("no node and npm for the official AsyncAPI parser")
    digest = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:16]
    folder = CACHE / digest
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=CACHE))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, fresh)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command, cwd=fresh, capture_output=True, text=True, timeout=LONG_S, check=False
        )
        failure = done.stderr[-300:] if done.returncode else ""
    except subprocess.TimeoutExpired:
        failure = f"it took longer than {LONG_S:g} s"
    if failure:
        shutil.rmtree(fresh, ignore_errors=True)
        not_tested.missing_tool(f"the official AsyncAPI parser cannot be installed: {failure}")
    try:
        fresh.rename(folder)
    except OSError:
        # Another run was faster.
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def parse(file: Path) -> dict:
    command = ["node", str(HERE / "check.mjs"), str(parser_folder()), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(2 * LONG_S)
def test_the_official_parser_accepts_it() -> None:
    """The AsyncAPI project's own parser finds no error and no warning, and sees every channel."""
    told = parse(generate.ROOT / asyncapi.ASYNCAPI_JSON)
    assert [one for one in told["diagnostics"] if one["severity"] <= 1] == []
    asked = [one for one in contract.SUBJECTS if one.answers]
    assert told["channels"] == len(contract.SUBJECTS) + len(asked)
    assert told["operations"] == len(contract.SUBJECTS)


@pytest.mark.timeout(2 * LONG_S)
def test_the_official_parser_can_refuse(tmp_path: Path) -> None:
    """A document with a dangling channel is an error to the same check."""
    broken = asyncapi.document()
    broken["operations"]["query_job"]["channel"]["$ref"] = "#/channels/nowhere"
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(broken))
    assert [one for one in parse(file)["diagnostics"] if one["severity"] == 0]
