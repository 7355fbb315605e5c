"""The shell's parts that need no bus: clock, timers, tokens, headers."""

import asyncio
from datetime import UTC, datetime

import pytest

from shared.bus.connection.nats_client import header, header_block, most_informative_fault, status
from shared.bus.jetstream.pull_consumer import DeliveryPosition, delivery_position
from shared.bus.log.log_space import clock_off_ns
from shared.bus.shell.input_queue import InputQueue, MessageTokens, NamedTimers
from shared.bus.shell.wall_clock import WallClock
from shared.core.runtime.messages import CaughtUp, Message, Record, Timer

SECOND = 1_000_000_000


class Hands:
    """Two clocks that a test moves."""

    def __init__(self) -> None:
        self.wall, self.mono = 1000 * SECOND, 0

    def clock(self) -> WallClock:
        return WallClock(lambda: self.wall, lambda: self.mono)

    def pass_time(self, ns: int, *, wall: int | None = None) -> None:
        self.mono += ns
        self.wall += ns if wall is None else wall


def test_the_clock_follows_a_step_forward() -> None:
    """A wall clock set forward, or a machine that slept, is followed at once."""
    hands = Hands()
    clock = hands.clock()
    hands.pass_time(SECOND, wall=3600 * SECOND)
    assert clock.now_ns() == 4600 * SECOND


def test_the_clock_neither_steps_back_nor_stalls() -> None:
    """A wall clock set back an hour slows ours by a tenth until both agree again."""
    hands = Hands()
    clock = hands.clock()
    hands.pass_time(0, wall=-3600 * SECOND)
    before = clock.now_ns()
    assert before == 1000 * SECOND
    hands.pass_time(10 * SECOND)
    assert clock.now_ns() - before == 9 * SECOND
    for _ in range(4000):
        hands.pass_time(10 * SECOND)
        before, now = now_or(clock, before)
        assert now >= before
    assert clock.now_ns() == hands.wall


def now_or(clock: WallClock, before: int) -> tuple[int, int]:
    return before, clock.now_ns()


def test_timers_are_named() -> None:
    """Setting a timer again replaces it, 0 cancels it, and due ones come by deadline and name, once."""
    timers = NamedTimers()
    for name, at in (("b", 20), ("a", 20), ("c", 5), ("c", 30), ("d", 1), ("d", 0)):
        timers.set(name, at)
    assert timers.next_ns() == 20
    assert timers.due(19) == []
    assert timers.due(25) == [Timer("a", 20), Timer("b", 20)]
    assert timers.due(40) == [Timer("c", 30)]
    assert (timers.next_ns(), timers.due(99)) == (0, [])


def test_a_timer_may_be_set_to_its_old_deadline() -> None:
    """A cancelled timer that is set again to the same deadline fires once."""
    timers = NamedTimers()
    timers.set("a", 5)
    timers.set("a", 0)
    timers.set("a", 5)
    assert timers.due(9) == [Timer("a", 5)]


def test_tokens_give_credit_back_once() -> None:
    """An answered token returns its credit once; a forgotten source's tokens return none."""
    tokens, given = MessageTokens(), []
    for name in ("work", "work", "other"):
        tokens.hold(Message(name, "s", b"", tokens.new()), b"", lambda: given.append(1))
    assert tokens.answer(1) is not None
    assert tokens.answer(1) is None
    assert len(given) == 1
    tokens.forget_source("work")
    assert tokens.answer(2) is None
    assert tokens.answer(3) is not None
    assert len(given) == 2


def test_the_inbox_keeps_order() -> None:
    """A step takes the oldest inputs; the rest waits and wakes the loop again; dropped ones are gone."""
    wake = asyncio.Event()
    inbox = InputQueue(wake)
    for seq in range(1, 6):
        inbox.put(Record(seq, "", b""))
    inbox.put(CaughtUp(5))
    wake.clear()
    assert [one.seq for one in inbox.take(2)] == [1, 2]
    assert wake.is_set()
    inbox.drop(lambda one: isinstance(one, Record))
    assert inbox.take(9) == [CaughtUp(5)]


def test_headers_are_read_from_behind() -> None:
    """The server's own header counts, not one of the same name that the sender put before it."""
    block = b"NATS/1.0\r\nNats-Sequence: 9\r\nX: y\r\nNats-Sequence: 4\r\n\r\n"
    assert header(block, b"Nats-Sequence") == b"4"
    assert header(block, b"Sequence") == b""
    assert status(block) == 0
    assert status(b"NATS/1.0 503\r\n\r\n") == 503
    assert status(b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n") == 204


def test_an_id_brings_no_header_of_its_own() -> None:
    """A line break in a header's value is refused: it would be another header."""
    assert (
        header_block(nats_msg_id="a", nats_ttl="2")
        == b"NATS/1.0\r\nNats-Msg-Id: a\r\nNats-TTL: 2\r\n\r\n"
    )
    with pytest.raises(ValueError, match="line break in header nats_msg_id"):
        header_block(nats_msg_id="a\r\nNats-TTL: 1")


def test_positions_with_and_without_a_domain() -> None:
    """Both forms of the acknowledgement subject give stream, consumer and pending numbers."""
    assert delivery_position(b"$JS.ACK.CMD.plan.1.7.3.1795.4") == DeliveryPosition(7, 3, 4)
    assert delivery_position(b"$JS.ACK.dom.hash.CMD.plan.1.7.3.1795.4.rnd") == DeliveryPosition(
        7, 3, 4
    )


def test_a_server_that_refuses_and_hangs_up_has_said_why() -> None:
    """Of several faults the one with a reason is reported; of broken connections the last one."""
    refused, reset, away = ValueError("Authorization"), ConnectionResetError(), OSError()
    assert most_informative_fault([refused, reset]) is refused
    assert most_informative_fault([reset, away]) is away
    assert most_informative_fault([]) is None


_THERE = datetime(2026, 1, 1, tzinfo=UTC)
_THERE_NS = int(_THERE.timestamp()) * 10**9
_S = 10**9


@pytest.mark.parametrize(
    ("sent", "received", "wanted"),
    [
        ((0,), (0,), 0),
        ((-2 * _S,), (2 * _S,), 0),
        ((0,), (4 * _S,), 0),
        ((10 * _S,), (12 * _S,), 10 * _S),
        ((-3_600 * _S,), (-3_600 * _S,), -3_600 * _S),
        # The wall was set back on both machines, ours runs on.
        ((0, 3_600 * _S), (0, 3_600 * _S), 3_600 * _S),
        ((-3_600 * _S, 0), (-3_600 * _S, 0), -3_600 * _S),
    ],
)
def test_clocks_are_compared_at_the_middle_of_a_request(
    sent: tuple[int, ...], received: tuple[int, ...], wanted: int
) -> None:
    """The worst clock counts; what a slow answer may explain is no difference, and without a time there is none."""
    ours = [tuple(_THERE_NS + one for one in some) for some in (sent, received)]
    assert clock_off_ns(ours[0], ours[1], _THERE) == wanted
    assert clock_off_ns(ours[0], ours[1], None) == 0
