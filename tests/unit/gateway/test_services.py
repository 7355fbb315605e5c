"""`/v1/services` and `/v1/service/<name>`: every service and every instance is listed."""

import asyncio
from types import SimpleNamespace
from typing import Any

from services.gateway.edge.call import Call
from services.gateway.role import Gateway
from services.gateway.routes.services import list_services, read_service
from shared.core.runtime.messages import CaughtUp
from tests.unit.query.test_services import story

MORE_THAN_A_PAGE = 1_001


def call_of(*services: dict[str, Any], name: str = "") -> Call:
    """A read of a gateway whose job has these services in each of two allocations."""
    one = story(*services)
    role = Gateway(instance="g")
    role.step([*one.records, CaughtUp(len(one.records))], 0)

    async def block(*_: object) -> None:
        """Return at once."""

    return SimpleNamespace(role=role, path={"name": name}, block=block)  # type: ignore[return-value]


def test_more_services_than_a_page_are_listed() -> None:
    """Nomad does not page the list, so neither do we."""
    many = ({"Name": f"s-{at:04}", "PortLabel": "8080"} for at in range(MORE_THAN_A_PAGE))
    answer: Any = asyncio.run(list_services(call_of(*many)))
    names = [one["ServiceName"] for one in answer[0]["Services"]]
    assert names == [f"s-{at:04}" for at in range(MORE_THAN_A_PAGE)]


def test_more_instances_than_a_page_are_listed() -> None:
    """One service of many ports, in two allocations."""
    many = ({"Name": "web", "PortLabel": str(1 + at)} for at in range(MORE_THAN_A_PAGE))
    answer: Any = asyncio.run(read_service(call_of(*many, name="web")))
    assert len(answer) == 2 * MORE_THAN_A_PAGE
    assert {one["Port"] for one in answer} == set(range(1, 1 + MORE_THAN_A_PAGE))
    assert len({one["ID"] for one in answer}) == len(answer)


def test_a_service_without_instances_is_an_empty_list() -> None:
    """As in Nomad."""
    assert asyncio.run(read_service(call_of({"Name": "web"}, name="other"))) == []
