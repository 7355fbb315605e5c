"""Leadership: one key of a bucket, held for two seconds at a time, renewed twice a second.

Decides when this instance may act. It is for liveness only: two writers are made impossible by the log's
fence. The bucket has no limit markers and is written by plain publishes, because a KV client cannot renew a
TTL. Each instance listens under its own name; where the bus says twice that there is no listener under the holder's,
the holder's connection is gone, and its key is taken at once: a killed process is succeeded in about a tenth of
the key's life. One that only stands still keeps its connection, and its key until that dies. Next: `shell.py`.
"""

import asyncio
import base64
import contextlib
import time
from collections.abc import Callable

import msgspec
import structlog

from shared.bus.connection.nats_client import BusClient, header_block, status
from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.log.appender import PUB_ACK
from shared.bus.log.stored_records import ApiStoredMessage
from shared.core.runtime.messages import LeadershipLost, LeadershipWon
from shared.core.runtime.role import Input
from shared.errors import BusUnavailable
from shared.protocol import subjects

TTL_S = 2
_RENEW_S = 0.5
#: Between two tries to write the key. Between them a candidate asks the bus alone whether the holder is connected.
_COMPETE_S = 0.25
_LOOK_S = 0.02
#: Between the first and the second look at a holder without a listener: it may be connecting again.
_SUSPECT_RECHECK_S = 0.1
#: The bus answers at once that there is no listener; silence for so long is a holder that is connected.
_PING_S = 0.1
_ANSWER_S = 0.5
#: A renewal this old may have been missed by the server: another instance may win.
_DOUBT_S = 1.5
_RESIGNED_S = 1.0
#: status of an answer by the bus itself: there is no subscription.
_NO_RESPONDERS = 503
log = structlog.get_logger()


class _GetLast(msgspec.Struct, frozen=True):
    last_by_subj: str


class _Delete(msgspec.Struct, frozen=True):
    seq: int
    no_erase: bool = True


class _Got(msgspec.Struct, frozen=True):
    message: ApiStoredMessage | None = None


