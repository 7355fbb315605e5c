"""The table of keys that verify identities: their order, what is removed, its hash and its snapshot."""

from schemas.base import Event
from schemas.identities import SigningKeyCreated, SigningKeyRemoved
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.state import State
from shared.core.state.tables.signing_keys import SigningKeyRow


def created(key_id: str, public: bytes = b"p") -> SigningKeyCreated:
    """Another key."""
    return SigningKeyCreated(key_id=key_id, algorithm="RS256", public=public, at_ns=7)


STORY: tuple[Event, ...] = (
    created("b"),
    created("a"),
    SigningKeyRemoved(key_id="b"),
    created("c"),
)


def state_of(*events: Event) -> State:
    """A state of these events, one a record."""
    state = State()
    for seq, event in enumerate(events, 1):
        state.begin(seq, seq)
        state.evolve(event, seq)
    return state


def test_the_newest_key_is_the_last_that_was_created() -> None:
    """In the order of creation; one that was removed is named, and its public part is gone."""
    table = state_of(*STORY).signing_keys
    assert State().signing_keys.newest == ""
    assert table.newest == "c"
    assert list(table.by_id.items()) == [
        ("a", SigningKeyRow("RS256", b"p", 2, 7)),
        ("c", SigningKeyRow("RS256", b"p", 4, 7)),
    ]
    assert table.removed == {"b": 3}


def test_facts_that_say_nothing_new_change_nothing() -> None:
    """A key that is known or removed is not created again, nor an unknown one removed."""
    first = state_of(*STORY).signing_keys.digest()
    again = state_of(*STORY, created("a", b"q"), created("b"), SigningKeyRemoved(key_id="x"))
    assert again.signing_keys.digest() == first


def test_each_fact_changes_the_hash() -> None:
    """A replica that missed one is found out."""
    digests = [state_of(*STORY[:size]).signing_keys.digest() for size in range(len(STORY) + 1)]
    assert len(set(digests)) == len(digests)
    assert state_of(created("b", b"q")).signing_keys.digest() != digests[1]


def test_a_table_that_is_read_again_is_the_same() -> None:
    """From a snapshot behind each fact: keys, their order, what is removed, and the hash."""
    codec = TABLE_CODECS["signing_keys"]
    for size in range(len(STORY) + 1):
        table = state_of(*STORY[:size]).signing_keys
        again = codec.read(ByteReader(b"".join(codec.pieces(table))))
        assert list(again.by_id.items()) == list(table.by_id.items())
        assert (again.removed, again.newest) == (table.removed, table.newest)
        assert again.digest() == table.digest()
