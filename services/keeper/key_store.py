"""The keys of a cluster, each wrapped by its key-encryption key (KEK) and stored where it can be erased.

    check           the id of the cluster: tells another KEK, and another cluster
    digest          what keyed digests of items are made with
    door.KEY_ID     a sealing key: the private key of a pair that clients seal for
    retire.KEY_ID   when that sealing key was seen to be out of use, in seconds since 1970
    data.TOKEN      the key of one life of a path, which stands beside it in plain
    sign.KEY_ID     a private key that signs identities of tasks

Entries are created where there is none, never changed, and data keys and sealing keys end by being erased. No key is
kept in memory longer than its use, but KEK, digest key and sealing keys: what is erased here is gone in every keeper.
How entries are wrapped: `wrapped_keys.py`. Next: `vault.py`.
"""

import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from schemas.variables import VariableLife
from services.keeper.kek import KekSource, KeyStoreFault, NextKek
from services.keeper.key_entries import KeyEntries, KeyEntry
from services.keeper.wrapped_keys import (
    DamagedEntry,
    PlainKey,
    StoredKey,
    WrappedKeys,
    lacks,
    plain_name,
)
from shared.core.runtime.keeper_messages import StoredSigningKey
from shared.errors import BusUnavailable
from shared.identity_tokens import (
    new_signing_key,
    private_bytes,
    public_bytes,
    read_private,
    signing_key_id,
)
from shared.sealed_box import KEY_BYTES, context_bytes, key_id, new_pair

K = TypeVar("K")
_DIGEST, _DOOR, _RETIRE, _DATA, _SIGN = "digest", "door.", "retire.", "data.", "sign."
#: So long after it was seen that a newer sealing key is in the log an older one still opens what clients sealed.
GRACE_S = 24 * 3600
_TIME_BYTES = 8
#: How often a new sealing key is made again because another keeper was faster.
_TRIES_MAX = 5


class SealingPair(msgspec.Struct, frozen=True):
    """A sealing key, both parts."""

    private: bytes
    public: bytes
    key_id: str

    def __repr__(self) -> str:
        """Show no key: the text may get into a traceback."""
        return f"SealingPair({self.key_id!r})"


class OpenedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What a vault needs as long as it answers. `doors`: sealing keys, the one that was stored last behind."""

    cluster_id: str
    digest: bytes
    doors: tuple[SealingPair, ...]
    lives: tuple[VariableLife, ...]
    #: oldest first.
    signing: tuple[StoredSigningKey, ...] = ()

    def __repr__(self) -> str:
        """Show no key: the text may get into a traceback."""
        return f"OpenedKeys(door_id={self.door_id!r})"

    @property
    def door_id(self) -> str:
        """Id of the last sealing key."""
        return self.doors[-1].key_id

    @property
    def door_public(self) -> bytes:
        """Its public part."""
        return self.doors[-1].public

    @property
    def door_private(self) -> bytes:
        """Its private part."""
        return self.doors[-1].private


class KeyStore:
    """Wrapped keys in `entries`. `open` first. `clock`: seconds since 1970."""

    def __init__(
        self,
        entries: KeyEntries,
        kek: KekSource,
        next_kek: NextKek | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = WrappedKeys(entries, kek, next_kek)
        self._clock = clock

    async def open(self, cluster_id: str, *, may_create: bool) -> OpenedKeys:
        """Read, or make, what there is once. Raises KeyStoreFault; BusUnavailable: try again."""
        known = await self._keys.open(cluster_id, may_create=may_create)
        return OpenedKeys(
            cluster_id=cluster_id,
            digest=await self._digest(may_create=may_create),
            doors=await self._doors(known, may_create=may_create),
            lives=lives_of(known),
            signing=await self._signers(known),
        )

    async def data_key(self, life: VariableLife, *, may_create: bool) -> bytes | None:
        """Return the key of a life, a new one, durable, where there is none and `may_create`.

        Raises KeyStoreFault: its entry is damaged, or the store was replaced; BusUnavailable.
        """
        name = data_name(life)
        found = await self._keys.read(name, sure=may_create)
        if found is None and may_create:
            found = await self._keys.create(name, PlainKey(os.urandom(KEY_BYTES), life))
        return None if found is None else found.key

    async def erase(self, lives: Iterable[VariableLife]) -> None:
        """Erase the keys of lives, durable and seen to be gone. Raises BusUnavailable: perhaps some are left."""
        for life in lives:
            await self._keys.erase(data_name(life))

    # ---- sealing keys ----

    async def new_sealing_key(self, known: tuple[str, ...]) -> SealingPair:
        """Return a sealing key that is not `known`, as `_new_key` does. Raises KeyStoreFault, BusUnavailable."""

        def draw() -> tuple[str, bytes]:
            private, public = new_pair()
            return key_id(public), private

        return await self._new_key(_DOOR, known, self._pair, draw)

    async def check(
        self, superseded: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[VariableLife, ...]]:
        """Erase sealing keys that have long been out of use; return those that are left, and whose data keys there are.

        The time is the wall clock's and stands in the store, since it must outlive keepers and machines. A clock that
        is wrong makes it shorter or longer once: a client that is refused seals again with the key in force.
        Raises KeyStoreFault, BusUnavailable.
        """
        entries = await self._keys.all()
        doors = {name.removeprefix(_DOOR) for name in _names(entries, _DOOR)}
        left: list[str] = []
        for one in superseded:
            if one in doors and not await self._is_retired(one):
                left.append(one)
            elif one in doors:
                await self._keys.erase(f"{_DOOR}{one}")
                doors.discard(one)
        for name in _names(entries, _RETIRE):
            if name.removeprefix(_RETIRE) not in doors:
                await self._keys.erase(name)
        return tuple(left), lives_of(entries)

    # ---- signing keys ----

    async def make_signing_key(self, known: tuple[str, ...]) -> StoredSigningKey:
        """Return a key that signs and is not `known`, as `_new_key` does. Raises KeyStoreFault, BusUnavailable."""

        def draw() -> tuple[str, bytes]:
            # On the loop: a tenth of a second, once in the life of a key.
            private = new_signing_key()
            return signing_key_id(public_bytes(private)), private_bytes(private)

        return await self._new_key(_SIGN, known, self._signer, draw)

    async def signing_key(self, kid: str) -> RSAPrivateKey | None:
        """Return a key that signs identities; None: there is none. Raises KeyStoreFault, BusUnavailable."""
        found = await self._keys.read(f"{_SIGN}{kid}")
        return None if found is None else read_private(found.key)

    async def erase_signing_keys(self, key_ids: Iterable[str]) -> None:
        """Erase keys that signed, as `erase` does. Raises BusUnavailable."""
        for one in key_ids:
            await self._keys.erase(f"{_SIGN}{one}")

    # ---- inside ----

    async def _new_key(
        self,
        prefix: str,
        known: tuple[str, ...],
        read: Callable[[str], Awaitable[K | None]],
        draw: Callable[[], tuple[str, bytes]],
    ) -> K:
        """Return a key of a kind that is not `known`, durable: one that a keeper left behind, or a new one.

        Of keepers that make one at once the first one's is returned to all. Raises KeyStoreFault, BusUnavailable.
        """
        for _ in range(_TRIES_MAX):
            entries = await self._keys.all()
            for name in _names(entries, prefix):
                if name.removeprefix(prefix) not in known and (found := await read(name)):
                    return found
            own_id, private = draw()
            name, after = f"{prefix}{own_id}", self._keys.newest_seq(entries, prefix)
            is_first = await self._keys.create_first(name, PlainKey(private), f"{prefix}*", after)
            if is_first and await self._keys.read(name, sure=True) and (made := await read(name)):
                return made
        raise BusUnavailable("stream KEYS changes while a key is made")

    async def _signer(self, name: str) -> StoredSigningKey | None:
        """Read a key that signs; None: it was erased, does not open, or has another id than its entry."""
        try:
            private = await self.signing_key(name.removeprefix(_SIGN))
            public = b"" if private is None else public_bytes(private)
        except (DamagedEntry, ValueError):
            return None
        is_whole = public and name == f"{_SIGN}{signing_key_id(public)}"
        return StoredSigningKey(key_id=signing_key_id(public), public=public) if is_whole else None

    async def _signers(self, known: list[KeyEntry]) -> tuple[StoredSigningKey, ...]:
        """List the keys that sign."""
        found = [await self._signer(name) for name in _names(known, _SIGN)]
        return tuple(one for one in found if one is not None)

    async def _is_retired(self, one: str) -> bool:
        """Whether its time is over; it begins with the first question."""
        name = f"{_RETIRE}{one}"
        try:
            seen = await self._keys.read(name)
        except DamagedEntry:
            await self._keys.erase(name)
            seen = None
        if seen is None:
            now = int(self._clock()).to_bytes(_TIME_BYTES, "big")
            seen = await self._keys.create(name, PlainKey(now))
        return self._clock() >= int.from_bytes(seen.key, "big") + GRACE_S

    async def _doors(self, known: list[KeyEntry], *, may_create: bool) -> tuple[SealingPair, ...]:
        """Return the sealing keys, a first one where there is none and it may be made."""
        names = _names(known, _DOOR)
        found = [pair for name in names if (pair := await self._pair(name))]
        if found:
            return tuple(found)
        if names:
            raise DamagedEntry(
                "no sealing key of stream KEYS (door) opens, each entry is damaged: restore it from a backup"
            )
        if not may_create:
            raise KeyStoreFault(lacks("door"))
        return (await self.new_sealing_key(()),)

    async def _pair(self, name: str) -> SealingPair | None:
        """Open a sealing key; None: it was erased, or is none, which another role may have had the server store."""
        try:
            plain = await self._keys.read(name)
            pair = None if plain is None else _pair_of(plain.key)
        except (DamagedEntry, ValueError):
            return None
        return pair if pair is not None and name == f"{_DOOR}{pair.key_id}" else None

    async def _digest(self, *, may_create: bool) -> bytes:
        found = await self._keys.read(_DIGEST)
        if found is None and not may_create:
            raise KeyStoreFault(lacks(_DIGEST))
        if found is None:
            found = await self._keys.create(_DIGEST, PlainKey(os.urandom(KEY_BYTES)))
        return found.key


def _pair_of(private: bytes) -> SealingPair:
    """The pair of a private key. Raises ValueError."""
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return SealingPair(private, public, key_id(public))


def _names(entries: Iterable[KeyEntry], prefix: str) -> list[str]:
    """Names of a kind, without their slots, in the order in which they were stored."""
    names = [plain_name(one.name) for one in entries]
    return list(dict.fromkeys(name for name in names if name.startswith(prefix)))


def data_name(life: VariableLife) -> str:
    """Return the name of a data key's entry: paths may be long, and name nothing on the bus."""
    raw = context_bytes((life.path, str(life.incarnation)))
    return f"{_DATA}{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def lives_of(entries: Iterable[KeyEntry]) -> tuple[VariableLife, ...]:
    """Say whose data keys these are; an entry under another name than its life has is left out."""
    found: set[tuple[str, int]] = set()
    for one in entries:
        if not plain_name(one.name).startswith(_DATA):
            continue
        try:
            body = msgspec.json.decode(one.body, type=StoredKey)
        except msgspec.MsgspecError:
            continue
        life = VariableLife(path=body.path, incarnation=body.incarnation)
        if data_name(life) == plain_name(one.name):
            found.add((life.path, life.incarnation))
    return tuple(VariableLife(path=path, incarnation=number) for path, number in sorted(found))
