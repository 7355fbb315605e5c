"""Files of deploy/: units, alert rules and pre-commit hooks name what exists."""

import re
from pathlib import Path

import pytest
import yaml

from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.executor.tasks_end import KILL_S
from services.agent.settings import END_TASKS_LIMIT_S, AgentSettings
from services.cli.command_table import COMMANDS
from services.cli.local import agent_ends
from services.keeper.__main__ import KeeperSettings
from shared.bus.process.runner import RunSettings
from shared.bus.server.accounts import ROLES
from shared.jobspec.submission import MAX_KILL_TIMEOUT_NS
from tests.tidy.tree import ROOT

SYSTEMD = ROOT / "deploy" / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
METRIC_ROW = re.compile(r"^\| `(caravan_\w+)` \| (\w+) \|", re.MULTILINE)
FUNCTIONS = {"sum", "max", "min", "rate", "increase", "histogram_quantile", "by", "le", "up", "job"}
FUNCTIONS |= {"absent", "label_replace", "or"}


def known_settings() -> set[str]:
    """Every variable that a service reads."""
    kinds = {"": RunSettings, "AGENT_": AgentSettings}
    kinds |= {"DOCKER_": DockerSettings, "EXEC_": ExecSettings, "KEEPER_": KeeperSettings}
    return {"CARAVAN_CLUSTER_ID"} | {
        f"CARAVAN_{prefix}{name.upper()}"
        for prefix, kind in kinds.items()
        for name in kind.__struct_fields__
    }


def metrics() -> dict[str, str]:
    """The documented metrics with their types; a histogram by its series."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    found = dict(METRIC_ROW.findall(page))
    for name in [name for name, kind in found.items() if kind == "histogram"]:
        del found[name]
        found |= {f"{name}_{part}": "counter" for part in ("bucket", "sum", "count")}
    return found


def fault_of(rule: dict[str, object]) -> str:
    """Say what is wrong with an alert rule; empty: nothing."""
    expr = str(rule.get("expr", ""))
    names = set(re.findall(r"[a-z_]{2,}", re.sub(r'"[^"]*"', "", expr)))
    if missing := names - FUNCTIONS - set(metrics()):
        return f"unknown names {sorted(missing)}"
    if expr.count("(") != expr.count(")") or not re.search(r"[<>=]=? [\d.]+$", expr):
        return "no balanced comparison"
    counters = [name for name in names if metrics().get(name) == "counter"]
    if any(
        not re.search(rf"(rate|increase)\({name}(\{{.*?\}})?\[\w+\]\)", expr) for name in counters
    ):
        return "a counter without rate or increase"
    if not re.fullmatch(r"Caravan[A-Z]\w+", str(rule.get("alert"))):
        return "name"
    if not re.fullmatch(r"\d+[smh]", str(rule.get("for", "1m"))):
        return "for"
    labels, texts = rule.get("labels"), rule.get("annotations")
    is_complete = isinstance(labels, dict) and isinstance(texts, dict) and texts.get("summary")
    if not is_complete or labels.get("severity") not in ("critical", "warning", "info"):
        return "severity or summary"
    return ""


def test_alerts_ask_for_what_exists() -> None:
    """Every alert rule compares documented metrics, has a severity and a summary, and a name of its own."""
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [f"{rule['alert']}: {fault_of(rule)}" for rule in rules if fault_of(rule)] == []
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10


@pytest.mark.parametrize(
    "expr",
    ["caravan_gone > 0", "caravan_log_foreign_total > 0", "max(caravan_view_seq > 0", "up"],
)
def test_a_wrong_alert_is_found(expr: str) -> None:
    """An unknown metric, a bare counter, an open parenthesis and a missing comparison are faults."""
    rule = {"alert": "CaravanX", "expr": expr, "labels": {"severity": "info"}}
    assert fault_of({**rule, "annotations": {"summary": "x"}})


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_run_what_exists(path: Path) -> None:
    """A unit starts a command of the table, or a role, and sets variables that a service reads."""
    text = path.read_text()
    command = re.findall(r"^ExecStart=/opt/caravan/bin/caravan (.+)$", text, re.MULTILINE)
    assert len(command) == 1
    words = command[0].split()
    assert any(tuple(words[: len(one.words)]) == one.words for one in COMMANDS)
    assert words[0] != "run" or words[1] in {*ROLES, "agent", "%i"}
    assert set(re.findall(r"CARAVAN_[A-Z_]+", text)) <= known_settings()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"\[(Unit|Service|Install)\]|[A-Z]\w+=.*", line) for line in lines)


def test_the_env_file_sets_what_is_read() -> None:
    """Each variable of the env file is read by a service, and given once."""
    text = (SYSTEMD / "caravan.env").read_text()
    names = re.findall(r"^([A-Z_]+)=", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert set(names) <= known_settings()


def test_hooks_are_local() -> None:
    """Pre-commit hooks run tools of this tree and fetch nothing."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)
    assert all(hook["language"] == "system" for hook in hooks)


def test_agents_have_time_to_end_their_tasks() -> None:
    """Grace periods are above an agent's own limit, and that above every kill_timeout that is accepted."""
    limit_s = END_TASKS_LIMIT_S + KILL_S
    assert MAX_KILL_TIMEOUT_NS / 1e9 < END_TASKS_LIMIT_S
    assert agent_ends.END_TASKS_LIMIT_S == END_TASKS_LIMIT_S
    assert agent_ends.AGENT_MARGIN_S > KILL_S
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    agents = [one for name, one in services.items() if name.startswith("agent-")]
    assert len(agents) == 3
    for one in agents:
        assert one["environment"]["CARAVAN_AGENT_END_TASKS"] == "1"
        assert 60 * int(one["stop_grace_period"].removesuffix("m")) > limit_s
    for name, margin_s in (("caravan-agent", 0.0), ("caravan-up", agent_ends.AGENT_MARGIN_S)):
        text = (SYSTEMD / f"{name}.service").read_text()
        minutes = re.findall(r"^TimeoutStopSec=(\d+)min$", text, re.MULTILINE)
        assert 60 * int(minutes[0]) > END_TASKS_LIMIT_S + max(margin_s, KILL_S)


def test_services_wait_for_streams_that_are_created_once() -> None:
    """What `create` refuses no repetition changes: `docker compose up` returns, and nothing starts without streams."""
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    assert services["create"]["restart"] == "no"
    others = [name for name in services if name != "create" and not name.startswith("nats-")]
    created = {"create": {"condition": "service_completed_successfully"}}
    assert [name for name in others if services[name]["depends_on"] != created] == []
    assert len(others) > 8
