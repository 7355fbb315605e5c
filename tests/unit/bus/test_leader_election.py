"""When a candidate looks at the holder of the key, and when it takes the key from one that is gone."""

import asyncio
import base64
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.shell.leader_election import LeaderElection
from shared.core.runtime.messages import LeadershipWon
from shared.core.runtime.role import Input
from tests.bounds import WAIT_S

_NO_LISTENER = b"NATS/1.0 503\r\n\r\n"
_HOLDER = b"first"


class _KeyOfAnother:
    """A bus on which another instance holds the key; without a listener under its name once `is_gone`."""

    def __init__(self) -> None:
        self.is_gone = False
        self.looks = self.tries = 0
        #: so many looks were made.
        self.enough, self.looked = 12, asyncio.Event()
        self._seq = 7

    async def listen(self, *_: object) -> int:
        """Take a subscription."""
        return 1

    def call(
        self, _subject: str, _data: bytes, done: Callable[[bytes, bytes | None], None], **_: object
    ) -> bool:
        """Say that there is no listener, or nothing at all: the client gives up long after the test."""
        self.looks += 1
        if self.looks == self.enough:
            self.looked.set()
        if self.is_gone:
            asyncio.get_running_loop().call_soon(done, _NO_LISTENER, b"")
        return True

    def send(self, *_: object) -> bool:
        """Take the message by which the key is given up."""
        return True

    async def request_raw(self, subject: str, data: bytes, **named: Any) -> tuple[bytes, bytes]:
        """Answer a write of the key by its fence, and a read of it."""
        if "MSG.GET" in subject:
            message = {"seq": self._seq, "data": base64.b64encode(_HOLDER).decode(), "subject": "k"}
            return b"", msgspec.json.encode({"message": message})
        del data
        self.tries += 1
        expected = int(named["headers"].split(b"Sequence: ")[1].split(b"\r\n")[0])
        if expected == self._seq and self.is_gone:
            return b"", msgspec.json.encode({"stream": "LEADER", "seq": 8})
        return b"", msgspec.json.encode({"error": {"code": 400, "err_code": 10071}})


def _candidate(bus: _KeyOfAnother, hear: Callable[[Input], None]) -> LeaderElection:
    link = SimpleNamespace(bus=bus, spawn=asyncio.ensure_future)
    return LeaderElection(
        cast("CurrentConnection", link), hear, key="timekeeper", instance="second"
    )


def test_a_holder_that_is_gone_is_succeeded_after_two_looks() -> None:
    """A connected holder is only looked at, more often than the key is tried; gone twice in a row, its key is taken."""

    async def play() -> None:
        bus, heard, won = _KeyOfAnother(), list[Input](), asyncio.Event()

        def hear(item: Input) -> None:
            heard.append(item)
            won.set()

        candidate = _candidate(bus, hear)
        candidate.start()
        await bus.looked.wait()
        assert not candidate.held
        assert bus.tries < bus.looks
        bus.is_gone, before = True, bus.looks
        await won.wait()
        assert heard == [LeadershipWon()]
        # The one that is under way may be lost; then one finds it gone, and the next tries confirm it.
        assert 2 <= bus.looks - before <= 4
        candidate.stop()

    asyncio.run(asyncio.wait_for(play(), WAIT_S))
