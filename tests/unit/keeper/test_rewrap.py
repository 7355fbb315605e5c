"""Rotation of the key-encryption key: cut anywhere, it loses no key; at the end the former one opens nothing."""

import asyncio

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.variables import VariableLife
from services.keeper.kek import KeyStoreFault, KeyStoreReplaced
from services.keeper.key_entries import KeyEntry
from services.keeper.key_store import KeyStore, OpenedKeys, data_name
from services.keeper.rewrap import Rewrapped, rewrap
from services.keeper.wrapped_keys import DamagedEntry, unwrap
from shared.errors import BusUnavailable
from tests.unit.keeper.memory_entries import KEK, FixedKek, FixedNextKek, MemoryEntries

NEXT, THIRD = bytes(range(32, 64)), bytes(range(64, 96))
LIVES = tuple(VariableLife(path=path, incarnation=1) for path in ("a", "b", "c"))


class Cluster:
    """A store with keys, and what they were."""

    def __init__(self) -> None:
        self.entries = MemoryEntries()
        self.store = KeyStore(self.entries, FixedKek())
        self.keys: list[bytes | None] = []
        self.opened: OpenedKeys

    async def begin(self) -> "Cluster":
        """Make the store, with the keys of some lives."""
        self.opened = await self.store.open("c", may_create=True)
        self.keys = [await self.store.data_key(one, may_create=True) for one in LIVES]
        self.entries.uses = 0
        return self

    async def is_whole(self, store: KeyStore) -> bool:
        """Whether a keeper reads every key as it was, for a get and for a put."""
        found = await store.open("c", may_create=False)
        for may_create in (False, True):
            keys = [await store.data_key(one, may_create=may_create) for one in LIVES]
            if keys != self.keys:
                return False
        is_same = (found.digest, set(found.doors)) == (self.opened.digest, set(self.opened.doors))
        return is_same and found.lives == LIVES

    def opens(self, kek: bytes) -> int:
        """How many entries a key-encryption key opens."""
        count = 0
        for name, body in self.entries.by_name.items():
            try:
                unwrap((AESGCM(kek),), name, body)
            except DamagedEntry:
                continue
            count += 1
        return count

    def cut_at(self, use: int) -> None:
        """Have one use of the store fail."""

        def meanwhile() -> None:
            if self.entries.uses == use:
                self.entries.away = 1

        self.entries.meanwhile = meanwhile


def reader(
    entries: MemoryEntries, present: bytes = KEK, following: bytes | None = NEXT
) -> KeyStore:
    """The store as a keeper opens it that has both keys."""
    kek = FixedKek(present)
    return KeyStore(entries, kek, FixedNextKek(kek, following))


def test_every_entry_is_wrapped_anew() -> None:
    """Afterwards every entry opens with the next key, none with the former one, and it can be done again, back."""

    async def story() -> None:
        one = await Cluster().begin()
        assert await rewrap(one.entries, KEK, NEXT) == Rewrapped(moved=5, unreadable=0)
        assert (one.opens(KEK), one.opens(NEXT)) == (0, 6)
        assert await one.is_whole(reader(one.entries, NEXT, None))
        assert await rewrap(one.entries, KEK, NEXT) == Rewrapped(moved=0, unreadable=0)
        assert await rewrap(one.entries, NEXT, THIRD) == Rewrapped(moved=5, unreadable=0)
        assert (one.opens(NEXT), one.opens(THIRD)) == (0, 6)
        assert await one.is_whole(reader(one.entries, THIRD, None))
        with pytest.raises(KeyStoreFault, match="neither by the present nor by the next"):
            await rewrap(one.entries, KEK, NEXT)
        with pytest.raises(KeyStoreFault, match="is the present one"):
            await rewrap(one.entries, NEXT, NEXT)

    asyncio.run(story())


def test_a_run_that_is_cut_anywhere_loses_nothing() -> None:
    """Cut at any use of the store, each key is read with both key-encryption keys, and the next run ends the work."""

    async def story() -> None:
        whole = await Cluster().begin()
        await rewrap(whole.entries, KEK, NEXT)
        assert whole.entries.uses > 20
        for use in range(1, whole.entries.uses + 1):
            one = await Cluster().begin()
            one.cut_at(use)
            with pytest.raises(BusUnavailable):
                await rewrap(one.entries, KEK, NEXT)
            one.entries.meanwhile = None
            again = await Cluster().begin()
            again.entries.by_name = dict(one.entries.by_name)
            again.entries.seq_of = dict(one.entries.seq_of)
            assert await one.is_whole(reader(one.entries)), use
            # Also where no keeper has copied anything meanwhile.
            again.keys, again.opened = one.keys, one.opened
            for each in (one, again):
                await rewrap(each.entries, KEK, NEXT)
                assert (each.opens(KEK), each.opens(NEXT)) == (0, 6), use
                assert await each.is_whole(reader(each.entries, NEXT, None)), use

    asyncio.run(story())


@pytest.mark.parametrize("may_create", [True, False])
def test_a_running_keeper_follows(may_create: bool) -> None:  # noqa: FBT001
    """At any point of a run a keeper that was open before reads each key as it was, and makes none anew."""

    async def story() -> None:
        whole = await Cluster().begin()
        await rewrap(whole.entries, KEK, NEXT)
        for use in range(1, whole.entries.uses + 1):
            one = await Cluster().begin()
            running = reader(one.entries)
            await running.open("c", may_create=False)
            one.entries.uses = 0
            one.cut_at(use)
            with pytest.raises(BusUnavailable):
                await rewrap(one.entries, KEK, NEXT)
            one.entries.meanwhile = None
            found = [await running.data_key(life, may_create=may_create) for life in LIVES]
            assert found == one.keys, use

    asyncio.run(story())


