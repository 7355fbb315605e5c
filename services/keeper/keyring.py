"""Sealing keys, from the store to the log: a key that the log lacks is made known to it, rotated on request, erased.

The newest key in the log is in force. An older one still opens what was sealed with it before its sender knew of the
newer one; the vault erases it a day after this was first asked of it. A key that a keeper stored and did not live to
tell of gets its fact from the next one. Signing keys of identities: `refuse_signing_key`.
"""

from collections.abc import Callable

import msgspec

from schemas.base import Event
from schemas.bounds import BoundedDecoder, bounded_decoder
from schemas.envelope import ENCODER, AnyCommand
from schemas.identities import KeyringVerdict, RemoveKeyRequest, RotateKeyRequest
from schemas.jobs import ErrorDetail
from schemas.variables import CreateKey, KeyCreated
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

#: A rotation that the log does not show by then is answered "pending".
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


def refuse_signing_key() -> None:
    """Refuse a request about the signing keys of identities. Raises CommandInvalid."""
    raise CommandInvalid("invalid", "signing keys are not built yet: kind must be sealing")


class Keyring:
    """Sealing keys, while this instance leads."""

    def __init__(
        self,
        replica: Replica,
        counters: Counters,
        *,
        send: Callable[[AnyCommand, Step], None],
        new_token: Callable[[], int],
    ) -> None:
        self._replica = replica
        self._counters = counters
        self._send = send
        self._new_token = new_token
        #: ids of the keys that the store has.
        self._stored: set[str] = set()
        #: keys of the store that the log does not show yet.
        self._untold: dict[str, CreateKey] = {}
        self._resends = ResendTable[str](_RESEND_MAX_NS)
        #: of the vault, which makes a key; 0: it does not.
        self._token = 0
        #: requests for a rotation that is under way: token -> when it is answered "pending".
        self._waiting: dict[int, int] = {}
        self._rotate_ns = 0
        self._check_ns = 0

    def __len__(self) -> int:
        return len(self._waiting)

    # ---- from clients ----

    def asked(self, message: Message, step: Step) -> None:
        """Take a request."""
        try:
            request = _read(message)
            if isinstance(request, RemoveKeyRequest) or request.kind == "signing":
                refuse_signing_key()
            else:
                self._rotate(message.token, request, step)
        except CommandInvalid as fault:
            self.refuse(message, fault.code, fault.message, step)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            self.refuse(message, "invalid", str(err), step)

    def refuse(self, message: Message, code: str, reason: str, step: Step) -> None:
        """Refuse a request, and name the key that is in force."""
        self._counters.add("refusals")
        error = ErrorDetail(code=code, message=reason)
        self._reply(message.token, "refused", step, error)

    def _rotate(self, token: int, request: RotateKeyRequest, step: Step) -> None:
        """Make another key, once for all who name the same one. Raises CommandInvalid."""
        if request.kind != "sealing":
            text = f"kind must be sealing or signing, not {request.kind!r}"
            raise CommandInvalid("invalid", text)
        if request.in_force != self._newest():
            text = f"the sealing key in force is {self._newest()}, not {request.in_force}"
            raise CommandInvalid("conflict", text)
        if self._replica.room.is_write_failed:
            raise CommandInvalid("log_full", f"{WRITE_FAILED}; nothing was rotated")
        self._waiting[token] = step.steady_ns + ANSWER_NS
        self._make(step)

    def _make(self, step: Step) -> None:
        """Have the vault make a key, unless one is on its way to the log."""
        self._rotate_ns = 0
        if not self._token and not self._untold:
            self._token = self._new_token()
            known = tuple(self._replica.state.variables.keys)
            ask_vault(MakeSealingKey(token=self._token, known=known), step)

    # ---- from the vault ----

    def answered(self, item: KeyStoreOpened | SealingKeyMade | KeysChecked, step: Step) -> None:
        """Take an answer of the vault."""
        match item:
            case KeyStoreOpened():
                self._opened(item, step)
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
        if item.token != self._token:
            return
        self._token = 0
        error = ErrorDetail(code=item.code, message=item.reason)
        if not self._waiting:
            self._rotate_ns = step.steady_ns + _AGAIN_NS
        for token in self._waiting:
            self._counters.add("refusals")
            self._reply(token, "refused", step, error)
        self._waiting.clear()

    # ---- from the log ----

    def see(self, event: Event, step: Step) -> bool:
        """Follow a fact; True: another keeper made a key that this one has not read."""
        if not isinstance(event, KeyCreated):
            return False
        self._untold.pop(event.key_id, None)
        self._resends.remove(event.key_id)
        for token in self._waiting:
            self._reply(token, "accepted", step)
        self._waiting.clear()
        if event.key_id not in self._stored:
            return True
        if self._superseded():
            self._check(step)
        return False

    # ---- time and failures ----

    def finish(self, step: Step) -> None:
        """Send again what the log does not show, answer what takes long, and look at the store from time to time."""
        now_ns = step.steady_ns
        for key_id in self._resends.due(now_ns):
            self._counters.add("resends")
            self._resends.sent_again(key_id, now_ns)
            self._send(self._untold[key_id], step)
        for token in [one for one, at_ns in self._waiting.items() if at_ns <= now_ns]:
            del self._waiting[token]
            self._reply(token, "pending", step)
        if 0 < self._rotate_ns <= now_ns:
            self._make(step)
        if 0 < self._check_ns <= now_ns:
            self._check(step)

    def next_ns(self) -> int:
        """Return when there is something to do; 0: nothing waits."""
        waiting = self._waiting.values()
        return earliest(self._resends.next_ns(), self._rotate_ns, self._check_ns, *waiting)

    def hurry(self, step: Step) -> None:
        """Send everything again at once: the former applier may have got none of it."""
        self._resends.hurry(step.steady_ns)

    def forget(self, message: int) -> None:
        """Forget a question that is refused elsewhere."""
        self._waiting.pop(message, None)

    def clear(self, step: Step) -> None:
        """Leave everything to another instance, unanswered: clients ask again."""
        for token in self._waiting:
            step.emit(Ack(token))
        self._waiting.clear()
        self.close()

    def close(self) -> None:
        """Do nothing until the store is opened again; who waits is answered "pending"."""
        self._stored.clear()
        self._untold.clear()
        self._resends.clear()
        self._token = self._rotate_ns = self._check_ns = 0

    # ---- inside ----

    def _newest(self) -> str:
        """Id of the key in force; empty: the log knows of none."""
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

    def _reply(self, token: int, status: str, step: Step, error: ErrorDetail | None = None) -> None:
        verdict = KeyringVerdict(status=status, key_id=self._newest(), error=error)
        step.emit(Reply(token, ENCODER.encode(verdict)))


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
