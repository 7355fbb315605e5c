"""The operator API: `api.operator|node|alloc|deployment|system.<verb>`, from a request to its effect in the log.

A request is fulfilled, refused, or answered "pending" after five seconds. Each verb states the wanted result, so the
state or the log answers it: no table of requests outlives this process, and several views need no agreement. The
command goes to the plan applier again every half second until the log shows its effect.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from schemas.allocations import AllocationsCollected
from schemas.base import Command, Event
from schemas.bounds import bounded_decoder
from schemas.envelope import ENCODER, CommandBatch
from schemas.evaluations import EvaluationsCollected
from schemas.jobs import ErrorDetail, JobsCollected
from schemas.nodes import NodesCollected
from schemas.operator import OperatorVerdict
from schemas.policy import OperatorRefused
from services.view.operator_verbs import (
    PREPARE,
    EffectPredicate,
    VerbContext,
    is_garbage_free,
    late_text,
)
from services.view.volume_verbs import VOLUME_VERBS
from shared.core.decide.garbage import collected_count
from shared.core.decide.operator import is_late
from shared.core.runtime.deadline_timer import RESEND_NS
from shared.core.runtime.log_capacity import WRITE_FAILED
from shared.core.runtime.messages import LogSpace, Message, Reply, Send, SetTimer
from shared.core.runtime.replica import Replica
from shared.core.runtime.step import Step
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_known_keys, require_unique_keys
from shared.protocol import subjects
from shared.protocol.operator_verbs import BY_NAME

#: A request that the log does not show by then is answered "pending": the client asks again.
ANSWER_NS = 5_000_000_000
WAITING_MAX = 1_000
#: Bytes of one request: two hundred keys of metadata at their longest, or 4,096 instances of a pool.
REQUEST_BYTES_MAX = 256 * 1024
TIMER = "operator"
_PREPARE = PREPARE | VOLUME_VERBS
#: event -> name in the verdict, and the field whose length counts; empty: rows.
_KINDS = {
    AllocationsCollected: ("allocations", ""),
    EvaluationsCollected: ("evaluations", "keys"),
    JobsCollected: ("jobs", "job_ids"),
    NodesCollected: ("nodes", "rows"),
}


class PendingRequest(msgspec.Struct, kw_only=True, gc=False):
    """A request that the log does not show yet. `fulfils` tells whether an event of type `effect` is its effect."""

    token: int
    command: Command
    verdict: OperatorVerdict
    effect: type[Event] | None
    fulfils: EffectPredicate
    answer_ns: int
    due_ns: int
    #: as in PreparedVerb.
    changed_seq: Callable[[], int] | None = None
    #: what the caller has seen; 0: not said.
    seen_seq: int = 0
    #: collecting continues until nothing is left.
    is_collecting_garbage: bool = False


class OperatorApi:
    """Pending requests by request id."""

    def __init__(
        self,
        instance: str,
        replica: Replica,
    ) -> None:
        self._instance = instance
        self._replica = replica
        self._waiting: dict[str, PendingRequest] = {}
        self._made_ids = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def asked(self, message: Message, step: Step) -> None:
        """Take a request; answer at once where the state is as requested or the request is refused."""
        try:
            result = self._prepare(message, step.now_ns)
        except CommandInvalid as fault:
            data = self._refusal("", fault.code, fault.message, fault.path)
            step.emit(Reply(message.token, data))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            step.emit(Reply(message.token, self._refusal("", "invalid", str(err))))
            return
        if isinstance(result, OperatorVerdict):
            step.emit(Reply(message.token, self._encoded(result)))
        elif self._replica.room.is_write_failed:
            text = f"{WRITE_FAILED}; nothing was kept"
            step.emit(Reply(message.token, self._refusal("", "log_full", text)))
        elif len(self._waiting) >= WAITING_MAX:
            text = f"{len(self._waiting)} requests are pending, try again later"
            step.emit(Reply(message.token, self._refusal("", "unavailable", text)))
        else:
            self._waiting[result.verdict.request_id] = result
            step.emit(self._send(result))
            step.emit(SetTimer(TIMER, self._next_ns()))

    def learn(self, space: LogSpace, step: Step) -> None:
        """Answer at once what waits for a log that cannot be written; it may still take effect."""
        if space.is_write_failed:
            for request in self._waiting.values():
                step.emit(self._reply_pending(request))
            self._waiting.clear()

    def failed(self, message: Message, reason: str, step: Step) -> None:
        """Refuse a request that could not be handled."""
        self._waiting = {
            name: one for name, one in self._waiting.items() if one.token != message.token
        }
        step.emit(Reply(message.token, self._refusal("", "invalid", reason)))

    def see(self, events: Sequence[Event], step: Step) -> None:
        """Look for effects and refusals in a transaction that was applied."""
        if not self._waiting:
            return
        for event in events:
            if isinstance(event, OperatorRefused):
                refused = self._waiting.pop(event.request_id, None)
                if refused is not None:
                    data = self._refusal(event.request_id, event.code, event.reason)
                    step.emit(Reply(refused.token, data))
                continue
            for request in list(self._waiting.values()):
                if request.is_collecting_garbage:
                    self._count(request, event)
                elif type(event) is request.effect and request.fulfils(event):
                    step.emit(self._reply_accepted(request))
        if any(type(event) in _KINDS for event in events):
            self._collect_on(step)

    def hurry(self, step: Step) -> None:
        """Send everything again: what the former applier was sent may wait in its queue."""
        for request in self._waiting.values():
            request.due_ns = step.now_ns + RESEND_NS
            step.emit(self._send_again(request))

    def timer(self, step: Step) -> None:
        """Send again what is due; answer "pending" where the log has not shown the effect in time."""
        now_ns = step.now_ns
        for request_id, request in list(self._waiting.items()):
            if request.answer_ns <= now_ns:
                del self._waiting[request_id]
                step.emit(self._reply_pending(request))
            elif request.due_ns <= now_ns:
                self._ask_again(request, step)
        if self._waiting:
            step.emit(SetTimer(TIMER, self._next_ns()))

    # ---- inside ----

    def _prepare(self, message: Message, now_ns: int) -> PendingRequest | OperatorVerdict:
        """Read a request and compare it with the state; a verdict where nothing is to be done.

        Raises CommandInvalid, msgspec.DecodeError.
        """
        name = message.subject.partition(".")[2]
        row = BY_NAME.get(name)
        if row is None:
            text = f"unknown verb {name!r}; expected one of {', '.join(BY_NAME)}"
            raise CommandInvalid("invalid", text)
        if len(message.data) > REQUEST_BYTES_MAX:
            text = f"{len(message.data)} bytes, at most {REQUEST_BYTES_MAX} are taken"
            raise CommandInvalid("too_large", text)
        require_unique_keys(message.data)
        require_known_keys(message.data, row.request)
        body: Any = bounded_decoder(row.request).decode(message.data or b"{}")
        context = VerbContext(
            self._replica.state,
            self._id(getattr(body, "request_id", ""), message),
            now_ns,
            getattr(body, "seen_seq", 0),
        )
        prepared = _PREPARE[name](context, body)
        if prepared.command is None:
            return prepared.verdict
        return PendingRequest(
            token=message.token,
            command=prepared.command,
            verdict=prepared.verdict,
            effect=prepared.effect or row.effect,
            fulfils=prepared.fulfils,
            answer_ns=now_ns + ANSWER_NS,
            due_ns=now_ns + RESEND_NS,
            changed_seq=prepared.changed_seq,
            seen_seq=context.seen_seq,
            is_collecting_garbage=prepared.is_collecting_garbage,
        )

    def _count(self, request: PendingRequest, event: Event) -> None:
        kind = _KINDS.get(type(event))
        if kind is not None:
            name, field = kind
            collected = dict(request.verdict.collected)
            size = len(getattr(event, field)) if field else collected_count(event)  # type: ignore[arg-type]
            collected[name] = collected.get(name, 0) + size
            request.verdict = msgspec.structs.replace(request.verdict, collected=collected)

    def _collect_on(self, step: Step) -> None:
        """Ask for the next pass of a collection, or answer that it is complete."""
        collecting = [one for one in self._waiting.values() if one.is_collecting_garbage]
        if not collecting:
            return
        if is_garbage_free(self._replica.state):
            step.effects += [self._reply_accepted(request) for request in collecting]
        else:
            step.emit(self._send(collecting[0]))

    def _id(self, given: str, message: Message) -> str:
        """Name a request; a name that is pending already belongs to another client's request."""
        if given and given not in self._waiting:
            return given[:200]
        self._made_ids += 1
        digest = blake2b(message.data, digest_size=4).hexdigest()
        return f"{self._instance}-{digest}-{self._made_ids}"

    def _reply_pending(self, request: PendingRequest) -> Reply:
        alarm = WRITE_FAILED if self._replica.room.is_write_failed else ""
        error = ErrorDetail(code="log_full", message=alarm) if alarm else None
        verdict = msgspec.structs.replace(request.verdict, status="pending", error=error)
        return Reply(request.token, self._encoded(verdict))

    def _reply_accepted(self, request: PendingRequest) -> Reply:
        del self._waiting[request.verdict.request_id]
        verdict = msgspec.structs.replace(request.verdict, changed=True)
        return Reply(request.token, self._encoded(verdict))

    def _ask_again(self, request: PendingRequest, step: Step) -> None:
        """Send a request again, or refuse it: its caller has not seen a change that came before it."""
        changed_seq = request.changed_seq() if request.changed_seq is not None else 0
        if is_late(request.seen_seq, changed_seq):
            request_id = request.verdict.request_id
            del self._waiting[request_id]
            text = late_text(request.seen_seq, changed_seq)
            step.emit(Reply(request.token, self._refusal(request_id, "conflict", text, "seen_seq")))
            return
        request.due_ns = step.now_ns + RESEND_NS
        step.emit(self._send_again(request))

    def _send_again(self, request: PendingRequest) -> Send:
        """Send a request again: up to the seq that this view has seen now, the log does not show it."""
        if request.changed_seq is not None and not request.seen_seq:
            seen_seq = self._replica.seq
            request.command = msgspec.structs.replace(request.command, seen_seq=seen_seq)
        return self._send(request)

    def _send(self, request: PendingRequest) -> Send:
        batch = CommandBatch(sender=self._instance, commands=(request.command,))  # type: ignore[arg-type]
        return Send(subjects.command("operator"), ENCODER.encode(batch))

    def _refusal(self, request_id: str, code: str, message: str, path: str = "") -> bytes:
        error = ErrorDetail(code=code, message=message, path=path)
        return self._encoded(OperatorVerdict(request_id=request_id, status="refused", error=error))

    def _encoded(self, verdict: OperatorVerdict) -> bytes:
        cluster_id = self._replica.state.policy.cluster_id
        at = msgspec.structs.replace(verdict, seq=self._replica.seq, cluster_id=cluster_id)
        return ENCODER.encode(at)

    def _next_ns(self) -> int:
        return min(min(one.due_ns, one.answer_ns) for one in self._waiting.values())
