"""Writing: the one outstanding append with its fence and its one retry, and last values with theirs.

Decides what an answer of the server means. A timeout means nothing known: a retry carries the same id, and
after a refusal the log itself is asked whether the record that is there is ours (one replica refuses a
retry that three would acknowledge as duplicate). Behind a roll it writes into the generation that begins there, and
nowhere else. Independent of events. Next: `shared/bus/shell/leader_election.py`.
"""

import asyncio
import base64
import time
from collections.abc import Callable
from functools import lru_cache, partial

import msgspec

from shared.bus.connection.nats_client import header_block, header_number, status
from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.jetstream.sender_proof import stream_marked
from shared.bus.log import generations
from shared.bus.log.generations import ActiveGeneration
from shared.bus.log.stored_records import ApiStoredMessage
from shared.bus.shell.input_queue import InputQueue
from shared.core.runtime.messages import (
    Append,
    Appended,
    AppendRefused,
    AppendUnknown,
    Put,
    PutDone,
    PutRefused,
    Roll,
    RollReady,
    RollRefused,
)
from shared.core.runtime.role import Input
from shared.errors import BusUnavailable
from shared.protocol import subjects

_ANSWER_S = 2.0
_GIVE_UP_S = 4.0
_NO_RESPONDERS_PAUSE_S = 0.2
#: Wrong last sequence; wrong last sequence of a subject in flight.
_CONFLICTS = frozenset({10071, 10164})
#: The store takes nothing: bound reached or disk full; insufficient resources; storage exceeded.
_FULL = frozenset({10077, 10023, 10047})


class PubAck(msgspec.Struct, frozen=True):
    """JetStream's answer to a publish."""

    seq: int = 0
    duplicate: bool = False
    error: streams.ApiError | None = None


class _Got(msgspec.Struct, frozen=True):
    message: ApiStoredMessage | None = None
    error: streams.ApiError | None = None


class _GetSeq(msgspec.Struct, frozen=True):
    seq: int


PUB_ACK = msgspec.json.Decoder(PubAck)


class _AppendInFlight:
    """One append in flight."""

    def __init__(self, effect: Append, generation: int) -> None:
        stream = subjects.log_stream(generation)
        self.effect = effect
        self.stream = stream
        self.subject = subjects.log(generation, effect.kind)
        self.headers = header_block(
            nats_msg_id=effect.msg_id,
            nats_expected_stream=stream,
            nats_expected_last_sequence=str(effect.expected_seq),
        )
        self.give_up = time.monotonic() + _GIVE_UP_S
        self.attempt = 0


