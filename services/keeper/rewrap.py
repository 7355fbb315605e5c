"""Rotation of the key-encryption key (KEK): every entry of the key store is wrapped by the next one, without the log.

Runs beside keepers that answer, and may be cut at any point and begun again: an entry is erased under the former KEK
only after it is durable under the next one. How keepers follow, and in which order things are done: `wrapped_keys.py`.
At the end nothing in the stream opens with the former KEK.
"""

from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.keeper.kek import KeyStoreFault
from services.keeper.key_entries import KeyEntries, KeyEntry
from services.keeper.wrapped_keys import (
    CHECK,
    DamagedEntry,
    all_entries,
    find_checks,
    lacks,
    other_slot,
    plain_name,
    slot_of,
    unwrap,
    wrap,
)


class Rewrapped(NamedTuple):
    """`moved`: entries that were wrapped anew by this run. `unreadable`: that neither KEK opens; they stay."""

    moved: int
    unreadable: int


async def rewrap(entries: KeyEntries, present: bytes, following: bytes) -> Rewrapped:
    """Wrap every entry by the KEK `following`. Raises KeyStoreFault; BusUnavailable: run it again."""
    if present == following:
        raise KeyStoreFault("the next key-encryption key is the present one: make another one")
    work = _Rewrap(entries, AESGCM(present), AESGCM(following))
    await work.begin()
    return await work.move()


class _Rewrap:
    """One run. `source` is the slot of the former KEK, `target` that of the next one."""

    def __init__(self, entries: KeyEntries, old: AESGCM, new: AESGCM) -> None:
        self._entries = entries
        self._old, self._new = old, new
        self._source = self._target = ""

    async def begin(self) -> None:
        """Have every keeper write under the next KEK. Raises KeyStoreFault, BusUnavailable."""
        checks = await find_checks(self._entries)
        if not checks:
            raise KeyStoreFault(lacks(CHECK))
        first = checks[0]
        if len(checks) == 1 and self._opens(self._new, first):
            self._target = slot_of(first.name)
            self._source = other_slot(self._target)
            return
        try:
            check = unwrap((self._old,), first.name, first.body)
        except DamagedEntry:
            raise KeyStoreFault(
                "stream KEYS was wrapped neither by the present nor by the next key-encryption key"
            ) from None
        self._source = slot_of(first.name)
        self._target = other_slot(self._source)
        name = f"{self._target}{CHECK}"
        if len(checks) == 1 or not self._opens(self._new, checks[1]):
            # What stands there is left from a KEK that was given up before anything was written under it.
            await self._empty_target()
            await self._entries.create(name, wrap(self._new, name, check))
        await self._entries.erase(first.name)
        found = await self._entries.find(name)
        if found is None or not self._opens(self._new, found):
            raise KeyStoreFault(
                "stream KEYS is being wrapped by yet another key-encryption key: one run at a time"
            )

    async def move(self) -> Rewrapped:
        """Move what is there, until nothing comes any more. Raises BusUnavailable."""
        moved = 0
        while True:
            known = await all_entries(self._entries)
            left = [one for one in known if slot_of(one.name) == self._source]
            count = sum([await self._move(one) for one in left])
            if not count:
                unreadable = [one for one in known if not self._opens(self._new, one)]
                return Rewrapped(moved, len(unreadable))
            moved += count

    async def _move(self, one: KeyEntry) -> bool:
        """Move one entry; False: neither KEK opens it."""
        try:
            plain = unwrap((self._old, self._new), one.name, one.body)
        except DamagedEntry:
            return False
        name = f"{self._target}{plain_name(one.name)}"
        if not await self._entries.create(name, wrap(self._new, name, plain)):
            # A keeper wrote it, or another role had the server store something.
            found = await self._entries.find(name)
            if found is None or not self._opens(self._new, found):
                await self._entries.erase(name)
                # It stays where it is until the next pass.
                return True
        await self._entries.erase(one.name)
        return True

    async def _empty_target(self) -> None:
        """Free the slot: of an entry that the slot in use lacks what the present KEK opens goes there."""
        known = await all_entries(self._entries)
        used = {plain_name(one.name) for one in known if slot_of(one.name) == self._source}
        for one in known:
            if slot_of(one.name) == self._source:
                continue
            bare = plain_name(one.name)
            if bare not in used and bare != CHECK:
                try:
                    plain = unwrap((self._old,), one.name, one.body)
                except DamagedEntry:
                    continue
                name = f"{self._source}{bare}"
                await self._entries.create(name, wrap(self._old, name, plain))
            await self._entries.erase(one.name)

    @staticmethod
    def _opens(cipher: AESGCM, one: KeyEntry) -> bool:
        try:
            unwrap((cipher,), one.name, one.body)
        except DamagedEntry:
            return False
        return True
