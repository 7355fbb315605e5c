"""The keys of a cluster, each wrapped by its key-encryption key (KEK) and stored where it can be erased.

    digest          what keyed digests of items are made with
    check           the id of the cluster: tells another KEK, and another cluster
    door.KEY_ID     the private key that clients seal for
    data.TOKEN      the key of one life of a path, which stands beside it in plain
    sign.KEY_ID     a private key that signs identities of tasks

The additional data of a wrapping is the entry's name, so no entry can take another one's place. Entries are created
where there is none, never changed, and data keys end by being erased. No key is kept in memory longer than its use,
but KEK, digest key and door key: what is erased here is gone in every keeper. Next: `vault.py`.
"""

import hashlib
import os
from collections.abc import Iterable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.variables import VariableLife
from services.keeper.kek import KekSource, KeyStoreFault
from services.keeper.key_entries import KeyEntries, KeyEntry
from shared.bus.jetstream.streams import BusRefused
from shared.core.runtime.keeper_messages import StoredSigningKey
from shared.errors import BusUnavailable
from shared.identity_tokens import (
    new_signing_key,
    private_bytes,
    public_bytes,
    read_private,
    signing_key_id,
)
from shared.sealed_box import KEY_BYTES, NONCE_BYTES, context_bytes, key_id, new_pair

_CHECK, _DIGEST, _DOOR, _DATA, _SIGN = "check", "digest", "door.", "data.", "sign."
_NO_LIFE = VariableLife(path="", incarnation=0)


class StoredKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of an entry: nonce, wrapped key and tag; of a data key also whose it is."""

    wrapped: bytes
    path: str = ""
    incarnation: int = 0


class OpenedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What a vault needs as long as it answers."""

    cluster_id: str
    digest: bytes
    door_private: bytes
    door_public: bytes
    door_id: str
    lives: tuple[VariableLife, ...]
    #: oldest first.
    signing: tuple[StoredSigningKey, ...] = ()

    def __repr__(self) -> str:
        """Show no key: the text may get into a traceback."""
        return f"OpenedKeys(door_id={self.door_id!r})"


