"""Variables for `nomadVar` of templates: read from the keeper, one task's at a time, and again when the view says so.

Which revision a path has is no secret: the view publishes it, and every node follows the paths that its templates
read (`followed_values.py`). The items are asked of the keeper, which decides for each allocation and task whether it
may read them. They come sealed with a key that is made for the question, and are kept in memory alone, for the task
that they were asked for, as long as it uses them. They are in no log, error or journal.

The keeper and the view apply the same log, and either may be behind: an answer that is older than what the view has
published does not count, and is asked for again. Next: `data_reads.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

import msgspec
import structlog

from schemas.bounds import bounded_decoder
from schemas.variables import VariableAnswer, VariableAnswers, VariableAsk, VariableProjection
from services.agent.inputs.templates.followed_values import (
    LINGER_S,
    POLL_S,
    Awaited,
    DataUnusable,
    FollowedValue,
    FollowedValues,
    ViewValue,
    wait_for,
)
from shared.bus.connection.nats_client import BusClient, status
from shared.errors import CommandInvalid
from shared.gotemplate.data import Variable
from shared.protocol import subjects
from shared.protocol.variable_items import decode_items
from shared.sealed_box import SealedBoxInvalid, new_pair, open_box

#: Of one question; the schema says so.
PATHS_MAX = 16
#: A question is sent again after so long, and each waits so long for its answer.
RESEND_S, ANSWER_S = 1.0, 10.0
#: An answer that is older than what the view says, or that says "not now", is asked for again after so long, doubled
#: up to RESEND_S.
BEHIND_S = 0.05
#: The keeper says "not found" of a path that the view still shows: true after so long.
GONE_S = 3.0
#: The keeper may learn of an allocation later than its node: a refusal counts after so long.
GRACE_S = 5.0
_ANSWER_DECODER = bounded_decoder(VariableAnswers)
_VALUE_DECODER = bounded_decoder(VariableProjection)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NOT_FOUND = "not_found"
_REFUSALS = frozenset({"forbidden", "denied"})
log = structlog.get_logger()


class VariableReader(NamedTuple):
    """Who reads."""

    alloc_id: str
    task: str


class KnownVariable(msgspec.Struct, frozen=True):
    """A variable as a task may read it; None: it does not exist. `version`: another one for another revision."""

    version: int
    variable: Variable | None = None


class VariableSource(Protocol):
    """Where templates get variables. Every method may be cancelled."""

    async def variable(self, reader: VariableReader, path: str) -> KnownVariable:
        """Return a variable, or that there is none. Waits without limit. Raises DataUnusable."""
        ...

    async def changed(self, reader: VariableReader, seen: Mapping[str, int]) -> None:
        """Return when one of these variables has another version than was seen."""
        ...


class _Revisions(FollowedValues):
    """Which revision each path has, as the view says. The content of a value is the revision."""

    what = "variables"

    def __init__(self, clock: Callable[[], float], newer: Callable[[str, bool], None]) -> None:
        super().__init__(clock)
        #: called with a path of which the view says something else, and whether it says nothing.
        self._newer = newer

    def keep(self, path: str) -> None:
        """Follow a path until it is dropped as often. Raises DataUnusable."""
        self._follow(path).holders += 1

    def drop(self, path: str) -> None:
        """Follow it no longer, soon."""
        one = self._follow(path)
        one.holders -= 1

    def is_older(self, path: str, revision: int) -> bool:
        """Say whether the view knows something newer than this revision of a path; 0: that it does not exist."""
        one = self._followed.get(path)
        if one is None or not one.version:
            return False
        seq = one.stamp[-1]
        return revision != one.content and revision <= seq

    def _subject(self, name: str) -> str:
        return subjects.view_variable(name)

    def _value(self, name: str, data: bytes) -> ViewValue | None:
        found = _VALUE_DECODER.decode(data)
        if found.path != name or found.revision < 0:
            return None
        stamp = (found.cluster_id, found.incarnation, found.seq)
        return ViewValue(stamp, found.revision)

    def _absent(self, one: FollowedValue) -> None:
        """Never put, deleted long ago, or not published yet: the keeper knows."""
        self._note_read(one)
        self._newer(one.name, True)

    def _learned(self, one: FollowedValue) -> None:
        self._newer(one.name, False)

    def _reconnected(self) -> None:
        """A read without an answer is repeated."""


class _Held(Awaited):
    """One variable of one task."""

    def __init__(self, reader: VariableReader, path: str, now_s: float) -> None:
        super().__init__(now_s)
        self.reader = reader
        self.path = path
        self.variable: Variable | None = None
        #: why it cannot be read.
        self.fault = ""
        #: when it is asked for next; None: what is known is the newest.
        self.ask_s: float | None = now_s
        #: the newest question that was answered.
        self.answered = 0
        #: since when answers do not count, and how many did not.
        self.doubted_s: float | None = None
        self.doubts = 0

    @property
    def revision(self) -> int:
        """Of what is known; 0: it does not exist."""
        return self.variable.modify_index if self.variable is not None else 0


class _Question(NamedTuple):
    """A question to the keeper, with the private key of its answer."""

    number: int
    ones: Sequence[_Held]
    private: bytes


_Key = tuple[VariableReader, str]


class VariableDirectory:
    """The variables that tasks of this node read. `run` asks; the rest may be called in the same loop."""

    def __init__(
        self,
        node_id: str,
        cluster_id: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: answers that could not be read.
        self.ignored = 0
        self._subject = subjects.node_variables(node_id)
        self._cluster_id = cluster_id
        self._clock = clock
        self._held: dict[_Key, _Held] = {}
        self._revisions = _Revisions(clock, self._newer)
        self._versions = count(1)
        self._numbers = count(1)

    # ---- what templates ask ----

    async def variable(self, reader: VariableReader, path: str) -> KnownVariable:
        """See VariableSource."""
        one = self._hold(reader, path)
        if one.fault and one.ask_s is None:
            # It was refused before: that may have passed.
            one.version = 0
            self._ask_again(one, self._clock())
        await wait_for([one], lambda: one.version > 0, self._clock)
        if one.fault:
            raise DataUnusable(one.fault, one.version)
        return KnownVariable(one.version, one.variable)

    async def changed(self, reader: VariableReader, seen: Mapping[str, int]) -> None:
        """See VariableSource."""
        ones = [self._hold(reader, path) for path in seen]
        await wait_for(
            ones,
            lambda: any(one.version not in {0, seen[one.path]} for one in ones),
            self._clock,
        )

    # ---- asking ----

    async def run(self, bus: Callable[[], BusClient | None]) -> None:
        """Ask for what templates wait for. `bus`: the agent's connection; None: there is none yet."""
        wake = self._revisions.wake
        while True:
            wake.clear()
            await self.look(bus())
            pause_s = None
            if self._held or self._revisions.is_following:
                due = [one.ask_s for one in self._held.values() if one.ask_s is not None]
                pause_s = min(POLL_S, max(min(due, default=POLL_S) - self._clock(), BEHIND_S / 2))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), pause_s)

    async def look(self, bus: BusClient | None) -> None:
        """Follow the paths that are read, and ask for what is due."""
        now_s = self._clock()
        for key, one in list(self._held.items()):
            if one.is_unused(now_s, LINGER_S):
                self._drop(key)
        await self._revisions.look(bus)
        if bus is None or not bus.is_connected or not self._cluster_id():
            return
        due: dict[VariableReader, list[_Held]] = {}
        for one in self._held.values():
            if one.holders and one.ask_s is not None and one.ask_s <= now_s:
                due.setdefault(one.reader, []).append(one)
        for reader, ones in due.items():
            for at in range(0, len(ones), PATHS_MAX):
                self._ask(bus, reader, ones[at : at + PATHS_MAX])

    # ---- inside ----

    def _hold(self, reader: VariableReader, path: str) -> _Held:
        key, now_s = (reader, path), self._clock()
        one = self._held.get(key)
        if one is None:
            self._revisions.keep(path)
            one = self._held[key] = _Held(reader, path, now_s)
            self._revisions.wake.set()
        one.used_s = now_s
        return one

    def _drop(self, key: _Key) -> None:
        del self._held[key]
        self._revisions.drop(key[1])

    def _newer(self, path: str, is_absent: bool) -> None:  # noqa: FBT001 - of a callback.
        """The view says something else of a path, or nothing: ask where that is not what is known."""
        now_s = self._clock()
        for one in self._held.values():
            if one.path != path or one.ask_s is not None or not one.version:
                continue
            if self._revisions.is_older(path, one.revision) or (is_absent and one.revision):
                self._ask_again(one, now_s)

    def _ask_again(self, one: _Held, at_s: float) -> None:
        one.ask_s = at_s
        self._revisions.wake.set()

    def _ask(self, bus: BusClient, reader: VariableReader, ones: Sequence[_Held]) -> None:
        """Ask the keeper; an earlier question may still be answered, with a key of its own."""
        private, public = new_pair()
        ask = VariableAsk(
            alloc_id=reader.alloc_id,
            task=reader.task,
            paths=tuple(one.path for one in ones),
            public=public,
        )
        for one in ones:
            one.ask_s = self._clock() + RESEND_S
        done = partial(self._answered, _Question(next(self._numbers), ones, private))
        bus.call(self._subject, msgspec.json.encode(ask), done, timeout_s=ANSWER_S)

    def _answered(self, question: _Question, headers: bytes, body: bytes | None) -> None:
        """Take an answer. Must not raise: the connection would end."""
        ones = question.ones
        if body is None or status(headers):
            return
        try:
            found = _ANSWER_DECODER.decode(body)
        except _UNREADABLE:
            self._ignore("it cannot be read")
            return
        if found.error is not None:
            each = [VariableAnswer(path=one.path, error=found.error) for one in ones]
        else:
            each = list(found.answers)
        if len(each) != len(ones):
            self._ignore("it has another number of answers")
            return
        for one, answer in zip(ones, each, strict=True):
            if self._held.get((one.reader, one.path)) is one and question.number > one.answered:
                self._take(question, one, answer)

    def _take(self, question: _Question, one: _Held, answer: VariableAnswer) -> None:
        error, variable, number = answer.error, None, question.number
        if error is not None and error.code in _REFUSALS:
            if not self._is_in_doubt(one, GRACE_S):
                self._learn(number, one, fault=_refusal(one.path, error.code, error.message))
            return
        if error is not None and error.code == "invalid":
            self._learn(number, one, fault=_refusal(one.path, error.code, error.message))
            return
        if error is not None and error.code != _NOT_FOUND:
            # Not now: the keeper may learn of the allocation in a moment.
            self._ask_soon(one, self._clock())
            return
        if error is None:
            variable = self._opened(one.path, answer, question.private)
            if variable is None:
                return
        revision = 0 if variable is None else variable.modify_index
        limit_s = GONE_S if variable is None else float("inf")
        if self._revisions.is_older(one.path, revision) and self._is_in_doubt(one, limit_s):
            return
        self._learn(number, one, variable)

    def _opened(self, path: str, answer: VariableAnswer, private: bytes) -> Variable | None:
        """Open an answer; None: it cannot be used."""
        if answer.path != path or answer.revision < 1:
            self._ignore("it is about another path")
            return None
        context = ("get", self._cluster_id(), path, str(answer.revision))
        try:
            items = decode_items(open_box(answer.sealed, private, context))
        except (SealedBoxInvalid, CommandInvalid) as err:
            self._ignore(type(err).__name__)
            return None
        return Variable(
            path=path,
            items=items,
            create_index=answer.create_seq,
            modify_index=answer.revision,
            create_ns=answer.create_ns,
            modify_ns=answer.modify_ns,
        )

    def _is_in_doubt(self, one: _Held, limit_s: float) -> bool:
        """Say whether an answer is not taken yet; then it is asked for again soon."""
        now_s = self._clock()
        if one.doubted_s is None:
            one.doubted_s = now_s
        if now_s - one.doubted_s >= limit_s:
            return False
        self._ask_soon(one, now_s)
        return True

    def _ask_soon(self, one: _Held, now_s: float) -> None:
        """Ask again after a pause that doubles until an answer counts."""
        self._ask_again(one, now_s + min(BEHIND_S * 2**one.doubts, RESEND_S))
        one.doubts = min(one.doubts + 1, 10)

    def _learn(
        self, number: int, one: _Held, variable: Variable | None = None, *, fault: str = ""
    ) -> None:
        """Note what is known now; where it is something else, wake all waiting questions."""
        one.answered, one.ask_s, one.doubted_s, one.doubts = number, None, None, 0
        if one.version and (variable, fault) == (one.variable, one.fault):
            return
        one.version, one.variable, one.fault = next(self._versions), variable, fault
        one.tell()

    def _ignore(self, reason: str) -> None:
        """Count an answer that cannot be used, and log the first, the second, the fourth, and so on."""
        self.ignored += 1
        if not self.ignored & (self.ignored - 1):
            log.warning("variable.unreadable", reason=reason, count=self.ignored)


def _refusal(path: str, code: str, message: str) -> str:
    return f"variable {path} cannot be read: {code}: {message[:200]}"
