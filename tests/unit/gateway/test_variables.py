"""`/v1/vars` and `/v1/var/<path>`: Nomad's shapes and statuses, and no value in a log line or an error."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from structlog.testing import capture_logs

from schemas.variables import VariableDeleted, VariablePut
from services.gateway.edge.app import make_app
from services.gateway.role import Gateway
from services.gateway.routes import variables
from shared import variable_client
from shared.core.runtime.messages import CaughtUp
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.unit.core.state.written_log import START_NS, WrittenLog
from tests.variable_door import FakeDoor

SECRET = "s3cret"
ITEMS = {"user": "u", "password": SECRET}
META = {"Namespace", "Path", "CreateIndex", "CreateTime", "ModifyIndex", "ModifyTime"}


class Answer(NamedTuple):
    """What a client gets."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class Story(FakeDoor):
    """A gateway whose log has what the keeper's door carries out; `lags`: records that it has not applied yet."""

    def __init__(self) -> None:
        super().__init__()
        self.log = WrittenLog()
        self.role = Gateway(instance="g")
        self.role.step([*self.log.records, CaughtUp(self.log.seq)], 0)
        self.lags = False
        self.denied = 0
        self._lives: dict[str, int] = {}
        self._app = make_app(self._server())  # type: ignore[arg-type]

    def written(self, path: str, items: dict[str, str] | None) -> int:
        """Write the fact; the gateway applies it, at once or a moment later."""
        life = self._lives.setdefault(path, 1)
        seq = self.log.seq + 1
        at_ns = START_NS + seq
        if items is None:
            self._lives[path] += 1
            record = self.log.tx(VariableDeleted(path=path, incarnation=life), t_ns=at_ns)
        else:
            put = VariablePut(
                path=path,
                incarnation=life,
                cipher=b"x" * 40,
                digest="0" * 32,
                items=len(items),
                size=9,
                at_ns=at_ns,
                request_id=f"r-{seq}",
            )
            record = self.log.tx(put, t_ns=at_ns)
        if self.lags:
            asyncio.get_running_loop().call_soon(lambda: self.role.step([record], 0))
        else:
            self.role.step([record], 0)
        self.seq = seq
        return seq

    def ask_http(self, method: str, target: str, body: object = None) -> Answer:
        """One request with a login."""
        return asyncio.run(self._ask_http(method, target, body))

    async def _ask_http(self, method: str, target: str, body: object) -> Answer:
        url = urlsplit(target)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        scope = {
            "type": "http",
            "method": method,
            "path": url.path,
            "raw_path": quote(url.path).encode(),
            "query_string": url.query.encode(),
            "headers": [(b"host", b"127.0.0.1:4646")],
            "scheme": "http",
            "server": ("127.0.0.1", 4646),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(
            sent[0]["status"], headers, b"".join(one.get("body", b"") for one in sent[1:])
        )

    def _server(self) -> SimpleNamespace:
        async def request_bytes(
            subject: str, body: bytes, timeout_s: float, *, traceparent: str
        ) -> bytes:
            del traceparent
            if self.denied and subject.startswith("api."):
                client.denied += 1
                raise BusUnavailable("no answer")
            return await self.ask(subject, body, timeout_s)

        client = SimpleNamespace(denied=0, request_bytes=request_bytes)
        caller = SimpleNamespace(name="public", users=0, client=client)

        async def caller_of(_headers: object) -> Any:
            return caller

        return SimpleNamespace(
            role=self.role,
            settings=SimpleNamespace(names=""),
            callers=SimpleNamespace(caller=caller_of),
            bus_edge=SimpleNamespace(lifespan=None),
            promised_seq=0,
            promise=lambda _seq: None,
            is_ready=True,
        )


async def one_turn() -> None:
    """Let other tasks run."""
    await asyncio.sleep(0)


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    """A gateway and a keeper; pauses of the client take no time."""
    monkeypatch.setattr(variable_client, "RETRY_S", 0.0)
    monkeypatch.setattr(variable_client, "ATTEMPT_S", 0.0)
    return Story()


@pytest.fixture(autouse=True)
def nothing_is_logged() -> Iterator[list[Any]]:
    """No line that was logged meanwhile holds a value or the name of an item."""
    with capture_logs() as lines:
        yield lines
    assert SECRET not in str(lines) and "password" not in str(lines)


def test_a_put_answers_the_variable(story: Story) -> None:
    """With its items, indexes of the log and log times; the index of the answer is the revision."""
    made = story.ask_http("PUT", "/v1/var/app/db", {"Items": ITEMS})
    assert made.status == 200 and made.json.keys() == META | {"Items"}
    seq = story.log.seq
    assert made.json["Items"] == ITEMS and made.json["Namespace"] == "default"
    assert (made.json["CreateIndex"], made.json["ModifyIndex"]) == (seq, seq)
    assert made.json["CreateTime"] == made.json["ModifyTime"] == START_NS + seq
    assert made.headers["x-nomad-index"] == str(seq)
    again = story.ask_http("POST", "/v1/var/app/db", {"items": {"a": "b"}})
    assert (again.json["CreateIndex"], again.json["ModifyIndex"]) == (seq, seq + 1)
    assert story.rows["app/db"].items == {"a": "b"}


def test_a_put_is_in_the_list_when_it_is_answered(story: Story) -> None:
    """The answer waits for the replica; a delete does, too."""
    story.lags = True
    story.ask_http("PUT", "/v1/var/app/db", {"Items": ITEMS})
    assert [one["Path"] for one in story.ask_http("GET", "/v1/vars").json] == ["app/db"]
    assert story.ask_http("DELETE", "/v1/var/app/db").status == 204
    assert story.ask_http("GET", "/v1/vars").json == []


def test_a_read_has_the_items(story: Story) -> None:
    """And what the list says of the variable; one that does not exist is 404 with Nomad's text."""
    story.ask_http("PUT", "/v1/var/app/db", {"Items": ITEMS})
    found = story.ask_http("GET", "/v1/var/app/db")
    assert found.status == 200 and found.json["Items"] == ITEMS
    assert found.json.keys() == META | {"Items"}
    none = story.ask_http("GET", "/v1/var/app/none")
    assert (none.status, none.body) == (404, b"variable not found")


def test_the_list_has_no_items(story: Story) -> None:
    """By path, with prefix and pages; read from the state, so that no keeper is needed."""
    for path in ("b", "app/db", "app/web"):
        story.ask_http("PUT", f"/v1/var/{path}", {"Items": ITEMS})
    story.absent = True
    found = story.ask_http("GET", "/v1/vars")
    assert [one["Path"] for one in found.json] == ["app/db", "app/web", "b"]
    assert all(one.keys() == META for one in found.json)
    assert found.headers["x-nomad-index"] == str(story.log.seq)
    near = story.ask_http("GET", "/v1/vars?prefix=app/&per_page=1")
    assert [one["Path"] for one in near.json] == ["app/db"]
    assert near.headers["x-nomad-nexttoken"] == "app/web"
    assert story.ask_http("GET", "/v1/vars?namespace=ops").json == []
    assert len(story.ask_http("GET", "/v1/vars?namespace=*").json) == 3


def test_check_and_set(story: Story) -> None:
    """409 with the present variable, its items among them; one that does not exist has index 0 and no items."""
    seq = story.ask_http("PUT", "/v1/var/app/db?cas=0", {"Items": ITEMS}).json["ModifyIndex"]
    for method, body in (("PUT", {"Items": {"a": "b"}}), ("DELETE", None)):
        conflict = story.ask_http(method, "/v1/var/app/db?cas=1", body)
        assert conflict.status == 409 and conflict.headers["x-nomad-index"] == str(seq)
        assert conflict.json["ModifyIndex"] == seq and conflict.json["Items"] == ITEMS
    none = story.ask_http("PUT", "/v1/var/none?cas=5", {"Items": ITEMS})
    assert (none.status, none.json["ModifyIndex"], none.json["Items"]) == (409, 0, None)
    assert story.ask_http("DELETE", f"/v1/var/app/db?cas={seq}").status == 204
    assert story.rows == {}


def test_a_delete_has_no_body(story: Story) -> None:
    """204 with the index of the delete; of what does not exist, too."""
    story.ask_http("PUT", "/v1/var/app/db", {"Items": ITEMS})
    gone = story.ask_http("DELETE", "/v1/var/app/db")
    assert (gone.status, gone.body) == (204, b"")
    assert gone.headers["x-nomad-index"] == str(story.log.seq)
    assert story.ask_http("DELETE", "/v1/var/app/db").status == 204


@pytest.mark.parametrize(
    ("target", "body", "status", "text"),
    [
        ("/v1/var/a", {}, 400, "a JSON object is required"),
        ("/v1/var/a", {"Path": "a"}, 400, "missing required Items"),
        ("/v1/var/a", {"Items": {}}, 400, "missing required Items"),
        ("/v1/var/a", {"Items": {"password": 5, "b": SECRET}}, 400, "an item is not a text"),
        ("/v1/var/a", {"Items": {"password": SECRET * 20_000}}, 413, "longer than 65536 bytes"),
        ("/v1/var/a", b'{"Items": {"password": "s3cret"}', 400, "is not a JSON object"),
        ("/v1/var/a", {"Namespace": "ops", "Items": ITEMS}, 400, "nonexistent namespace"),
        ("/v1/var/a?namespace=ops", {"Items": ITEMS}, 400, "nonexistent namespace"),
        ("/v1/var/a?cas=x", {"Items": ITEMS}, 400, "is not a number"),
        ("/v1/var/a?cas=-1", {"Items": ITEMS}, 400, "can not parse cas"),
        ("/v1/var/a?lock-acquire", {"Items": ITEMS}, 501, "locks of variables are not built"),
        ("/v1/var/a?lock-renew", {"Items": ITEMS}, 501, "locks of variables are not built"),
        ("/v1/var/a", {"Lock": {"TTL": "15s"}, "Items": ITEMS}, 501, "locks of variables"),
    ],
)
def test_what_is_refused(story: Story, target: str, body: object, status: int, text: str) -> None:
    """The status says whose fault it is, the text shows no piece of a value, and nothing reaches the keeper."""
    refused = story.ask_http("PUT", target, body)
    assert refused.status == status and text.encode() in refused.body
    assert SECRET.encode() not in refused.body and not story.sent("put")


def test_another_namespace_has_no_variables(story: Story) -> None:
    """A read is 404 with Nomad's text, a delete 400."""
    story.ask_http("PUT", "/v1/var/a", {"Items": ITEMS})
    found = story.ask_http("GET", "/v1/var/a?namespace=ops")
    assert (found.status, found.body) == (404, b"variable not found")
    assert story.ask_http("DELETE", "/v1/var/a?namespace=ops").status == 400 and story.rows


def test_without_a_keeper(story: Story) -> None:
    """503, to be tried again."""
    story.absent = True
    for method, body in (("GET", None), ("PUT", {"Items": ITEMS}), ("DELETE", None)):
        refused = story.ask_http(method, "/v1/var/a", body)
        assert (refused.status, refused.body) == (503, b"no keeper answers")
        assert refused.headers["retry-after"] == "1"


def test_a_login_without_the_right(story: Story) -> None:
    """What the bus does not permit is 403, after one attempt."""
    story.denied = 1
    refused = story.ask_http("PUT", "/v1/var/a", {"Items": ITEMS})
    assert (refused.status, refused.body) == (403, b"Permission denied")


def test_a_query_blocks_until_the_path_changes(story: Story) -> None:
    """With the index of the last change of this path; a change of another one does not answer it."""
    seq = story.ask_http("PUT", "/v1/var/a", {"Items": ITEMS}).json["ModifyIndex"]

    async def blocked() -> Answer:
        query = asyncio.create_task(story._ask_http("GET", f"/v1/var/a?index={seq}", None))
        while not story.role.changes.waiting:
            await one_turn()
        await story._ask_http("PUT", "/v1/var/b", {"Items": ITEMS})
        assert not query.done()
        await story._ask_http("PUT", "/v1/var/a", {"Items": {"c": "d"}})
        return await query

    found = asyncio.run(blocked())
    assert found.json["Items"] == {"c": "d"}
    assert found.headers["x-nomad-index"] == str(story.log.seq)


def test_a_fault_of_ours_shows_no_value(
    story: Story, monkeypatch: pytest.MonkeyPatch, nothing_is_logged: list[Any]
) -> None:
    """Where something breaks while a value is in memory, answer and log name the error alone."""

    def broken(*_: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(variables, "_put_answer", broken)
    refused = story.ask_http("PUT", "/v1/var/a", {"Items": ITEMS})
    assert (refused.status, refused.body) == (500, b"internal error: KeyError")
    assert [one["event"] for one in nothing_is_logged] == ["gateway.request_failed"]


def test_what_goes_over_the_bus_is_sealed(story: Story) -> None:
    """Requests and answers of the bus hold neither names nor texts of items."""
    story.ask_http("PUT", "/v1/var/a", {"Items": ITEMS})
    story.ask_http("GET", "/v1/var/a")
    sent = b"".join(story.raw)
    assert subjects.api("variable", "get") in [subject for subject, _ in story.asked]
    assert SECRET.encode() not in sent and b"password" not in sent
