"""A vault without cryptography: ciphertext is plain JSON that names its key, and opens only while that key is there.

What it binds, erases and refuses is what `services/keeper/vault.py` does, so that the order of erasing, lives that are
used twice and a key store of before are found without a cipher. Nothing here is secret.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from schemas.variables import VariableLife
from shared.core.runtime.keeper_messages import (
    CheckKeys,
    EraseKeys,
    EraseSigningKeys,
    IdentitySigned,
    ItemsOpened,
    ItemsSealed,
    KeysChecked,
    KeysErased,
    KeyStoreOpened,
    KeyStoreUnusable,
    MakeSealingKey,
    MakeSigningKey,
    OpenItems,
    OpenKeyStore,
    SealingKey,
    SealingKeyMade,
    SealItems,
    SignIdentity,
    SigningKeyMade,
    SigningKeysErased,
    StoredSigningKey,
    VaultAnswer,
    VaultEffect,
    VaultFailed,
)
from shared.protocol.identity_names import identity_context

_ENCODER = msgspec.json.Encoder(order="sorted")
_PUBLIC_BYTES = 32


class MemoryKeyStore:
    """What outlives a keeper: data keys by life, as numbers that are drawn once, ids of sealing and signing keys."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, int], int] = {}
        self.sealing = [MemoryVault.key_id]
        #: ids of keys that sign, and how many there ever were.
        self.signing: list[str] = []
        self.is_made = False
        self._drawn = self._made = 0

    def draw(self, life: VariableLife) -> int:
        """Return the key of a life, a new one where there is none."""
        found = self.keys.get((life.path, life.incarnation))
        if found is None:
            self._drawn += 1
            found = self.keys[life.path, life.incarnation] = self._drawn
        return found

    def make_signing_key(self, known: tuple[str, ...]) -> StoredSigningKey:
        """Make another key that signs, unless there is one that is not known."""
        fresh = [one for one in self.signing if one not in known]
        if not fresh:
            self._made += 1
            fresh = [f"{self._made:016x}"]
            self.signing += fresh
        return stored_signing_key(fresh[0])


class _Sealed(msgspec.Struct, frozen=True):
    """What is sealed for a receiver."""

    to: str
    context: tuple[str, ...]
    items: dict[str, str]


class SignedClaims(msgspec.Struct, frozen=True):
    """A token: its key and its claims."""

    key_id: str
    claims: dict[str, Any]


class _Cipher(msgspec.Struct, frozen=True):
    """The items of a variable, bound to where they are."""

    key: int
    bound_to: tuple[str, ...]
    items: dict[str, str]


