"""The vault: every effect is answered once, what it encrypts opens again, and nothing of a value gets out."""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.bounds import ERROR_CODES
from schemas.variables import VariableLife
from services.keeper.key_entries import KeyEntry
from services.keeper.key_store import GRACE_S, KeyStore, data_name
from services.keeper.rewrap import rewrap
from services.keeper.vault import KeyVault, Report
from shared.core.runtime import keeper_messages as k
from shared.protocol.variable_items import encode_items
from shared.protocol.variable_paths import SIZE_BYTES_MAX
from shared.sealed_box import context_bytes, new_pair, open_box, seal
from tests.bounds import level
from tests.unit.keeper.memory_entries import KEK, FixedKek, MemoryEntries

LIFE = VariableLife(path="app/db", incarnation=3)
ITEMS = {"user": "caravan", "password": "swordfish"}
PLAIN = encode_items(ITEMS)


class Room:
    """A vault over entries in memory, and what it reported."""

    def __init__(self, entries: MemoryEntries | None = None) -> None:
        self.entries = entries or MemoryEntries()
        self.clock_s = 1_000_000.0
        self.store = KeyStore(self.entries, FixedKek(), clock=lambda: self.clock_s)
        self.reports: list[Report] = []
        self.notes: list[str] = []
        self.vault = KeyVault(self.store, self.reports.append, self.notes.append, pause_s=0)

    async def ask(self, *effects: Any) -> list[Report]:
        """Perform effects; return what they were answered by."""
        before = len(self.reports)
        performers = self.vault.performers()
        for one in effects:
            assert performers[type(one)](one) is None, "the shell does not wait for it"
        await self.vault.settle()
        return self.reports[before:]

    async def open(self) -> k.KeyStoreOpened:
        """Open the key store of a new cluster."""
        [found] = await self.ask(k.OpenKeyStore(cluster_id="c", may_create=True))
        assert isinstance(found, k.KeyStoreOpened)
        return found

    async def sealed(self, door: k.KeyStoreOpened, **other: Any) -> k.ItemsSealed:
        """Put the items."""
        [found] = await self.ask(put(door, **other))
        assert isinstance(found, k.ItemsSealed)
        return found


def put(door: k.KeyStoreOpened, plain: bytes = PLAIN, **other: Any) -> k.SealItems:
    """What the role asks for after a put."""
    given = {"token": 1, "life": LIFE, "request_id": "r", "key_id": door.key_id, **other}
    box = seal(plain, door.public, ("put", "c", LIFE.path, "r"))
    return k.SealItems(**{"sealed": box, **given})


def get(kept: k.ItemsSealed, public: bytes, **other: Any) -> k.OpenItems:
    """What the role asks for after a get."""
    given = {"token": 2, "life": LIFE, "request_id": "r", "revision": 7, "cipher": kept.cipher}
    return k.OpenItems(**{"public": public, **given, **other})


def play(story: Callable[[Room], Awaitable[None]], room: Room | None = None) -> Room:
    """Run a story in a room."""
    room = room or Room()

    async def run() -> None:
        await story(room)

    asyncio.run(run())
    return room


def test_items_come_back_as_they_were_put() -> None:
    """A put becomes ciphertext with a keyed digest, counts and sizes; a get of it opens for its caller alone."""

    async def story(room: Room) -> None:
        door = await room.open()
        kept = await room.sealed(door, plain=b' {"user":"caravan", "password" : "swordfish"}')
        assert (kept.token, kept.items, kept.size) == (1, 2, 28)
        opened = await room.store.open("c", may_create=False)
        assert kept.digest == hmac.new(opened.digest, PLAIN, hashlib.sha256).hexdigest()[:32]
        key = await room.store.data_key(LIFE, may_create=False)
        assert key is not None
        aad = context_bytes(("c", "app/db", "3", "r"))
        assert AESGCM(key).decrypt(kept.cipher[:12], kept.cipher[12:], aad) == PLAIN
        private, public = new_pair()
        [got] = await room.ask(get(kept, public))
        assert isinstance(got, k.ItemsOpened) and got.token == 2
        assert open_box(got.sealed, private, ("get", "c", "app/db", "7")) == PLAIN

    play(story)


