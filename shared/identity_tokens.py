"""Identity tokens: JSON Web Tokens (RFC 7519) in compact form, signed with RS256, and the keys that verify them.

One algorithm, and a key that the token names among those that are given: what a header says otherwise decides nothing.
Verification is strict: `alg` and `kid` have to be there, and no part of a token is read before its signature holds.
"""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)

from shared.errors import CaravanError

ALGORITHM = "RS256"
KEY_BITS = 2_048
#: Clocks of the keeper and of who verifies may differ by so much.
LEEWAY_S = 10
#: A job's names and claims of its own fit (shared/jobspec/extra_claims.py).
_TOKEN_CHARS_MAX = 16 * 1024
_ID_DIGITS = 16
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class TokenInvalid(CaravanError):
    """A token is none, is not signed by a known key, or is not valid now."""


# ---- keys ----


def new_signing_key() -> RSAPrivateKey:
    """Draw a private key."""
    return generate_private_key(public_exponent=65_537, key_size=KEY_BITS)


def private_bytes(private: RSAPrivateKey) -> bytes:
    """Encode a private key: PKCS #8, DER, in plain."""
    return private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def read_private(data: bytes) -> RSAPrivateKey:
    """Read a private key. Raises ValueError."""
    private = load_der_private_key(data, password=None)
    if not isinstance(private, RSAPrivateKey):
        raise ValueError("this is no private key of RSA")  # noqa: TRY004 - as for other bytes.
    return private


def public_bytes(private: RSAPrivateKey) -> bytes:
    """Encode the public part of a key: SubjectPublicKeyInfo, DER."""
    return private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def signing_key_id(public: bytes) -> str:
    """Return the `kid` of a public key: 16 hex digits of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:_ID_DIGITS]


def public_jwk(key_id: str, public: bytes) -> dict[str, str]:
    """Describe a public key as RFC 7517 does. Raises ValueError: it is no key of RSA."""
    numbers = _read_public(public).public_numbers()
    return {
        "kty": "RSA",
        "use": "sig",
        "alg": ALGORITHM,
        "kid": key_id,
        "n": _number_text(numbers.n),
        "e": _number_text(numbers.e),
    }


def _read_public(data: bytes) -> RSAPublicKey:
    try:
        public = load_der_public_key(data)
    except UnsupportedAlgorithm as err:
        raise ValueError("this is no public key of RSA") from err
    if not isinstance(public, RSAPublicKey):
        raise ValueError("this is no public key of RSA")  # noqa: TRY004 - as for other bytes.
    return public


# ---- tokens ----


def sign_token(private: RSAPrivateKey, key_id: str, claims: bytes) -> str:
    """Sign claims, a JSON object."""
    header = msgspec.json.encode({"alg": ALGORITHM, "kid": key_id, "typ": "JWT"})
    signed = f"{_text(header)}.{_text(claims)}"
    return f"{signed}.{_text(private.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def looks_like_token(text: str) -> bool:
    """Return whether a text has the form of a token, so that it is no other credential."""
    return text.count(".") == 2 and text.startswith("eyJ") and ":" not in text


def verify_token(
    token: str, keys: Mapping[str, bytes], *, now_s: float, audience: str
) -> dict[str, Any]:
    """Return the claims of a token. `keys`: public keys by `kid`. Raises TokenInvalid."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _TOKEN_CHARS_MAX:
        raise TokenInvalid("it is not a signed token")
    header = _object(parts[0])
    if header.get("alg") != ALGORITHM or "crit" in header:
        raise TokenInvalid(f"its algorithm is not {ALGORITHM}")
    key_id = header.get("kid")
    public = keys.get(key_id) if isinstance(key_id, str) else None
    if public is None:
        raise TokenInvalid("its key is not known, or was removed")
    signed = f"{parts[0]}.{parts[1]}".encode()
    try:
        _read_public(public).verify(_bytes(parts[2]), signed, PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError) as err:
        raise TokenInvalid("its signature is wrong") from err
    claims = _object(parts[1])
    _check_times(claims, now_s)
    said = claims.get("aud")
    if audience not in (said if isinstance(said, list) else [said]):
        raise TokenInvalid(f"it is not for {audience}")
    return claims


def _check_times(claims: Mapping[str, Any], now_s: float) -> None:
    for name, sign in (("exp", 1), ("nbf", -1)):
        if name not in claims:
            continue
        at_s = claims[name]
        if isinstance(at_s, bool) or not isinstance(at_s, int | float):
            raise TokenInvalid(f"its claim {name} is not a time")
        if sign * (now_s - at_s) > LEEWAY_S:
            raise TokenInvalid("it has expired" if name == "exp" else "it is not valid yet")


# ---- base64url without padding ----


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Read base64url. Raises ValueError."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(data) != text:
        raise ValueError("not the shortest form of base64url")
    return data


def _number_text(number: int) -> str:
    return _text(number.to_bytes((number.bit_length() + 7) // 8, "big"))


def _object(text: str) -> dict[str, Any]:
    try:
        return _OBJECT.decode(_bytes(text))
    except (ValueError, msgspec.DecodeError, RecursionError) as err:
        raise TokenInvalid("it is not a signed token") from err