class KeyStore:
    """Wrapped keys in `entries`. `open` first."""

    def __init__(self, entries: KeyEntries, kek: KekSource) -> None:
        self._entries = entries
        self._kek_source = kek
        self._kek: AESGCM | None = None

    async def open(self, cluster_id: str, *, may_create: bool) -> OpenedKeys:
        """Read, or make, what there is once. Raises KeyStoreFault; BusUnavailable: try again."""
        try:
            is_there = await self._entries.is_there()
        except BusRefused as err:
            raise KeyStoreFault(str(err)) from err
        known = await self._entries.read_all() if is_there else []
        if not known and not may_create:
            raise KeyStoreFault(_lost(is_there=is_there))
        self._kek = AESGCM(await self._kek_source.read(may_create=not known))
        if not is_there:
            await self._entries.make()
        await self._check(cluster_id, may_create=may_create)
        digest = await self._kept(_DIGEST, os.urandom(KEY_BYTES), may_create=may_create)
        private = await self._door(known, may_create=may_create)
        public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
        return OpenedKeys(
            cluster_id=cluster_id,
            digest=digest,
            door_private=private,
            door_public=public,
            door_id=key_id(public),
            lives=lives_of(known),
            signing=self._signing(known),
        )

    async def data_key(self, life: VariableLife, *, may_create: bool) -> bytes | None:
        """Return the key of a life, a new one, durable, where there is none and `may_create`.

        Raises KeyStoreFault: its entry is damaged; BusUnavailable.
        """
        name = data_name(life)
        found = await self._entries.read(name)
        if found is None and may_create:
            return await self._created(name, os.urandom(KEY_BYTES), life)
        return None if found is None else self._unwrap(name, found)

    async def erase(self, lives: Iterable[VariableLife]) -> None:
        """Erase the keys of lives, durable and seen to be gone. Raises BusUnavailable: perhaps some are left."""
        for life in lives:
            await self._entries.erase(data_name(life))

    async def make_signing_key(self) -> StoredSigningKey:
        """Draw a key that signs identities; it is durable on return. Raises BusUnavailable."""
        # On the loop: a tenth of a second, once in the life of a key.
        private = new_signing_key()
        public = public_bytes(private)
        found = StoredSigningKey(key_id=signing_key_id(public), public=public)
        await self._created(f"{_SIGN}{found.key_id}", private_bytes(private), _NO_LIFE)
        return found

    async def signing_key(self, kid: str) -> RSAPrivateKey | None:
        """Return a key that signs identities; None: there is none. Raises KeyStoreFault, BusUnavailable."""
        name = f"{_SIGN}{kid}"
        found = await self._entries.read(name)
        return None if found is None else read_private(self._unwrap(name, found))

    async def erase_signing_keys(self, key_ids: Iterable[str]) -> None:
        """Erase keys that signed, as `erase` does. Raises BusUnavailable."""
        for one in key_ids:
            await self._entries.erase(f"{_SIGN}{one}")

    def _signing(self, known: list[KeyEntry]) -> tuple[StoredSigningKey, ...]:
        """List the keys that sign; one that does not open, or has another id than its entry, is left out."""
        found: list[StoredSigningKey] = []
        for one in known:
            if not one.name.startswith(_SIGN):
                continue
            try:
                public = public_bytes(read_private(self._unwrap(one.name, one.body)))
            except (KeyStoreFault, ValueError):
                continue
            if one.name == f"{_SIGN}{signing_key_id(public)}":
                found.append(StoredSigningKey(key_id=signing_key_id(public), public=public))
        return tuple(found)

    async def _check(self, cluster_id: str, *, may_create: bool) -> None:
        try:
            found = await self._kept(_CHECK, cluster_id.encode(), may_create=may_create)
        except _NotOurs:
            raise KeyStoreFault(
                "stream KEYS was wrapped by another key-encryption key: copy keeper/kek of the machine that made it"
            ) from None
        if found != cluster_id.encode():
            raise KeyStoreFault(
                "stream KEYS has the keys of another cluster: restore that of this cluster"
            )

    async def _door(self, known: list[KeyEntry], *, may_create: bool) -> bytes:
        """Return the newest private key that clients seal for."""
        doors = [one for one in known if one.name.startswith(_DOOR)]
        if not doors:
            if not may_create:
                raise KeyStoreFault(_lacks("door"))
            private, public = new_pair()
            name = f"{_DOOR}{key_id(public)}"
            body = self._wrapped(name, private, _NO_LIFE)
            if await self._entries.create(name, body, unless=f"{_DOOR}*"):
                return private
            known = await self._entries.read_all()
            doors = [one for one in known if one.name.startswith(_DOOR)]
            if not doors:
                raise BusUnavailable("stream KEYS has a new entry that cannot be read yet")
        return self._unwrap(doors[-1].name, doors[-1].body)

    async def _kept(self, name: str, fresh: bytes, *, may_create: bool) -> bytes:
        """Return an entry of the cluster, `fresh` where there is none and it may be made."""
        found = await self._entries.read(name)
        if found is not None:
            return self._unwrap(name, found)
        if not may_create:
            raise KeyStoreFault(_lacks(name))
        return await self._created(name, fresh, _NO_LIFE)

    async def _created(self, name: str, key: bytes, life: VariableLife) -> bytes:
        """Store a key; where another keeper was faster, its key."""
        if await self._entries.create(name, self._wrapped(name, key, life)):
            return key
        found = await self._entries.read(name)
        if found is None:
            raise BusUnavailable("an entry of stream KEYS was erased while it was read")
        return self._unwrap(name, found)

    def _wrapped(self, name: str, key: bytes, life: VariableLife) -> bytes:
        assert self._kek is not None, "not opened"
        nonce = os.urandom(NONCE_BYTES)
        wrapped = nonce + self._kek.encrypt(nonce, key, name.encode())
        return msgspec.json.encode(
            StoredKey(wrapped=wrapped, path=life.path, incarnation=life.incarnation)
        )

    def _unwrap(self, name: str, body: bytes) -> bytes:
        assert self._kek is not None, "not opened"
        try:
            wrapped = msgspec.json.decode(body, type=StoredKey).wrapped
            return self._kek.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], name.encode())
        except (msgspec.MsgspecError, InvalidTag, ValueError):
            kind = name.partition(".")[0]
            raise _NotOurs(
                f"an entry of stream KEYS ({kind}) is damaged: restore it from a backup"
            ) from None


class _NotOurs(KeyStoreFault):
    """An entry does not open: of another KEK, or damaged."""


def data_name(life: VariableLife) -> str:
    """Return the name of a data key's entry: paths may be long, and name nothing on the bus."""
    raw = context_bytes((life.path, str(life.incarnation)))
    return f"{_DATA}{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def lives_of(entries: Iterable[KeyEntry]) -> tuple[VariableLife, ...]:
    """Say whose data keys these are; an entry under another name than its life has is left out."""
    found: list[VariableLife] = []
    for one in entries:
        if not one.name.startswith(_DATA):
            continue
        try:
            body = msgspec.json.decode(one.body, type=StoredKey)
        except msgspec.MsgspecError:
            continue
        life = VariableLife(path=body.path, incarnation=body.incarnation)
        if data_name(life) == one.name:
            found.append(life)
    return tuple(sorted(found, key=lambda life: (life.path, life.incarnation)))


def _lost(*, is_there: bool) -> str:
    what = "is empty" if is_there else "is missing"
    return (
        f"stream KEYS {what}, and the log has variables that were encrypted with its keys: restore it from a backup "
        "of the bus (docs/operations.md)"
    )


def _lacks(name: str) -> str:
    return (
        f"stream KEYS has no entry {name}: restore it from a backup of the bus (docs/operations.md)"
    )
