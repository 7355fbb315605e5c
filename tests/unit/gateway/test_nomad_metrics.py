"""Gauges under Nomad's names: the documented table, and values that agree with ours."""

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from starlette.datastructures import QueryParams
from starlette.responses import Response

from schemas.base import JobId
from schemas.jobs import JobStopped
from services.gateway.edge.call import Call
from services.gateway.nomad.jobs import job_status
from services.gateway.nomad.metrics import MAPPED, nomad_metrics
from services.gateway.role import Gateway
from services.gateway.routes.operator import metrics
from shared.bus.process.metric_help import METRIC_HELP
from shared.core.runtime.messages import CaughtUp
from tests.unit.core.state.written_log import WrittenLog

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def written() -> Gateway:
    """A gateway behind a log with two nodes, three jobs of which one is stopped, and evaluations."""
    log = WrittenLog()
    log.jobs("web", "db", "old")
    log.nodes(2)
    log.evaluations("db")
    log.tx(JobStopped(submission_id="t", digest="d", job_id=JobId("old")))
    role = Gateway(instance="g")
    role.step([*log.records, CaughtUp(log.seq)], 0)
    return role


def asked(role: Gateway, query: str) -> Any:
    """The answer of /v1/metrics."""
    call: Any = object.__new__(Call)
    call.role, call.connection = role, SimpleNamespace(query_params=QueryParams(query))
    shell = SimpleNamespace(metrics=lambda: {"caravan_shell_lag_records": 3.0, **role.metrics()})
    call.server = SimpleNamespace(shell=shell, bus_edge=SimpleNamespace(metrics=dict))
    return asyncio.run(metrics(call))


def test_the_documented_table_is_the_one_of_the_code() -> None:
    """Each row of docs/metrics.md, in order; what it names as ours is a metric that a service shows."""
    rows = re.findall(
        r"^\| `(nomad\.[\w.]+)` \| `([^`]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert rows == [tuple(one) for one in MAPPED]
    assert {one.ours.partition("{")[0] for one in MAPPED} <= set(METRIC_HELP)


def test_each_name_of_the_table_has_a_value() -> None:
    """And nothing else is shown under Nomad's names, in both forms; ours stand beside them."""
    role = written()
    assert set(nomad_metrics(role.source, role.seq, 0.0)) == {one.nomad for one in MAPPED}
    gauges = {one["Name"]: one["Value"] for one in asked(role, "")["Gauges"]}
    assert {name for name in gauges if name.startswith("nomad.")} == {one.nomad for one in MAPPED}
    assert gauges["nomad.raft.lastIndex"] == gauges["caravan_gateway_seq"] + 3
    answer = asked(role, "format=prometheus")
    assert isinstance(answer, Response)
    families = {
        one.name: one.samples[0].value
        for one in text_string_to_metric_families(bytes(answer.body).decode())
    }
    assert {one.prometheus: families[one.prometheus] for one in MAPPED} == {
        one.prometheus: gauges[one.nomad] for one in MAPPED
    }
    assert "caravan_gateway_requests" in families
    json.dumps(gauges)


def test_jobs_are_counted_by_the_status_that_each_shows() -> None:
    """The sums are those of the single jobs; stopped ones are dead, those with an open evaluation pending."""
    role = written()
    found = nomad_metrics(role.source, role.seq, 0.0)
    for status in ("pending", "running", "dead"):
        single = [job_status(role.source, one) == status for one in role.state.jobs.by_id.values()]
        assert found[f"nomad.nomad.job_status.{status}"] == sum(single), status
    assert found["nomad.nomad.job_status.dead"] >= 1
    assert found["nomad.nomad.job_status.pending"] >= 1
    assert found["nomad.nomad.heartbeat.active"] == 2
