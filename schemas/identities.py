"""Identities: signed tokens (JWT) by which a task proves what it is, and the public keys that verify them (ADR 38).

`services/keeper` signs on demand and alone holds private keys. The log has public keys, never a token.
"""

from schemas.base import Command, Event, Wire
from schemas.jobs import ErrorDetail

# ---- facts ----


class SigningKeyCreated(Event, frozen=True, kw_only=True, tag="signing_key.created"):
    """The keeper has another key for identities; the newest one signs, all that are known verify."""

    #: 16 hex digits: of the SHA-256 of `public`. The `kid` of its tokens.
    key_id: str
    #: as in JWT: RS256.
    algorithm: str
    #: SubjectPublicKeyInfo, DER.
    public: bytes
    #: log time.
    at_ns: int


class SigningKeyRemoved(Event, frozen=True, kw_only=True, tag="signing_key.removed"):
    """A key verifies nothing any more: tokens that it signed are worthless from here on."""

    key_id: str


# ---- commands (cmd.variable) ----


class CreateSigningKey(Command, frozen=True, kw_only=True, tag="create_signing_key"):
    """Make a public key for identities known. Natural key: key_id."""

    key_id: str
    algorithm: str
    public: bytes


class RemoveSigningKey(Command, frozen=True, kw_only=True, tag="remove_signing_key"):
    """Take a public key away, unless it is the newest one. Natural key: key_id."""

    key_id: str


# ---- of nodes (ask.<node>.identity), answered by the keeper ----


class IdentityAsk(Wire, frozen=True, kw_only=True):
    """A node asks for tokens of a task of one of its allocations."""

    alloc_id: str
    task: str
    #: names of its `identity` blocks, `default` that of the block without a name; at most 16.
    names: tuple[str, ...]
    #: X25519, 32 bytes, of a pair that the node makes for this question: the tokens are sealed with it.
    public: bytes


class SignedIdentity(Wire, frozen=True, kw_only=True):
    """One token, or why there is none."""

    name: str
    #: the token, sealed (shared/sealed_box.py) in the context `identity`, cluster id, alloc id, task, name.
    sealed: bytes = b""
    #: seconds since 1970, of the keeper's clock.
    issued_s: int = 0
    #: 0: it does not expire.
    expires_s: int = 0
    error: ErrorDetail | None = None


class IdentityAnswers(Wire, frozen=True, kw_only=True):
    """Answer to a node: for each name in the order of the question the token, or why not."""

    identities: tuple[SignedIdentity, ...] = ()
    #: of the question as a whole: `forbidden`, `invalid` or `unavailable`.
    error: ErrorDetail | None = None


# ---- requests (api.keyring.*), answered by the keeper ----


class RotateKeyRequest(Wire, frozen=True, kw_only=True):
    """`api.keyring.rotate`: make another key, which is in force from then on."""

    #: sealing (clients seal variables with it) or signing (identities).
    kind: str
    #: the key that is in force: with another one the request is refused as a conflict, so that it is carried out once.
    in_force: str


class RemoveKeyRequest(Wire, frozen=True, kw_only=True):
    """`api.keyring.remove`: take away a signing key that is not in force."""

    key_id: str


class KeyringVerdict(Wire, frozen=True, kw_only=True):
    """Answer to a request about keys."""

    #: accepted, refused or pending.
    status: str
    #: the key of that kind that is in force now.
    key_id: str = ""
    error: ErrorDetail | None = None
