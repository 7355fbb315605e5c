"""`/v1/vars` and `/v1/var/<path>`: Nomad's shapes and statuses, and no value in a log line or an error."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from structlog.testing import capture_logs

from schemas.variables import (
    LockVariableRequest,
    VariableDeleted,
    VariableLocked,
    VariableLockReleased,
    VariablePut,
)
from services.gateway.edge.app import make_app
from services.gateway.role import Gateway
from services.gateway.routes import variables
from services.keeper.held_locks import lock_hash
from shared import variable_client
from shared.core.runtime.messages import CaughtUp
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.unit.core.state.written_log import START_NS, WrittenLog
from tests.variable_door import FakeDoor

SECRET = "s3cret"
ITEMS = {"user": "u", "password": SECRET}
MINE, OTHER = "mine-0123456789abcdef", "other-0123456789abcdef"
SECOND_NS = 1_000_000_000
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
        #: of every request, beside its host.
        self.headers: dict[bytes, bytes] = {}
        self._lives: dict[str, int] = {}
        self._held: dict[str, LockVariableRequest] = {}
        self._app = make_app(self.server())  # type: ignore[arg-type]

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
        self._apply(record)
        self.seq = seq
        return seq

    def lock_written(self, path: str, lock: LockVariableRequest | None) -> None:
        """Write the fact of a lock."""
        held = lock or self._held[path]
        self._held[path] = held
        lock_hex, at_ns = lock_hash(held.lock_id), START_NS + self.log.seq + 1
        fact: Any = VariableLockReleased(path=path, lock=lock_hex, request_id=held.request_id)
        if lock is not None:
            fact = VariableLocked(
                path=path,
                lock=lock_hex,
                ttl_ns=held.ttl_ns,
                delay_ns=held.delay_ns,
                at_ns=at_ns,
                request_id=held.request_id,
            )
        self._apply(self.log.tx(fact, t_ns=at_ns))

    def _apply(self, record: Any) -> None:
        if self.lags:
            asyncio.get_running_loop().call_soon(lambda: self.role.step([record], 0))
        else:
            self.role.step([record], 0)

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
            "headers": [(b"host", b"127.0.0.1:4646"), *self.headers.items()],
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

    def server(self) -> SimpleNamespace:
        """What the requests of this gateway share."""

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
        ("/v1/var/a", {"Lock": {"TTL": "15s"}, "Items": ITEMS}, 400, "lock definition"),
        ("/v1/var/a", {"Lock": {"ID": 5}, "Items": ITEMS}, 400, "Lock.ID is not a text"),
        ("/v1/var/a", {"Lock": 5, "Items": ITEMS}, 400, "Lock is not an object"),
        ("/v1/var/a?lock-acquire&cas=0", {"Items": ITEMS}, 400, "CAS can't be used"),
        ("/v1/var/a?lock-acquire&lock-renew", {"Items": ITEMS}, 400, "multiple lock operations"),
        ("/v1/var/a?lock-renew", {"Items": ITEMS}, 400, "missing lock information"),
        ("/v1/var/a?lock-release", {"Lock": {"TTL": "15s"}}, 400, "missing lock information"),
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

    monkeypatch.setattr(variables, "put_answer", broken)
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


# ---- locks ----


def acquire(story: Story, lock: object = None, **more: object) -> Answer:
    """Acquire the lock of `app/db`."""
    return story.ask_http("PUT", "/v1/var/app/db?lock-acquire", {"Lock": lock or {}, **more})


@pytest.mark.parametrize(
    ("lock", "seconds"),
    [
        ({}, (15, 15)),
        ({"TTL": "", "LockDelay": ""}, (15, 15)),
        ({"TTL": "1m30s", "LockDelay": "20s"}, (90, 20)),
        ({"ttl": 30 * SECOND_NS, "lockdelay": 5 * SECOND_NS}, (30, 5)),
    ],
)
def test_a_lock_is_acquired(story: Story, lock: object, seconds: tuple[int, int]) -> None:
    """The answer has its id, ttl and delay; a path need not have items. Another one gets 409 and nothing of them."""
    story.lags = True
    made = acquire(story, lock)
    assert made.status == 200 and made.json.keys() == META | {"Lock"}
    (sent,) = story.sent("lock")
    assert (sent["ttl_ns"] // SECOND_NS, sent["delay_ns"] // SECOND_NS) == seconds
    assert made.json["Lock"]["ID"] == sent["lock_id"]
    assert len(sent["lock_id"]) == 32
    conflict = acquire(story, lock)
    assert conflict.status == 409 and "Lock" not in conflict.json
    assert (conflict.json["Path"], conflict.json["Items"]) == ("app/db", None)
    none = story.ask_http("GET", "/v1/var/app/db")
    assert (none.status, none.body) == (404, b"variable not found")


def test_durations_are_answered_as_go_reads_them(story: Story) -> None:
    """Those of the lock that holds the path, also where its holder acquires it again with others."""
    made = acquire(story, {"ID": MINE, "TTL": "90s", "LockDelay": "1500ms"})
    assert made.json["Lock"] == {"ID": MINE, "TTL": "1m30s", "LockDelay": "1s500ms"}
    again = acquire(story, {"ID": MINE, "TTL": "10s"})
    assert again.json["Lock"] == made.json["Lock"]


@pytest.mark.parametrize(
    ("lock", "text"),
    [
        ({"TTL": "5s"}, "ttl must be 10 to 86400 s"),
        ({"TTL": "soon"}, "Lock.TTL: "),
        ({"LockDelay": "-5s"}, "Lock delay and TTL must be positive"),
        ({"LockDelay": [5]}, "Lock.LockDelay is not a duration"),
        ({"TTL": 1e30}, "Lock.TTL is not a duration"),
        ({"ID": 5}, "Lock.ID is not a text"),
    ],
)
def test_a_lock_that_is_refused(story: Story, lock: object, text: str) -> None:
    """400 with the reason; nothing is locked."""
    refused = acquire(story, lock)
    assert refused.status == 400 and text.encode() in refused.body
    assert not story.locks


def test_items_are_stored_under_the_lock(story: Story) -> None:
    """With the lock that was just acquired; the answer is the variable with its lock."""
    made = acquire(story, Items=ITEMS)
    assert made.status == 200 and made.json.keys() == META | {"Items", "Lock"}
    assert made.json["Items"] == ITEMS and made.json["ModifyIndex"] == story.log.seq
    assert story.sent("put")[0]["lock_id"] == made.json["Lock"]["ID"]
    assert story.rows["app/db"].items == ITEMS


def test_what_cannot_be_stored_is_not_locked(story: Story) -> None:
    """The lock is given back and the fault answered; one that the caller may rely on already stays."""
    for lock, held in (({}, False), ({"ID": MINE}, True)):
        refused = acquire(story, lock, Items={"password": 5, "b": SECRET})
        assert refused.status == 400 and b"an item is not a text" in refused.body
        assert ("app/db" in story.locks) is held


def test_only_the_holder_writes(story: Story) -> None:
    """Others get 409 as from Nomad: the path without items; a delete never names a lock."""
    acquire(story, {"ID": MINE}, Items=ITEMS)
    body = {"Items": {"a": "b"}}
    for lock in ({}, {"ID": OTHER}):
        refused = story.ask_http("PUT", "/v1/var/app/db", {**body, "Lock": lock})
        assert (refused.status, refused.json["Items"]) == (409, None)
    assert story.ask_http("DELETE", "/v1/var/app/db").status == 409
    made = story.ask_http("PUT", "/v1/var/app/db", {**body, "Lock": {"ID": MINE}})
    assert made.status == 200 and made.json["Items"] == {"a": "b"}
    assert made.json["Lock"] == {"ID": MINE, "TTL": "15s", "LockDelay": "15s"}
    assert story.ask_http("GET", "/v1/var/app/db").json.keys() == META | {"Items"}


def test_a_lock_is_renewed_and_released(story: Story) -> None:
    """With its id in the body: meta without items. What does not hold the path gets 409."""
    made = acquire(story, {"ID": MINE}, Items=ITEMS)
    renew, release = "/v1/var/app/db?lock-renew", "/v1/var/app/db?lock-release"
    renewed = story.ask_http("PUT", renew, made.json)
    assert renewed.status == 200 and renewed.json.keys() == META | {"Lock"}
    assert renewed.json["Lock"] == made.json["Lock"]
    other = story.ask_http("PUT", renew, {"Lock": {"ID": OTHER}})
    assert (other.status, other.body) == (409, b"the lock does not hold 'app/db'")
    refused = story.ask_http("PUT", release, made.json)
    assert refused.status == 400 and b"doesn't take variable items" in refused.body
    released = story.ask_http("PUT", release, {"Lock": {"ID": MINE}, "Items": None})
    assert released.status == 200 and released.json.keys() == META
    gone = story.ask_http("PUT", renew, {"Lock": {"ID": MINE}})
    assert (gone.status, gone.body) == (409, b"the lock does not hold 'app/db'")
    assert story.ask_http("PUT", release, {"Lock": {"ID": MINE}}).status == 200
    late = story.ask_http("PUT", "/v1/var/app/db", {"Items": ITEMS, "Lock": {"ID": MINE}})
    assert late.status == 409


def test_locks_without_a_keeper(story: Story) -> None:
    """503, to be tried again: clients of Nomad do."""
    story.absent = True
    for operation in ("acquire", "renew", "release"):
        body = {"Lock": {"ID": MINE}}
        refused = story.ask_http("PUT", f"/v1/var/app/db?lock-{operation}", body)
        assert (refused.status, refused.body) == (503, b"no keeper answers")
        assert refused.headers["retry-after"] == "1"
