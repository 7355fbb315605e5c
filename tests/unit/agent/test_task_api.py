"""Requests to the task API: how they are read, and what a task is answered."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from services.agent.drivers.docker.container_spec import container_spec
from services.agent.drivers.launch_values import launch_environment
from services.agent.inputs.templates.followed_values import DataUnusable
from services.agent.inputs.templates.service_directory import KnownNames
from services.agent.inputs.templates.variable_directory import KnownVariable, VariableReader
from services.agent.task_api import reads
from services.agent.task_api.http_messages import (
    ApiAnswer,
    ApiFault,
    ApiRequest,
    answer_bytes,
    fault_bytes,
    parse_head,
)
from services.agent.task_api.reads import ApiReader, TaskReads
from shared.core.runtime.agent_messages import PrepareTask, StartTask, TaskLaunch, prepared_inputs
from shared.gotemplate.data import NamedInstance, ServiceName
from shared.protocol.node_uuids import node_uuid
from tests.fixed_services import FixedServices
from tests.fixed_variables import FixedVariables
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

READER = ApiReader("a1", "web", "g", "server")
OWN = ("nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/g", "nomad/jobs/web/g/server")


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode()


# ---- requests ----


def test_a_request_is_its_line_and_its_headers() -> None:
    """Names in lower case, the address decoded, with its parameters."""
    found = parse_head(head("GET /v1/var/a%20b?index=3&wait=1s HTTP/1.1", "X-Nomad-Token:  t "))
    query = {"index": "3", "wait": "1s"}
    assert found == ApiRequest("GET", "/v1/var/a b", query, {"x-nomad-token": "t"}, closes=False)
    assert parse_head(head("GET / HTTP/1.1", "Connection: close")).closes
    assert parse_head(head("GET / HTTP/1.0")).closes


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("GET /",), 400),
        (("get / HTTP/1.1",), 400),
        (("GET / HTTP/2.0",), 400),
        (("GET /\xff HTTP/1.1",), 400),
        (("GET /%ff HTTP/1.1",), 400),
        (("GET  / HTTP/1.1",), 400),
        (("GET / HTTP/1.1", "no header"), 400),
        (("GET / HTTP/1.1", " folded: x"), 400),
        (("GET / HTTP/1.1", "X-Nomad-Token: a", "x-nomad-token: b"), 400),
        (("GET / HTTP/1.1", *(f"n{at}: x" for at in range(65))), 431),
        (("PUT / HTTP/1.1", "Content-Length: 5"), 413),
        (("PUT / HTTP/1.1", "Transfer-Encoding: chunked"), 413),
        (("GET /?" + "&".join("a" * 70) + " HTTP/1.1",), 400),
    ],
)
def test_what_is_no_request_ends_the_connection(lines: tuple[str, ...], status: int) -> None:
    """What follows it cannot be read: none of its bytes is taken for a request."""
    with pytest.raises(ApiFault) as caught:
        parse_head(head(*lines))
    assert (caught.value.status, caught.value.closes) == (status, True)


def test_an_answer_has_the_headers_that_clients_read() -> None:
    """Index, contact and leader; a fault is a text."""
    text = answer_bytes(ApiAnswer([1], 7), closes=False).decode()
    assert text.startswith("HTTP/1.1 200 OK\r\n") and text.endswith("\r\n\r\n[1]")
    for line in ("X-Nomad-Index: 7", "X-Nomad-LastContact: 0", "Content-Length: 3"):
        assert f"\r\n{line}\r\n" in text
    assert answer_bytes(ApiAnswer([1], 7), closes=False, with_body=False).endswith(b"\r\n\r\n")
    assert b"Retry-After: 1\r\n" in fault_bytes(ApiFault(503, "x"), closes=True)


# ---- answers ----


class World:
    """What a node knows, and questions to it."""

    def __init__(self) -> None:
        self.variables = FixedVariables()
        self.services = FixedServices()
        self.reads = TaskReads(self.variables, self.services)

    async def ask(self, path: str, method: str = "GET", **query: str) -> ApiAnswer:
        return await self.reads.answer(READER, ApiRequest(method, path, query, {}, closes=False))


def run(story: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(story)


def test_a_task_reads_its_own_variables() -> None:
    """In Nomad's shape, as the task of the allocation; one that does not exist is not found."""

    async def story() -> None:
        world = World()
        for path in OWN[:3]:
            world.variables.put(path, at=path)
        world.variables.delete(OWN[3])
        for number, path in enumerate(OWN[:3]):
            value, index = await world.ask(f"/v1/var/{path}")
            assert (value["Path"], value["Items"]) == (path, {"at": path})
            assert index == value["ModifyIndex"] == 101 + number
        with pytest.raises(ApiFault, match="variable not found") as caught:
            await world.ask(f"/v1/var/{OWN[3]}")
        assert caught.value.status == 404
        assert {one for one, _ in world.variables.asked} == {VariableReader("a1", "server")}
        listed, index = await world.ask("/v1/vars")
        assert ([one["Path"] for one in listed], index) == (list(OWN[:3]), 103)
        assert all("Items" not in one for one in listed)
        listed, _ = await world.ask("/v1/vars", prefix="nomad/jobs/web/")
        assert [one["Path"] for one in listed] == [OWN[2]]

    run(story())


