"""What a dispatch gives its child, read strictly from the body of `dispatch`."""

import base64
import binascii

import msgspec

from schemas.launches import PAYLOAD_BYTES_MAX
from shared.errors import CommandInvalid
from shared.jobspec.checks.identifiers import id_error
from shared.jobspec.secret_references import may_become_reference
from shared.jobspec.strict_json import JsonObject

#: Keys, and characters of all keys and values together.
META_MAX = 100
META_CHARS_MAX = 32 * 1024
_KEYS = frozenset(
    {"JobID", "SubmissionID", "Payload", "Meta", "IdempotencyToken", "Priority"}
    # Of Nomad's request, without a meaning here.
    | {"Region", "Namespace", "AuthToken", "SecretID"}
)


class DispatchRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Payload, meta and token of one dispatch."""

    payload: bytes = b""
    meta: dict[str, str] = {}
    token: str = ""
    priority: int = 0


def read_dispatch(value: JsonObject) -> DispatchRequest:
    """Read what is given to the child. Raises CommandInvalid."""
    if unknown := sorted(value.keys() - _KEYS):
        raise CommandInvalid("invalid", "unknown parameter", unknown[0][:60])
    token, priority = value.get("IdempotencyToken", ""), value.get("Priority", 0)
    if not isinstance(token, str):
        raise CommandInvalid("invalid", "must be a string", "IdempotencyToken")
    if token and (fault := id_error(token)):
        raise CommandInvalid("invalid", fault, "IdempotencyToken")
    if type(priority) is not int:
        raise CommandInvalid("invalid", "must be a whole number", "Priority")
    return DispatchRequest(
        payload=_payload(value), meta=_meta(value), token=token, priority=priority
    )


def _payload(value: JsonObject) -> bytes:
    text = value.get("Payload", "")
    if not isinstance(text, str):
        raise CommandInvalid("invalid", "must be text in base64", "Payload")
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as err:
        raise CommandInvalid("invalid", f"is not base64: {err}", "Payload") from err
    if len(found) > PAYLOAD_BYTES_MAX:
        fault = f"has {len(found)} bytes, at most {PAYLOAD_BYTES_MAX} are allowed"
        raise CommandInvalid("too_large", fault, "Payload")
    return found


def _meta(value: JsonObject) -> dict[str, str]:
    found = value.get("Meta", {})
    if not isinstance(found, dict):
        raise CommandInvalid("invalid", "must be an object of texts", "Meta")
    for key, text in found.items():
        if not isinstance(text, str):
            raise CommandInvalid("invalid", "must be a string", f"Meta.{key[:60]}")
        if may_become_reference(text):
            # The job's texts have its meta filled in before its secrets.
            raise CommandInvalid("invalid", "must not refer to secrets", f"Meta.{key[:60]}")
    if len(found) > META_MAX or sum(map(len, (*found, *found.values()))) > META_CHARS_MAX:
        fault = f"at most {META_MAX} keys with {META_CHARS_MAX} characters in all are allowed"
        raise CommandInvalid("too_large", fault, "Meta")
    return dict(sorted(found.items()))
