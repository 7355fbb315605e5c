"""The vault signs: keys are wrapped and durable, tokens leave it sealed, and what is erased signs no more."""

import json
from typing import Any

import msgspec
import structlog

from services.keeper.key_store import KeyStore
from services.keeper.keyring_file import export_keys, import_keys
from services.keeper.rewrap import rewrap
from services.keeper.wrapped_keys import StoredKey
from shared.core.runtime import keeper_messages as k
from shared.identity_tokens import private_bytes, public_bytes, signing_key_id, verify_token
from shared.sealed_box import new_pair, open_box
from tests.unit.keeper.memory_entries import KEK, FixedKek, MemoryEntries
from tests.unit.keeper.test_vault import Room, play

NEXT = bytes(range(32, 64))
AUDIENCE = "marker-7c41-audience"


def sign(key_id: str, public: bytes, **other: Any) -> k.SignIdentity:
    """What the role asks for of one identity."""
    given: dict[str, Any] = {"token": 4, "alloc_id": "a1", "task": "server", "name": "aws"}
    claims = json.dumps({"sub": "marker-7c41-subject", "aud": AUDIENCE, "nbf": 1}).encode()
    return k.SignIdentity(key_id=key_id, public=public, **{"claims": claims, **given, **other})


async def made(room: Room, *known: k.SigningKeyMade) -> k.SigningKeyMade:
    """Have a key made beside those that are known."""
    ids = tuple(one.key_id for one in known)
    [found] = await room.ask(k.MakeSigningKey(token=3, known=ids))
    assert isinstance(found, k.SigningKeyMade) and found.token == 3
    return found


def test_a_key_is_durable_and_wrapped_before_the_answer() -> None:
    """Under its id, which is of its public part; another keeper finds it, in the order in which keys were made."""

    async def story(room: Room) -> None:
        assert (await room.open()).signing == ()
        first = await made(room)
        second = await made(room, first)
        names = [name for name in room.entries.by_name if name.startswith("sign.")]
        assert names == [f"sign.{first.key_id}", f"sign.{second.key_id}"]
        assert first.key_id == signing_key_id(first.public) != second.key_id
        private = await room.store.signing_key(first.key_id)
        assert private is not None and public_bytes(private) == first.public
        stored = msgspec.json.decode(room.entries.by_name[names[0]], type=StoredKey)
        assert private_bytes(private)[40:80] not in stored.wrapped
        opened = await Room(room.entries).open()
        assert [(one.key_id, one.public) for one in opened.signing] == [
            (one.key_id, one.public) for one in (first, second)
        ]

    play(story)


def test_a_key_that_was_left_behind_is_used() -> None:
    """A keeper that asks for another key than those of the log gets the one that an earlier keeper stored."""

    async def story(room: Room) -> None:
        await room.open()
        first = await made(room)
        left = await made(room, first)
        heir = Room(room.entries)
        await heir.open()
        assert await made(heir, first) == left
        assert (await made(heir, first, left)).key_id not in {first.key_id, left.key_id}

    play(story)


def test_a_token_is_for_its_question_alone() -> None:
    """Sealed for the key of the question, in the context of allocation, task and name; each has an id of its own."""

    async def story(room: Room) -> None:
        await room.open()
        key = await made(room)
        private, public = new_pair()
        tokens = []
        for _ in range(2):
            [found] = await room.ask(sign(key.key_id, public))
            assert isinstance(found, k.IdentitySigned) and found.token == 4
            context = ("identity", "c", "a1", "server", "aws")
            tokens.append(open_box(found.sealed, private, context).decode())
        keys = {key.key_id: key.public}
        claims = [verify_token(one, keys, now_s=2, audience=AUDIENCE) for one in tokens]
        assert len({one.pop("jti") for one in claims}) == 2
        assert claims[0] == claims[1] == {"sub": "marker-7c41-subject", "aud": AUDIENCE, "nbf": 1}

    play(story)


def test_a_key_that_was_erased_signs_no_more() -> None:
    """Neither here, where it signed a moment ago, nor in another keeper; erasing what is gone is done."""

    async def story(room: Room) -> None:
        await room.open()
        key = await made(room)
        newer = await made(room, key)
        public = new_pair()[1]
        await room.ask(sign(key.key_id, public))
        erase = k.EraseSigningKeys(key_ids=(key.key_id,))
        for _ in range(2):
            assert await room.ask(erase) == [k.SigningKeysErased(key_ids=(key.key_id,))]
        [refused] = await room.ask(sign(key.key_id, public))
        assert isinstance(refused, k.VaultFailed) and refused.code == "unavailable"
        assert [one.key_id for one in (await Room(room.entries).open()).signing] == [newer.key_id]

    play(story)


def test_a_key_follows_the_key_encryption_key_and_an_export() -> None:
    """Wrapped anew in place, and written into an empty store under another key, it is the same and signs."""

    async def story(room: Room) -> None:
        await room.open()
        key = await made(room)
        await made(room, key)
        before = (await room.open()).signing
        await rewrap(room.entries, KEK, NEXT)
        rewrapped = KeyStore(room.entries, FixedKek(NEXT))
        assert (await rewrapped.open("c", may_create=False)).signing == before
        keyring, damaged = await export_keys(room.entries, FixedKek(NEXT), None, "c")
        empty = MemoryEntries()
        await import_keys(empty, FixedKek(), keyring, "c")
        imported = KeyStore(empty, FixedKek())
        found = await imported.open("c", may_create=False)
        assert damaged == 0 and {one.key_id for one in found.signing} == {
            one.key_id for one in before
        }
        private = await imported.signing_key(key.key_id)
        assert private is not None and public_bytes(private) == key.public

    play(story)


def test_a_damaged_key_is_left_out() -> None:
    """The store opens for variables; the role then says which key is missing."""

    async def story(room: Room) -> None:
        await room.open()
        key = await made(room)
        newer = await made(room, key)
        names = [f"sign.{one.key_id}" for one in (key, newer)]
        entries = room.entries.by_name
        entries[names[0]] = entries[names[1]]
        opened = await Room(room.entries).open()
        assert [one.key_id for one in opened.signing] == [newer.key_id]

    play(story)


def test_an_unreachable_store_refuses_what_may_be_asked_again() -> None:
    """Before it is open, and while the bus is away; then the same question is answered."""

    async def story(room: Room) -> None:
        public = new_pair()[1]
        [early] = await room.ask(k.MakeSigningKey(token=3))
        assert isinstance(early, k.VaultFailed) and early.code == "unavailable"
        await room.open()
        key = await made(room)
        room.entries.away = 1
        [away] = await room.ask(sign(key.key_id, public))
        assert isinstance(away, k.VaultFailed) and away.code == "unavailable"
        [found] = await room.ask(sign(key.key_id, public))
        assert isinstance(found, k.IdentitySigned)

    play(story)


def test_nothing_of_a_token_is_in_an_answer_or_a_log_line() -> None:
    """Marker: the claims are sealed, and a key that no question can have is refused without them."""
    with structlog.testing.capture_logs() as lines:

        async def story(room: Room) -> None:
            await room.open()
            key = await made(room)
            await room.ask(sign(key.key_id, new_pair()[1]))
            [refused] = await room.ask(sign(key.key_id, bytes(32)))
            assert isinstance(refused, k.VaultFailed) and refused.code == "invalid"

        room = play(story)
    said = f"{room.reports} {room.notes} {lines}"
    assert "IdentitySigned" in said
    assert "marker-7c41" not in said and "eyJ" not in said
