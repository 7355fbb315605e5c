"""The client of the command line, tests and benchmarks: requests, the log, projections.

Decides how long an answer may take. Independent of events. User and password of PUBLIC are given, or are in the URL.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec

from shared.bus.connection.nats_client import (
    BusClient,
    ConnectionCallbacks,
    Login,
    connect,
    header_block,
    status,
)
from shared.bus.jetstream import streams
from shared.bus.log.stored_records import BATCH_RECORDS
from shared.core.runtime.messages import Record
from shared.errors import BusUnavailable
from shared.protocol import subjects

if TYPE_CHECKING:
    from shared.bus.log.log_reader import LogReader

_FOLLOW_S = 0.05
#: Pause while the bus is away.
_AWAY_S = 0.5


class Client:
    """A connection of PUBLIC. Use as `async with Client(url) as bus`."""

    def __init__(self, url: str, *, user: str = "", password: str = "") -> None:
        self._login = Login(url=url, name="caravan-client", user=user, password=password)
        self._reader: LogReader | None = None
        self._bus: BusClient | None = None
        #: requests that the bus did not permit.
        self.denied = 0
        #: the bus refused the login after it had accepted it.
        self.was_refused = False

    async def __aenter__(self) -> Self:
        self._bus = await connect(self._login, ConnectionCallbacks(error=self._on_error))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.end()

    @property
    def bus(self) -> BusClient:
        """The connection itself."""
        assert self._bus is not None, "use `async with`"
        return self._bus

    @property
    def log(self) -> "LogReader":
        """Reads the log, all its generations."""
        # Imported here: every fact there is comes with it, a quarter of the start of a command that asks once.
        from shared.bus.log.log_reader import LogReader  # noqa: PLC0415

        self._reader = self._reader or LogReader(self.bus)
        return self._reader

    async def request(
        self, subject: str, body: Mapping[str, Any] | msgspec.Struct, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """Send a JSON object as a request and return the JSON object of the answer.

        Raises BusUnavailable: no answer in time, no responder, or no JSON object. A refusal is an answer:
        `{"error": {"code", "message"}}` is returned as it is.
        """
        answer = await self.request_bytes(subject, msgspec.json.encode(body), timeout_s)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError as err:
            raise BusUnavailable(f"the answer on {subject} is not a JSON object: {err}") from err

    async def request_bytes(
        self, subject: str, body: bytes, timeout_s: float = 10.0, *, traceparent: str = ""
    ) -> bytes:
        """Send a request of bytes. `traceparent`: a header, where it is not empty. Raises BusUnavailable."""
        headers = header_block(traceparent=traceparent) if traceparent else b""
        return (await self.bus.request_raw(subject, body, headers=headers, timeout_s=timeout_s))[1]

    def publish(self, subject: str, body: bytes) -> None:
        """Publish without waiting. Raises BusUnavailable when it could not be sent."""
        if not self.bus.send(subject, body):
            raise BusUnavailable(
                f"cannot publish on {subject}: the bus is unreachable, or {len(body)} bytes exceed its limit"
            )

    async def read_log(self, first: int = 1, last: int = 0) -> AsyncIterator[Record]:
        """Yield records from `first` to `last`; 0: to what is the end when it gets there. Raises BusUnavailable.

        Raises LogDropped where the bus does not have the beginning any more. A gap is not hidden: the reader compares
        the numbers.
        """
        at = first
        while last == 0 or at <= last:
            most = BATCH_RECORDS if last == 0 else min(BATCH_RECORDS, last - at + 1)
            batch = await self.log.read(at, most)
            if not batch:
                return
            for record in batch:
                if last == 0 or record.seq <= last:
                    yield record
            at = batch[-1].seq + 1

    async def follow_log(self, first: int = 1) -> AsyncIterator[Record]:
        """Yield records from `first` on, forever, by asking twenty times a second; waits for a bus that is away."""
        at = first
        while True:
            try:
                async for record in self.read_log(at):
                    at = record.seq + 1
                    yield record
            except streams.BusRefused:
                raise
            except BusUnavailable:
                await asyncio.sleep(_AWAY_S)
            await asyncio.sleep(_FOLLOW_S)

    async def last_value(self, subject: str) -> bytes | None:
        """Read a projection's present value; None where there is none. Raises BusUnavailable."""
        ask = subjects.js_direct_get(streams.stream_of(subject), subject)
        headers, body = await self.bus.request_raw(ask, b"")
        return None if status(headers) else body

    async def follow(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield (subject, data) of a `view.>` subject as it is published, the present value first."""
        arrived: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

        def on_message(name: bytes, _reply: bytes, _headers: bytes, data: bytes) -> None:
            arrived.put_nowait((name.decode(), data))

        number = await self.bus.listen(subject, on_message)
        try:
            if not any(token in ("*", ">") for token in subject.split(".")):
                present = await self.last_value(subject)
                if present is not None:
                    yield subject, present
            while True:
                yield await arrived.get()
        finally:
            self.bus.forget(number)

    def _on_error(self, err: Exception) -> None:
        text = str(err).lower()
        self.denied += "permissions violation" in text
        self.was_refused |= "authorization" in text or "authentication" in text
