"""Variables: named items that only those may read who may read their path. The log has ciphertext (ADR 31).

A path lives from its first put to its delete; each life is an incarnation with a data key of its own, which is erased
when the life ends. `services/keeper` alone holds keys. What stands here in plain: paths, counts, sizes, and digests
that say nothing without a key.
"""

from schemas.base import Command, Event, Wire
from schemas.jobs import ErrorDetail

#: Codes of a refusal. stale: it was encrypted for another life of the path; rate: too many puts of the path; locked:
#: another lock holds the path.
VARIABLE_CODES = ("invalid", "conflict", "stale", "rate", "quota", "locked")


class VariableLife(Wire, frozen=True, kw_only=True):
    """One life of a path."""

    path: str
    #: 1 for the first, one more for each put behind a delete, or with `shred_old`.
    incarnation: int


# ---- facts ----


class VariablePut(Event, frozen=True, kw_only=True, tag="variable.put"):
    """A variable has new items. Its revision is the seq of this record."""

    path: str
    incarnation: int
    #: nonce (12 bytes), AES-256-GCM of the items as JSON, tag (16 bytes).
    cipher: bytes
    #: keyed hash of the items, 32 hex digits: the same items of one cluster have the same.
    digest: str
    #: how many items, and bytes of their names and texts.
    items: int
    size: int
    #: log time.
    at_ns: int
    request_id: str


class VariableDeleted(Event, frozen=True, kw_only=True, tag="variable.deleted"):
    """A life of a path is over. Its data key is erased next."""

    path: str
    incarnation: int
    request_id: str = ""


class VariablesShredded(Event, frozen=True, kw_only=True, tag="variable.shredded"):
    """The data keys of lives that are over are erased: no copy of their ciphertext can be read any more."""

    lives: tuple[VariableLife, ...]


class VariableRefused(Event, frozen=True, kw_only=True, tag="variable.refused"):
    """A command about a variable was not carried out."""

    request_id: str
    path: str
    #: one of VARIABLE_CODES.
    code: str
    reason: str
    #: the present one of the path; 0: there is none.
    revision: int = 0


class VariableLocked(Event, frozen=True, kw_only=True, tag="variable.locked"):
    """A path is held by a client until it releases it, or is silent for so long. The path need not have items."""

    path: str
    #: hash of the lock's id, 32 hex digits: who knows the id holds it.
    lock: str
    #: so long after the last renewal it expires.
    ttl_ns: int
    #: so long after that the path cannot be locked.
    delay_ns: int
    #: log time.
    at_ns: int
    request_id: str


class VariableLockReleased(Event, frozen=True, kw_only=True, tag="variable.lock_released"):
    """The holder of a lock has given it back."""

    path: str
    lock: str
    request_id: str


class VariableLockExpired(Event, frozen=True, kw_only=True, tag="variable.lock_expired"):
    """The holder of a lock was silent for too long."""

    path: str
    lock: str
    #: log time before which the path cannot be locked again.
    free_ns: int


class KeyCreated(Event, frozen=True, kw_only=True, tag="key.created"):
    """The keeper has another key pair. Clients seal what they send with the newest public key."""

    #: 16 hex digits: of the hash of the public key.
    key_id: str
    #: X25519, 32 bytes.
    public: bytes


# ---- commands (cmd.variable) ----


class PutVariable(Command, frozen=True, kw_only=True, tag="put_variable"):
    """Store the items of a path, encrypted for one life of it. Natural key: request_id among the last puts of it."""

    request_id: str
    path: str
    #: the life that it was encrypted for: the present one, or the next one.
    incarnation: int
    cipher: bytes
    digest: str
    items: int
    size: int
    #: check and set: the revision that the path must have; 0: it must not exist; -1: not compared.
    cas: int = -1
    #: end the present life, so that older items cannot be read any more.
    shred_old: bool = False
    #: of a path that is locked: the hash of the lock's id.
    lock: str = ""


class DeleteVariable(Command, frozen=True, kw_only=True, tag="delete_variable"):
    """End the life of a path. Natural key: the life, whether it is over."""

    request_id: str
    path: str
    #: the life that is meant: a later one stays; 0: the present one.
    incarnation: int = 0
    #: as in PutVariable.
    cas: int = -1
    lock: str = ""


class LockVariable(Command, frozen=True, kw_only=True, tag="lock_variable"):
    """Hold a path. Natural key: the lock, whether it holds the path."""

    request_id: str
    path: str
    lock: str
    ttl_ns: int
    delay_ns: int


