"""The key store: what it makes, what it reads again, and when it refuses."""

import asyncio
import contextlib

import msgspec
import pytest

from schemas.variables import VariableLife
from services.keeper.kek import KeyStoreFault
from services.keeper.key_entries import KeyEntry
from services.keeper.key_store import GRACE_S, KeyStore, data_name
from services.keeper.wrapped_keys import StoredKey
from shared.errors import BusUnavailable
from shared.sealed_box import key_id, open_box, seal
from tests.unit.keeper.memory_entries import FixedKek, MemoryEntries

LIFE = VariableLife(path="app/db", incarnation=1)


def made(entries: MemoryEntries, kek: FixedKek | None = None) -> KeyStore:
    store = KeyStore(entries, kek or FixedKek())
    asyncio.run(store.open("c", may_create=True))
    return store


def test_a_new_store_has_its_entries_wrapped() -> None:
    """A new cluster gets a check, a digest key and a pair; no entry holds a key in plain, and each is another."""
    entries = MemoryEntries()
    found = asyncio.run(KeyStore(entries, FixedKek()).open("c", may_create=True))
    assert list(entries.by_name) == ["check", "digest", f"door.{found.door_id}"]
    assert found.door_id == key_id(found.door_public) and found.lives == ()
    box = seal(b"x", found.door_public, ("a",))
    assert open_box(box, found.door_private, ("a",)) == b"x"
    bodies = [msgspec.json.decode(one, type=StoredKey) for one in entries.by_name.values()]
    for secret in (found.digest, found.door_private):
        assert all(secret not in one.wrapped for one in bodies)
    assert len({one.wrapped[:12] for one in bodies}) == 3


def test_what_holds_keys_does_not_print_them() -> None:
    """The text of opened keys, as a traceback would show it, has no key."""
    found = asyncio.run(KeyStore(MemoryEntries(), FixedKek()).open("c", may_create=True))
    assert repr(found) == f"{found}" == f"OpenedKeys(door_id='{found.door_id}')"


def test_a_store_is_opened_again() -> None:
    """Opened by another process it has the same keys, and tells whose data keys it holds, in order."""
    entries = MemoryEntries()
    store = made(entries)
    lives = [VariableLife(path="b", incarnation=n) for n in (10, 9)] + [LIFE]
    keys = [asyncio.run(store.data_key(one, may_create=True)) for one in lives]
    assert len(set(keys)) == 3
    again = KeyStore(entries, FixedKek())
    found = asyncio.run(again.open("c", may_create=False))
    assert found.lives == (LIFE, lives[1], lives[0])
    assert [asyncio.run(again.data_key(one, may_create=True)) for one in lives] == keys


def test_an_entry_cannot_take_the_place_of_another() -> None:
    """A wrapped key opens under its own name alone; it makes no life known under another one."""
    entries = MemoryEntries()
    store = made(entries)
    asyncio.run(store.data_key(LIFE, may_create=True))
    other = VariableLife(path="app/db", incarnation=2)
    entries.by_name[data_name(other)] = entries.by_name[data_name(LIFE)]
    entries.seq_of[data_name(other)] = 99
    with pytest.raises(KeyStoreFault, match=r"\(data\) is damaged"):
        asyncio.run(store.data_key(other, may_create=True))
    found = asyncio.run(KeyStore(entries, FixedKek()).open("c", may_create=False))
    assert found.lives == (LIFE,)


def test_names_of_data_keys_differ() -> None:
    """No two lives share a name, and a name fits into a subject."""
    lives = [("a", 1), ("a", 11), ("a1", 1), ("a/1", 1), ("~" * 128, 2**31)]
    names = {data_name(VariableLife(path=path, incarnation=n)) for path, n in lives}
    assert len(names) == len(lives)
    assert all(len(one) == 37 and one[5:].isalnum() for one in names)


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"wrapped":""}', b'{"wrapped":"AAAA"}'])
@pytest.mark.parametrize("name", ["check", "digest", "door.", "data."])
def test_a_damaged_entry_is_a_fault(name: str, body: bytes) -> None:
    """An entry of any kind that does not open is refused with a reason, never replaced."""
    entries = MemoryEntries()
    store = made(entries)
    asyncio.run(store.data_key(LIFE, may_create=True))
    full = next(one for one in entries.by_name if one.startswith(name))
    entries.by_name[full] = body

    async def used() -> None:
        await store.open("c", may_create=True)
        await store.data_key(LIFE, may_create=True)

    with pytest.raises(KeyStoreFault):
        asyncio.run(used())
    assert entries.by_name[full] == body


