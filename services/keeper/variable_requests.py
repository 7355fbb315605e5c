"""Requests about variables, from the question to the answer: `api.variable.put`, `get` and `delete`.

A put is sealed by the vault for a life of its path, then sent to the plan applier until the log shows what became of
it. The answer is what the log says, or "pending" after five seconds: the client sends the same request again, and it is
carried out once. Values never come here in plain.
"""

from collections.abc import Callable, Sequence

import msgspec

from schemas.base import Event
from schemas.envelope import ENCODER, AnyCommand
from schemas.jobs import ErrorDetail
from schemas.variables import (
    DeleteVariable,
    DeleteVariableRequest,
    GetVariableRequest,
    LockVariable,
    LockVariableRequest,
    PutVariable,
    PutVariableRequest,
    ReleaseLock,
    ReleaseLockRequest,
    RenewLockRequest,
    VariableAnswer,
    VariableDeleted,
    VariableLife,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
    VariablePut,
    VariableRefused,
    VariableVerdict,
)
from services.keeper.held_locks import HeldLocks, lock_hash
from services.keeper.request_bodies import read_request
from shared.core.runtime.counters import Counters
from shared.core.runtime.deadline_timer import RESEND_NS, earliest
from shared.core.runtime.keeper_messages import (
    ItemsOpened,
    ItemsSealed,
    OpenItems,
    SealItems,
    VaultEffect,
    VaultFailed,
)
from shared.core.runtime.log_capacity import WRITE_FAILED
from shared.core.runtime.messages import Ack, LogSpace, Message, Reply
from shared.core.runtime.replica import Replica
from shared.core.runtime.resend_table import ResendTable
from shared.core.runtime.step import Step
from shared.core.state.tables.variables import VariableRow
from shared.errors import CommandInvalid
from shared.protocol.subjects import last_token

#: A request that the log does not show by then is answered "pending".
ANSWER_NS = 5_000_000_000
#: Requests that are with the vault or the plan applier at a time.
WAITING_MAX = 1_000
#: How often a put is encrypted again because its path began another life meanwhile.
STALE_MAX = 5
#: Code of a fact -> that of an answer.
_CODES = {
    "stale": "unavailable",
    "rate": "unavailable",
    "quota": "too_large",
    "locked": "conflict",
}
#: What the plan applier decides.
SentCommand = PutVariable | DeleteVariable | LockVariable | ReleaseLock
_AGAIN = ("conflict", "this request was refused before; another one requires another request_id")


class _Sealing(msgspec.Struct, gc=False):
    """A put that is with the vault."""

    message: int
    request: PutVariableRequest
    life: VariableLife
    answer_ns: int
    tries: int = 0


class _Opening(msgspec.Struct, gc=False):
    """A get that is with the vault: its answer, without the items."""

    message: int
    answer: VariableAnswer
    answer_ns: int


class _Sent(msgspec.Struct, gc=False):
    """A command that the log does not show yet, and the questions that wait for it."""

    command: SentCommand
    messages: list[int]
    answer_ns: int
    #: of a put, to encrypt it again.
    sealing: _Sealing | None = None


def ask_vault(effect: VaultEffect, step: Step) -> None:
    """Have the vault do something; only a keeper's shell performs it."""
    step.emit(effect)  # type: ignore[arg-type]