class LeaderElection:
    """Competes for one key on behalf of one instance, once `start` was called."""

    def __init__(
        self, link: CurrentConnection, put: Callable[[Input], None], *, key: str, instance: str
    ) -> None:
        self._link = link
        self._put = put
        self._subject = subjects.leader(key)
        self._role = key.partition(".")[0]
        self._instance = instance.encode()
        self._listening: BusClient | None = None
        #: the holder that was found in the key, and the one that was not connected at the last look.
        self._holder = b""
        self._suspected_holder = b""
        self._try_at = 0.0
        self._seq = 0
        self._sure_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self.held = False

    def start(self) -> None:
        """Begin to compete; repeated calls change nothing."""
        if self._running is None:
            self._running = self._link.spawn(self._run())

    def resign(self) -> None:
        """Release the key now and compete again after a pause."""
        self._not_before = time.monotonic() + _RESIGNED_S
        if self.held:
            self.held = False
            self._give_up()

    def stop(self) -> None:
        """Compete no more; the successor need not wait for the key to die."""
        if self._running is not None:
            self._running.cancel()
        if self.held:
            self.held = False
            self._give_up()

    def _give_up(self) -> None:
        """Delete exactly our own message: a successor's would have another seq."""
        body = msgspec.json.encode(_Delete(self._seq))
        self._link.bus.send(subjects.js_message_delete(streams.LEADER.name), body)

    async def _run(self) -> None:
        while True:
            if time.monotonic() >= self._not_before:
                with contextlib.suppress(BusUnavailable):
                    await self._listen()
                    await self._compete()
            if self.held and time.monotonic() - self._sure_at > _DOUBT_S:
                self._lose()
            await asyncio.sleep(self._pause_s)

    @property
    def _pause_s(self) -> float:
        if self.held:
            return _RENEW_S
        if self._suspected_holder:
            return _SUSPECT_RECHECK_S
        # A look at a holder that is connected takes _PING_S.
        return _LOOK_S if self._holder else _COMPETE_S

    async def _listen(self) -> None:
        """Subscribe under our own name, once per client: a reconnect subscribes again."""
        bus = self._link.bus
        if self._listening is not bus:
            await bus.listen(self._name_of(self._instance), _ignore_ping)
            self._listening = bus

    def _name_of(self, instance: bytes) -> str:
        return subjects.presence(self._role, instance.decode(errors="replace"))

    async def _compete(self) -> None:
        """Write the key; between two tries only look whether its holder is connected."""
        now = time.monotonic()
        is_early = not self.held and bool(self._holder) and now < self._try_at
        if is_early and not await self._is_gone(self._holder):
            self._suspected_holder = b""
            return
        self._try_at = now + _COMPETE_S
        await self._write()

    async def _write(self) -> None:
        """Take the key where it is free, renew it where it is ours."""
        sent_at = time.monotonic()
        before = self.held
        seq = await self._publish(self._seq if before else 0)
        if not seq and before:
            # A restarted bus has lost the key; the first instance takes it.
            seq = await self._own_key_seq() or await self._publish(0)
        if not seq and not before:
            seq = await self._take_over_key()
        if seq:
            self._holder = self._suspected_holder = b""
            self._hold(seq, sent_at, before=before)
        elif before:
            self._lose()

    async def _publish(self, expected: int) -> int:
        """Write our name, if the key is at `expected`. Returns its new seq, or 0."""
        headers = header_block(
            nats_expected_last_subject_sequence=str(expected), nats_ttl=str(TTL_S)
        )
        _, body = await self._link.bus.request_raw(
            self._subject, self._instance, headers=headers, timeout_s=_ANSWER_S
        )
        ack = PUB_ACK.decode(body)
        return ack.seq if ack.error is None else 0

    async def _take_over_key(self) -> int:
        """Take the key of a holder that is gone. Returns its new seq, or 0."""
        found = await self._found()
        holder = base64.b64decode(found.data) if found is not None else b""
        self._holder = holder
        if not holder or holder == self._instance or not await self._is_gone(holder):
            self._suspected_holder = b""
            return 0
        if self._suspected_holder != holder:
            self._suspected_holder = holder
            return 0
        assert found is not None
        return await self._publish(found.seq)

    async def _is_gone(self, holder: bytes) -> bool:
        """Ask the bus whether the holder is connected; no answer counts as connected."""
        gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(headers: bytes, _body: bytes | None) -> None:
            gone.set_result(status(headers) == _NO_RESPONDERS)

        self._link.bus.call(self._name_of(holder), b"", answered, timeout_s=_PING_S)
        # Not until the client gives the call up, which it looks at less often.
        await asyncio.wait({gone}, timeout=_PING_S)
        return gone.done() and gone.result()

    async def _own_key_seq(self) -> int:
        """A renewal whose answer was lost moved the seq on: return it if our name is there, else 0."""
        found = await self._found()
        ours = found is not None and base64.b64decode(found.data) == self._instance
        return found.seq if found is not None and ours else 0

    async def _found(self) -> ApiStoredMessage | None:
        """What is in the key."""
        ask = subjects.js_message_get(streams.LEADER.name)
        body = msgspec.json.encode(_GetLast(self._subject))
        _, answer = await self._link.bus.request_raw(ask, body, timeout_s=_ANSWER_S)
        return msgspec.json.decode(answer, type=_Got).message

    def _hold(self, seq: int, sent_at: float, *, before: bool) -> None:
        self._seq, self._sure_at = seq, sent_at
        if before and not self.held:
            # Resigned while the answer was pending.
            self._give_up()
        elif not self.held:
            self.held = True
            log.info("leadership.won")
            self._put(LeadershipWon())

    def _lose(self) -> None:
        if self.held:
            self.held = False
            log.warning("leadership.lost")
            self._put(LeadershipLost())


def _ignore_ping(_subject: bytes, _reply: bytes, _headers: bytes, _data: bytes) -> None:
    """Receive a liveness check; its delivery is the answer."""
