"""Variables of a cluster, for tests: a view that publishes, and a keeper that seals, as a connection sees them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from schemas.jobs import ErrorDetail
from schemas.variables import VariableAnswer, VariableAnswers, VariableAsk, VariableProjection
from services.agent.inputs.templates.variable_directory import KnownVariable, VariableReader
from shared.bus.connection.nats_client import BusClient
from shared.gotemplate.data import Variable
from shared.protocol import subjects
from shared.protocol.variable_items import encode_items
from shared.sealed_box import seal

CLUSTER = "c1"
NODE = "n1"
_GET = f"{subjects.js_direct_get('VIEW')}."
_DOOR = subjects.node_variables(NODE)
_NONE = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_FOUND = b"NATS/1.0\r\nNats-Sequence: 7\r\n\r\n"
_NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
Done = Callable[[bytes, bytes | None], None]


class VariableCluster:
    """The part of a connection that a directory of variables uses. Answers come when `answer` is called."""

    def __init__(self) -> None:
        self.is_connected = True
        self.stats = {"reconnects": 0}
        self.seq = 10
        #: what the keeper has: path -> (revision, items).
        self.kept: dict[str, tuple[int, Mapping[str, str]]] = {}
        #: subject -> last value.
        self.stands: dict[str, bytes] = {}
        self.listeners: dict[int, tuple[str, Callable[..., None]]] = {}
        #: no keeper leads.
        self.is_silent = False
        #: (allocation, task, path) -> code of a refusal.
        self.refused: dict[tuple[str, str, str], str] = {}
        #: code of the refusal of whole questions.
        self.refusal = ""
        #: questions to the keeper.
        self.asks: list[VariableAsk] = []
        self.reads: list[str] = []
        self._waiting: list[tuple[str, bytes, Done]] = []
        self.client = cast("BusClient", self)

    # ---- what the directory uses ----

    async def listen(self, subject: str, handler: Callable[..., None]) -> int:
        """Subscribe."""
        self.listeners[len(self.listeners) + 1] = (subject, handler)
        return len(self.listeners)

    def forget(self, number: int) -> None:
        """Unsubscribe."""
        self.listeners[number] = ("", self.listeners[number][1])

    def call(self, subject: str, data: bytes, done: Done, *, timeout_s: float) -> bool:
        """Ask."""
        assert timeout_s > 0
        self._waiting.append((subject, data, done))
        return True

    # ---- what a test does ----

    def put(self, path: str, *, is_published: bool = True, **items: str) -> int:
        """Store a variable; returns its revision."""
        self.seq += 1
        self.kept[path] = (self.seq, items)
        if is_published:
            self.publish(path)
        return self.seq

    def delete(self, path: str, *, is_published: bool = True) -> None:
        """Delete a variable."""
        self.seq += 1
        del self.kept[path]
        if is_published:
            self.publish(path)

    def publish(self, path: str, **other: Any) -> None:
        """The view says what revision a path has."""
        revision = self.kept[path][0] if path in self.kept else 0
        one = VariableProjection(cluster_id=CLUSTER, seq=self.seq, path=path, revision=revision)
        self.push(path, msgspec.json.encode(msgspec.structs.replace(one, **other)))

    def push(self, path: str, data: bytes) -> None:
        """The view publishes these bytes for a path."""
        subject = subjects.view_variable(path)
        self.stands[subject] = data
        for at, handler in list(self.listeners.values()):
            if at == subject:
                handler(subject.encode(), b"", b"", data)

    def answer(self) -> int:
        """Answer what was asked; returns how many questions there were."""
        waiting, self._waiting = self._waiting, []
        for subject, data, done in waiting:
            if subject == _DOOR:
                self._ask(msgspec.json.decode(data, type=VariableAsk), done)
            else:
                self.reads.append(subject.removeprefix(_GET))
                found = self.stands.get(self.reads[-1])
                done(_NONE if found is None else _FOUND, found or b"")
        return len(waiting)

    async def serve(self) -> None:
        """Answer until it is cancelled."""
        while True:
            self.answer()
            await asyncio.sleep(0.002)

    def keeper_answer(self, ask: VariableAsk) -> VariableAnswers:
        """What the keeper says to a question."""
        if self.refusal:
            return VariableAnswers(error=ErrorDetail(code=self.refusal, message="not here"))
        return VariableAnswers(answers=tuple(self._answer_of(ask, path) for path in ask.paths))

    # ---- inside ----

    def _ask(self, ask: VariableAsk, done: Done) -> None:
        self.asks.append(ask)
        if self.is_silent:
            done(_NO_RESPONDERS, b"")
        else:
            done(b"", msgspec.json.encode(self.keeper_answer(ask)))

    def _answer_of(self, ask: VariableAsk, path: str) -> VariableAnswer:
        code = self.refused.get((ask.alloc_id, ask.task, path), "")
        if code or path not in self.kept:
            error = ErrorDetail(code=code or "not_found", message="no")
            return VariableAnswer(path=path, error=error)
        revision, items = self.kept[path]
        context = ("get", CLUSTER, path, str(revision))
        sealed = seal(encode_items(items), ask.public, context)
        return VariableAnswer(path=path, revision=revision, create_seq=5, sealed=sealed)


class FixedVariables:
    """A VariableSource in memory, of any reader. Nothing is known of a path before it is put or deleted."""

    def __init__(self) -> None:
        self.known: dict[str, KnownVariable] = {}
        self.asked: list[tuple[VariableReader, str]] = []
        self._versions = 0
        self._change = asyncio.Event()

    def put(self, path: str, **items: str) -> None:
        """A variable has these items now."""
        self._versions += 1
        revision = 100 + self._versions
        variable = Variable(path=path, items=items, create_index=5, modify_index=revision)
        self._set(path, variable)

    def delete(self, path: str) -> None:
        """There is no such variable."""
        self._versions += 1
        self._set(path, None)

    async def variable(self, reader: VariableReader, path: str) -> KnownVariable:
        """See VariableSource."""
        self.asked.append((reader, path))
        while path not in self.known:
            await self._change.wait()
        return self.known[path]

    async def changed(self, _reader: VariableReader, seen: Mapping[str, int]) -> None:
        """See VariableSource."""
        while all(self.known[path].version == version for path, version in seen.items()):
            await self._change.wait()

    def _set(self, path: str, variable: Variable | None) -> None:
        self.known[path] = KnownVariable(self._versions, variable)
        self._change.set()
        self._change = asyncio.Event()
