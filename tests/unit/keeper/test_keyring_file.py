"""Exports of keyrings: they open with their passphrase alone, and go into an empty store of their cluster alone."""

import asyncio

import pytest

from schemas.variables import VariableLife
from services.keeper.kek import KeyStoreFault
from services.keeper.key_store import KeyStore, OpenedKeys
from services.keeper.keyring_file import (
    ExportedKeyring,
    KeyringFileInvalid,
    export_keys,
    import_keys,
    open_keyring,
    seal_keyring,
)
from services.keeper.rewrap import rewrap
from shared.errors import BusUnavailable
from tests.unit.keeper.memory_entries import KEK, FixedKek, FixedNextKek, MemoryEntries

OTHER_KEK = bytes(range(64, 96))
LIVES = tuple(VariableLife(path=path, incarnation=2) for path in ("a", "b"))
PASSPHRASE = "correct horse battery"
#: Cheap, as no file of a cluster is.
N = 1 << 4


class Source:
    """A store with two lives and two sealing keys."""

    def __init__(self) -> None:
        self.entries = MemoryEntries()
        self.opened: OpenedKeys
        self.keys: list[bytes | None] = []

    async def begin(self) -> "Source":
        """Make it."""
        store = KeyStore(self.entries, FixedKek())
        first = await store.open("c", may_create=True)
        await store.new_sealing_key((first.door_id,))
        await store.check((first.door_id,))
        self.keys = [await store.data_key(one, may_create=True) for one in LIVES]
        self.opened = await store.open("c", may_create=False)
        return self

    async def is_in(self, entries: MemoryEntries, kek: bytes = OTHER_KEK) -> bool:
        """Whether another store has the same keys."""
        store = KeyStore(entries, FixedKek(kek))
        found = await store.open("c", may_create=False)
        keys = [await store.data_key(one, may_create=False) for one in LIVES]
        is_same = (found.digest, set(found.doors)) == (self.opened.digest, set(self.opened.doors))
        return is_same and keys == self.keys and found.lives == LIVES


async def exported(entries: MemoryEntries) -> ExportedKeyring:
    """What an export has; nothing is damaged."""
    keyring, damaged = await export_keys(entries, FixedKek(), None, "c")
    assert damaged == 0
    return keyring


def test_a_keyring_comes_back() -> None:
    """Written under another key-encryption key into an empty store, every key is as it was, times included."""

    async def story() -> None:
        source = await Source().begin()
        content = seal_keyring(await exported(source.entries), PASSPHRASE, n=N)
        keyring = open_keyring(content, PASSPHRASE)
        entries, kek = MemoryEntries(), FixedKek(OTHER_KEK, is_there=False)
        assert await import_keys(entries, kek, keyring, "c") == len(keyring.keys) == 6
        assert kek.is_there and await source.is_in(entries)
        assert set(entries.by_name) == set(source.entries.by_name)

    asyncio.run(story())


def test_an_export_in_the_middle_of_a_rewrapping_is_whole() -> None:
    """Entries under either key-encryption key are exported."""

    async def story() -> None:
        source = await Source().begin()

        def meanwhile() -> None:
            source.entries.away = int(source.entries.uses == stop)

        stop = source.entries.uses + 14
        source.entries.meanwhile = meanwhile
        with pytest.raises(BusUnavailable):
            await rewrap(source.entries, KEK, OTHER_KEK)
        source.entries.meanwhile = None
        names = set(source.entries.by_name)
        assert len({one.startswith("next.") for one in names}) == 2
        kek = FixedKek()
        keyring, damaged = await export_keys(source.entries, kek, FixedNextKek(kek, OTHER_KEK), "c")
        entries = MemoryEntries()
        await import_keys(entries, FixedKek(OTHER_KEK), keyring, "c")
        assert damaged == 0 and await source.is_in(entries)

    asyncio.run(story())