def test_a_run_between_any_two_uses_of_a_keeper() -> None:
    """A whole run in the middle of a keeper's read or first write changes no key, and loses none that it made."""

    async def cut(use: int) -> bool:
        one = await Cluster().begin()
        running = reader(one.entries)
        await running.open("c", may_create=False)
        one.entries.uses = 0
        is_done = False

        real = one.entries.find

        async def find(name: str) -> KeyEntry | None:
            nonlocal is_done
            if one.entries.uses == use and not is_done:
                is_done = True
                await rewrap(one.entries, KEK, NEXT)
            return await real(name)

        one.entries.find = find  # type: ignore[method-assign]
        fresh = VariableLife(path="new", incarnation=1)
        assert await running.data_key(LIVES[0], may_create=True) == one.keys[0]
        made = await running.data_key(fresh, may_create=True)
        one.entries.find = real  # type: ignore[method-assign]
        await rewrap(one.entries, KEK, NEXT)
        later = reader(one.entries, NEXT, None)
        await later.open("c", may_create=False)
        assert await later.data_key(fresh, may_create=False) == made, use
        assert await later.data_key(LIVES[0], may_create=False) == one.keys[0], use
        assert one.opens(KEK) == 0
        return is_done

    async def story() -> None:
        done = [await cut(use) for use in range(10)]
        assert sum(done) > 4

    asyncio.run(story())


def test_a_keeper_without_the_next_key_says_so() -> None:
    """It makes no key and trusts none; the text says what to copy. Once the key is there it answers again."""

    async def story() -> None:
        one = await Cluster().begin()
        kek = FixedKek()
        following = FixedNextKek(kek)
        running = KeyStore(one.entries, kek, following)
        await running.open("c", may_create=False)
        await rewrap(one.entries, KEK, NEXT)
        before = set(one.entries.by_name)
        for may_create in (True, False):
            with pytest.raises(KeyStoreReplaced, match="keyring rewrap"):
                await running.data_key(LIVES[0], may_create=may_create)
        assert set(one.entries.by_name) == before
        following.key = NEXT
        assert await running.data_key(LIVES[0], may_create=True) == one.keys[0]
        assert await one.is_whole(running)
        assert (kek.key, following.key) == (NEXT, None), "the next one took over"

    asyncio.run(story())


def test_an_erased_key_does_not_come_back() -> None:
    """A life that is erased while both key-encryption keys are in use is erased under both."""

    async def story() -> None:
        whole = await Cluster().begin()
        await rewrap(whole.entries, KEK, NEXT)
        for use in range(1, whole.entries.uses + 1):
            one = await Cluster().begin()
            one.cut_at(use)
            with pytest.raises(BusUnavailable):
                await rewrap(one.entries, KEK, NEXT)
            one.entries.meanwhile = None
            store = reader(one.entries)
            await store.open("c", may_create=False)
            await store.erase((LIVES[1],))
            assert await store.data_key(LIVES[1], may_create=False) is None
            await rewrap(one.entries, KEK, NEXT)
            assert not [name for name in one.entries.by_name if data_name(LIVES[1]) in name]

    asyncio.run(story())


def test_an_abandoned_next_key_is_replaced() -> None:
    """A run that ended before anything was written under its key may be followed by one with another key."""

    async def story() -> None:
        one = await Cluster().begin()
        one.cut_at(6)
        with pytest.raises(BusUnavailable):
            await rewrap(one.entries, KEK, THIRD)
        one.entries.meanwhile = None
        assert one.opens(THIRD) == 1
        assert await one.is_whole(reader(one.entries, KEK, None))
        await rewrap(one.entries, KEK, NEXT)
        assert (one.opens(KEK), one.opens(NEXT), one.opens(THIRD)) == (0, 6, 0)

    asyncio.run(story())


@pytest.mark.parametrize("slot", ["", "next."])
def test_a_smuggled_entry_stops_nothing(slot: str) -> None:
    """What another role had the server store, under a new name or one that is needed, loses no key; it is counted."""

    async def story() -> None:
        one = await Cluster().begin()
        for number, name in enumerate(("data.x", data_name(LIVES[2]), "door.x")):
            full = f"{slot}{name}"
            if full not in one.entries.by_name:
                one.entries.by_name[full] = b'{"wrapped":"AAAA"}'
                one.entries.seq_of[full] = 100 + number
        done = await rewrap(one.entries, KEK, NEXT)
        assert done == Rewrapped(moved=5, unreadable=2)
        assert await one.is_whole(reader(one.entries, NEXT, None))

    asyncio.run(story())


def test_an_entry_of_one_slot_does_not_open_in_the_other() -> None:
    """The name with its slot is bound to the key: nothing that was copied between slots is a key."""

    async def story() -> None:
        one = await Cluster().begin()
        copied = one.entries.by_name["digest"]
        unwrap((AESGCM(KEK),), "digest", copied)
        with pytest.raises(DamagedEntry):
            unwrap((AESGCM(KEK),), "next.digest", copied)

    asyncio.run(story())
