"""Bodies of requests about variables, read and checked as far as no state is needed."""

from schemas.bounds import BoundedDecoder, bounded_decoder
from schemas.variables import (
    DeleteVariableRequest,
    GetVariableRequest,
    LockVariableRequest,
    PutVariableRequest,
    ReleaseLockRequest,
    RenewLockRequest,
)
from shared.core.runtime.messages import Message
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_known_keys, require_unique_keys
from shared.protocol.subjects import last_token
from shared.protocol.variable_paths import PUBLIC_KEY_BYTES, REQUEST_ID_CHARS_MAX, path_fault

#: Items have 64 KiB; sealed, as base64, and with their path they are below this.
REQUEST_BYTES_MAX = 128 * 1024
LOCK_ID_CHARS = (16, 128)

VariableRequest = (
    PutVariableRequest
    | GetVariableRequest
    | DeleteVariableRequest
    | LockVariableRequest
    | RenewLockRequest
    | ReleaseLockRequest
)
_BODIES: dict[str, type[VariableRequest]] = {
    "put": PutVariableRequest,
    "get": GetVariableRequest,
    "delete": DeleteVariableRequest,
    "lock": LockVariableRequest,
    "renew": RenewLockRequest,
    "release": ReleaseLockRequest,
}
#: What needs neither keys nor items.
WITHOUT_VAULT = frozenset({"delete", "lock", "renew", "release"})


def read_request(message: Message) -> VariableRequest:
    """Read and check a request. Raises CommandInvalid, msgspec.DecodeError."""
    verb = last_token(message.subject)
    if verb not in _BODIES:
        text = f"unknown verb {verb!r}; expected one of {', '.join(_BODIES)}"
        raise CommandInvalid("invalid", text)
    if len(message.data) > REQUEST_BYTES_MAX:
        text = f"{len(message.data)} bytes, at most {REQUEST_BYTES_MAX} are taken"
        raise CommandInvalid("too_large", text)
    require_unique_keys(message.data)
    require_known_keys(message.data, _BODIES[verb])
    decoder: BoundedDecoder[VariableRequest] = bounded_decoder(_BODIES[verb])
    request = decoder.decode(message.data)
    if fault := path_fault(request.path):
        raise CommandInvalid("invalid", fault)
    if isinstance(request, GetVariableRequest):
        if len(request.public) != PUBLIC_KEY_BYTES:
            raise CommandInvalid(
                "invalid", f"public has {len(request.public)} bytes, it must have 32"
            )
    elif not isinstance(request, RenewLockRequest) and not (
        1 <= len(request.request_id) <= REQUEST_ID_CHARS_MAX
    ):
        raise CommandInvalid("invalid", "request_id must have 1 to 128 characters")
    _check_lock_id(request)
    return request


def _check_lock_id(request: VariableRequest) -> None:
    """Raise CommandInvalid where a lock has an id that could be guessed."""
    lock_id = getattr(request, "lock_id", "")
    is_needed = isinstance(request, LockVariableRequest | RenewLockRequest | ReleaseLockRequest)
    if (lock_id or is_needed) and not LOCK_ID_CHARS[0] <= len(lock_id) <= LOCK_ID_CHARS[1]:
        raise CommandInvalid("invalid", "lock_id must have 16 to 128 characters")
