"""Questions: what is asked over `query.>`, answered from the state as it is or held until it is new enough.

Decides when a question is answered, and how much of a list a message takes. Must not know what an answer holds
(`shared/query/answers.py`) nor how a question came.
"""

from collections.abc import Callable

import msgspec

from schemas.answers import ErrorAnswer
from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail
from schemas.projections import PlanQuery, Query
from shared.bus import subjects
from shared.core.replica import Replica
from shared.core.role import Ack, Effect, Message, Reply, SetTimer
from shared.errors import CommandInvalid
from shared.query.answers import LIMIT_MAX, Answers

#: A question that names a `min_seq` waits for it so long.
HOLD_NS = 2_000_000_000
#: A message of the bus holds 1 MiB.
ANSWER_BYTES_MAX = 900 * 1024
QUERY_DECODER = msgspec.json.Decoder(Query)
PLAN_DECODER = msgspec.json.Decoder(PlanQuery)


class Held(msgspec.Struct, frozen=True):
    """A question that waits for the state to become new enough."""

    message: Message
    query: Query
    deadline_ns: int


class Questions:
    """Answers to one view's questions. `is_open`: the log was replayed."""

    def __init__(
        self, replica: Replica, answers: Answers, bury: Callable[[Message, str, int], Effect]
    ) -> None:
        self.is_open = False
        self.answered = 0
        self.invalid = 0
        self._replica = replica
        self._answers = answers
        #: makes a dead letter from a message, the reason and the time.
        self._bury = bury
        self._held: list[Held] = []

    def __len__(self) -> int:
        """Number of questions that wait."""
        return len(self._held)

    def asked(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Answer a question, or keep it until the state is new enough."""
        try:
            query = QUERY_DECODER.decode(message.data or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            self.invalid += 1
            if message.reply:
                self._refuse(message, CommandInvalid("invalid", str(err)), out)
            else:
                out += [self._bury(message, str(err), now_ns), Ack(message.token)]
            return
        if not message.reply:
            out.append(Ack(message.token))
        elif self._is_ready(query):
            self._answer(message, query, out)
        else:
            self._held.append(Held(message, query, now_ns + HOLD_NS))

    def answer_held(self, now_ns: int, out: list[Effect]) -> None:
        """Answer what waited for the state as it is now, and who waited long enough."""
        if not self._held:
            return
        still = []
        for held in self._held:
            if self._is_ready(held.query):
                self._answer(held.message, held.query, out)
            elif now_ns >= held.deadline_ns:
                out.append(self._too_old(held))
            else:
                still.append(held)
        self._held = still
        if still:
            out.append(SetTimer("held", min(held.deadline_ns for held in still)))

    def _is_ready(self, query: Query) -> bool:
        return self.is_open and self._replica.seq >= query.min_seq

    def _answer(self, message: Message, query: Query, out: list[Effect]) -> None:
        self.answered += 1
        try:
            data = self._encode(subjects.last_token(message.subject), query, message.data)
        except CommandInvalid as err:
            self._refuse(message, err, out)
        else:
            out.append(Reply(message.token, data))

    def _encode(self, noun: str, query: Query, body: bytes) -> bytes:
        """Answer with as much of a list as fits a message; its `total` tells that there is more."""
        if noun == "plan":
            return self._plan(body)
        query = msgspec.structs.replace(query, limit=min(max(query.limit, 0), LIMIT_MAX))
        while True:
            data = ENCODER.encode(self._answers.answer(noun, query))
            if len(data) <= ANSWER_BYTES_MAX or query.limit <= 1:
                return data
            query = msgspec.structs.replace(query, limit=query.limit // 2)

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

    def _refuse(self, message: Message, err: CommandInvalid, out: list[Effect]) -> None:
        detail = ErrorDetail(code=err.code, message=err.message, path=err.path)
        answer = ErrorAnswer(error=detail, seq=self._replica.seq)
        out.append(Reply(message.token, ENCODER.encode(answer)))

    def _too_old(self, held: Held) -> Reply:
        at, wanted = self._replica.seq, held.query.min_seq
        text = f"the state is at seq {at}, {wanted} was asked for; ask again"
        if not self.is_open:
            text = f"the log is still being replayed, at seq {at}; ask again"
        detail = ErrorDetail(code="unavailable", message=text)
        return Reply(held.message.token, ENCODER.encode(ErrorAnswer(error=detail, seq=at)))
