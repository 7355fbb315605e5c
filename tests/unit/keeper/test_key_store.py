"""The key store: what it makes, what it reads again, and when it refuses."""

import asyncio

import msgspec
import pytest

from schemas.variables import VariableLife
from services.keeper.kek import KeyStoreFault
from services.keeper.key_store import KeyStore, data_name
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
