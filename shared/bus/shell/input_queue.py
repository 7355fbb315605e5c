"""The queue in front of a role: inputs in the order of arrival, timers, and unanswered messages.

It counts and keeps inputs, independent of the bus and the role.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

import msgspec

from shared.core.runtime.messages import Message, Timer
from shared.core.runtime.role import Input

#: Unanswered requests kept at most; the oldest are dropped first, their senders retry.
REQUESTS_MAX = 100_000


class WakeSignal(Protocol):
    """Signal that something waits: an Event to await, or a Bell that calls back."""

    def set(self) -> None:
        """Tell."""
        ...


class CoalescedCallback:
    """Has `rung` called once, soon, in the running loop, however often it is set until then."""

    def __init__(self, rung: Callable[[], None]) -> None:
        self._rung = rung
        self._is_set = False

    def set(self) -> None:
        """Ring."""
        if not self._is_set:
            self._is_set = True
            asyncio.get_running_loop().call_soon(self._ring)

    def _ring(self) -> None:
        self._is_set = False
        self._rung()


class InputQueue:
    """Inputs of the next step, and the callback that wakes the shell."""

    def __init__(self, wake: WakeSignal) -> None:
        self._waiting: list[Input] = []
        self.wake = wake
        self.failure: BaseException | None = None

    def put(self, one: Input) -> None:
        """Add an input."""
        self._waiting.append(one)
        self.wake.set()

    def take(self, most: int) -> list[Input]:
        """Remove and return what waits, oldest first; what is too much stays for the next turn."""
        if len(self._waiting) <= most:
            taken, self._waiting = self._waiting, []
        else:
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            self.wake.set()
        return taken

    def drop(self, unwanted: Callable[[Input], bool]) -> None:
        """Drop waiting inputs that the role has cancelled."""
        self._waiting = [one for one in self._waiting if not unwanted(one)]

    def fail(self, err: BaseException) -> None:
        """End the shell: something happened that must not be survived."""
        if self.failure is None:
            self.failure = err
        self.wake.set()

    def __len__(self) -> int:
        return len(self._waiting)


class NamedTimers:
    """Named deadlines on the role's clock. Setting a name again replaces it."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def set(self, name: str, at_ns: int) -> None:
        """Set or, with 0, cancel."""
        if at_ns <= 0:
            self._at.pop(name, None)
        elif self._at.get(name) != at_ns:
            self._at[name] = at_ns
            heapq.heappush(self._heap, (at_ns, name))

    def next_ns(self) -> int:
        """Earliest deadline; 0 without any."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else 0

    def due(self, now_ns: int) -> list[Timer]:
        """Remove and return what is due, by (deadline, name)."""
        fired: list[Timer] = []
        while (at := self.next_ns()) and at <= now_ns:
            _, name = heapq.heappop(self._heap)
            del self._at[name]
            fired.append(Timer(name, at))
        return fired


class UnansweredMessage(msgspec.Struct):
    """A message that the role may still answer."""

    message: Message
    #: reply subject; empty: none.
    reply: bytes
    #: gives the credit back; None for sources without credit.
    release: Callable[[], None] | None


class MessageTokens:
    """Hands out tokens and remembers what they denote."""

    def __init__(self) -> None:
        self._next = 0
        self._held: dict[int, UnansweredMessage] = {}
        self._requests: dict[int, None] = {}

    def new(self) -> int:
        """Return a token that was never used."""
        self._next += 1
        return self._next

    def hold(self, message: Message, reply: bytes, release: Callable[[], None] | None) -> None:
        """Remember a message until its token is answered."""
        self._held[message.token] = UnansweredMessage(message, reply, release)
        if release is None:
            self._requests[message.token] = None
            if len(self._requests) > REQUESTS_MAX:
                oldest = next(iter(self._requests))
                del self._requests[oldest]
                self._held.pop(oldest, None)

    def peek(self, token: int) -> UnansweredMessage | None:
        """Return what the token denotes; None when it was answered or forgotten."""
        return self._held.get(token)

    def answer(self, token: int) -> UnansweredMessage | None:
        """Forget the token, give its credit back, and return what it denoted."""
        held = self._held.pop(token, None)
        if held is not None:
            self._requests.pop(token, None)
            if held.release is not None:
                held.release()
        return held

    def forget_source(self, name: str) -> None:
        """Forget all messages of a source, without giving credit back: the source is gone."""
        gone = [token for token, held in self._held.items() if held.message.source == name]
        for token in gone:
            del self._held[token]
            self._requests.pop(token, None)
