"""Ids in subjects and paths: one reversible token.

Ids follow Nomad (dots, slashes, any case), so they never enter a subject or a path raw. A token holds only
`A-Z a-z 0-9 - _ ~`; every other byte of the id's UTF-8 becomes `~XX`, so that no id can smuggle a wildcard, a dot, a
slash or a `..` segment. Different ids have different tokens and `token_id(id_token(x)) == x`.
"""

import re
from functools import lru_cache

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
#: A subject may be long, a file name may not: 255 bytes on every common file system.
TOKEN_BYTES_MAX = 240
#: An id that is its own token, as most are.
_TOKEN = re.compile(rf"[A-Za-z0-9_-]{{1,{TOKEN_BYTES_MAX}}}")


@lru_cache(maxsize=1 << 14)
def id_token(identifier: str) -> str:
    """Return the token of an id. Raises ValueError for the empty id and for one whose token is too long."""
    if _TOKEN.fullmatch(identifier):
        return identifier
    if not identifier:
        raise ValueError("an empty id has no token")
    raw = identifier.encode("utf-8")
    token = "".join(chr(b) if b in _PLAIN else f"~{b:02X}" for b in raw)
    if len(token) > TOKEN_BYTES_MAX:
        raise ValueError(f"id of {len(raw)} bytes is too long, its token would have {len(token)}")
    return token


def token_id(token: str) -> str:
    """Return the id of a token. Raises ValueError when no id has this token."""
    out = bytearray()
    at = 0
    while at < len(token):
        if token[at] == "~":
            out.append(int(token[at + 1 : at + 3], 16))
            at += 3
        else:
            out += token[at].encode()
            at += 1
    identifier = out.decode("utf-8")
    if id_token(identifier) != token:
        raise ValueError(f"{token!r} is not a token")
    return identifier
