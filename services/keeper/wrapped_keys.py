"""Entries of the key store, wrapped by a key-encryption key (KEK), also while another KEK takes its place.

There are two slots, so that an entry under the next KEK can stand beside the one under the former, until that is
erased: an entry is named NAME in one and `next.NAME` in the other. The slot in use has the entry `check`, the id of the
cluster; where both slots have it, the one with the older is in use. `rewrap.py` moves the entries:

    1. it writes `check` into the other slot, 2. erases the one in use (from here on nothing is written under the former
    KEK), 3. writes each entry into the slot that is now in use, then erases it in the other.

A keeper may have read `check` before step 2, and write under the former KEK behind it. So it looks again before it
trusts what it read for a put, or has written, or has not found: `check` still there means that step 3 had not begun.
What it finds in the other slot alone it copies, as `rewrap.py` does, and goes by the slot in use. The additional data
of a wrapping is the entry's name with its slot, so no entry can take another one's place. Next: `key_store.py`.
"""

import os
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.variables import VariableLife
from services.keeper.kek import KekSource, KeyStoreFault, KeyStoreReplaced, NextKek
from services.keeper.key_entries import EntriesMissing, KeyEntries, KeyEntry
from shared.bus.jetstream.streams import BusRefused
from shared.errors import BusUnavailable
from shared.sealed_box import NONCE_BYTES

CHECK = "check"
_NEXT = "next."
SLOTS = ("", _NEXT)
NO_LIFE = VariableLife(path="", incarnation=0)
#: How often the whole store is read again because it changed meanwhile.
_READS_MAX = 5


class StoredKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of an entry: nonce, wrapped key and tag; of a data key also whose it is."""

    wrapped: bytes
    path: str = ""
    incarnation: int = 0


class PlainKey(msgspec.Struct, frozen=True):
    """An entry that was opened."""

    key: bytes
    life: VariableLife = NO_LIFE

    def __repr__(self) -> str:
        """Show no key: the text may get into a traceback."""
        return f"PlainKey({self.life!r})"


class DamagedEntry(KeyStoreFault):
    """An entry does not open: of another KEK, or damaged."""


class _Wrapping(NamedTuple):
    """How entries are wrapped now. `ciphers`: of the present KEK, and of the next one where there is one."""

    slot: str
    cipher: AESGCM
    ciphers: tuple[AESGCM, ...]


def other_slot(slot: str) -> str:
    """The one of the two that this is not."""
    return _NEXT if slot == "" else ""


def slot_of(name: str) -> str:
    """In which slot an entry is."""
    return _NEXT if name.startswith(_NEXT) else ""


def plain_name(name: str) -> str:
    """Name of an entry without its slot."""
    return name.removeprefix(_NEXT)


def wrap(cipher: AESGCM, name: str, plain: PlainKey) -> bytes:
    """Body of an entry; `name` with its slot."""
    nonce = os.urandom(NONCE_BYTES)
    wrapped = nonce + cipher.encrypt(nonce, plain.key, name.encode())
    life = plain.life
    return msgspec.json.encode(
        StoredKey(wrapped=wrapped, path=life.path, incarnation=life.incarnation)
    )


def unwrap(ciphers: tuple[AESGCM, ...], name: str, body: bytes) -> PlainKey:
    """Open an entry with whichever KEK opens it. Raises DamagedEntry."""
    try:
        stored = msgspec.json.decode(body, type=StoredKey)
    except msgspec.MsgspecError:
        raise _damaged(name) from None
    wrapped, life = stored.wrapped, VariableLife(path=stored.path, incarnation=stored.incarnation)
    for cipher in ciphers:
        try:
            key = cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            continue
        return PlainKey(key, life)
    raise _damaged(name)


def _damaged(name: str) -> DamagedEntry:
    kind = plain_name(name).partition(".")[0]
    return DamagedEntry(f"an entry of stream KEYS ({kind}) is damaged: restore it from a backup")


async def all_entries(entries: KeyEntries) -> list[KeyEntry]:
    """Every entry that the stream's leader has, oldest first. Raises BusUnavailable: it changes all the time."""
    for _ in range(_READS_MAX):
        found = await entries.read_all()
        if len(found) == await entries.count():
            return found
    raise BusUnavailable("stream KEYS changes while it is read")


async def find_checks(entries: KeyEntries) -> list[KeyEntry]:
    """The entries that tell which slot is in use, the older first."""
    found = [await entries.find(f"{slot}{CHECK}") for slot in SLOTS]
    return sorted((one for one in found if one is not None), key=lambda one: one.seq)


