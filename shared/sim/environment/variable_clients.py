"""Clients of variables: each puts, reads and deletes on paths that all of them share, one request at a time.

A request is sent again with the same body until its verdict, as a real client does. What is put says who put it, so
that whatever is read can be judged by the log alone. Next: `oracle/variable_checks.py`.
"""

from collections.abc import Callable, Mapping

import msgspec

from schemas.variables import VariableAnswer, VariableVerdict
from shared.protocol import subjects
from shared.sim.environment.memory_vault import MemoryVault, seal_items
from shared.sim.environment.role_factory import CLUSTER_ID
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.virtual_time import MS, SECOND, RandomDraws

PATHS = ("app/db", "app/cache", "nomad/jobs/service-0")
#: A path that clients lock; it has items at times.
LOCKED = "app/leader"
_TTL_NS, _DELAY_NS = 10 * SECOND, 2 * SECOND
_RETRY_NS = 1_300 * MS
_PUBLIC = bytes(32)


class VariableQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `items` of a put."""

    verb: str
    path: str
    body: Mapping[str, object]
    request_id: str = ""
    items: Mapping[str, str] = {}


#: Called with a question and what answered it for good.
AnswerObserver = Callable[[VariableQuestion, VariableVerdict | VariableAnswer], None]


class SimulatedClient:
    """One client. `on_answer` hears every final answer."""

    def __init__(self, context: SimulationContext, name: str, draws: RandomDraws) -> None:
        self._context = context
        self.name = name
        self._draws = draws
        self.is_idle = False
        self.on_answer: AnswerObserver | None = None
        self._is_closing = False
        self._number = 0
        self._open: VariableQuestion | None = None
        #: id of the lock that this client has asked for last.
        self._lock_id = ""
        #: revision of each path, as this client last heard of it.
        self._seen: dict[str, int] = {}

    def begin(self, after_ns: int) -> None:
        """Ask for the first time."""
        self._context.loop.after(after_ns, self._next)

    def close(self) -> None:
        """Ask nothing new."""
        self._is_closing = True

    def _next(self) -> None:
        if self._is_closing:
            self.is_idle = True
            return
        self._open = self._any()
        self._try(self._open)

    def _any(self) -> VariableQuestion:
        draws = self._draws
        if draws.hit(200):
            return self._about_lock()
        path = (*PATHS, LOCKED)[draws.below(len(PATHS) + 1)]
        what = draws.below(100)
        if what < 30:
            asked = {"path": path, "public": _PUBLIC}
            return VariableQuestion(verb="get", path=path, body=asked)
        self._number += 1
        request_id = f"{self.name}-{self._number}"
        body: dict[str, object] = {"path": path, "request_id": request_id}
        if draws.hit(400):
            body["cas"] = self._seen.get(path, 0)
        if path == LOCKED and self._lock_id and draws.hit(700):
            body["lock_id"] = self._lock_id
        if what < 50:
            return VariableQuestion(verb="delete", path=path, body=body, request_id=request_id)
        items = {"owner": self.name, "value": request_id}
        sealed = seal_items(
            items,
            cluster_id=CLUSTER_ID,
            path=path,
            request_id=request_id,
            key_id=MemoryVault.key_id,
        )
        body |= {"sealed": sealed, "key_id": MemoryVault.key_id, "shred_old": draws.hit(150)}
        return VariableQuestion(
            verb="put", path=path, body=body, request_id=request_id, items=items
        )

    def _about_lock(self) -> VariableQuestion:
        """Lock a path, renew it or give it back; a lock that is forgotten expires."""
        what = self._draws.below(100)
        self._number += 1
        request_id = f"{self.name}-{self._number}"
        if not self._lock_id or what < 30:
            self._lock_id = f"{request_id}-lock-of-{self.name}"
        body: dict[str, object] = {"path": LOCKED, "lock_id": self._lock_id}
        if what < 60 or self._lock_id.startswith(request_id):
            body |= {"ttl_ns": _TTL_NS, "delay_ns": _DELAY_NS, "request_id": request_id}
            return VariableQuestion(verb="lock", path=LOCKED, body=body, request_id=request_id)
        if what < 80:
            return VariableQuestion(verb="renew", path=LOCKED, body=body)
        body["request_id"] = request_id
        return VariableQuestion(verb="release", path=LOCKED, body=body, request_id=request_id)

    def _try(self, question: VariableQuestion) -> None:
        if self._open is not question:
            return
        context, subject = self._context, subjects.api("variable", question.verb)
        data = msgspec.json.encode(question.body)

        def answered(answer: bytes) -> None:
            self._answered(question, answer)

        for delay in context.message_faults.hop_delays():
            context.loop.after(delay, context.bus.publish, subject, data, answered)
        context.loop.after(_RETRY_NS, self._try, question)

    def _answered(self, question: VariableQuestion, data: bytes) -> None:
        answer: VariableAnswer | VariableVerdict
        if question.verb == "get":
            answer = msgspec.json.decode(data, type=VariableAnswer)
        else:
            answer = msgspec.json.decode(data, type=VariableVerdict)
        error = answer.error
        is_final = getattr(answer, "status", "") != "pending" and (
            error is None or error.code != "unavailable"
        )
        if self._open is not question or not is_final:
            return
        self._open = None
        if error is None or error.code in {"conflict", "not_found"}:
            self._seen[question.path] = answer.revision
        if self.on_answer is not None:
            self.on_answer(question, answer)
        pause_ns = self._draws.between(100 * MS, SECOND)
        self._context.loop.after(pause_ns, self._next)