def test_equal_items_have_equal_digests_and_other_ciphertexts() -> None:
    """The digest tells equal content apart from other content, whatever its path; no ciphertext is like another."""

    async def story(room: Room) -> None:
        door = await room.open()
        one, two = await room.sealed(door), await room.sealed(door)
        other = await room.sealed(door, plain=encode_items({"a": "b"}))
        assert one.digest == two.digest != other.digest
        assert one.cipher != two.cipher and one.cipher[:12] != two.cipher[:12]
        later = VariableLife(path="app/db", incarnation=4)
        assert (await room.sealed(door, life=later)).digest == one.digest
        assert sum(name.startswith("data.") for name in room.entries.by_name) == 2

    play(story)


def test_the_key_of_a_life_is_stored_before_the_answer() -> None:
    """When a put is answered the wrapped key is in the store, so that another keeper opens what was encrypted."""

    async def story(room: Room) -> None:
        door = await room.open()
        kept = await room.sealed(door)
        other = Room(room.entries)
        await other.open()
        private, public = new_pair()
        [got] = await other.ask(get(kept, public))
        assert isinstance(got, k.ItemsOpened)
        assert open_box(got.sealed, private, ("get", "c", "app/db", "7")) == PLAIN

    play(story)


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"key_id": "0" * 16}, "conflict"),
        ({"key_id": ""}, "conflict"),
        ({"key_id": "ä"}, "conflict"),
        ({"sealed": b""}, "invalid"),
        ({"sealed": b"\x01" + bytes(90)}, "invalid"),
        ({"request_id": "other"}, "invalid"),
        ({"life": VariableLife(path="other", incarnation=3)}, "invalid"),
        ({"plain": b"swordfish"}, "invalid"),
        ({"plain": b"{}"}, "invalid"),
        ({"plain": b'{"swordfish":1}'}, "invalid"),
        ({"plain": b'{"swordfish":"a","swordfish":"b"}'}, "invalid"),
        ({"plain": b'{"a":"' + b"x" * SIZE_BYTES_MAX + b'"}'}, "too_large"),
    ],
)
def test_a_put_that_is_wrong_is_refused(other: dict[str, Any], code: str) -> None:
    """What is sealed for another key, another request, or holds no items is answered by its code, and draws no key."""

    async def story(room: Room) -> None:
        door = await room.open()
        [found] = await room.ask(put(door, **other))
        assert isinstance(found, k.VaultFailed)
        assert (found.token, found.code) == (1, code) and code in ERROR_CODES
        assert found.reason and "swordfish" not in found.reason
        assert not any(name.startswith("data.") for name in room.entries.by_name)

    play(story)


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"life": VariableLife(path="app/db", incarnation=4)}, "not_found"),
        ({"request_id": "other"}, "failed"),
        ({"cipher": b""}, "failed"),
        ({"cipher": bytes(60)}, "failed"),
        ({"public": bytes(32)}, "invalid"),
        ({"public": b"short"}, "invalid"),
    ],
)
def test_a_get_that_cannot_be_is_refused(other: dict[str, Any], code: str) -> None:
    """Ciphertext of another request or life, damage, and a caller's key that is none are answered by a code."""

    async def story(room: Room) -> None:
        kept = await room.sealed(await room.open())
        [found] = await room.ask(get(kept, **{"public": new_pair()[1], **other}))
        assert isinstance(found, k.VaultFailed)
        assert (found.token, found.code) == (2, code) and code in ERROR_CODES

    play(story)


def test_ciphertext_moved_to_another_path_does_not_open() -> None:
    """Under the key of another path, and in another cluster, the same bytes are noise."""

    async def story(room: Room) -> None:
        door = await room.open()
        kept = await room.sealed(door)
        other = VariableLife(path="other", incarnation=3)
        box = seal(PLAIN, door.public, ("put", "c", "other", "r"))
        await room.ask(put(door, life=other, sealed=box))
        [found] = await room.ask(get(kept, new_pair()[1], life=other))
        assert isinstance(found, k.VaultFailed) and found.code == "failed"

    play(story)


