"""Answers of `query.variables`, `query.keys` and `query.signing_keys`: no ciphertext and no digest is in them."""

from schemas.answers import QueryAnswer
from schemas.base import ExactWire, Wire


class VariableLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """A variable in one line, without its items; or a path without items that a lock holds."""

    path: str
    #: seq of its newest put; 0: it has no items.
    revision: int
    #: seq of the first put of this life of the path.
    create_seq: int = 0
    #: log time of the first and of the newest put.
    create_ns: int = 0
    modify_ns: int = 0
    #: how many items, and bytes of their names and texts.
    items: int = 0
    size: int = 0
    #: `create_ns` as text where it exceeds 2^53; else empty.
    create_ns_text: str = ""
    modify_ns_text: str = ""
    #: seq at which the lock that holds the path was taken; 0: none does.
    lock_seq: int = 0
    #: of that lock: so long after its last renewal it expires, and so long after that nothing can lock the path.
    lock_ttl_ms: int = 0
    lock_delay_ms: int = 0


class VariablesAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.variables`, by path."""

    variables: tuple[VariableLine, ...] = ()
    total: int = 0


class KeyLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A public key of the keeper."""

    #: 16 hex digits.
    key_id: str
    #: X25519, 32 bytes.
    public: bytes
    #: seq of the record that made it known.
    create_seq: int = 0


class KeysAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.keys`, newest first: clients seal with the first one."""

    keys: tuple[KeyLine, ...] = ()
    total: int = 0


class SigningKeyLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """A public key that verifies identities of tasks."""

    #: 16 hex digits: `kid` of the tokens that it signed.
    key_id: str
    #: as in JWT: RS256.
    algorithm: str
    #: SubjectPublicKeyInfo, DER.
    public: bytes
    #: seq of the record that made it known.
    create_seq: int = 0
    #: log time of that record.
    create_ns: int = 0
    #: `create_ns` as text where it exceeds 2^53; else empty.
    create_ns_text: str = ""


class SigningKeysAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.signing_keys`, newest first: the first one signs, all of them verify."""

    keys: tuple[SigningKeyLine, ...] = ()
    total: int = 0
