"""Sealed boxes: bytes that only the holder of a private key opens, and only in the context that they were sealed for.

The format, for clients in other languages:

    box = version (one byte, 1) ‖ ephemeral public key (32) ‖ nonce (12) ‖ ciphertext ‖ tag (16)
    key = HKDF-SHA-256(X25519(ephemeral, recipient), salt = ephemeral public ‖ recipient public,
                       info = "caravan variable 1"), 32 bytes
    ciphertext, tag = AES-256-GCM(key, nonce, plain, additional data = context)

A context is a list of texts, each as UTF-8 behind its length in four bytes, big endian. Keys are raw X25519 keys of 32
bytes. tests/unit/keeper/test_sealed_box.py has test vectors.

Contexts in use: `("put", cluster_id, path, request_id)` for the items of a put, `("get", cluster_id, path,
str(revision))` for the answer to a get, `("identity", cluster_id, alloc_id, task, name)` for the token of an identity.
"""

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shared.errors import CaravanError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
_VERSION = b"\x01"
_INFO = b"caravan variable 1"
_HEAD_BYTES = len(_VERSION) + KEY_BYTES + NONCE_BYTES
#: What a box is longer than its plain bytes.
OVERHEAD_BYTES = _HEAD_BYTES + TAG_BYTES


class SealedBoxInvalid(CaravanError):
    """A box does not open: it is for another key or context, or was changed. Or a key is none."""


def new_pair() -> tuple[bytes, bytes]:
    """Draw a key pair: (private, public)."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def key_id(public: bytes) -> str:
    """Return the name of a public key: 16 hex digits of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:16]


def context_bytes(context: tuple[str, ...]) -> bytes:
    """Encode texts so that no two lists have the same bytes."""
    parts = [one.encode() for one in context]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def seal(plain: bytes, public: bytes, context: tuple[str, ...]) -> bytes:
    """Seal bytes for the holder of the private key of `public`. Raises SealedBoxInvalid for what is no public key."""
    return sealed_with(
        plain, public, context, ephemeral=new_pair()[0], nonce=os.urandom(NONCE_BYTES)
    )


def sealed_with(
    plain: bytes, public: bytes, context: tuple[str, ...], *, ephemeral: bytes, nonce: bytes
) -> bytes:
    """Seal with a given ephemeral private key and nonce, which must never be used twice: for test vectors."""
    own = X25519PrivateKey.from_private_bytes(ephemeral)
    own_public = own.public_key().public_bytes_raw()
    cipher = AESGCM(_box_key(own, public, salt=own_public + public))
    return _VERSION + own_public + nonce + cipher.encrypt(nonce, plain, context_bytes(context))


def open_box(sealed: bytes, private: bytes, context: tuple[str, ...]) -> bytes:
    """Open a box. Raises SealedBoxInvalid."""
    if len(sealed) < OVERHEAD_BYTES:
        raise SealedBoxInvalid(
            f"a sealed box has at least {OVERHEAD_BYTES} bytes, not {len(sealed)}"
        )
    if sealed[:1] != _VERSION:
        raise SealedBoxInvalid(f"version {sealed[0]} of a sealed box is not supported")
    ephemeral, nonce = sealed[1 : 1 + KEY_BYTES], sealed[1 + KEY_BYTES : _HEAD_BYTES]
    own = X25519PrivateKey.from_private_bytes(private)
    own_public = own.public_key().public_bytes_raw()
    cipher = AESGCM(_box_key(own, ephemeral, salt=ephemeral + own_public))
    try:
        return cipher.decrypt(nonce, sealed[_HEAD_BYTES:], context_bytes(context))
    except InvalidTag:
        text = "the sealed box is for another key or another request, or was changed"
        raise SealedBoxInvalid(text) from None


def _box_key(own: X25519PrivateKey, other: bytes, *, salt: bytes) -> bytes:
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        # Of another length, or a point of small order, whose secret everyone knows.
        raise SealedBoxInvalid("this is not a public key of X25519") from None
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=_INFO).derive(shared)
