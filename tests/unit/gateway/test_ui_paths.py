"""Paths of Nomad's UI, and where in the console they lead."""

import pytest

from services.gateway.edge.faults import HttpFault
from services.gateway.routes.console import console_place


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("jobs", "jobs"),
        ("jobs/", "jobs"),
        ("jobs/web@default", "job/web"),
        ("jobs/web", "job/web"),
        ("jobs/run", "submit"),
        ("jobs/run@default", "job/run"),
        ("jobs/a/b c?@x@default/definition", "job/a%2Fb%20c%3F%40x"),
        ("allocations/0f0f", "alloc/0f0f"),
        ("allocations/0f0f/main/logs", "alloc/0f0f?show=logs"),
        ("clients", "nodes"),
        (
            "clients/9efa4c0c-f726-af40-f131-99ce3f1b136b/monitor",
            "client/9efa4c0c-f726-af40-f131-99ce3f1b136b",
        ),
        ("evaluations", "evaluations"),
        ("services/web-http", "services/web-http"),
        ("variables", "variables"),
        ("variables/var/app/db@default", "variables/app%2Fdb"),
        ("variables/path/app/web", "variables?q=app%2Fweb%2F"),
        ("topology", "cluster"),
    ],
)
def test_each_path_leads_to_its_page(path: str, place: str) -> None:
    """Ids are one part of the console's address, whatever stands in them."""
    assert console_place(path, {}) == place


def test_an_evaluation_is_named_by_the_query() -> None:
    """Nomad's command opens the list with one of them selected."""
    assert console_place("evaluations", {"currentEval": "ab/c"}) == "evaluation/ab%2Fc"


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("none", {}),
        ("allocations", {}),
        ("jobs/web@other", {}),
        ("jobs/web", {"namespace": "other"}),
        ("../role.py", {}),
        ("/etc/passwd", {}),
    ],
)
def test_what_there_is_not_is_404(path: str, query: dict[str, str]) -> None:
    """A job of another namespace is not the one of the same name here."""
    with pytest.raises(HttpFault) as err:
        console_place(path, query)
    assert err.value.status == 404