def test_an_import_that_is_cut_is_begun_again() -> None:
    """Cut at any use of the store, no keeper opens what is there, and the next import completes it."""

    async def story() -> None:
        source = await Source().begin()
        keyring = await exported(source.entries)
        whole = MemoryEntries()
        await import_keys(whole, FixedKek(OTHER_KEK), keyring, "c")
        for use in range(1, whole.uses + 1):
            entries = MemoryEntries()

            def meanwhile(entries: MemoryEntries = entries, use: int = use) -> None:
                entries.away = int(entries.uses == use)

            entries.meanwhile = meanwhile
            with pytest.raises(BusUnavailable):
                await import_keys(entries, FixedKek(OTHER_KEK), keyring, "c")
            entries.meanwhile = None
            with pytest.raises(KeyStoreFault):
                await KeyStore(entries, FixedKek(OTHER_KEK)).open("c", may_create=False)
            await import_keys(entries, FixedKek(OTHER_KEK), keyring, "c")
            assert await source.is_in(entries), use

    asyncio.run(story())


def test_only_an_empty_store_of_the_cluster_takes_it() -> None:
    """Another cluster's export, and a store with any other key, are refused; nothing is written."""

    async def story() -> None:
        source = await Source().begin()
        keyring = await exported(source.entries)
        entries = MemoryEntries()
        with pytest.raises(KeyStoreFault, match="is of cluster c, this is cluster d"):
            await import_keys(entries, FixedKek(), keyring, "d")
        assert not entries.made and not entries.by_name
        before = dict(source.entries.by_name)
        with pytest.raises(KeyStoreFault, match="only imported into an empty one"):
            await import_keys(source.entries, FixedKek(), keyring, "c")
        assert source.entries.by_name == before
        await entries.create("data.x", b"{}")
        entries.made = True
        with pytest.raises(KeyStoreFault, match="only imported into an empty one"):
            await import_keys(entries, FixedKek(), keyring, "c")
        assert list(entries.by_name) == ["data.x"]

    asyncio.run(story())


def test_a_damaged_entry_is_counted() -> None:
    """An export has what opens, and says how much does not."""

    async def story() -> None:
        source = await Source().begin()
        await source.entries.create("data.x", b'{"wrapped":"AAAA"}')
        keyring, damaged = await export_keys(source.entries, FixedKek(), None, "c")
        assert (len(keyring.keys), damaged) == (6, 1)

    asyncio.run(story())


def test_no_key_stands_in_the_file_or_in_a_text() -> None:
    """Neither a key nor the path of a variable is in the content, nor a key in what a traceback shows."""

    async def story() -> None:
        source = await Source().begin()
        keyring = await exported(source.entries)
        content = seal_keyring(keyring, PASSPHRASE, n=N)
        for one in keyring.keys:
            assert one.key not in content and one.key.hex() not in repr(keyring)
            assert repr(one.key) not in repr(keyring)
        assert seal_keyring(keyring, PASSPHRASE, n=N) != content

    asyncio.run(story())


KEYRING = ExportedKeyring("c", ())


def test_another_passphrase_does_not_open_it() -> None:
    """A wrong passphrase is an error that says so; a short one makes no file."""
    content = seal_keyring(KEYRING, PASSPHRASE, n=N)
    assert open_keyring(content, PASSPHRASE) == KEYRING
    for wrong in ("", PASSPHRASE + " ", "another passphrase"):
        with pytest.raises(KeyringFileInvalid, match="passphrase is wrong"):
            open_keyring(content, wrong)
    with pytest.raises(KeyringFileInvalid, match="at least 12"):
        seal_keyring(KEYRING, "short", n=N)


def test_every_changed_byte_is_found() -> None:
    """A file with any one byte changed, or cut anywhere, does not open; its text says nothing of the content."""
    content = seal_keyring(KEYRING, PASSPHRASE, n=N)
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        for damaged in (changed, content[:at]):
            with pytest.raises(KeyringFileInvalid, match=r"damaged|no export"):
                open_keyring(damaged, PASSPHRASE)


@pytest.mark.parametrize(
    "numbers",
    [(1 << 30, 8, 1), (1 << 17, 1 << 20, 1), (1 << 17, 8, 99), (0, 8, 1), (-2, 8, 1), (3, 8, 1)],
)
def test_a_file_cannot_ask_for_any_amount_of_memory(numbers: tuple[int, int, int]) -> None:
    """Parameters beyond what an export has are refused before a key is derived."""
    n, r, p = numbers
    line = b'{"n":%d,"r":%d,"p":%d,"salt":"AAAA","nonce":"AAAAAAAAAAAAAAAA"}\n' % (n, r, p)
    with pytest.raises(KeyringFileInvalid, match="damaged"):
        open_keyring(b"caravan keyring 1\n" + line + b"x" * 40, PASSPHRASE)
