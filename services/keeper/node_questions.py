"""Questions of nodes for variables of their tasks (`ask.<node>.variable`), from the question to the answer.

A node is answered about allocations that the log says it runs, and of those only what the task may read. The vault
seals each variable with the key of the question.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from schemas.base import JobId, NodeId
from schemas.bounds import bounded_decoder
from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail
from schemas.variables import VariableAnswer, VariableAnswers, VariableAsk
from services.keeper.variable_requests import (
    answer_without_items,
    ask_vault,
    open_items,
)
from shared.core.runtime.keeper_messages import ItemsOpened, VaultFailed
from shared.core.runtime.messages import Ack, Message, Reply
from shared.core.runtime.replica import Replica
from shared.core.runtime.step import Step
from shared.core.state.ids import ALLOC_SALT, shown_ids
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_known_keys, require_unique_keys
from shared.protocol.id_tokens import token_id
from shared.protocol.task_variables import task_paths
from shared.protocol.variable_paths import PUBLIC_KEY_BYTES

#: What the vault has not answered by then is refused as what may be asked again.
ANSWER_NS = 5_000_000_000
PATHS_MAX = 16
_ASK_BYTES_MAX = 8 * 1024


class _Asked(msgspec.Struct, gc=False):
    """One question, with the answers so far by path; None: it is with the vault."""

    message: int
    answers: dict[str, VariableAnswer | None]
    answer_ns: int


class NodeQuestions:
    """Questions that are with the vault."""

    def __init__(self, replica: Replica, new_token: Callable[[], int]) -> None:
        self._replica = replica
        self._new_token = new_token
        self._asked: dict[int, _Asked] = {}
        #: token of the vault -> token of the question, and the answer without its items.
        self._parts: dict[int, tuple[int, VariableAnswer]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def asked(self, message: Message, step: Step) -> None:
        """Take a question."""
        try:
            ask, readable = self._read(message)
        except CommandInvalid as fault:
            self.refuse(message, fault.code, fault.message, step)
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as err:
            self.refuse(message, "invalid", str(err), step)
            return
        one = _Asked(message.token, {}, step.steady_ns + ANSWER_NS)
        self._asked[message.token] = one
        for path in ask.paths:
            if path in readable:
                one.answers[path] = self._answer(message.token, path, ask.public, step)
            else:
                text = f"task {ask.task!r} may not read {path!r}, it may read {', '.join(readable)}"
                one.answers[path] = _refused(path, "forbidden", text)
        self._reply_if_whole(one, step)

    def _read(self, message: Message) -> tuple[VariableAsk, tuple[str, ...]]:
        """Read a question, and find what its task may read. Raises CommandInvalid, msgspec.DecodeError, ValueError."""
        if len(message.data) > _ASK_BYTES_MAX:
            raise CommandInvalid(
                "too_large", f"{len(message.data)} bytes, at most {_ASK_BYTES_MAX}"
            )
        require_unique_keys(message.data)
        require_known_keys(message.data, VariableAsk)
        ask = bounded_decoder(VariableAsk).decode(message.data)
        if len(ask.public) != PUBLIC_KEY_BYTES:
            raise CommandInvalid("invalid", f"public has {len(ask.public)} bytes, it must have 32")
        if not 1 <= len(ask.paths) <= PATHS_MAX:
            text = f"{len(ask.paths)} paths are asked for, it must be 1 to {PATHS_MAX}"
            raise CommandInvalid("invalid", text)
        node_id = token_id(message.subject.split(".")[1])
        readable = _readable_paths(self._replica.state, node_id, ask.alloc_id, ask.task)
        if not readable:
            # This replica may be behind the view that gave the allocation to its node.
            text = f"the log has no allocation {ask.alloc_id!r} that runs on node {node_id!r}"
            raise CommandInvalid("unavailable", text)
        return ask, readable

    def _answer(self, question: int, path: str, public: bytes, step: Step) -> VariableAnswer | None:
        """Say that a path does not exist, or have the vault read it: None."""
        row = self._replica.state.variables.find(path)
        if row is None:
            return _refused(path, "not_found", f"there is no variable {path!r}")
        token = self._new_token()
        self._parts[token] = question, answer_without_items(path, row)
        ask_vault(open_items(token, path, row, public), step)
        return None

    # ---- from the vault ----

    def opened(self, item: ItemsOpened, step: Step) -> None:
        """Take one variable, if it is of a question."""
        part = self._parts.pop(item.token, None)
        if part is not None:
            question, answer = part
            self._put(question, msgspec.structs.replace(answer, sealed=item.sealed), step)

    def failed(self, item: VaultFailed, step: Step) -> None:
        """Refuse a path that the vault could not read."""
        part = self._parts.pop(item.token, None)
        if part is not None:
            question, answer = part
            self._put(question, _refused(answer.path, item.code, item.reason), step)

    def _put(self, question: int, answer: VariableAnswer, step: Step) -> None:
        one = self._asked.get(question)
        if one is not None:
            one.answers[answer.path] = answer
            self._reply_if_whole(one, step)

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
        self._parts.clear()

    def forget(self, message: int) -> None:
        """Forget a question that is refused elsewhere."""
        self._asked.pop(message, None)

    def refuse(self, message: Message, code: str, reason: str, step: Step) -> None:
        """Refuse a question as a whole."""
        self._reply(message.token, code, reason, step)

    def _reply(self, token: int, code: str, reason: str, step: Step) -> None:
        answers = VariableAnswers(error=ErrorDetail(code=code, message=reason))
        step.emit(Reply(token, ENCODER.encode(answers)))

    def _reply_if_whole(self, one: _Asked, step: Step) -> None:
        found = [answer for answer in one.answers.values() if answer is not None]
        if len(found) == len(one.answers) and self._asked.pop(one.message, None) is not None:
            step.emit(Reply(one.message, ENCODER.encode(VariableAnswers(answers=tuple(found)))))


def _refused(path: str, code: str, reason: str) -> VariableAnswer:
    return VariableAnswer(path=path, error=ErrorDetail(code=code, message=reason))


def _readable_paths(state: State, node_id: str, alloc_id: str, task: str) -> tuple[str, ...]:
    """Return the paths that a task of an allocation may read; none: the node does not run it."""
    node = state.fleet.row_of.get(NodeId(node_id))
    row = -1 if node is None else _row_on(state, node, alloc_id)
    if row < 0:
        return ()
    table = state.allocations
    ref = int(table.group[row])
    job_id: str = table.groups.job_ids[ref]
    # A child of a periodic or parameterized job reads what is its parent's.
    job_id = state.launches.parent_of.get(JobId(job_id), job_id)
    return task_paths(job_id, table.groups.names[ref], task)


def _row_on(state: State, node: int, alloc_id: str) -> int:
    """Find a live allocation of a node; -1: it has none of this id."""
    table = state.allocations
    size = table.size
    is_here = (table.key[:size] != 0) & (table.node[:size] == node)
    rows = np.flatnonzero(is_here & (table.desired[:size] == RUN))
    rows = rows[~TERMINAL[table.client[rows]]]
    ids = shown_ids(table.key[rows], ALLOC_SALT)
    return int(rows[ids.index(alloc_id)]) if alloc_id in ids else -1