def test_what_the_log_relies_on_is_not_made_anew() -> None:
    """Where the log knows of a key, nothing is made: no store, no entry, no key-encryption key."""
    entries, kek = MemoryEntries(), FixedKek(is_there=False)
    for is_made, reason in ((False, "is missing"), (True, "is empty")):
        entries.made = is_made
        with pytest.raises(KeyStoreFault, match=reason):
            asyncio.run(KeyStore(entries, kek).open("c", may_create=False))
    assert not entries.by_name and not kek.is_there
    made(entries)
    for name in list(entries.by_name):
        kept = entries.by_name.pop(name)
        with pytest.raises(KeyStoreFault, match=f"has no entry {name.partition('.')[0]}"):
            asyncio.run(KeyStore(entries, FixedKek()).open("c", may_create=False))
        entries.by_name[name] = kept


def test_a_key_encryption_key_is_made_for_an_empty_store_alone() -> None:
    """With entries in the store a missing key-encryption key is a fault, also where the log knows of no key."""
    entries, kek = MemoryEntries(), FixedKek(is_there=False)
    made(entries, kek)
    assert kek.is_there
    kek.is_there = False
    with pytest.raises(KeyStoreFault, match="kek is missing"):
        asyncio.run(KeyStore(entries, kek).open("c", may_create=True))
    with pytest.raises(KeyStoreFault, match="copy keeper/kek of the machine that made it"):
        asyncio.run(KeyStore(entries, FixedKek(bytes(32))).open("c", may_create=True))
    with pytest.raises(KeyStoreFault, match="another cluster"):
        asyncio.run(KeyStore(entries, FixedKek()).open("d", may_create=True))


def test_an_open_that_is_cut_anywhere_is_finished() -> None:
    """A failure before any use of the store leaves what the next try completes, with the same keys."""
    whole = MemoryEntries()
    made(whole)
    for number in range(whole.uses):
        entries = MemoryEntries()
        store = KeyStore(entries, FixedKek())

        async def cut(
            store: KeyStore = store, entries: MemoryEntries = entries, n: int = number
        ) -> None:
            real = entries._use

            def use() -> None:
                if entries.uses == n:
                    entries.away = 1
                real()

            entries._use = use  # type: ignore[method-assign]
            with pytest.raises(BusUnavailable):
                await store.open("c", may_create=True)
            found = await store.open("c", may_create=True)
            assert found == await store.open("c", may_create=False)

        asyncio.run(cut())
        assert len(entries.by_name) == 3


def test_an_erased_key_is_gone() -> None:
    """What was erased is read by no store, is erased again without a complaint, and may be made anew."""
    entries = MemoryEntries()
    store = made(entries)
    key = asyncio.run(store.data_key(LIFE, may_create=True))
    asyncio.run(store.erase((LIFE, LIFE)))
    assert asyncio.run(store.data_key(LIFE, may_create=False)) is None
    assert data_name(LIFE) not in entries.by_name
    assert asyncio.run(store.data_key(LIFE, may_create=True)) != key


# ---- sealing keys ----


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_new_sealing_key_stands_beside_the_old_one() -> None:
    """It is stored wrapped and read by the next opening; one that the log does not know is not made twice."""

    async def story() -> None:
        entries = MemoryEntries()
        store = KeyStore(entries, FixedKek())
        first = await store.open("c", may_create=True)
        made = await store.new_sealing_key((first.door_id,))
        assert made.key_id != first.door_id and made.key_id == key_id(made.public)
        assert (await store.new_sealing_key((first.door_id,))).key_id == made.key_id
        again = await KeyStore(entries, FixedKek()).open("c", may_create=False)
        assert again.doors == (*first.doors, made)
        assert made.private not in b"".join(entries.by_name.values())
        assert str(made) == f"SealingPair('{made.key_id}')"

    asyncio.run(story())


