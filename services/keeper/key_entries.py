"""Entries of the key store on the bus: the stream KEYS, whose messages are written once and can be erased.

Decides nothing about keys: an entry is a name and bytes. Reading one asks the stream's leader, so that what another
keeper just wrote or erased is seen. Next: `key_store.py`.
"""

import base64
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from shared.bus.connection.nats_client import BusClient, header_block
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import direct_get_batch
from shared.bus.log.appender import PUB_ACK
from shared.bus.log.stored_records import ApiStoredMessage
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: Wrong last sequence of a subject; of one in flight; no such message.
_TAKEN = frozenset({10071, 10164})
_NO_MESSAGE = 10037
_PREFIX = subjects.key_entry("")


class EntriesMissing(BusUnavailable):
    """The store does not exist."""


class KeyEntry(NamedTuple):
    """A stored entry."""

    name: str
    seq: int
    body: bytes


class KeyEntries(Protocol):
    """Where a key store keeps its entries. Every method raises BusUnavailable while it cannot be reached."""

    async def is_there(self) -> bool:
        """Return whether the store exists. Raises BusRefused where it is another one than ours."""
        ...

    async def make(self) -> None:
        """Make the store; done where it exists."""
        ...

    async def read_all(self) -> list[KeyEntry]:
        """Every entry, in the order in which they were written."""
        ...

    async def count(self) -> int:
        """How many entries there are, by the word of the stream's leader: `read_all` may be answered by a replica."""
        ...

    async def find(self, name: str) -> KeyEntry | None:
        """One entry; None: there is none."""
        ...

    async def create(self, name: str, body: bytes, unless: str = "", after: int = 0) -> bool:
        """Write an entry, durable on return; False: it is there already.

        `unless`: names others (wildcards allowed) of which none may be newer than seq `after`.
        """
        ...

    async def erase(self, name: str) -> None:
        """Overwrite an entry and see that it is gone; done where there is none."""
        ...


class _GetLast(msgspec.Struct, frozen=True):
    last_by_subj: str


class _Delete(msgspec.Struct, frozen=True):
    """Without `no_erase` the server overwrites the message in its file."""

    seq: int


class _Got(msgspec.Struct, frozen=True):
    message: ApiStoredMessage | None = None
    error: streams.ApiError | None = None


class BusEntries:
    """The stream KEYS. `bus_of`: the present connection, None while there is none."""

    def __init__(self, bus_of: Callable[[], BusClient | None], *, replicas: int = 1) -> None:
        self._bus_of = bus_of
        self._config = msgspec.structs.replace(streams.KEYS, num_replicas=replicas)

    async def is_there(self) -> bool:
        """Return whether the stream exists. Raises BusRefused, BusUnavailable."""
        return await streams.is_there(self._bus(), self._config)

    async def make(self) -> None:
        """Create the stream. Raises BusUnavailable."""
        await streams.create(self._bus(), self._config)

    async def read_all(self) -> list[KeyEntry]:
        """Read the stream from its beginning, in batches. Raises BusUnavailable."""
        found: list[KeyEntry] = []
        at = 1
        while batch := await direct_get_batch(
            self._bus(), self._config.name, at, subject=subjects.KEYS
        ):
            at = batch[-1].seq + 1
            found += [
                KeyEntry(one.subject.removeprefix(_PREFIX), one.seq, one.data) for one in batch
            ]
        return found

    async def count(self) -> int:
        """Ask for the state of the stream. Raises BusUnavailable."""
        found = await streams.info(self._bus(), self._config.name)
        if found is None:
            raise EntriesMissing(f"stream {self._config.name} is missing")
        return found.state.messages

    async def find(self, name: str) -> KeyEntry | None:
        """Read one entry from the stream's leader. Raises BusUnavailable."""
        found = await self._last(name)
        return None if found is None else KeyEntry(name, found.seq, base64.b64decode(found.data))

    async def create(self, name: str, body: bytes, unless: str = "", after: int = 0) -> bool:
        """Publish under a subject that has no message. Raises BusUnavailable: perhaps it was stored."""
        headers = {
            "nats_expected_stream": self._config.name,
            "nats_expected_last_subject_sequence": str(after),
        }
        if unless:
            headers["nats_expected_last_subject_sequence_subject"] = subjects.key_entry(unless)
        _, answer = await self._bus().request_raw(
            subjects.key_entry(name), body, headers=header_block(**headers)
        )
        ack = PUB_ACK.decode(answer)
        if ack.error is not None and ack.error.err_code not in _TAKEN:
            raise BusUnavailable(f"stream {self._config.name}: {ack.error.description}")
        return ack.error is None

    async def erase(self, name: str) -> None:
        """Delete securely until the leader has no message of this name. Raises BusUnavailable."""
        erased = 0
        while (found := await self._last(name)) is not None:
            if found.seq == erased:
                raise BusUnavailable(
                    f"stream {self._config.name} still has an entry that it erased"
                )
            erased = found.seq
            body = msgspec.json.encode(_Delete(erased))
            await self._bus().ask(subjects.js_message_delete(self._config.name), body)

    async def _last(self, name: str) -> ApiStoredMessage | None:
        body = msgspec.json.encode(_GetLast(subjects.key_entry(name)))
        answer = await self._bus().ask(subjects.js_message_get(self._config.name), body)
        got = msgspec.json.decode(answer, type=_Got)
        if got.error is not None and got.error.err_code == streams.STREAM_NOT_FOUND:
            raise EntriesMissing(f"stream {self._config.name} is missing")
        if got.error is not None and got.error.err_code != _NO_MESSAGE:
            raise BusUnavailable(f"stream {self._config.name}: {got.error.description}")
        return got.message

    def _bus(self) -> BusClient:
        bus = self._bus_of()
        if bus is None:
            raise BusUnavailable("not connected to the bus")
        return bus