class MemoryVault:
    """The vault of one keeper's process."""

    key_id = "0123456789abcdef"
    public = bytes(_PUBLIC_BYTES)

    def __init__(self, store: MemoryKeyStore) -> None:
        self._store = store
        self._cluster_id = ""

    def perform(self, effect: VaultEffect) -> VaultAnswer:
        """Perform one effect; its one answer."""
        match effect:
            case OpenKeyStore():
                return self._open_store(effect)
            case SealItems():
                return self._seal(effect)
            case OpenItems():
                return self._open(effect)
            case EraseKeys():
                for life in effect.lives:
                    self._store.keys.pop((life.path, life.incarnation), None)
                return KeysErased(lives=effect.lives)
            case MakeSigningKey():
                made = self._store.make_signing_key(effect.known)
                return SigningKeyMade(token=effect.token, key_id=made.key_id, public=made.public)
            case SignIdentity():
                return self._sign(effect)
            case EraseSigningKeys():
                for key_id in effect.key_ids:
                    if key_id in self._store.signing:
                        self._store.signing.remove(key_id)
                return SigningKeysErased(key_ids=effect.key_ids)
            case MakeSealingKey():
                return self._make(effect)
            case CheckKeys():
                # No time passes here: every sealing key is kept.
                kept = tuple(one for one in effect.superseded if one in self._store.sealing)
                return KeysChecked(superseded=kept, lives=self._lives())

    def _make(self, effect: MakeSealingKey) -> VaultAnswer:
        sealing = self._store.sealing
        fresh = [one for one in sealing if one not in effect.known]
        if not fresh:
            fresh = [f"{len(sealing):016x}"]
            sealing += fresh
        return SealingKeyMade(token=effect.token, key=SealingKey(fresh[0], self.public))

    def _lives(self) -> tuple[VariableLife, ...]:
        return tuple(VariableLife(path=path, incarnation=n) for path, n in self._store.keys)

    def _open_store(self, effect: OpenKeyStore) -> VaultAnswer:
        if not self._store.is_made and not effect.may_create:
            return KeyStoreUnusable(reason="the key store is gone")
        self._store.is_made = True
        self._cluster_id = effect.cluster_id
        *others, last = self._store.sealing
        return KeyStoreOpened(
            key_id=last,
            public=self.public,
            lives=self._lives(),
            others=tuple(SealingKey(one, self.public) for one in others),
            signing=tuple(map(stored_signing_key, self._store.signing)),
        )

    def _seal(self, effect: SealItems) -> VaultAnswer:
        opened = msgspec.json.decode(effect.sealed, type=_Sealed)
        context = ("put", self._cluster_id, effect.life.path, effect.request_id)
        if opened.to not in self._store.sealing or opened.context != context:
            return VaultFailed(token=effect.token, code="invalid", reason="it cannot be opened")
        items = opened.items
        cipher = _Cipher(
            key=self._store.draw(effect.life),
            bound_to=self._bound_to(effect.life, effect.request_id),
            items=items,
        )
        return ItemsSealed(
            token=effect.token,
            life=effect.life,
            cipher=_ENCODER.encode(cipher),
            digest=blake2b(_ENCODER.encode(items), digest_size=16).hexdigest(),
            items=len(items),
            size=sum(len(name) + len(text) for name, text in items.items()),
        )

    def _open(self, effect: OpenItems) -> VaultAnswer:
        cipher = msgspec.json.decode(effect.cipher, type=_Cipher)
        life = effect.life
        key = self._store.keys.get((life.path, life.incarnation))
        if key != cipher.key or cipher.bound_to != self._bound_to(life, effect.request_id):
            return VaultFailed(token=effect.token, code="failed", reason="it cannot be decrypted")
        context = ("get", self._cluster_id, life.path, str(effect.revision))
        sealed = _Sealed(to=effect.public.hex(), context=context, items=cipher.items)
        return ItemsOpened(token=effect.token, sealed=_ENCODER.encode(sealed))

    def _sign(self, effect: SignIdentity) -> VaultAnswer:
        if effect.key_id not in self._store.signing:
            return VaultFailed(token=effect.token, code="unavailable", reason="the key is gone")
        context = identity_context(self._cluster_id, effect.alloc_id, effect.task, effect.name)
        claims = msgspec.json.decode(effect.claims)
        signed = _ENCODER.encode(SignedClaims(effect.key_id, {**claims, "jti": str(effect.token)}))
        sealed = _Sealed(to=effect.public.hex(), context=context, items={"token": signed.decode()})
        return IdentitySigned(
            token=effect.token, sealed=_ENCODER.encode(sealed), key_id=effect.key_id
        )

    def _bound_to(self, life: VariableLife, request_id: str) -> tuple[str, ...]:
        return self._cluster_id, life.path, str(life.incarnation), request_id


def stored_signing_key(key_id: str) -> StoredSigningKey:
    """Describe a key that signs."""
    return StoredSigningKey(key_id=key_id, public=f"public part of {key_id}".encode())


def seal_items(
    items: dict[str, str], *, cluster_id: str, path: str, request_id: str, key_id: str
) -> bytes:
    """Seal items as a client does."""
    context = ("put", cluster_id, path, request_id)
    return _ENCODER.encode(_Sealed(to=key_id, context=context, items=items))


def unseal_items(sealed: bytes) -> dict[str, str]:
    """Return the items of an answer."""
    return msgspec.json.decode(sealed, type=_Sealed).items


def unseal_token(sealed: bytes) -> SignedClaims:
    """Return the token of an answer."""
    return msgspec.json.decode(unseal_items(sealed)["token"], type=SignedClaims)
