"""The alert rules: promtool runs their cases; each rule has one that fires and one that does not; docs name them."""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bounds import WAIT_S
from tests.not_tested import missing_tool

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run it in the folder of the rules."""
    if shutil.which("promtool") is None:
        missing_tool("promtool (Debian's package prometheus)")
    return subprocess.run(
        ["promtool", *words],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )


@pytest.mark.full("needs promtool, of Debian's package prometheus")
def test_every_case_of_the_alerts_holds() -> None:
    """Prometheus's own tool evaluates the rules over the series of each case."""
    done = promtool("test", "rules", "alerts.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full("needs promtool, of Debian's package prometheus")
def test_a_changed_bound_is_noticed(tmp_path: Path) -> None:
    """The cases are near their bounds: a rule that compares with another number fails some of them."""
    text = (FOLDER / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(text.replace("> 10000", "> 30000"))
    shutil.copy(FOLDER / "alerts.test.yml", tmp_path)
    done = promtool("test", "rules", str(tmp_path / "alerts.test.yml"))
    assert done.returncode != 0
    assert "CaravanReplicaLags" in done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    """No rule is left out, and no case is of a rule that there is not."""
    cases: dict[str, set[bool]] = defaultdict(set)
    for test in yaml.safe_load((FOLDER / "alerts.test.yml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            cases[case["alertname"]].add(bool(case["exp_alerts"]))
    assert cases == {name: {True, False} for name in RULES}


def test_every_line_of_the_docs_has_a_rule_and_every_rule_a_line() -> None:
    """An operator finds each alert in docs/operations.md, to which its rule points."""
    page = (ROOT / "docs" / "operations.md").read_text()
    part = page.partition("### Read an alarm\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    named = [set(re.findall(r"`(Caravan\w+)`", row[0])) for row in rows]
    assert [row for row, names in zip(rows, named, strict=True) if not names] == []
    assert set().union(*named) == set(RULES)
    links = {rule["annotations"].get("runbook") for rule in RULES.values()}
    assert links == {"docs/operations.md#read-an-alarm"}


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_says_what_is_wrong(name: str) -> None:
    """Each has a severity, and a summary of one line."""
    rule = RULES[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert "\n" not in rule["annotations"]["summary"].strip()
