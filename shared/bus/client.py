"""What the command line, tests and benchmarks use: ask, read the log, follow a projection. No role, no credentials.

Decides how long an answer may take. Knows no event. `caravan up` lets a client without credentials be PUBLIC.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import msgspec

from shared.bus import streams, subjects
from shared.bus.connect import BusClient, Callbacks, Login, connect, status
from shared.bus.reading import LogReader
from shared.bus.records import BATCH_RECORDS
from shared.core.role import Record
from shared.errors import BusUnavailable

_FOLLOW_S = 0.05


class Client:
    """A connection of PUBLIC. Use as `async with Client(url) as bus`."""

    def __init__(self, url: str, *, user: str = "", password: str = "") -> None:
        self._login = Login(url=url, name="caravan-client", user=user, password=password)
        self._reader: LogReader | None = None
        self._bus: BusClient | None = None
        self._denied: list[str] = []

    async def __aenter__(self) -> Self:
        self._bus = await connect(self._login, Callbacks(error=self._on_error))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.end()

    @property
    def bus(self) -> BusClient:
        """The connection itself."""
        assert self._bus is not None, "use `async with`"
        return self._bus

    @property
    def log(self) -> LogReader:
        """Reads the log, all its generations."""
        self._reader = self._reader or LogReader(self.bus)
        return self._reader

    async def request(
        self, subject: str, body: Mapping[str, Any] | msgspec.Struct, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """Ask with a JSON object and return the JSON object that answers.

        Raises BusUnavailable: no answer in time, nobody to answer, or no JSON object. A refusal is an answer:
        `{"error": {"code", "message"}}` is returned as it is.
        """
        answer = await self.request_bytes(subject, msgspec.json.encode(body), timeout_s)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError as err:
            raise BusUnavailable(f"the answer on {subject} is no JSON object: {err}") from err

    async def request_bytes(self, subject: str, body: bytes, timeout_s: float = 10.0) -> bytes:
        """Ask with bytes. Raises BusUnavailable."""
        return (await self.bus.request_raw(subject, body, timeout_s=timeout_s))[1]

    def publish(self, subject: str, body: bytes) -> None:
        """Publish without waiting. Raises BusUnavailable when it could not be sent."""
        if not self.bus.send(subject, body):
            raise BusUnavailable(
                f"cannot publish on {subject}: the bus is away, or {len(body)} bytes are too many"
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
        """Yield records from `first` on, for ever, by asking twenty times a second."""
        at = first
        while True:
            async for record in self.read_log(at):
                at = record.seq + 1
                yield record
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
        self._denied.append(str(err))
