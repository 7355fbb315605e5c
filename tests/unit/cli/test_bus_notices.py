"""What a command says while it waits: for a bus that cannot commit, or for a service that has not answered."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from schemas.answers import ClusterAnswer
from schemas.bus_answers import BusServer, BusStatus
from services.cli.runtime import bus_notices
from services.cli.runtime.bus_notices import BusNotices, _late_at, describe_answers, which_answer
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bounds import level

WHY = "nothing can be committed since 1970-01-01 00:00:00Z"
URL = "nats://h:1"


class _View:
    """Answers with the bus as it is, or not at all."""

    is_connected = True

    def __init__(self, reason: str | None) -> None:
        self.reason = reason
        self.looks = 0

    @property
    def bus(self) -> "_View":
        """The connection itself."""
        return self

    async def request_bytes(self, subject: str, _body: bytes, _timeout_s: float) -> bytes:
        """Answer `query.cluster`."""
        assert subject == subjects.query("cluster")
        self.looks += 1
        if self.reason is None:
            raise BusUnavailable("no answer")
        status = BusStatus(servers=(BusServer(name="a"),), reason=self.reason)
        return msgspec.json.encode(ClusterAnswer(seq=1, bus=status))


def _run(monkeypatch: pytest.MonkeyPatch, view: _View, *, follows: bool, asks: bool) -> None:
    """Let a command wait until the cluster was looked at some times."""
    for name in ("_LOOK_EVERY_S", "_STEP_S"):
        monkeypatch.setattr(bus_notices, name, 0)

    async def story() -> None:
        notices = BusNotices(cast("Any", view), URL, follows_commits=follows)
        watch = asyncio.create_task(notices.run())
        if asks:
            with notices.request("intake", "api.jobs.submit"):
                await level(lambda: view.looks > 3)
        else:
            await level(lambda: view.looks > 3)
        watch.cancel()

    asyncio.run(story())


def test_a_blocked_bus_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason on stderr in one line, however long it lasts, whether a request waits or a follower of the log."""
    _run(monkeypatch, _View(WHY), follows=False, asks=True)
    assert capsys.readouterr().err.splitlines() == [f"waiting: {WHY}"]
    _run(monkeypatch, _View(WHY), follows=True, asks=False)
    assert capsys.readouterr().err.splitlines() == [f"waiting: {WHY}"]


@pytest.mark.parametrize("reason", ["", None])
def test_a_service_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reason: str | None
) -> None:
    """Who was asked what and where; a bus that commits is not blamed, nor is one of which nothing is known."""
    monkeypatch.setattr(bus_notices, "_LATE_S", 0)
    _run(monkeypatch, _View(reason), follows=False, asks=True)
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"waiting: no answer of intake to api.jobs.submit at {URL} yet"


def test_what_is_waited_for_is_said_two_seconds_after_the_command_began() -> None:
    """A request of a command that has just begun is late with it; one of later, after a time of its own."""
    began = 100.0
    assert _late_at(began, began) < began + 2
    # The connection and the question which cluster this is take their time before.
    assert _late_at(began + 1.6, began) < began + 2
    assert _late_at(began + 60, began) > began + 61


def test_a_lost_connection_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, when it has lasted; the requests that wait for it are not blamed on their services."""
    view = _View("")
    notices = BusNotices(cast("Any", view), URL, follows_commits=True)
    notices.look(100.0)
    view.is_connected = False
    for now_s in (101.0, 101.5, 103.0, 104.0):
        notices.look(now_s)
    assert capsys.readouterr().err.splitlines() == [
        f"waiting: the connection to the bus at {URL} is lost"
    ]
    view.is_connected = True
    notices.look(105.0)
    assert capsys.readouterr().err == ""


def test_a_command_that_waits_for_nothing_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bus that commits is not mentioned to a follower."""
    _run(monkeypatch, _View(""), follows=True, asks=False)
    assert capsys.readouterr().err == ""


def test_the_servers_that_answer_are_named() -> None:
    """By name and address; those to start by their addresses, without passwords."""
    text = describe_answers(["nats://h:1", "nats://h:2", "nats://h:3"], ["", "n2", ""])
    assert text == (
        "1 of 3 servers of the bus answer (n2 at nats://h:2); start those at nats://h:1, nats://h:3"
    )
    two = describe_answers(["nats://h:1", "nats://h:2"], ["n1", ""])
    assert two.endswith("start the one at nats://h:2")
    assert asyncio.run(which_answer("nats://user:secret@127.0.0.1:1")) == ""
    both = asyncio.run(which_answer("nats://u:secret@127.0.0.1:1,nats://u:secret@127.0.0.1:2"))
    assert both.startswith("0 of 2 servers of the bus answer; start those at nats://127.0.0.1:1")
