"""`caravan up` over a log that its applier refuses: it says so, and why, instead of a greeting."""

import json
from pathlib import Path

from tests.bus.up import Up


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
