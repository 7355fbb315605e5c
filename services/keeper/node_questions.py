"""Questions of nodes (`ask.<node>.…`), from the question to the answer: what all kinds of them share.

A node is answered about allocations that the log says it runs. A question asks for several things by their names; the
vault seals each with the key of the question, and the answer has all of them or says of each why not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import numpy as np

from schemas.base import NodeId, Wire
from schemas.bounds import BoundedDecoder, bounded_decoder
from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail
from shared.core.runtime.keeper_messages import VaultFailed
from shared.core.runtime.messages import Ack, Message, Reply
from shared.core.runtime.step import Step
from shared.core.state.ids import ALLOC_SALT, shown_ids
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_known_keys, require_unique_keys
from shared.protocol.id_tokens import token_id
from shared.protocol.variable_paths import PUBLIC_KEY_BYTES

#: What the vault has not answered by then is refused as what may be asked again.
ANSWER_NS = 5_000_000_000
#: Questions of one kind that wait for the vault at a time.
QUESTIONS_MAX = 4_096
#: Things that one question asks for.
PARTS_MAX = 16
_ASK_BYTES_MAX = 8 * 1024
Ask = TypeVar("Ask", bound=Wire)
Part = TypeVar("Part", bound=Wire)


class NodeQuestion(Generic[Part]):
    """One question, with the answers so far by name; None: it is with the vault."""

    def __init__(self, message: int, answer_ns: int) -> None:
        self.message = message
        self.answer_ns = answer_ns
        self.parts: dict[str, Part | None] = {}


class NodeQuestions(ABC, Generic[Part]):
    """Questions of one kind that are with the vault."""

    def __init__(self, new_token: Callable[[], int]) -> None:
        self._new_token = new_token
        self._asked: dict[int, NodeQuestion[Part]] = {}
        #: token of the vault -> token of the question, name, and the answer as it is without what the vault adds.
        self._with_vault: dict[int, tuple[int, str, Part]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    @abstractmethod
    def _begin(self, message: Message, question: NodeQuestion[Part], step: Step) -> None:
        """Read a question and fill its parts. Raises CommandInvalid, msgspec.DecodeError, ValueError."""

    @abstractmethod
    def _failed(self, part: Part, error: ErrorDetail) -> Part:
        """Make the answer of a part that the vault could not give."""

    @abstractmethod
    def _answer(self, parts: tuple[Part, ...], error: ErrorDetail | None) -> Wire:
        """Make the answer to a question."""

    def asked(self, message: Message, step: Step) -> None:
        """Take a question."""
        if len(self._asked) >= QUESTIONS_MAX:
            text = f"{len(self._asked)} questions wait for the keys"
            self.refuse(message, "unavailable", text, step)
            return
        one = NodeQuestion[Part](message.token, step.steady_ns + ANSWER_NS)
        try:
            self._begin(message, one, step)
        except CommandInvalid as fault:
            self.refuse(message, fault.code, fault.message, step)
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as err:
            self.refuse(message, "invalid", str(err), step)
            return
        self._asked[message.token] = one
        self._reply_if_whole(one, step)

    def _to_vault(self, question: NodeQuestion[Part], name: str, part: Part) -> int:
        """Note that a part is with the vault; return the token under which."""
        token = self._new_token()
        self._with_vault[token] = question.message, name, part
        question.parts[name] = None
        return token

    # ---- from the vault ----

    def _take(self, token: int, step: Step, *, whole: Callable[[Part], Part]) -> None:
        """Take what the vault made of a part, if it is of a question here."""
        found = self._with_vault.pop(token, None)
        if found is None:
            return
        message, name, part = found
        one = self._asked.get(message)
        if one is not None:
            one.parts[name] = whole(part)
            self._reply_if_whole(one, step)

    def failed(self, item: VaultFailed, step: Step) -> None:
        """Refuse a part that the vault could not give."""
        error = ErrorDetail(code=item.code, message=item.reason)
        self._take(item.token, step, whole=lambda part: self._failed(part, error))

    # ---- time and leadership ----

    def finish(self, step: Step) -> None:
        """Refuse what the vault did not answer in time."""
        for token, one in list(self._asked.items()):
            if one.answer_ns <= step.steady_ns:
                del self._asked[token]
                self._reply(token, "unavailable", "the keys are not answered in time", step)

    def next_ns(self) -> int:
        """Return when the next is refused; 0: nothing waits."""
        return min((one.answer_ns for one in self._asked.values()), default=0)

    def clear(self, step: Step) -> None:
        """Leave everything to another instance."""
        for token in self._asked:
            step.emit(Ack(token))
        self._asked.clear()
        self._with_vault.clear()

    def forget(self, message: int) -> None:
        """Forget a question that is refused elsewhere."""
        self._asked.pop(message, None)

    def refuse(self, message: Message, code: str, reason: str, step: Step) -> None:
        """Refuse a question as a whole."""
        self._reply(message.token, code, reason, step)

    def _reply(self, token: int, code: str, reason: str, step: Step) -> None:
        answer = self._answer((), ErrorDetail(code=code, message=reason))
        step.emit(Reply(token, ENCODER.encode(answer)))

    def _reply_if_whole(self, one: NodeQuestion[Part], step: Step) -> None:
        found = [part for part in one.parts.values() if part is not None]
        if len(found) == len(one.parts) and self._asked.pop(one.message, None) is not None:
            answer = self._answer(tuple(found), None)
            step.emit(Reply(one.message, ENCODER.encode(answer)))


# ---- reading ----


def read_ask(message: Message, kind: type[Ask]) -> Ask:
    """Read the body of a question. Raises CommandInvalid, msgspec.DecodeError, ValueError."""
    if len(message.data) > _ASK_BYTES_MAX:
        text = f"{len(message.data)} bytes, at most {_ASK_BYTES_MAX}"
        raise CommandInvalid("too_large", text)
    require_unique_keys(message.data)
    require_known_keys(message.data, kind)
    decoder: BoundedDecoder[Ask] = bounded_decoder(kind)
    return decoder.decode(message.data)


def check_public(public: bytes) -> None:
    """Raise CommandInvalid where the key of a question is none."""
    if len(public) != PUBLIC_KEY_BYTES:
        raise CommandInvalid("invalid", f"public has {len(public)} bytes, it must have 32")


def check_count(count: int, noun: str) -> None:
    """Raise CommandInvalid where a question asks for nothing, or for too much."""
    if not 1 <= count <= PARTS_MAX:
        text = f"{count} {noun} are asked for, it must be 1 to {PARTS_MAX}"
        raise CommandInvalid("invalid", text)


def row_of_asker(state: State, message: Message, alloc_id: str) -> int:
    """Find the allocation of a question, which runs on the node that asks. Raises CommandInvalid, ValueError."""
    node_id = token_id(message.subject.split(".")[1])
    node = state.fleet.row_of.get(NodeId(node_id))
    row = -1 if node is None else _row_on(state, node, alloc_id)
    if row < 0:
        # This replica may be behind the view that gave the allocation to its node.
        text = f"the log has no allocation {alloc_id!r} that runs on node {node_id!r}"
        raise CommandInvalid("unavailable", text)
    return row


def _row_on(state: State, node: int, alloc_id: str) -> int:
    """Find a live allocation of a node; -1: it has none of this id."""
    table = state.allocations
    size = table.size
    is_here = (table.key[:size] != 0) & (table.node[:size] == node)
    rows = np.flatnonzero(is_here & (table.desired[:size] == RUN))
    rows = rows[~TERMINAL[table.client[rows]]]
    ids = shown_ids(table.key[rows], ALLOC_SALT)
    return int(rows[ids.index(alloc_id)]) if alloc_id in ids else -1
