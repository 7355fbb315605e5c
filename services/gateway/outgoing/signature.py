"""Signatures of webhooks as Standard Webhooks has them: HMAC-SHA-256 over id, time and body, with a key in a file."""

import base64
import binascii
import hashlib
import hmac

from shared.errors import ConfigInvalid

_PREFIX = b"whsec_"
KEY_BYTES_MIN = 16


def key_of(data: bytes, name: str) -> bytes:
    """The key in a file: its bytes without spaces around them; behind `whsec_` base64. Raises ConfigInvalid."""
    text = data.strip()
    if text.startswith(_PREFIX):
        try:
            key = base64.b64decode(text[len(_PREFIX) :], validate=True)
        except binascii.Error as err:
            raise ConfigInvalid(f"{name}: what is behind whsec_ is not base64") from err
    else:
        key = text
    if len(key) < KEY_BYTES_MIN:
        raise ConfigInvalid(f"{name}: a key has at least {KEY_BYTES_MIN} bytes, was {len(key)}")
    return key


def signed_headers(key: bytes, event_id: str, body: bytes, now_s: int) -> dict[str, str]:
    """The three headers of a signed request."""
    told = f"{event_id}.{now_s}.".encode() + body
    digest = base64.b64encode(hmac.digest(key, told, hashlib.sha256)).decode()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{digest}",
    }
