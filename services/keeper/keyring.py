"""Requests about keys, and sealing keys from the store to the log: made known to it, rotated on request, erased.

The newest key in the log is in force. An older one still opens what was sealed with it before its sender knew of the
newer one; the vault erases it a day after this was first asked of it. A key that a keeper stored and did not live to
tell of gets its fact from the next one. Keys that sign identities: `signing_keys.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from schemas.base import Event
from schemas.bounds import BoundedDecoder, bounded_decoder
from schemas.envelope import ENCODER, AnyCommand
from schemas.identities import (
    KeyringVerdict,
    RemoveKeyRequest,
    RotateKeyRequest,
    SigningKeyCreated,
    SigningKeyRemoved,
)
from schemas.jobs import ErrorDetail
from schemas.variables import CreateKey, KeyCreated
from services.keeper.signing_keys import SigningKeys
from services.keeper.variable_requests import ask_vault
from shared.core.runtime.counters import Counters
from shared.core.runtime.deadline_timer import RESEND_NS, earliest
from shared.core.runtime.keeper_messages import (
    CheckKeys,
    KeysChecked,
    KeyStoreOpened,
    MakeSealingKey,
    SealingKey,
    SealingKeyMade,
    SigningKeyMade,
    SigningKeysErased,
    VaultFailed,
)
from shared.core.runtime.log_capacity import WRITE_FAILED
from shared.core.runtime.messages import Ack, Message, Reply
from shared.core.runtime.replica import Replica
from shared.core.runtime.resend_table import ResendTable
from shared.core.runtime.step import Step
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_known_keys, require_unique_keys
from shared.protocol.subjects import last_token

#: What was asked for and the log does not show by then is answered "pending".
ANSWER_NS = 5_000_000_000
#: The store is looked at so often: for sealing keys that are old, and for data keys that came back.
CHECK_NS = 3_600_000_000_000
#: A rotation of the keeper's own that failed is tried again.
_AGAIN_NS = 10_000_000_000
#: A command that the log does not show is sent again after twice the time, up to this.
_RESEND_MAX_NS = 8_000_000_000
_BYTES_MAX = 1024
_BODIES: dict[str, type[RotateKeyRequest | RemoveKeyRequest]] = {
    "rotate": RotateKeyRequest,
    "remove": RemoveKeyRequest,
}


_SEALING, _SIGNING = "sealing", "signing"


class _Waiting(NamedTuple):
    """A request that the log is to answer. `removes`: a key id; empty: it is a rotation."""

    kind: str
    until_ns: int
    removes: str = ""


class Keyring:
    """Requests about keys, sealing keys, and through `signing` those that sign, while this instance leads."""

    def __init__(
        self,
        replica: Replica,
        counters: Counters,
        signing: SigningKeys,
        *,
        send: Callable[[AnyCommand, Step], None],
        new_token: Callable[[], int],
    ) -> None:
        self._replica = replica
        self._counters = counters
        self._signing = signing
        self._send = send
        self._new_token = new_token
        #: ids of the keys that the store has.
        self._stored: set[str] = set()
        #: keys of the store that the log does not show yet.
        self._untold: dict[str, CreateKey] = {}
        self._resends = ResendTable[str](_RESEND_MAX_NS)
        #: of the vault, which makes a key; 0: it does not.
        self._token = 0
        #: by token: requests whose outcome the log does not show yet.
        self._waiting: dict[int, _Waiting] = {}
        self._rotate_ns = 0
        self._check_ns = 0

    def __len__(self) -> int:
        return len(self._waiting)

    # ---- from clients ----

    def asked(self, message: Message, step: Step) -> None:
        """Take a request."""
        kind = ""
        try:
            request = _read(message)
            if isinstance(request, RemoveKeyRequest):
                kind = _SIGNING
                self._remove(message.token, request.key_id, step)
            else:
                kind = _kind_of(request)
                self._rotate(message.token, request, step)
        except CommandInvalid as fault:
            error = ErrorDetail(code=fault.code, message=fault.message)
            self._refuse(message.token, kind, error, step)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            self.refuse(message, "invalid", str(err), step)

    def refuse(self, message: Message, code: str, reason: str, step: Step) -> None:
        """Refuse a request that is not looked into."""
        self._refuse(message.token, "", ErrorDetail(code=code, message=reason), step)

    def _rotate(self, token: int, request: RotateKeyRequest, step: Step) -> None:
        """Make another key, once for all who name the same one. Raises CommandInvalid."""
        in_force = self._in_force(request.kind)
        if request.in_force != in_force:
            text = f"the {request.kind} key in force is {in_force}, not {request.in_force}"
            raise CommandInvalid("conflict", text)
        self._require_log("rotated")
        self._waiting[token] = _Waiting(request.kind, step.steady_ns + ANSWER_NS)
        if request.kind == _SIGNING:
            self._signing.rotate(step)
        else:
            self._make(step)

    def _remove(self, token: int, key_id: str, step: Step) -> None:
        """Take a signing key away; once it is gone it is a success again. Raises CommandInvalid."""
        self._require_log("removed")
        if self._signing.remove(key_id, step):
            self._waiting[token] = _Waiting(_SIGNING, step.steady_ns + ANSWER_NS, key_id)
        else:
            self._reply(token, _SIGNING, "accepted", step)

    def _require_log(self, done: str) -> None:
        if self._replica.room.is_write_failed:
            raise CommandInvalid("log_full", f"{WRITE_FAILED}; nothing was {done}")

    def _make(self, step: Step) -> None:
        """Have the vault make a key, unless one is on its way to the log."""
        self._rotate_ns = 0
        if not self._token and not self._untold:
            self._token = self._new_token()
            known = tuple(self._replica.state.variables.keys)
            ask_vault(MakeSealingKey(token=self._token, known=known), step)

    # ---- from the vault ----

    def answered(
        self,
        item: KeyStoreOpened | SealingKeyMade | KeysChecked | SigningKeyMade | SigningKeysErased,
        step: Step,
    ) -> None:
        """Take an answer of the vault."""
        match item:
            case KeyStoreOpened():
                self._opened(item, step)
                self._signing.opened(item.signing, step)
            case SigningKeyMade() | SigningKeysErased():
                self._signing.answered(item, step)
            case SealingKeyMade() if item.token == self._token:
                self._token = 0
                self._stored.add(item.key.key_id)
                self._tell(item.key, step)
            case KeysChecked():
                self._stored -= set(self._superseded()) - set(item.superseded)
            case _:
                pass

    def _opened(self, item: KeyStoreOpened, step: Step) -> None:
        """Compare the keys of the store with those of the log."""
        known = self._replica.state.variables.keys
        keys = (*item.others, SealingKey(item.key_id, item.public))
        self._stored = {one.key_id for one in keys}
        for one in keys:
            if one.key_id not in known:
                self._tell(one, step)
        if known and not self._untold and self._newest() not in self._stored:
            # The store is a copy of before the last rotation: clients seal for a key that is gone.
            self._make(step)
        self._check_ns = step.steady_ns + CHECK_NS
        if self._superseded():
            self._check(step)

    def failed(self, item: VaultFailed, step: Step) -> None:
        """Refuse what waits for a key that was not made."""
        error = ErrorDetail(code=item.code, message=item.reason)
        if self._signing.failed(item, step):
            for token in self._settled(_SIGNING):
                self._refuse(token, _SIGNING, error, step)
        if item.token != self._token:
            return
        self._token = 0
        waiting = self._settled(_SEALING)
        if not waiting:
            self._rotate_ns = step.steady_ns + _AGAIN_NS
        for token in waiting:
            self._refuse(token, _SEALING, error, step)

    # ---- from the log ----

    def see(self, event: Event, step: Step) -> bool:
        """Follow a fact; True: another keeper made a key that this one has not read."""
        match event:
            case KeyCreated():
                self._accept(_SEALING, "", step)
                return self._see_sealing(event.key_id, step)
            case SigningKeyCreated():
                self._accept(_SIGNING, "", step)
                return self._signing.see(event, step)
            case SigningKeyRemoved():
                self._accept(_SIGNING, event.key_id, step)
                return self._signing.see(event, step)
            case _:
                return False

    def _see_sealing(self, key_id: str, step: Step) -> bool:
        self._untold.pop(key_id, None)
        self._resends.remove(key_id)
        if key_id not in self._stored:
            return True
        if self._superseded():
            self._check(step)
        return False

    def _accept(self, kind: str, removes: str, step: Step) -> None:
        for token in self._settled(kind, removes):
            self._reply(token, kind, "accepted", step)

    # ---- time and failures ----

    def finish(self, step: Step) -> None:
        """Send again what the log does not show, answer what takes long, and look at the store from time to time."""
        now_ns = step.steady_ns
        for key_id in self._resends.due(now_ns):
            self._counters.add("resends")
            self._resends.sent_again(key_id, now_ns)
            self._send(self._untold[key_id], step)
        for token in [one for one, asked in self._waiting.items() if asked.until_ns <= now_ns]:
            self._reply(token, self._waiting.pop(token).kind, "pending", step)
        if 0 < self._rotate_ns <= now_ns:
            self._make(step)
        if 0 < self._check_ns <= now_ns:
            self._check(step)
        self._signing.finish(step)

    def next_ns(self) -> int:
        """Return when there is something to do; 0: nothing waits."""
        waiting = [one.until_ns for one in self._waiting.values()]
        own = (self._resends.next_ns(), self._rotate_ns, self._check_ns)
        return earliest(self._signing.next_ns(), *own, *waiting)

    def hurry(self, step: Step) -> None:
        """Send everything again at once: the former applier may have got none of it."""
        self._resends.hurry(step.steady_ns)
        self._signing.hurry(step)

    def forget(self, message: int) -> None:
        """Forget a question that is refused elsewhere."""
        self._waiting.pop(message, None)

    def clear(self, step: Step) -> None:
        """Leave everything to another instance, unanswered: clients ask again."""
        for token in self._waiting:
            step.emit(Ack(token))
        self._waiting.clear()
        self.close(leads=False)

    def close(self, *, leads: bool = True) -> None:
        """Do nothing until the store is opened again; who waits is answered "pending"."""
        self._stored.clear()
        self._untold.clear()
        self._resends.clear()
        self._token = self._rotate_ns = self._check_ns = 0
        self._signing.close(leads=leads)

    # ---- inside ----

    def _settled(self, kind: str, removes: str = "") -> list[int]:
        """Take out the requests that an outcome answers; return their tokens."""
        found = [
            token
            for token, one in self._waiting.items()
            if (one.kind, one.removes) == (kind, removes)
        ]
        for token in found:
            del self._waiting[token]
        return found

    def _in_force(self, kind: str) -> str:
        """Id of the key of a kind that is in force; empty: the log knows of none, or the kind is not known."""
        if kind == _SIGNING:
            return self._replica.state.signing_keys.newest
        return self._newest() if kind == _SEALING else ""

    def _newest(self) -> str:
        """Id of the sealing key in force; empty: the log knows of none."""
        return next(reversed(self._replica.state.variables.keys), "")

    def _superseded(self) -> tuple[str, ...]:
        """Keys of the store that are not in force any more, in the order of the log."""
        newest = self._newest()
        known = self._replica.state.variables.keys
        return tuple(one for one in known if one in self._stored and one != newest)

    def _check(self, step: Step) -> None:
        self._check_ns = step.steady_ns + CHECK_NS
        ask_vault(CheckKeys(superseded=self._superseded()), step)

    def _tell(self, key: SealingKey, step: Step) -> None:
        command = self._untold[key.key_id] = CreateKey(key_id=key.key_id, public=key.public)
        self._resends.add(key.key_id, step.steady_ns + RESEND_NS)
        self._send(command, step)

    def _refuse(self, token: int, kind: str, error: ErrorDetail, step: Step) -> None:
        self._counters.add("refusals")
        verdict = KeyringVerdict(status="refused", key_id=self._in_force(kind), error=error)
        step.emit(Reply(token, ENCODER.encode(verdict)))

    def _reply(self, token: int, kind: str, status: str, step: Step) -> None:
        verdict = KeyringVerdict(status=status, key_id=self._in_force(kind))
        step.emit(Reply(token, ENCODER.encode(verdict)))


def _kind_of(request: RotateKeyRequest) -> str:
    """Return the kind of key. Raises CommandInvalid."""
    if request.kind not in (_SEALING, _SIGNING):
        text = f"kind must be sealing or signing, not {request.kind!r}"
        raise CommandInvalid("invalid", text)
    return request.kind


def _read(message: Message) -> RotateKeyRequest | RemoveKeyRequest:
    """Read a request. Raises CommandInvalid, msgspec.DecodeError."""
    verb = last_token(message.subject)
    if verb not in _BODIES:
        text = f"unknown verb {verb!r}; expected one of {', '.join(_BODIES)}"
        raise CommandInvalid("invalid", text)
    if len(message.data) > _BYTES_MAX:
        text = f"{len(message.data)} bytes, at most {_BYTES_MAX} are taken"
        raise CommandInvalid("too_large", text)
    require_unique_keys(message.data)
    require_known_keys(message.data, _BODIES[verb])
    decoder: BoundedDecoder[RotateKeyRequest | RemoveKeyRequest] = bounded_decoder(_BODIES[verb])
    return decoder.decode(message.data)
