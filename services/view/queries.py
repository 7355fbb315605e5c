"""Queries of clients, and of nodes about their jobs: answered from the current state, or held until it is new enough.

A list is cut to the size of a message. Answers are built in shared/query/answers.py.
"""

from collections.abc import Callable

import msgspec

from schemas import queries
from schemas.answers import ErrorAnswer
from schemas.bounds import bounded_decoder
from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail
from schemas.projections import PlanQuery, Query
from shared.core.runtime.messages import Ack, Effect, Message, Reply, SetTimer
from shared.core.runtime.replica import Replica
from shared.core.runtime.step import Step
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_unique_keys
from shared.protocol import subjects
from shared.protocol.id_tokens import token_id
from shared.query.answers import LIMIT_MAX, QueryEngine

#: Longest wait for the `min_seq` of a query.
HOLD_NS = 2_000_000_000
#: Held queries; more are answered at once that the state is too old. And bytes of them.
HELD_MAX = 10_000
HELD_BYTES_MAX = 32 * 1024 * 1024
#: A message of the bus holds 1 MiB.
ANSWER_BYTES_MAX = 900 * 1024
#: The source of nodes' questions.
_OF_NODES = "node_query"
QUERY_DECODER = bounded_decoder(Query)
PLAN_DECODER = bounded_decoder(PlanQuery)
_PARAMETERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class HeldQuery(msgspec.Struct, frozen=True):
    """A query that waits until the state is new enough."""

    message: Message
    query: Query
    deadline_ns: int


class QueryHandler:
    """Answers queries. `is_open`: the log was replayed."""

    def __init__(
        self,
        replica: Replica,
        answers: QueryEngine,
        bury: Callable[[Message, str, int], Effect],
        again: Callable[[Message, Step], None],
    ) -> None:
        self.is_open = False
        self.answered = 0
        self.invalid = 0
        self._replica = replica
        self._answers = answers
        #: makes a dead letter from a message, the reason and the time.
        self._bury = bury
        #: takes a held message as if it came now; must not raise.
        self._again = again
        self._held: list[HeldQuery] = []
        self._held_bytes = 0

    def __len__(self) -> int:
        """Number of held queries."""
        return len(self._held)

    def asked(self, message: Message, step: Step) -> None:
        """Answer a query, or hold it until the state is new enough."""
        try:
            require_unique_keys(message.data)
            query = QUERY_DECODER.decode(message.data or b"{}")
            _check_parameters(message)
        except CommandInvalid as fault:
            self.invalid += 1
            if message.reply:
                self._refuse(message, fault, step)
            else:
                step.emit(Ack(message.token))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            self.invalid += 1
            if message.reply:
                self._refuse(message, CommandInvalid("invalid", str(err)), step)
            else:
                step.effects += [self._bury(message, str(err), step.now_ns), Ack(message.token)]
            return
        if not message.reply:
            step.emit(Ack(message.token))
        elif self._is_ready(query):
            self._answer(message, query, step)
        else:
            self._hold(HeldQuery(message, query, step.now_ns + HOLD_NS), step)

    def _hold(self, held: HeldQuery, step: Step) -> None:
        size = len(held.message.data)
        if len(self._held) >= HELD_MAX or self._held_bytes + size > HELD_BYTES_MAX:
            step.emit(self._too_old(held))
            return
        self._held_bytes += size
        self._held.append(held)

    def answer_waiting(self, step: Step) -> None:
        """Answer held queries that are ready or whose time is over."""
        if not self._held:
            return
        still: list[HeldQuery] = []
        # An answered query is no longer held, even if answering raises.
        waiting, self._held = self._held, still
        self._held_bytes = 0
        for held in waiting:
            if self._is_ready(held.query):
                # As if it came only now.
                self._again(held.message, step)
            elif step.now_ns >= held.deadline_ns:
                step.emit(self._too_old(held))
            else:
                still.append(held)
                self._held_bytes += len(held.message.data)
        if still:
            step.emit(SetTimer("held", min(held.deadline_ns for held in still)))

    def _is_ready(self, query: Query) -> bool:
        return self.is_open and self._replica.seq >= query.min_seq

    def _answer(self, message: Message, query: Query, step: Step) -> None:
        self.answered += 1
        try:
            if message.source == _OF_NODES:
                node_id = _node_id(subjects.last_token(message.subject))
                data = ENCODER.encode(self._answers.jobs.version_for(node_id, query))
            else:
                data = self._encode(_noun(message), query, message.data)
        except CommandInvalid as err:
            self._refuse(message, err, step)
        else:
            step.emit(Reply(message.token, data))

    def _encode(self, noun: str, query: Query, body: bytes) -> bytes:
        """Encode an answer; a list is cut to what fits into a message, `total` counts all."""
        if noun == "plan":
            return self._plan(body)
        while True:
            data = ENCODER.encode(self._answers.answer(noun, query))
            if len(data) <= ANSWER_BYTES_MAX or query.limit <= 1:
                return data
            limit = min(query.limit, LIMIT_MAX) // 2
            query = msgspec.structs.replace(query, limit=limit)

    def _plan(self, body: bytes) -> bytes:
        try:
            query = PLAN_DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise CommandInvalid("invalid", str(err)) from err
        answer = self._answers.plan(query)
        data = ENCODER.encode(answer)
        if len(data) > ANSWER_BYTES_MAX:
            few = msgspec.structs.replace(answer, diff=answer.diff[:1], nodes=answer.nodes[:100])
            data = ENCODER.encode(few)
        return data

    def _refuse(self, message: Message, err: CommandInvalid, step: Step) -> None:
        detail = ErrorDetail(code=err.code, message=err.message, path=err.path)
        answer = ErrorAnswer(error=detail, seq=self._replica.seq)
        step.emit(Reply(message.token, ENCODER.encode(answer)))

    def _too_old(self, held: HeldQuery) -> Reply:
        at, wanted = self._replica.seq, held.query.min_seq
        text = f"the state is at seq {at}, the query requires {wanted}; retry"
        if not self.is_open:
            text = f"the log is still being replayed, at seq {at}; retry"
        detail = ErrorDetail(code="unavailable", message=text)
        return Reply(held.message.token, ENCODER.encode(ErrorAnswer(error=detail, seq=at)))


def _noun(message: Message) -> str:
    """Read the noun of a query; the last token of a node's query is the node."""
    return "job_version" if message.source == _OF_NODES else subjects.last_token(message.subject)


def _node_id(token: str) -> str:
    """The node that asks. Raises CommandInvalid."""
    try:
        return token_id(token)
    except ValueError as err:
        raise CommandInvalid("invalid", str(err)) from err


def _check_parameters(message: Message) -> None:
    """Raise CommandInvalid for a parameter that the noun does not have, or a value that it cannot have."""
    given = _PARAMETERS.decode(message.data or b"{}")
    text, path = queries.fault(_noun(message), given)
    if text:
        raise CommandInvalid("invalid", text, path)
