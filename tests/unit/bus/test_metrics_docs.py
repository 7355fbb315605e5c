"""docs/metrics.md against what every service shows, and the files of deploy/ against docs/metrics.md."""

import importlib.util
import json
import re
import socket
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from schemas.nodes import NodeSpec
from services.agent.executor.usage_sampler import UsageSampler
from services.agent.role import Agent
from services.eval_broker.role import EvalBroker
from services.gateway.edge.bus.middleware import BusCounts
from services.gateway.role import Gateway
from services.heartbeat.role import HeartbeatMonitor
from services.intake.role import Intake
from services.plan_applier.role import PlanApplier
from services.scheduler.role import Scheduler
from services.timekeeper.role import Timekeeper
from services.view.role import View
from shared.bus.connection.nats_client import Login
from shared.bus.process.health_server import exposition
from shared.bus.process.metric_help import METRIC_HELP
from shared.bus.process.process_metrics import process_metrics
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.core.runtime.role import Role

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| `(caravan_\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
DOCUMENTED = {
    name: kind for name, kind, *_ in ROW.findall((ROOT / "docs" / "metrics.md").read_text())
}
SHELL = "caravan_shell_"


def roles() -> list[Role]:
    """One of every role."""
    spec = NodeSpec(node_id="n1", name="n1")
    agent = Agent(node_id="n1", instance="n1-x", host_id="h", boot_id="b", spec=spec, journal=())
    return [
        PlanApplier(instance="a", cluster_id="c"),
        EvalBroker(instance="b"),
        Scheduler(instance="s"),
        Intake(instance="i"),
        HeartbeatMonitor(instance="h"),
        Timekeeper(instance="t"),
        View(instance="v"),
        Gateway(instance="g"),
        agent,
    ]  # type: ignore[list-item]


def shown(role: Role) -> dict[str, str]:
    """Family -> type, as a service with this role tells them."""
    shell = Shell(role, ShellSettings(login=Login(url="nats://127.0.0.1:1")))
    text = exposition(shell.metrics())
    return dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))


@pytest.mark.parametrize("role", roles(), ids=lambda role: str(role.name))
def test_every_metric_is_documented(role: Role) -> None:
    """Each metric of each role stands in docs/metrics.md with the type that /metrics tells."""
    told = shown(role)
    assert any(name.startswith(SHELL) for name in told)
    assert any(not name.startswith(SHELL) for name in told)
    assert told == {name: DOCUMENTED.get(name, "not documented") for name in told}


def test_prometheus_reads_what_is_shown() -> None:
    """The official parser finds every family with its type, and histograms complete."""
    shell = Shell(roles()[0], ShellSettings(login=Login(url="nats://127.0.0.1:1")))
    families = {
        one.name: one for one in text_string_to_metric_families(exposition(shell.metrics()))
    }
    steps = families["caravan_shell_step_seconds"]
    assert steps.type == "histogram"
    assert {one.name.rpartition("_")[2] for one in steps.samples} == {"bucket", "sum", "count"}
    # The parser takes `_total` off a counter's name.
    assert families["caravan_plan_applier_commands"].type == "counter"
    kinds = {one.labels["kind"] for one in families["caravan_plan_applier_queue_depth"].samples}
    assert {"job", "plan", "report"} <= kinds


def test_every_documented_metric_exists() -> None:
    """The page promises nothing that no service shows, and no metric belongs to two roles."""
    own = [name for role in roles() for name in shown(role) if not name.startswith(SHELL)]
    own += BusCounts().metrics()
    assert len(own) == len(set(own))
    own += UsageSampler(list).metrics()
    assert set(DOCUMENTED) == {*own, *(name for name in shown(roles()[0]) if SHELL in name)}


def test_the_dashboard_asks_for_what_exists() -> None:
    """Every query of the dashboard names documented metrics alone, histograms by their parts."""
    board = json.loads((ROOT / "deploy" / "grafana" / "caravan.json").read_text())
    queries = [one["expr"] for panel in board["panels"] for one in panel.get("targets", ())]
    assert len(queries) > 20
    marks = [one["expr"] for one in board["annotations"]["list"] if "expr" in one]
    assert len(marks) >= 3
    queries += marks
    histograms = {name for name, kind in DOCUMENTED.items() if kind == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    known = (set(DOCUMENTED) - histograms) | parts
    asked = {name for query in queries for name in re.findall(r"caravan_\w+", query)}
    assert asked <= known, asked - known
    counters = {name for name, kind in DOCUMENTED.items() if kind == "counter"}
    bare = [q for q in queries for name in counters & set(re.findall(r"caravan_\w+", q))
            if not re.search(rf"(rate|increase)\({name}\[", q) and name != "caravan_log_foreign_total"]  # fmt: skip
    assert bare == []


def _targets() -> ModuleType:
    path = ROOT / "deploy" / "prometheus" / "targets.py"
    spec = importlib.util.spec_from_file_location("caravan_targets", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_targets_are_the_services_that_listen(tmp_path: Path) -> None:
    """A port file whose service is gone makes no target; labels name the service without its number."""
    (tmp_path / "logs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for name in ("scheduler-2", "agent-node-1", "view"):
            (tmp_path / "logs" / f"{name}.port").write_text(f"{port}\n")
        # Bound and not listened on: no other process can take the port meanwhile.
        with socket.socket() as gone:
            gone.bind(("127.0.0.1", 0))
            (tmp_path / "logs" / "intake.port").write_text(f"{gone.getsockname()[1]}\n")
            found = _targets().targets(tmp_path)
    labels = {one["labels"]["instance_name"]: one["labels"]["service"] for one in found}
    assert labels == {"scheduler-2": "scheduler", "agent-node-1": "agent", "view": "view"}
    assert {target for one in found for target in one["targets"]} == {f"127.0.0.1:{port}"}


def test_the_example_targets_have_the_same_shape() -> None:
    """deploy/prometheus/targets.json is what the script writes: labels and one target each."""
    example = json.loads((ROOT / "deploy" / "prometheus" / "targets.json").read_text())
    assert all(set(one) == {"labels", "targets"} for one in example)
    assert all(set(one["labels"]) == {"service", "instance_name"} for one in example)


def test_help_is_the_meaning_in_the_docs() -> None:
    """HELP in /metrics and the column of docs/metrics.md are one text; process metrics are in both."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    row = re.compile(
        r"^\| `(\w+)(?:\{[^`]*\})?` \| \w+ \| [^|]+ \| (.*?) \| [^|]*\|$", re.MULTILINE
    )
    assert dict(row.findall(text)) == METRIC_HELP
    assert set(process_metrics()) <= set(METRIC_HELP)
    shown_help = exposition({"caravan_view_jobs": 1.0}).splitlines()[0]
    assert shown_help == f"# HELP caravan_view_jobs {METRIC_HELP['caravan_view_jobs']}"


#: Unit names of promlint that are not base units, and abbreviations it refuses.
_NOT_BASE = re.compile(
    r"_(minutes?|hours?|days?|weeks?|(?:milli|micro|nano|kilo|mega|giga|kibi|mebi|gibi)\w+|percent"
    r"|s|ms|us|ns|sec|b|kb|mb|gb|tb|pb|m|h|d)(_|$)"
)
_TYPE_WORDS = re.compile(r"_(counter|gauge|histogram|summary|untyped)(_|$)")


def lint(name: str, kind: str, text: str) -> list[str]:
    """Apply the rules of `promtool check metrics` to one family."""
    rules = {
        "no HELP": not text,
        "not snake case": re.fullmatch(r"[a-z][a-z0-9_]*", name) is None,
        "no base unit": _NOT_BASE.search(name) is not None,
        "a type in the name": _TYPE_WORDS.search(name) is not None,
        "a counter ends in _total": (kind == "counter") is not name.endswith("_total"),
        "_count, _sum and _bucket belong to histograms": name.endswith(
            ("_count", "_sum", "_bucket")
        ),
    }
    return [f"{name}: {rule}" for rule, is_broken in rules.items() if is_broken]


@pytest.mark.parametrize("role", roles(), ids=lambda role: role.name)
def test_promlint_accepts_every_name(role: Role) -> None:
    """What each role and the process expose passes the rules of Prometheus for names, types and HELP."""
    text = exposition({**role.metrics(), **process_metrics()})
    faults = []
    for family in text_string_to_metric_families(text):
        total = "_total" if family.type == "counter" else ""
        faults += lint(family.name + total, family.type, family.documentation)
    faults += [line for name in METRIC_HELP for line in lint(name, DOCUMENTED.get(name, ""), "x")
               if name in DOCUMENTED]  # fmt: skip
    assert not faults, faults


def test_promlint_refuses_planted_names() -> None:
    """The rules find a count that is a gauge, a unit that is no base unit, and a counter without its suffix."""
    assert lint("caravan_x_workers_count", "gauge", "x")
    assert lint("caravan_x_wait_ms", "gauge", "x")
    assert lint("caravan_x_starts", "counter", "x")
    assert lint("caravan_x_wait_seconds", "histogram", "x") == []
