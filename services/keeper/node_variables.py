"""Questions of nodes for variables of their tasks (`ask.<node>.variable`): a task reads what is named after it."""

from collections.abc import Callable

import msgspec

from schemas.base import JobId, Wire
from schemas.jobs import ErrorDetail
from schemas.variables import VariableAnswer, VariableAnswers, VariableAsk
from services.keeper.node_questions import (
    NodeQuestion,
    NodeQuestions,
    check_count,
    check_public,
    read_ask,
    row_of_asker,
)
from services.keeper.variable_requests import answer_without_items, ask_vault, open_items
from shared.core.runtime.keeper_messages import ItemsOpened
from shared.core.runtime.messages import Message
from shared.core.runtime.replica import Replica
from shared.core.runtime.step import Step
from shared.core.state.state import State
from shared.protocol.task_variables import task_paths


class NodeVariables(NodeQuestions[VariableAnswer]):
    """Questions for variables that are with the vault."""

    def __init__(self, replica: Replica, new_token: Callable[[], int]) -> None:
        super().__init__(new_token)
        self._replica = replica

    def opened(self, item: ItemsOpened, step: Step) -> None:
        """Take one variable, if it is of a question."""
        self._take(
            item.token,
            step,
            whole=lambda part: msgspec.structs.replace(part, sealed=item.sealed),
        )

    def _begin(self, message: Message, question: NodeQuestion[VariableAnswer], step: Step) -> None:
        ask, state = read_ask(message, VariableAsk), self._replica.state
        check_public(ask.public)
        check_count(len(ask.paths), "paths")
        readable = _readable_paths(state, row_of_asker(state, message, ask.alloc_id), ask.task)
        for path in ask.paths:
            row = state.variables.find(path)
            if path not in readable:
                text = f"task {ask.task!r} may not read {path!r}, it may read {', '.join(readable)}"
                question.parts[path] = _refused(path, "forbidden", text)
            elif row is None:
                text = f"there is no variable {path!r}"
                question.parts[path] = _refused(path, "not_found", text)
            else:
                token = self._to_vault(question, path, answer_without_items(path, row))
                ask_vault(open_items(token, path, row, ask.public), step)

    def _failed(self, part: VariableAnswer, error: ErrorDetail) -> VariableAnswer:
        return VariableAnswer(path=part.path, error=error)

    def _answer(self, parts: tuple[VariableAnswer, ...], error: ErrorDetail | None) -> Wire:
        return VariableAnswers(answers=parts, error=error)


def _refused(path: str, code: str, reason: str) -> VariableAnswer:
    return VariableAnswer(path=path, error=ErrorDetail(code=code, message=reason))


def _readable_paths(state: State, row: int, task: str) -> tuple[str, ...]:
    """Return the paths that a task of an allocation may read."""
    groups = state.allocations.groups
    ref = int(state.allocations.group[row])
    job_id: str = groups.job_ids[ref]
    # A child of a periodic or parameterized job reads what is its parent's.
    job_id = state.launches.parent_of.get(JobId(job_id), job_id)
    return task_paths(job_id, groups.names[ref], task)