def test_an_erased_life_cannot_be_read() -> None:
    """After its keys are said to be erased a life answers no get, here and in another keeper that had read it."""

    async def story(room: Room) -> None:
        kept = await room.sealed(await room.open())
        other = Room(room.entries)
        await other.open()
        asked = get(kept, new_pair()[1])
        assert isinstance((await other.ask(asked))[0], k.ItemsOpened)
        lives = (LIFE, VariableLife(path="never", incarnation=1))
        assert await room.ask(k.EraseKeys(lives=lives)) == [k.KeysErased(lives=lives)]
        for one in (room, other):
            [found] = await one.ask(asked)
            assert isinstance(found, k.VaultFailed) and found.code == "not_found"

    play(story)


def test_before_the_store_is_open_requests_are_refused() -> None:
    """A request that comes before the store is open is answered as unavailable."""

    async def story(room: Room) -> None:
        other = Room()
        door = await other.open()
        found = await room.ask(put(door), get(await other.sealed(door), new_pair()[1]))
        assert [one.code for one in found if isinstance(one, k.VaultFailed)] == ["unavailable"] * 2

    play(story)


def test_a_store_that_is_away_is_asked_again() -> None:
    """Opening and erasing are tried until the store answers, and it is noted; puts and gets are refused at once."""

    async def story(room: Room) -> None:
        room.entries.away = 3
        door = await room.open()
        assert room.notes[-1] == "" and "away" in room.notes[0] and len(room.notes) == 4
        kept = await room.sealed(door)
        for asked in (put(door), get(kept, new_pair()[1])):
            room.entries.away = 1
            [failed] = await room.ask(asked)
            assert isinstance(failed, k.VaultFailed) and failed.code == "unavailable"
        room.entries.away = 3
        assert await room.ask(k.EraseKeys(lives=(LIFE,))) == [k.KeysErased(lives=(LIFE,))]
        assert data_name(LIFE) not in room.entries.by_name

    play(story)


def test_a_store_of_another_key_is_unusable() -> None:
    """A fault that waiting does not change is reported once, with its reason."""

    async def story(room: Room) -> None:
        door = await room.open()
        await room.sealed(door)
        room.entries.by_name.pop("digest")
        [found] = await room.ask(k.OpenKeyStore(cluster_id="c", may_create=False))
        assert isinstance(found, k.KeyStoreUnusable) and "no entry digest" in found.reason
        [failed] = await room.ask(put(door))
        assert isinstance(failed, k.VaultFailed) and failed.code == "unavailable"
        await room.open()
        other = Room(room.entries)
        other.vault = KeyVault(KeyStore(room.entries, FixedKek(bytes(32))), other.reports.append)
        [found] = await other.ask(k.OpenKeyStore(cluster_id="c", may_create=False))
        assert isinstance(found, k.KeyStoreUnusable) and "copy keeper/kek" in found.reason
        lost = Room()
        [found] = await lost.ask(k.OpenKeyStore(cluster_id="c", may_create=False))
        assert isinstance(found, k.KeyStoreUnusable) and "restore" in found.reason

    play(story)


def test_each_request_is_answered_once_in_any_company() -> None:
    """Many requests at once, good and bad, of one life and of others, get one answer each under their token."""

    async def story(room: Room) -> None:
        door = await room.open()
        kept = await room.sealed(door)
        effects: list[Any] = []
        for number in range(0, 60, 3):
            effects.append(put(door, token=number))
            effects.append(put(door, token=number + 1, sealed=b"x"))
            effects.append(get(kept, new_pair()[1], token=number + 2))
        room.entries.away = 5
        found = await room.ask(*effects)
        assert sorted(one.token for one in found) == list(range(60))  # type: ignore[union-attr]
        assert sum(isinstance(one, k.VaultFailed) for one in found) >= 20

    play(story)