class Appender:
    """Performs `Append`; exactly one input answers each."""

    def __init__(
        self, link: CurrentConnection, put: Callable[[Input], None], head: ActiveGeneration
    ) -> None:
        self._link = link
        self._put = put
        self._head = head
        self._out: _AppendInFlight | None = None

    def append(self, effect: Append) -> None:
        """Send it. Raises ValueError when one is outstanding: the role's promise is broken."""
        if self._out is not None:
            raise ValueError("a role appended before its last append was answered")
        out = self._out = _AppendInFlight(effect, self._head.number)
        if 0 < self._head.rolled_at <= effect.expected_seq:
            # Nothing behind a roll in the same stream counts: no reader would see it.
            self._link.spawn(self._send_behind_roll(out))
        else:
            self._send(out)

    async def _send_behind_roll(self, out: _AppendInFlight) -> None:
        if await self._follow(out):
            self._out = out = _AppendInFlight(out.effect, self._head.number)
            self._send(out)
        else:
            self._finish(out, AppendUnknown())

    async def _follow(self, out: _AppendInFlight) -> bool:
        """Find the active generation; False: not in time."""
        while time.monotonic() < out.give_up:
            try:
                if await generations.find_active_generation(self._link.bus, self._head):
                    return True
            except BusUnavailable:
                pass
            await asyncio.sleep(_NO_RESPONDERS_PAUSE_S)
        return False

    async def prepare(self, effect: Roll, replicas: int) -> RollReady | RollRefused:
        """Create the empty stream of the next generation; the current one is active until its roll record."""
        wanted = streams.log_config(1, effect.bytes_max or streams.LOG_BYTES_MAX)
        wanted = msgspec.structs.replace(wanted, num_replicas=replicas, first_seq=effect.first_seq)
        try:
            number = await generations.prepare_generation(self._link.bus, wanted, self._head.number)
        except BusUnavailable as err:
            return RollRefused(str(err))
        return RollReady(number, effect.first_seq)

    def resend(self) -> None:
        """After a reconnect: the append in flight will not be answered on the old connection."""
        if self._out is not None and self._out.attempt:
            self._send(self._out)

    def _send(self, out: _AppendInFlight) -> None:
        out.attempt += 1
        done = partial(self._answered, out, out.attempt)
        self._link.bus.call(
            out.subject, out.effect.data, done, headers=out.headers, timeout_s=_ANSWER_S
        )

    def _answered(
        self, out: _AppendInFlight, attempt: int, headers: bytes, body: bytes | None
    ) -> None:
        if self._out is not out:
            return
        if body is None or status(headers) == 503:
            if attempt == out.attempt:
                self._again(out)
            return
        ack = PUB_ACK.decode(body)
        if ack.error is None:
            self._finish(out, Appended(ack.seq))
        elif ack.error.err_code in _CONFLICTS:
            self._look(out, ack.error.description)
        elif ack.error.err_code in _FULL:
            self._finish(out, AppendRefused(ack.error.description, full=True))
        elif ack.error.code < 500:
            self._finish(out, AppendRefused(ack.error.description))
        else:
            self._finish(out, AppendUnknown())

    def _again(self, out: _AppendInFlight) -> None:
        """No answer: retry under the same id until the timeout."""
        if time.monotonic() + _NO_RESPONDERS_PAUSE_S >= out.give_up:
            self._finish(out, AppendUnknown())
            return
        asyncio.get_running_loop().call_later(_NO_RESPONDERS_PAUSE_S, self._retry, out, out.attempt)

    def _retry(self, out: _AppendInFlight, attempt: int) -> None:
        if self._out is out and out.attempt == attempt:
            self._send(out)

    def _look(self, out: _AppendInFlight, reason: str) -> None:
        """Read the next seq of the log, and return whether it holds this record."""
        body = msgspec.json.encode(_GetSeq(out.effect.expected_seq + 1))
        done = partial(self._looked, out, reason)
        self._link.bus.call(subjects.js_message_get(out.stream), body, done, timeout_s=_ANSWER_S)

    def _looked(
        self, out: _AppendInFlight, reason: str, headers: bytes, body: bytes | None
    ) -> None:
        if self._out is not out:
            return
        if body is None or status(headers):
            self._finish(out, AppendUnknown())
            return
        got = msgspec.json.decode(body, type=_Got)
        found = got.message
        if found is None:
            unknown = got.error is not None and got.error.code != 404
            self._finish(out, AppendUnknown() if unknown else AppendRefused(reason))
        elif found.subject == out.subject and base64.b64decode(found.data) == out.effect.data:
            self._finish(out, Appended(found.seq))
        else:
            self._finish(out, AppendRefused(reason))

    def _finish(
        self, out: _AppendInFlight, answer: Appended | AppendRefused | AppendUnknown
    ) -> None:
        if isinstance(answer, Appended) and out.effect.kind == "roll":
            # The log may report it before or after this answer: both are equal.
            self._head.rolled(answer.seq)
        self._out = None
        self._put(answer)


@lru_cache(maxsize=256)
def _fence(stream: str, expected: int, ttl_s: int) -> bytes:
    """Header block of a last value. Most are the first of their subject, under one time to live."""
    # The mark is first (sender_proof.py).
    fields = {"nats_expected_stream": stream} if stream else {}
    if expected >= 0:
        fields["nats_expected_last_subject_sequence"] = str(expected)
    if ttl_s:
        fields["nats_ttl"] = str(ttl_s)
    return header_block(**fields) if fields else b""


class LastValueWriter:
    """Performs `Put`; each is answered by PutDone or PutRefused."""

    def __init__(self, link: CurrentConnection, inbox: InputQueue) -> None:
        self._link = link
        self._inbox = inbox

    def put(self, effect: Put) -> None:
        """Send it."""
        headers = _fence(stream_marked(effect.subject), effect.expected, effect.ttl_s)
        done = partial(self._answered, effect.subject)
        self._link.bus.call(effect.subject, effect.data, done, headers=headers, timeout_s=_ANSWER_S)

    def _answered(self, subject: str, headers: bytes, body: bytes | None) -> None:
        if body is None or status(headers):
            self._inbox.put(PutRefused(subject, 0, b""))
            return
        ack = PUB_ACK.decode(body)
        if ack.error is None:
            self._inbox.put(PutDone(subject, ack.seq))
        elif ack.error.err_code in _CONFLICTS:
            self._look(subject)
        else:
            self._inbox.put(PutRefused(subject, 0, b""))

    def _look(self, subject: str) -> None:
        """Report the record found there."""
        ask = subjects.js_direct_get(streams.stream_of(subject), subject)
        self._link.bus.call(ask, b"", partial(self._looked, subject), timeout_s=_ANSWER_S)

    def _looked(self, subject: str, headers: bytes, body: bytes | None) -> None:
        if body is None or status(headers):
            self._inbox.put(PutRefused(subject, 0, b""))
        else:
            seq = header_number(headers, b"Nats-Sequence")
            self._inbox.put(PutRefused(subject, seq, body))