class VariableRequests:
    """Requests by where they are: with the vault, by token; with the plan applier, by request id."""

    def __init__(
        self,
        replica: Replica,
        counters: Counters,
        locks: HeldLocks,
        *,
        send: Callable[[AnyCommand, Step], None],
        new_token: Callable[[], int],
    ) -> None:
        self._replica = replica
        self._counters = counters
        self._locks = locks
        self._send = send
        self._new_token = new_token
        self._sealing: dict[int, _Sealing] = {}
        self._opening: dict[int, _Opening] = {}
        self._sent: dict[str, _Sent] = {}
        self._resends = ResendTable[str]()

    def __len__(self) -> int:
        return len(self._sealing) + len(self._opening) + len(self._sent)

    # ---- from the client ----

    def asked(self, message: Message, step: Step) -> None:
        """Take a request: refuse it, answer it from the state, or give it to the vault or the plan applier."""
        try:
            request = read_request(message)
        except CommandInvalid as fault:
            self.refuse(message, fault.code, fault.message, step)
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            self.refuse(message, "invalid", str(err), step)
            return
        if len(self) >= WAITING_MAX:
            text = f"{len(self)} requests are pending, try again later"
            self.refuse(message, "unavailable", text, step)
        elif isinstance(request, GetVariableRequest):
            self._get(message, request, step)
        elif isinstance(request, RenewLockRequest):
            self._renew(message, request, step)
        elif self._replica.room.is_write_failed:
            self.refuse(message, "log_full", f"{WRITE_FAILED}; nothing was kept", step)
        elif isinstance(request, PutVariableRequest) and self._replica.room.refuses_new_work:
            # The plan applier would leave it aside, without a word in the log.
            share = 100 * self._replica.room.share
            text = f"the log is {share:.0f} % full: only deletes and locks are accepted"
            self.refuse(message, "log_full", text, step)
        else:
            self._change(message, request, step)

    def _change(
        self,
        message: Message,
        request: PutVariableRequest
        | DeleteVariableRequest
        | LockVariableRequest
        | ReleaseLockRequest,
        step: Step,
    ) -> None:
        """Take a request for what the log shows."""
        match request:
            case PutVariableRequest():
                sealing = _Sealing(
                    message.token, request, self._life_of(request), step.steady_ns + ANSWER_NS
                )
                self._seal(sealing, step)
            case DeleteVariableRequest():
                self._delete(message, request, step)
            case LockVariableRequest():
                self._lock(message, request, step)
            case ReleaseLockRequest():
                self._release(message, request, step)

    def _get(self, message: Message, request: GetVariableRequest, step: Step) -> None:
        row = self._replica.state.variables.find(request.path)
        if row is None:
            self.refuse(message, "not_found", f"there is no variable {request.path!r}", step)
            return
        self._counters.add("gets")
        token = self._new_token()
        answer = answer_without_items(request.path, row)
        self._opening[token] = _Opening(message.token, answer, step.steady_ns + ANSWER_NS)
        ask_vault(open_items(token, request.path, row, request.public), step)

    def _delete(self, message: Message, request: DeleteVariableRequest, step: Step) -> None:
        """Ask for a delete, unless it was done, or the path does not exist, which is what is wanted."""
        table = self._replica.state.variables
        row = table.by_path.get(request.path)
        revision = 0 if row is None else row.revision
        is_done = row is not None and request.request_id in row.deletes
        if (request.path, request.request_id) in table.refused:
            self._reply(message.token, _refused(request.request_id, *_AGAIN, revision), step)
        elif is_done or (not revision and request.cas <= 0):
            verdict = VariableVerdict(
                request_id=request.request_id, status="accepted", revision=revision
            )
            self._reply(message.token, verdict, step)
        else:
            self._counters.add("deletes")
            command = DeleteVariable(
                request_id=request.request_id,
                path=request.path,
                incarnation=0 if row is None else row.incarnation,
                cas=request.cas,
                lock=lock_hash(request.lock_id) if request.lock_id else "",
            )
            answer_ns = step.steady_ns + ANSWER_NS
            self._command(command, step, message=message.token, answer_ns=answer_ns)

    def _lock(self, message: Message, request: LockVariableRequest, step: Step) -> None:
        """Ask for a lock, unless it holds the path: then it is renewed."""
        table, lock = self._replica.state.variables, lock_hash(request.lock_id)
        if self._locks.renew(request.path, lock, step.steady_ns):
            self._reply(message.token, self._accepted(request.path, request.request_id), step)
            return
        if (request.path, request.request_id) in table.refused:
            self._reply(message.token, _refused(request.request_id, *_AGAIN), step)
            return
        command = LockVariable(
            request_id=request.request_id,
            path=request.path,
            lock=lock,
            ttl_ns=request.ttl_ns,
            delay_ns=request.delay_ns,
        )
        self._command(command, step, message=message.token, answer_ns=step.steady_ns + ANSWER_NS)

    def _renew(self, message: Message, request: RenewLockRequest, step: Step) -> None:
        if self._locks.renew(request.path, lock_hash(request.lock_id), step.steady_ns):
            self._reply(message.token, self._accepted(request.path, ""), step)
        else:
            self.refuse(message, "not_found", f"the lock does not hold {request.path!r}", step)

    def _release(self, message: Message, request: ReleaseLockRequest, step: Step) -> None:
        """Ask for the end of a lock, unless it does not hold the path, which is what is wanted."""
        lock = lock_hash(request.lock_id)
        if self._replica.state.variable_locks.holder(request.path) != lock:
            self._reply(message.token, self._accepted(request.path, request.request_id), step)
            return
        command = ReleaseLock(request_id=request.request_id, path=request.path, lock=lock)
        self._command(command, step, message=message.token, answer_ns=step.steady_ns + ANSWER_NS)

    def _accepted(self, path: str, request_id: str) -> VariableVerdict:
        revision = self._revision(path)
        return VariableVerdict(request_id=request_id, status="accepted", revision=revision)

    def _seal(self, sealing: _Sealing, step: Step) -> None:
        token = self._new_token()
        self._sealing[token] = sealing
        request = sealing.request
        ask_vault(
            SealItems(
                token=token,
                life=sealing.life,
                request_id=request.request_id,
                key_id=request.key_id,
                sealed=request.sealed,
            ),
            step,
        )

    # ---- from the vault ----

    def sealed(self, item: ItemsSealed, step: Step) -> None:
        """Ask for what was encrypted to be written, unless it was before."""
        sealing = self._sealing.pop(item.token, None)
        if sealing is None:
            return
        request = sealing.request
        if (verdict := self._known_verdict(request, item.digest)) is not None:
            self._reply(sealing.message, verdict, step)
            return
        self._counters.add("puts")
        command = PutVariable(
            request_id=request.request_id,
            path=request.path,
            incarnation=sealing.life.incarnation,
            cipher=item.cipher,
            digest=item.digest,
            items=item.items,
            size=item.size,
            cas=request.cas,
            shred_old=request.shred_old,
            lock=lock_hash(request.lock_id) if request.lock_id else "",
        )
        self._command(
            command,
            step,
            message=sealing.message,
            answer_ns=sealing.answer_ns,
            sealing=sealing,
        )

    def opened(self, item: ItemsOpened, step: Step) -> None:
        """Answer a get."""
        opening = self._opening.pop(item.token, None)
        if opening is not None:
            answer = msgspec.structs.replace(opening.answer, sealed=item.sealed)
            step.emit(Reply(opening.message, ENCODER.encode(answer)))

    def failed(self, item: VaultFailed, step: Step) -> None:
        """Refuse what the vault could not do."""
        opening = self._opening.pop(item.token, None)
        if opening is not None:
            self._counters.add("refusals")
            error = ErrorDetail(code=item.code, message=item.reason)
            step.emit(Reply(opening.message, ENCODER.encode(VariableAnswer(error=error))))
        sealing = self._sealing.pop(item.token, None)
        if sealing is not None:
            verdict = _refused(sealing.request.request_id, item.code, item.reason)
            self._reply(sealing.message, verdict, step)

    # ---- from the log ----

    def see(self, events: Sequence[Event], seq: int, step: Step) -> None:
        """Answer what a transaction shows."""
        if not self._sent:
            return
        for event in events:
            match event:
                case VariablePut():
                    self._done(event.request_id, event.path, seq, step)
                case VariableDeleted():
                    self._deleted(event, step)
                case VariableLocked():
                    self._done(event.request_id, event.path, self._revision(event.path), step)
                case VariableLockReleased() | VariableLockExpired():
                    self._unlocked(event, step)
                case VariableRefused():
                    self._refusal(event, step)
                case _:
                    pass

    def _done(self, request_id: str, path: str, revision: int, step: Step) -> None:
        sent = self._sent.get(request_id)
        if sent is not None and sent.command.path == path:
            self._take_sent(request_id)
            verdict = VariableVerdict(request_id=request_id, status="accepted", revision=revision)
            self._reply_all(sent, verdict, step)

    def _deleted(self, event: VariableDeleted, step: Step) -> None:
        """Answer all who want a path gone that is gone now, unless they expect a revision of it."""
        path = event.path
        if self._replica.state.variables.find(path) is not None:
            # It has begun another life in the same transaction.
            return
        for request_id, sent in list(self._sent.items()):
            command = sent.command
            if isinstance(command, DeleteVariable) and (
                request_id == event.request_id or command.cas <= 0
            ):
                self._done(request_id, path, 0, step)

    def _unlocked(self, event: VariableLockReleased | VariableLockExpired, step: Step) -> None:
        """Answer all who wanted to give back a lock that has ended now."""
        for request_id, sent in list(self._sent.items()):
            command = sent.command
            if isinstance(command, ReleaseLock) and command.lock == event.lock:
                self._done(request_id, event.path, self._revision(event.path), step)

    def _revision(self, path: str) -> int:
        row = self._replica.state.variables.find(path)
        return 0 if row is None else row.revision

    def _refusal(self, event: VariableRefused, step: Step) -> None:
        sent = self._sent.get(event.request_id)
        if sent is None or sent.command.path != event.path:
            return
        self._take_sent(event.request_id)
        again = sent.sealing
        if event.code == "stale" and again is not None and again.tries < STALE_MAX:
            # Another life of the path began: encrypt it for that one.
            for message in sent.messages:
                self._seal(
                    _Sealing(
                        message,
                        again.request,
                        self._life_of(again.request),
                        sent.answer_ns,
                        again.tries + 1,
                    ),
                    step,
                )
            return
        code = _CODES.get(event.code, event.code)
        verdict = _refused(event.request_id, code, event.reason, event.revision)
        self._reply_all(sent, verdict, step)

    # ---- time and failures ----

    def finish(self, step: Step) -> None:
        """Send again what the log does not show, and answer "pending" what it has not shown in time."""
        now_ns = step.steady_ns
        for request_id in self._resends.due(now_ns):
            self._resends.sent_again(request_id, now_ns)
            self._counters.add("resends")
            self._send(self._sent[request_id].command, step)
        for request_id, sent in list(self._sent.items()):
            if sent.answer_ns <= now_ns:
                self._take_sent(request_id)
                self._reply_all(
                    sent, VariableVerdict(request_id=request_id, status="pending"), step
                )
        for token, sealing in list(self._sealing.items()):
            if sealing.answer_ns <= now_ns:
                del self._sealing[token]
                self._reply(
                    sealing.message,
                    VariableVerdict(request_id=sealing.request.request_id, status="pending"),
                    step,
                )
        for token, opening in list(self._opening.items()):
            if opening.answer_ns <= now_ns:
                del self._opening[token]
                error = ErrorDetail(code="unavailable", message="the keys are not answered in time")
                step.emit(Reply(opening.message, ENCODER.encode(VariableAnswer(error=error))))

    def next_ns(self) -> int:
        """Return when the next is to be sent again or answered; 0: nothing waits."""
        answers = [one.answer_ns for one in self._sent.values()]
        answers += [one.answer_ns for one in self._sealing.values()]
        answers += [one.answer_ns for one in self._opening.values()]
        return earliest(self._resends.next_ns(), *answers)

    def hurry(self, step: Step) -> None:
        """Send everything again at once: the former applier may have got none of it."""
        self._resends.hurry(step.steady_ns)

    def learn(self, space: LogSpace, step: Step) -> None:
        """Answer at once what waits for a log that cannot be written; it may still take effect."""
        if space.is_write_failed:
            for sent in self._sent.values():
                sent.answer_ns = step.steady_ns

    def forget(self, message: int) -> None:
        """Forget a question that is refused elsewhere."""
        self._sealing = {k: one for k, one in self._sealing.items() if one.message != message}
        self._opening = {k: one for k, one in self._opening.items() if one.message != message}

    def clear(self, step: Step) -> None:
        """Leave everything to another instance, unanswered: clients ask again."""
        waiting = [one.message for one in self._sealing.values()]
        waiting += [one.message for one in self._opening.values()]
        waiting += [message for sent in self._sent.values() for message in sent.messages]
        for message in waiting:
            step.emit(Ack(message))
        self._sealing.clear()
        self._opening.clear()
        self._sent.clear()
        self._resends.clear()

    # ---- answers ----

    def refuse(self, message: Message, code: str, reason: str, step: Step) -> None:
        """Refuse a request in the form of the answers of its verb."""
        if last_token(message.subject) == "get":
            self._counters.add("refusals")
            answer = VariableAnswer(error=ErrorDetail(code=code, message=reason))
            step.emit(Reply(message.token, ENCODER.encode(answer)))
        else:
            self._reply(message.token, _refused("", code, reason), step)

    def _known_verdict(self, request: PutVariableRequest, digest: str) -> VariableVerdict | None:
        """Return what became of a put that the log knows; None: it does not."""
        table, request_id = self._replica.state.variables, request.request_id
        row = table.by_path.get(request.path)
        for mark in row.puts if row is not None else ():
            if mark.request_id == request_id:
                if mark.digest == digest:
                    revision = mark.revision
                    return VariableVerdict(
                        request_id=request_id, status="accepted", revision=revision
                    )
                return _refused(request_id, "conflict", "request_id was used for other items")
        if (request.path, request_id) in table.refused:
            return _refused(request_id, *_AGAIN, 0 if row is None else row.revision)
        return None

    def _command(
        self,
        command: SentCommand,
        step: Step,
        *,
        message: int,
        answer_ns: int,
        sealing: _Sealing | None = None,
    ) -> None:
        """Send a command, or have a question wait for the same one, which is sent already."""
        known = self._sent.get(command.request_id)
        if known is None:
            self._sent[command.request_id] = _Sent(command, [message], answer_ns, sealing)
            self._resends.add(command.request_id, step.steady_ns + RESEND_NS)
            self._send(command, step)
        elif _is_same(known.command, command):
            known.messages.append(message)
        else:
            reason = "request_id is that of another request, which is pending"
            self._reply(message, _refused(command.request_id, "conflict", reason), step)

    def _take_sent(self, request_id: str) -> _Sent | None:
        self._resends.remove(request_id)
        return self._sent.pop(request_id, None)

    def _reply_all(self, sent: _Sent, verdict: VariableVerdict, step: Step) -> None:
        for message in sent.messages:
            self._reply(message, verdict, step)

    def _reply(self, message: int, verdict: VariableVerdict, step: Step) -> None:
        if verdict.status == "refused":
            self._counters.add("refusals")
        step.emit(Reply(message, ENCODER.encode(verdict)))

    # ---- the state ----

    def _life_of(self, request: PutVariableRequest) -> VariableLife:
        """Which life of its path a put is encrypted for: the present one, or the next."""
        path, table = request.path, self._replica.state.variables
        incarnation = table.incarnation_of_put(path, shred_old=request.shred_old)
        return VariableLife(path=path, incarnation=incarnation)


def answer_without_items(path: str, row: VariableRow) -> VariableAnswer:
    """Say of a variable what is plain."""
    return VariableAnswer(
        path=path,
        revision=row.revision,
        create_seq=row.create_seq,
        create_ns=row.create_ns,
        modify_ns=row.modify_ns,
        items=row.items,
        size=row.size,
    )


def open_items(token: int, path: str, row: VariableRow, public: bytes) -> OpenItems:
    """What the vault is asked for, to read a variable for the holder of a key."""
    return OpenItems(
        token=token,
        life=VariableLife(path=path, incarnation=row.incarnation),
        request_id=row.puts[-1].request_id,
        revision=row.revision,
        cipher=row.cipher,
        public=public,
    )


def _is_same(known: SentCommand, new: SentCommand) -> bool:
    """Whether two commands with one id want the same; ciphertext differs each time."""
    if isinstance(known, PutVariable) and isinstance(new, PutVariable):
        return known.path == new.path and known.digest == new.digest
    return known == new


def _refused(request_id: str, code: str, reason: str, revision: int = 0) -> VariableVerdict:
    error = ErrorDetail(code=code, message=reason)
    return VariableVerdict(request_id=request_id, status="refused", revision=revision, error=error)