def test_a_job_after_which_no_variable_can_be_named_reads_the_others() -> None:
    """Its names are no paths: they are not asked for, and the list has what there is."""

    async def story() -> None:
        world, reader = World(), ApiReader("a1", "shop v1", "g", "server")
        world.variables.put(OWN[0], a="1")
        listed = await world.reads.answer(reader, parse_head(head("GET /v1/vars HTTP/1.1")))
        assert [one["Path"] for one in listed.value] == [OWN[0]]
        with pytest.raises(ApiFault, match="only letters") as caught:
            await world.reads.answer(
                reader, parse_head(head("GET /v1/var/nomad/jobs/shop%20v1 HTTP/1.1"))
            )
        assert (caught.value.status, len(world.variables.asked)) == (400, 1)

    run(story())


@pytest.mark.parametrize(
    "path", ["nomad/jobs/other", "nomad/jobs/web/g/sidecar", "nomad/jobs/web/", "app", ""]
)
def test_what_is_not_the_tasks_is_refused_without_a_question(path: str) -> None:
    """As at the gateway; nothing is followed for it."""

    async def story() -> None:
        world = World()
        with pytest.raises(ApiFault, match="Permission denied") as caught:
            await world.ask(f"/v1/var/{path}")
        assert (caught.value.status, world.variables.asked) == (403, [])

    run(story())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", f"/v1/var/{OWN[1]}", 403),
        ("DELETE", f"/v1/var/{OWN[1]}", 403),
        ("GET", "/v1/jobs", 403),
        ("GET", "/v1/service/", 403),
        ("GET", "/v1/service/a/b", 403),
        ("GET", "/v1/services?filter=x", 400),
        ("GET", "/v1/vars?index=5", 400),
        ("GET", "/v1/vars?namespace=other", 400),
        ("GET", f"/v1/var/{OWN[1]}?index=-1", 400),
        ("GET", f"/v1/var/{OWN[1]}?index=1&wait=soon", 400),
    ],
)
def test_what_is_not_built_is_refused(method: str, path: str, status: int) -> None:
    """By name: no parameter is ignored that would change the answer."""

    async def story() -> None:
        line = parse_head(head(f"{method} {path} HTTP/1.1"))
        with pytest.raises(ApiFault) as caught:
            await World().reads.answer(READER, line)
        assert caught.value.status == status

    run(story())