class ReleaseLock(Command, frozen=True, kw_only=True, tag="release_lock"):
    """Give a lock back. Natural key: the lock, whether it holds the path."""

    request_id: str
    path: str
    lock: str


class ExpireLock(Command, frozen=True, kw_only=True, tag="expire_lock"):
    """Say that the holder of a lock was silent for its time. Natural key: the lock, whether it holds the path."""

    path: str
    lock: str


class ShredVariables(Command, frozen=True, kw_only=True, tag="shred_variables"):
    """Say that data keys are erased. Natural key: the lives that are over and not shredded."""

    lives: tuple[VariableLife, ...]


class CreateKey(Command, frozen=True, kw_only=True, tag="create_key"):
    """Make a public key of the keeper known. Natural key: key_id."""

    key_id: str
    public: bytes


# ---- requests (api.variable.*), answered by the keeper ----


class PutVariableRequest(Wire, frozen=True, kw_only=True):
    """`api.variable.put`: store items under a path."""

    path: str
    #: the key that `sealed` is for.
    key_id: str
    #: the items, a JSON object of texts, sealed (docs/variables.md, shared/sealed_box.py).
    sealed: bytes
    #: check and set: the revision that the path must have; 0: it must not exist; -1: not compared.
    cas: int = -1
    #: nothing that was stored under this path before can be read any more.
    shred_old: bool = False
    #: of a path that is locked: the id of the lock.
    lock_id: str = ""
    #: names this request: sent again with the same id it is carried out once. 1 to 128 characters.
    request_id: str


class DeleteVariableRequest(Wire, frozen=True, kw_only=True):
    """`api.variable.delete`: erase a path and its items."""

    path: str
    #: as in PutVariableRequest.
    cas: int = -1
    lock_id: str = ""
    request_id: str


class LockVariableRequest(Wire, frozen=True, kw_only=True):
    """`api.variable.lock`: hold a path. While it is held, puts and deletes require the id of the lock."""

    path: str
    #: drawn by the caller, 16 to 128 characters: who knows it holds the lock. The same id again renews the lock.
    lock_id: str
    #: so long after the last renewal the lock expires: 10 s to a day.
    ttl_ns: int = 15_000_000_000
    #: so long after it has expired the path cannot be locked: up to a day.
    delay_ns: int = 15_000_000_000
    request_id: str


class RenewLockRequest(Wire, frozen=True, kw_only=True):
    """`api.variable.renew`: say that the holder of a lock is there; `not_found`: it does not hold the path."""

    path: str
    lock_id: str


class ReleaseLockRequest(Wire, frozen=True, kw_only=True):
    """`api.variable.release`: give a lock back."""

    path: str
    lock_id: str
    request_id: str


class GetVariableRequest(Wire, frozen=True, kw_only=True):
    """`api.variable.get`: read the items of a path."""

    path: str
    #: X25519, 32 bytes, of a pair that the caller makes for this question: the items are sealed with it.
    public: bytes


class VariableVerdict(Wire, frozen=True, kw_only=True):
    """Answer to every request but a get."""

    request_id: str
    #: accepted, refused or pending.
    status: str
    #: of the path now; 0: it does not exist.
    revision: int = 0
    error: ErrorDetail | None = None


class VariableAnswer(Wire, frozen=True, kw_only=True):
    """Answer to a get: `error`, or the variable."""

    path: str = ""
    revision: int = 0
    #: seq of the first put of this life.
    create_seq: int = 0
    create_ns: int = 0
    modify_ns: int = 0
    items: int = 0
    size: int = 0
    #: the items, sealed with the key of the question.
    sealed: bytes = b""
    error: ErrorDetail | None = None


# ---- of nodes (ask.<node>.variable), answered by the keeper ----


class VariableAsk(Wire, frozen=True, kw_only=True):
    """A node reads variables for a task of one of its allocations."""

    alloc_id: str
    task: str
    #: at most 16.
    paths: tuple[str, ...]
    #: as in GetVariableRequest.
    public: bytes


class VariableAnswers(Wire, frozen=True, kw_only=True):
    """Answer to a node: for each path in the order of the question the variable, or why not."""

    answers: tuple[VariableAnswer, ...] = ()
    #: of the question as a whole: `forbidden`, `invalid` or `unavailable`.
    error: ErrorDetail | None = None


# ---- the state, published by the view ----


class VariableProjection(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """`view.variable.<path>`: which revision a path has; of a deleted one it expires in an hour."""

    cluster_id: str
    seq: int
    path: str
    #: 0: it does not exist.
    revision: int = 0
    #: as in NodeProjection.
    incarnation: int = 0
