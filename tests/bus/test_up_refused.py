"""`caravan up` over a log that its applier refuses: it says so, and why, instead of a greeting."""

import json
import subprocess
from pathlib import Path

from schemas.envelope import CORE_VERSION
from tests.bounds import WAIT_S
from tests.bus.up import Up

NEWER = "0.100.0"
#: Python reads it before anything else: the release is another one.
OTHER_RELEASE = f"""
import schemas.envelope
schemas.envelope.CORE_VERSION = {NEWER!r}
"""


def test_up_over_a_refused_log_is_not_up(tmp_path: Path) -> None:
    """The log names another cluster than the data directory: no applier leads, and `up` says the reason at once."""
    up = Up(tmp_path)
    assert (up.said["ready"], up.said["failures"]) == (True, {})
    assert up.end() == 0
    identity = tmp_path / "data" / "cluster.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "cluster_id": "another"}))
    again = Up(tmp_path)
    try:
        assert again.said["ready"] is False
        reasons = [why for name, why in again.said["failures"].items() if "applier" in name]
        assert len(reasons) == 2
        assert all("cluster" in why for why in reasons), reasons
    finally:
        assert again.end() == 0


def test_an_older_release_opens_nothing_of_a_newer_one(tmp_path: Path) -> None:
    """`up` refuses the directory; where only the log tells the release, its appliers refuse the log."""
    (tmp_path / "sitecustomize.py").write_text(OTHER_RELEASE)
    repository = Path(__file__).parents[2]
    newer = Up(tmp_path, one_process=True, PYTHONPATH=f"{tmp_path}:{repository}")
    assert newer.said["ready"] is True
    assert newer.end() == 0
    data = tmp_path / "data"
    done = subprocess.run(
        newer._command("up", "--port", "0", "--data-dir", str(data)),
        env={**newer.env, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"was written by core {NEWER}, this release has {CORE_VERSION}" in done.stderr
    identity = data / "cluster.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "core": CORE_VERSION}))
    older = Up(tmp_path, one_process=True)
    try:
        assert older.said["ready"] is False
        assert f"the log was written by core {NEWER}" in older.said["failures"]["services"]
    finally:
        assert older.end() == 0