def test_keepers_at_once_make_one_sealing_key() -> None:
    """Of several that rotate the same key the first one's is stored, and all others get that."""

    async def story() -> None:
        entries = MemoryEntries()
        stores = [KeyStore(entries, FixedKek()) for _ in range(5)]
        known = ((await stores[0].open("c", may_create=True)).door_id,)
        for one in stores[1:]:
            await one.open("c", may_create=False)
        real = entries.read_all

        async def read_all() -> list[KeyEntry]:
            found = await real()
            await asyncio.sleep(0)
            return found

        entries.read_all = read_all  # type: ignore[method-assign]
        made = await asyncio.gather(*(one.new_sealing_key(known) for one in stores))
        assert len({one.key_id for one in made}) == 1
        assert sum(name.startswith("door.") for name in entries.by_name) == 2

    asyncio.run(story())


def test_a_superseded_sealing_key_ends_a_day_later() -> None:
    """The time begins with the first look of any keeper, neither restarts nor other keepers make it longer."""

    async def story() -> None:
        entries, clock = MemoryEntries(), Clock()
        store = KeyStore(entries, FixedKek(), clock=clock)
        old = (await store.open("c", may_create=True)).door_id
        new = (await store.new_sealing_key((old,))).key_id
        assert (await store.check((old,)))[0] == (old,)
        for hours in range(23):
            clock.now_s += 3600
            other = KeyStore(entries, FixedKek(), clock=clock)
            await other.open("c", may_create=False)
            assert (await other.check((old,)))[0] == (old,), hours
        clock.now_s += GRACE_S - 23 * 3600 - 1
        assert (await store.check((old,)))[0] == (old,)
        clock.now_s += 1
        assert (await store.check((old,)))[0] == ()
        assert sorted(entries.by_name) == ["check", "digest", f"door.{new}"]
        assert (await store.open("c", may_create=False)).door_id == new

    asyncio.run(story())


def test_the_end_of_a_sealing_key_that_is_cut_is_made_up_for() -> None:
    """Cut at any use of the store, the next look ends it; the key in force is never touched."""

    async def story() -> None:
        for use in range(1, 12):
            entries, clock = MemoryEntries(), Clock()
            store = KeyStore(entries, FixedKek(), clock=clock)
            old = (await store.open("c", may_create=True)).door_id
            new = (await store.new_sealing_key((old,))).key_id
            await store.check((old,))
            clock.now_s += GRACE_S
            entries.uses = 0

            def cut(entries: MemoryEntries = entries, use: int = use) -> None:
                entries.away = int(entries.uses == use)

            entries.meanwhile = cut
            with contextlib.suppress(BusUnavailable):
                await store.check((old,))
            entries.meanwhile = None
            assert (await store.check((old,)))[0] == ()
            assert sorted(entries.by_name) == ["check", "digest", f"door.{new}"], use

    asyncio.run(story())


def test_a_damaged_time_begins_anew() -> None:
    """What another role had the server store as the time of a key is replaced, and ends nothing early."""

    async def story() -> None:
        entries, clock = MemoryEntries(), Clock()
        store = KeyStore(entries, FixedKek(), clock=clock)
        old = (await store.open("c", may_create=True)).door_id
        await store.new_sealing_key((old,))
        await entries.create(f"retire.{old}", b'{"wrapped":"AAAA"}')
        assert (await store.check((old,)))[0] == (old,)
        clock.now_s += GRACE_S
        assert (await store.check((old,)))[0] == ()

    asyncio.run(story())


def test_a_copied_sealing_key_is_none() -> None:
    """An entry under the name of another key, or with bytes of none, is passed over as long as a real one is there."""

    async def story() -> None:
        entries = MemoryEntries()
        store = KeyStore(entries, FixedKek())
        first = await store.open("c", may_create=True)
        own = f"door.{first.door_id}"
        await entries.create("door.0000000000000000", entries.by_name[own])
        await entries.create("door.1111111111111111", b"{")
        found = await KeyStore(entries, FixedKek()).open("c", may_create=False)
        assert found.doors == first.doors
        made = await store.new_sealing_key((first.door_id,))
        assert made.key_id not in ("0" * 16, "1" * 16, first.door_id)

    asyncio.run(story())
