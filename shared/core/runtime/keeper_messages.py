"""What the keeper's role asks of its vault and what the vault answers: effects and inputs that no other role has.

The role sees ciphertext, keyed digests, counts and sizes; keys and plain items stay in the vault.
services/keeper/vault.py performs these with cryptography, shared/sim in virtual time.

What a performer promises:
- `OpenKeyStore` is answered once by KeyStoreOpened or KeyStoreUnusable. What cannot be reached is tried again.
- Every SealItems is answered once by ItemsSealed or VaultFailed; the data key of its life is durable before the answer.
- Every OpenItems is answered once by ItemsOpened or VaultFailed.
- Every EraseKeys is answered once by KeysErased, when nothing of the named keys can be read any more. Erasing what is
  not there is done.
- Every MakeSigningKey is answered once by SigningKeyMade, when the key is durable, or by VaultFailed.
- Every SignIdentity is answered once by IdentitySigned or VaultFailed. The vault adds the id of the token (`jti`).
- Every EraseSigningKeys is answered once by SigningKeysErased, as for EraseKeys.
- Every MakeSealingKey is answered once by SealingKeyMade or VaultFailed; the key is durable before the answer.
- Every CheckKeys is answered once by KeysChecked. A sealing key is erased a day after a CheckKeys
  of any keeper first named it.
- A crash loses answers and effects not yet performed.
"""

import msgspec

from schemas.variables import VariableLife

# ---- effects ----


class OpenKeyStore(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Begin to answer for a cluster. `may_create`: the log knows of no key, so that a missing store is made."""

    cluster_id: str
    may_create: bool


class SealItems(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Open what a client sealed, check it, and encrypt it for a life of its path."""

    token: int
    life: VariableLife
    request_id: str
    key_id: str
    sealed: bytes


class OpenItems(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Decrypt a variable, and seal it with the public key of the caller."""

    token: int
    life: VariableLife
    #: of the put that made the ciphertext.
    request_id: str
    revision: int
    cipher: bytes
    public: bytes


class EraseKeys(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Erase the data keys of lives that are over."""

    lives: tuple[VariableLife, ...]


class MakeSigningKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make another key that signs identities, unless the store has one that is not `known`: then it is that."""

    token: int
    known: tuple[str, ...] = ()


class SignIdentity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sign the claims of one identity, and seal the token with the public key of the question."""

    token: int
    key_id: str
    #: with the cluster's id the context of the seal.
    alloc_id: str
    task: str
    name: str
    #: a JSON object; nothing in it is secret.
    claims: bytes
    public: bytes


class EraseSigningKeys(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Erase private keys that the log removed."""

    key_ids: tuple[str, ...]


class MakeSealingKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make another key that clients seal for, unless the store has one that is not `known`: then it is that."""

    token: int
    known: tuple[str, ...]


class CheckKeys(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Say whose data keys there are, and erase sealing keys that were superseded long ago."""

    superseded: tuple[str, ...]


# ---- inputs ----


class StoredSigningKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A key that signs identities and that the store holds. `public`: SubjectPublicKeyInfo, DER."""

    key_id: str
    public: bytes


class SealingKey(msgspec.Struct, frozen=True, gc=False):
    """The public part of a key that clients seal for."""

    key_id: str
    public: bytes


class KeyStoreOpened(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The vault can answer. `lives`: whose data keys the store holds; `others`: further sealing keys, in any order."""

    key_id: str
    public: bytes
    lives: tuple[VariableLife, ...] = ()
    #: keys that sign identities, oldest first.
    signing: tuple[StoredSigningKey, ...] = ()
    others: tuple[SealingKey, ...] = ()


class KeyStoreUnusable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The store is not the one of this cluster, or is gone: waiting does not help. May come at any time."""

    reason: str


class ItemsSealed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ciphertext of a put, as in PutVariable."""

    token: int
    life: VariableLife
    cipher: bytes
    digest: str
    items: int
    size: int


class ItemsOpened(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The items of a variable, sealed with the key of the question."""

    token: int
    sealed: bytes


class VaultFailed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nothing was sealed or opened. `code` is one of ERROR_CODES (schemas/bounds.py)."""

    token: int
    code: str
    reason: str


class KeysErased(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The data keys of these lives are gone."""

    lives: tuple[VariableLife, ...]


class SigningKeyMade(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A key that signs identities is in the store."""

    token: int
    key_id: str
    public: bytes


class IdentitySigned(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A token, sealed with the key of the question."""

    token: int
    sealed: bytes
    #: of the key that signed it.
    key_id: str = ""


class SigningKeysErased(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """These private keys are gone."""

    key_ids: tuple[str, ...]


class SealingKeyMade(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sealing key that the log does not know yet."""

    token: int
    key: SealingKey


class KeysChecked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store has. `superseded`: those of the question that are there yet."""

    superseded: tuple[str, ...] = ()
    lives: tuple[VariableLife, ...] = ()


VaultEffect = (
    OpenKeyStore
    | SealItems
    | OpenItems
    | EraseKeys
    | MakeSigningKey
    | SignIdentity
    | EraseSigningKeys
    | MakeSealingKey
    | CheckKeys
)
VaultAnswer = (
    KeyStoreOpened
    | KeyStoreUnusable
    | ItemsSealed
    | ItemsOpened
    | VaultFailed
    | KeysErased
    | SigningKeyMade
    | IdentitySigned
    | SigningKeysErased
    | SealingKeyMade
    | KeysChecked
)
