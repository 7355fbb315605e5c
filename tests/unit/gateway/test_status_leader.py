"""`/v1/status/leader` while nothing can be committed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.gateway.edge.context import ServerContext
from services.gateway.edge.faults import HttpFault
from services.gateway.routes.agent import leader
from shared.bus.shell.problems import BUS, Problems


def test_without_a_majority_there_is_no_leader() -> None:
    """As Nomad answers: 500 and its words; as soon as commits are possible, the address again."""
    problems = Problems()
    server = SimpleNamespace(
        shell=SimpleNamespace(problems=problems), settings=SimpleNamespace(host="127.0.0.1")
    )
    call = cast("Any", SimpleNamespace(server=server))

    def asked() -> object:
        found = cast("Any", ServerContext.has_leader).fget(server)
        server.has_leader = found
        return asyncio.run(leader(call))

    assert asked() == "127.0.0.1:4647"
    problems.note(BUS, "nothing can be committed")
    with pytest.raises(HttpFault) as told:
        asked()
    assert (told.value.status, told.value.text) == (500, "No cluster leader")
    problems.note(BUS, "")
    assert asked() == "127.0.0.1:4647"