class WrappedKeys:
    """Keys by name. `open` first."""

    def __init__(
        self, entries: KeyEntries, kek: KekSource, next_kek: NextKek | None = None
    ) -> None:
        self.entries = entries
        self._kek = kek
        self._next_kek = next_kek
        self._cluster_id = ""
        self._now: _Wrapping | None = None

    async def open(self, cluster_id: str, *, may_create: bool) -> list[KeyEntry]:
        """Find the slot in use and return what the store has. Raises KeyStoreFault; BusUnavailable: try again."""
        try:
            is_there = await self.entries.is_there()
        except BusRefused as err:
            raise KeyStoreFault(str(err)) from err
        known = await all_entries(self.entries) if is_there else []
        if not known and not may_create:
            raise KeyStoreFault(_lost(is_there=is_there))
        ciphers = await self._ciphers(may_create=not known)
        if not is_there:
            await self.entries.make()
        self._cluster_id = cluster_id
        await self._choose(ciphers, may_create=may_create)
        assert self._now is not None
        is_moved = all(slot_of(one.name) == self._now.slot for one in known)
        if known and is_moved and self._next_kek and self._now.cipher is not ciphers[0]:
            self._next_kek.take_over()
        return known

    async def read(self, name: str, *, sure: bool = False) -> PlainKey | None:
        """Return a key; None: there is none. `sure`: also what is found is looked at twice, for a put.

        Raises KeyStoreFault, BusUnavailable.
        """
        try:
            return await self._read(name, sure=sure)
        except EntriesMissing as err:
            raise KeyStoreReplaced(_lost(is_there=False)) from err

    async def _read(self, name: str, *, sure: bool) -> PlainKey | None:
        while True:
            now = self._wrapping()
            found, former = await self.entries.find(f"{now.slot}{name}"), None
            if found is None:
                former = await self.entries.find(f"{other_slot(now.slot)}{name}")
            if found is None and former is None:
                # It may have been moved between the two.
                found = await self.entries.find(f"{now.slot}{name}")
            is_looked_at = sure or found is None
            if is_looked_at and await self.entries.find(f"{now.slot}{CHECK}") is None:
                await self._open_again()
            elif found is not None:
                return unwrap(now.ciphers, found.name, found.body)
            elif former is None:
                return None
            else:
                plain, moved = unwrap(now.ciphers, former.name, former.body), f"{now.slot}{name}"
                await self.entries.create(moved, wrap(now.cipher, moved, plain))

    async def create(self, name: str, plain: PlainKey) -> PlainKey:
        """Store a key, durable; where another keeper was faster, return its key. Raises as `read` does."""
        now = self._wrapping()
        full = f"{now.slot}{name}"
        await self.entries.create(full, wrap(now.cipher, full, plain))
        found = await self.read(name, sure=True)
        if found is None:
            raise BusUnavailable("an entry of stream KEYS was erased while it was read")
        return found

    async def create_first(self, name: str, plain: PlainKey, unless: str, after: int) -> bool:
        """Store a key unless others of its kind are newer than seq `after`; False: they are."""
        now = self._wrapping()
        full = f"{now.slot}{name}"
        body = wrap(now.cipher, full, plain)
        return await self.entries.create(full, body, unless=f"{now.slot}{unless}", after=after)

    async def erase(self, name: str) -> None:
        """Erase an entry, whichever slot has it."""
        for slot in SLOTS:
            await self.entries.erase(f"{slot}{name}")

    async def all(self) -> list[KeyEntry]:
        """Every entry, as it is stored."""
        return await all_entries(self.entries)

    def newest_seq(self, known: list[KeyEntry], prefix: str) -> int:
        """Seq of the newest entry of a kind in the slot in use; 0: there is none."""
        full = f"{self._wrapping().slot}{prefix}"
        return max((one.seq for one in known if one.name.startswith(full)), default=0)

    def _wrapping(self) -> _Wrapping:
        assert self._now is not None, "not opened"
        return self._now

    async def _ciphers(self, *, may_create: bool) -> tuple[AESGCM, ...]:
        # In this order: the next one may take the name of the present one meanwhile.
        following = await self._next_kek.read_next() if self._next_kek is not None else None
        keks = [await self._kek.read(may_create=may_create)]
        if following is not None and following not in keks:
            keks.append(following)
        return tuple(AESGCM(one) for one in keks)

    async def _choose(self, ciphers: tuple[AESGCM, ...], *, may_create: bool) -> None:
        """Find the slot in use, and the KEK that opens it. Raises KeyStoreFault."""
        own = self._cluster_id.encode()
        checks = await find_checks(self.entries)
        if not checks:
            if not may_create:
                raise KeyStoreFault(lacks(CHECK))
            await self.entries.create(CHECK, wrap(ciphers[0], CHECK, PlainKey(own)))
            checks = await find_checks(self.entries)
        if not checks:
            raise BusUnavailable("stream KEYS has a new entry that cannot be read yet")
        for cipher in ciphers:
            try:
                found = unwrap((cipher,), checks[0].name, checks[0].body).key
            except DamagedEntry:
                continue
            if found != own:
                raise KeyStoreFault(
                    "stream KEYS has the keys of another cluster: restore that of this cluster"
                )
            self._now = _Wrapping(slot_of(checks[0].name), cipher, ciphers)
            return
        raise KeyStoreFault(
            "stream KEYS was wrapped by another key-encryption key: copy keeper/kek of the machine that made it, or "
            "that ran `caravan operator keyring rewrap`"
        )

    async def _open_again(self) -> None:
        """Find the slot that is in use by now. Raises KeyStoreReplaced; BusUnavailable."""
        try:
            await self._choose(await self._ciphers(may_create=False), may_create=False)
        except KeyStoreFault as err:
            raise KeyStoreReplaced(str(err)) from err


def _lost(*, is_there: bool) -> str:
    what = "is empty" if is_there else "is missing"
    return (
        f"stream KEYS {what}, and the log has variables that were encrypted with its keys: restore it from a backup "
        "of the bus, or import an export of the keyring (docs/operations.md)"
    )


def lacks(name: str) -> str:
    """What is said of a store without an entry that it must have."""
    return (
        f"stream KEYS has no entry {name}: restore it from a backup of the bus (docs/operations.md)"
    )
