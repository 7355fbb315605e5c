"""Tokens of identities: what is signed verifies by the published key alone, and nothing else does."""

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from shared.identity_tokens import (
    LEEWAY_S,
    TokenInvalid,
    looks_like_token,
    new_signing_key,
    private_bytes,
    public_bytes,
    public_jwk,
    read_private,
    sign_token,
    signing_key_id,
    verify_token,
)

NOW_S = 1_800_000_000
AUDIENCE = "nomadproject.io"
CLAIMS: dict[str, Any] = {"sub": "s", "aud": AUDIENCE, "iat": NOW_S, "nbf": NOW_S}


@cache
def keys() -> tuple[RSAPrivateKey, RSAPrivateKey]:
    """Two keys, drawn once."""
    return new_signing_key(), new_signing_key()


def known() -> dict[str, bytes]:
    """The first key, by its id."""
    public = public_bytes(keys()[0])
    return {signing_key_id(public): public}


def encoded(value: object) -> str:
    """Base64url of JSON, or of bytes."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """What base64url without padding holds."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def token(private: RSAPrivateKey | None = None, **claims: Any) -> str:
    """A token of the first key's id."""
    (key_id,) = known()
    return sign_token(private or keys()[0], key_id, json.dumps({**CLAIMS, **claims}).encode())


def with_header(header: dict[str, Any]) -> str:
    """A token with another header, rightly signed by the first key."""
    signed = f"{encoded(header)}.{encoded(CLAIMS)}"
    return f"{signed}.{encoded(keys()[0].sign(signed.encode(), PKCS1v15(), SHA256()))}"


def refusal(text: str, *, now_s: float = NOW_S, audience: str = AUDIENCE) -> str:
    """Why a token is refused."""
    with pytest.raises(TokenInvalid) as caught:
        verify_token(text, known(), now_s=now_s, audience=audience)
    return str(caught.value)


def test_a_token_verifies_by_the_published_key_alone() -> None:
    """From `n` and `e` of the JSON Web Key, by a verification that shares no code with ours."""
    (key_id,) = known()
    jwk = public_jwk(key_id, known()[key_id])
    assert {name: jwk[name] for name in ("kty", "use", "alg", "kid")} == {
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": key_id,
    }
    number, exponent = (int.from_bytes(decoded(jwk[name]), "big") for name in ("n", "e"))
    head, body, signature = token().split(".")
    assert json.loads(decoded(head)) == {"alg": "RS256", "kid": key_id, "typ": "JWT"}
    assert json.loads(decoded(body)) == CLAIMS
    public = RSAPublicNumbers(exponent, number).public_key()
    public.verify(decoded(signature), f"{head}.{body}".encode(), PKCS1v15(), SHA256())
    assert number.bit_length() == 2_048
    assert verify_token(token(), known(), now_s=NOW_S, audience=AUDIENCE) == CLAIMS


def test_a_key_is_read_as_it_was_written() -> None:
    """PKCS #8 and back; the id is of the public part."""
    private = read_private(private_bytes(keys()[0]))
    assert public_bytes(private) == public_bytes(keys()[0])
    with pytest.raises(ValueError, match=r"deserialize|parse"):
        read_private(b"none")


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"alg": "none"}, "algorithm"),
        ({"alg": "HS256", "kid": "KID"}, "algorithm"),
        ({"alg": "rs256", "kid": "KID"}, "algorithm"),
        ({"kid": "KID"}, "algorithm"),
        ({"alg": "RS256", "kid": "KID", "crit": ["x"]}, "algorithm"),
        ({"alg": "RS256"}, "key is not known"),
        ({"alg": "RS256", "kid": ["KID"]}, "key is not known"),
        ({"alg": "RS256", "kid": "f" * 16}, "key is not known"),
    ],
)
def test_another_algorithm_or_key_is_refused(header: dict[str, Any], why: str) -> None:
    """Even where the signature of the known key holds: the header chooses nothing."""
    (key_id,) = known()
    said = json.loads(json.dumps(header).replace("KID", key_id))
    assert why in refusal(with_header(said))


def test_a_public_key_is_no_secret_of_hmac() -> None:
    """The classic confusion: HS256 with the published key."""
    (key_id,) = known()
    signed = f"{encoded({'alg': 'HS256', 'kid': key_id})}.{encoded(CLAIMS)}"
    mac = hmac.new(known()[key_id], signed.encode(), hashlib.sha256).digest()
    assert "algorithm" in refusal(f"{signed}.{encoded(mac)}")


def test_what_was_changed_or_signed_by_another_is_refused() -> None:
    """Claims, signature, no signature, and another key under a known id."""
    head, body, signature = token().split(".")
    other = encoded({**CLAIMS, "sub": "root"})
    for text in (
        f"{head}.{other}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{head}.{body}.{signature}=",
        token(keys()[1]),
    ):
        assert refusal(text) == "its signature is wrong"


@pytest.mark.parametrize(
    "text", ["", "a.b", "a.b.c", "..", "e30.e30.", f"{'a' * 9_000}.b.c", "eyJ!.e30.e30"]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    """Without a look at what it says."""
    assert refusal(text)


def test_a_token_is_valid_between_its_times() -> None:
    """With a few seconds for clocks that differ; one without `exp` does not expire."""
    timed = token(exp=NOW_S + 60)
    for now_s in (NOW_S - LEEWAY_S, NOW_S + 60 + LEEWAY_S):
        assert verify_token(timed, known(), now_s=now_s, audience=AUDIENCE)["exp"] == NOW_S + 60
    assert refusal(timed, now_s=NOW_S + 61 + LEEWAY_S) == "it has expired"
    assert refusal(timed, now_s=NOW_S - 1 - LEEWAY_S) == "it is not valid yet"
    assert verify_token(token(), known(), now_s=NOW_S * 2, audience=AUDIENCE)
    assert "not a time" in refusal(token(exp="tomorrow"))
    assert "not a time" in refusal(token(exp=True))


def test_a_token_for_others_is_refused() -> None:
    """The audience is that of who asks, alone or in a list; a token without one is for others, too."""
    assert verify_token(token(aud=["x", AUDIENCE]), known(), now_s=NOW_S, audience=AUDIENCE)
    for aud in ("x", ["x"], [], None, {"nomadproject.io": 1}):
        assert "not for" in refusal(token(aud=aud))


def test_a_token_is_told_from_a_login() -> None:
    """By its form: logins of the bus are USER:PASSWORD."""
    assert looks_like_token(token())
    for text in ("public:eyJ.a.b", "USER:PASSWORD", "", "eyJ"):
        assert not looks_like_token(text)