def test_a_blocking_read_waits_for_a_newer_index() -> None:
    """It ends with the change, with a deletion, or after `wait` with what there is."""

    async def story() -> None:
        world, path = World(), f"/v1/var/{OWN[1]}"
        world.variables.put(OWN[1], a="1")
        value, index = await world.ask(path, index="1")
        same, _ = await world.ask(path, index=str(index), wait="1ms")
        assert same == value
        waits = asyncio.ensure_future(world.ask(path, index=str(index)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waits.done()
        world.variables.put(OWN[1], a="2")
        value, newer = await waits
        assert (value["Items"], newer > index) == ({"a": "2"}, True)
        gone = asyncio.ensure_future(world.ask(path, index=str(newer)))
        for _ in range(10):
            await asyncio.sleep(0)
        world.variables.delete(OWN[1])
        with pytest.raises(ApiFault, match="not found"):
            await gone

    run(story())


def test_a_cluster_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task may ask again; what the keeper refuses is refused."""
    monkeypatch.setattr(reads, "ANSWER_S", 0.0)

    class Refused(FixedVariables):
        async def variable(self, _reader: VariableReader, _path: str) -> KnownVariable:
            raise DataUnusable("forbidden: the allocation has ended")

    async def story() -> None:
        with pytest.raises(ApiFault) as caught:
            await World().ask(f"/v1/var/{OWN[1]}")
        assert caught.value.status == 503
        world = World()
        world.reads = TaskReads(Refused(), world.services)
        with pytest.raises(ApiFault, match="has ended") as caught:
            await world.ask(f"/v1/var/{OWN[1]}")
        assert caught.value.status == 403

    run(story())


def test_services_are_listed_and_read() -> None:
    """In Nomad's shape; a name without an instance is no service, and is not followed."""

    async def too_many() -> KnownNames:
        raise DataUnusable("there are 9999 services, the list that nodes get ends at 1000")

    async def story() -> None:
        world = World()
        instance = NamedInstance(
            id="i", name="db", node="n1", address="10.0.0.1", port=5432, tags=("a",), job_id="j"
        )
        world.services.set_names()
        assert (await world.ask("/v1/services")).value == []
        world.services.set_names(ServiceName("db", ("a",)))
        world.services.set("db", instance)
        (found,) = (await world.ask("/v1/services")).value
        assert found["Services"] == [{"ServiceName": "db", "Tags": ["a"]}]
        (one,) = (await world.ask("/v1/service/db")).value
        assert (one["ServiceName"], one["Address"], one["Port"]) == ("db", "10.0.0.1", 5432)
        assert one["NodeID"] == node_uuid("n1")
        assert (await world.ask("/v1/service/other")).value == []
        world.services.services = too_many  # type: ignore[method-assign]
        for path in ("/v1/services", "/v1/service/db"):
            with pytest.raises(ApiFault, match="ends at") as caught:
                await world.ask(path)
            assert caught.value.status == 503
        assert (await world.ask("/v1/agent/health")).value["client"]["ok"] is True

    run(story())


# ---- what the role gives ----


def test_only_a_task_with_its_token_is_told_of_the_socket() -> None:
    """NOMAD_UNIX_ADDR has a reference that the driver fills in; identities of other names are no logins."""

    def address(**more: Any) -> str:
        story = Story(job=job_json(task_json("main", **more))).hear(5, alloc())
        for effect in story.did(PrepareTask):
            story.step(prepared_inputs(effect))
        (start,) = story.did(StartTask)
        found: str = start.launch.env.get("NOMAD_UNIX_ADDR", "")
        return found

    there = "unix://${NOMAD_SECRETS_DIR}/api.sock"
    assert address(Identity={"Env": True}) == address(Identity={"File": True}) == there
    assert address() == address(Identity={}) == ""
    assert address(Identities=[{"Name": "x", "Env": True}]) == ""
    assert address(Identity={"Env": True}, Env={"NOMAD_UNIX_ADDR": "mine"}) == "mine"


def test_a_container_is_told_where_it_sees_the_socket() -> None:
    """Its secrets are mounted elsewhere than a process's, whose driver fills in the node's own path."""
    env = {"NOMAD_UNIX_ADDR": "unix://${NOMAD_SECRETS_DIR}/api.sock"}
    launch = TaskLaunch(config=msgspec.Raw(b'{"image":"x"}'), env=env)
    assert container_spec("c", launch).env["NOMAD_UNIX_ADDR"] == "unix:///secrets/api.sock"
    places = {"NOMAD_SECRETS_DIR": "/data/secrets"}
    assert launch_environment(launch, places)["NOMAD_UNIX_ADDR"] == "unix:///data/secrets/api.sock"