def test_a_slow_key_holds_up_its_own_life_alone() -> None:
    """A put that waits for the store does not hold up the put of another life."""

    async def story(room: Room) -> None:
        door = await room.open()
        slow, other = data_name(LIFE), VariableLife(path="other", incarnation=1)
        gate, real = asyncio.Event(), room.entries.find

        async def read(name: str) -> KeyEntry | None:
            if name == slow:
                await gate.wait()
            return await real(name)

        room.entries.find = read  # type: ignore[method-assign]
        performers = room.vault.performers()
        performers[k.SealItems](put(door, token=1))
        box = seal(PLAIN, door.public, ("put", "c", "other", "r"))
        performers[k.SealItems](put(door, token=2, life=other, sealed=box))
        await level(lambda: len(room.reports) == 2)
        gate.set()
        await room.vault.settle()
        assert [one.token for one in room.reports[1:]] == [2, 1]  # type: ignore[union-attr]

    play(story)


def test_what_was_sealed_for_either_key_opens() -> None:
    """After a rotation both keys open boxes; once the vault erased the old one, a put for it is a conflict."""

    async def story(room: Room) -> None:
        door = await room.open()
        [made] = await room.ask(k.MakeSealingKey(token=5, known=(door.key_id,)))
        assert isinstance(made, k.SealingKeyMade) and made.token == 5
        box = seal(PLAIN, made.key.public, ("put", "c", LIFE.path, "r"))
        new = put(door, key_id=made.key.key_id, sealed=box)
        for one in (put(door), new):
            [found] = await room.ask(one)
            assert isinstance(found, k.ItemsSealed)
        [again] = await room.ask(k.OpenKeyStore(cluster_id="c", may_create=False))
        assert isinstance(again, k.KeyStoreOpened)
        assert (again.key_id, again.others) == (
            made.key.key_id,
            (k.SealingKey(door.key_id, door.public),),
        )
        old = (door.key_id,)
        assert await room.ask(k.CheckKeys(superseded=old)) == [
            k.KeysChecked(superseded=old, lives=(LIFE,))
        ]
        room.clock_s += GRACE_S
        assert await room.ask(k.CheckKeys(superseded=old)) == [k.KeysChecked(lives=(LIFE,))]
        [refused] = await room.ask(put(door))
        assert isinstance(refused, k.VaultFailed) and refused.code == "conflict"
        [found] = await room.ask(new)
        assert isinstance(found, k.ItemsSealed)

    play(story)


def test_a_store_that_was_replaced_is_opened_again() -> None:
    """The store was wrapped by a key that this vault lacks: a request may be sent again, and the role hears why."""

    async def story(room: Room) -> None:
        door = await room.open()
        await rewrap(room.entries, KEK, bytes(32))
        found = await room.ask(put(door))
        assert [type(one) for one in found] == [k.KeyStoreUnusable, k.VaultFailed]
        assert isinstance(found[1], k.VaultFailed) and found[1].code == "unavailable"
        assert isinstance(found[0], k.KeyStoreUnusable) and "keyring rewrap" in found[0].reason
        [again] = await room.ask(put(door))
        assert isinstance(again, k.VaultFailed) and again.code == "unavailable"

    play(story)


def test_an_unexpected_error_is_answered_and_shows_nothing() -> None:
    """A fault of the vault itself is answered; the log has the type of the error and nothing of its text."""

    async def story(room: Room) -> None:
        door = await room.open()

        async def broken(*_: object, **__: object) -> bytes:
            raise RuntimeError("swordfish")

        room.store.data_key = broken  # type: ignore[method-assign]
        [found] = await room.ask(put(door))
        assert isinstance(found, k.VaultFailed)
        assert (found.code, found.reason) == ("failed", "the vault failed")

    with structlog.testing.capture_logs() as logs:
        play(story)
    assert logs == [{"event": "vault.failed", "error": "RuntimeError", "log_level": "error"}]
