"""The table of variables: rows of paths, lives, marks and keys, and what is derived from them."""

from collections.abc import Iterator

import pytest

from schemas.base import Event
from schemas.variables import (
    KeyCreated,
    VariableDeleted,
    VariableLife,
    VariablePut,
    VariablesShredded,
)
from shared.core.state.invariants import check
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.copies import copied
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.state import State
from shared.core.state.tables.variables import MARKS_KEPT, KeyRow, PutMark, VariableRow
from shared.protocol.variable_paths import CIPHER_BYTES_MAX

DIGEST = "0" * 32


def put(path: str, incarnation: int = 1, **fields: int | str | bytes) -> VariablePut:
    """A put of a path."""
    base: dict[str, int | str | bytes] = {
        "cipher": b"noise",
        "digest": DIGEST,
        "items": 2,
        "size": 7,
        "at_ns": 5,
        "request_id": "r",
    }
    return VariablePut(path=path, incarnation=incarnation, **(base | fields))  # type: ignore[arg-type]


def gone(path: str, incarnation: int = 1) -> VariableDeleted:
    """The end of a life."""
    return VariableDeleted(path=path, incarnation=incarnation, request_id=f"d{incarnation}")


def shredded(*lives: tuple[str, int]) -> VariablesShredded:
    """Lives whose keys are erased."""
    return VariablesShredded(
        lives=tuple(VariableLife(path=path, incarnation=number) for path, number in lives)
    )


STORY: tuple[Event, ...] = (
    KeyCreated(key_id="a" * 16, public=b"a" * 32),
    put("b/x"),
    put("a", size=3),
    put("b/x", size=9, at_ns=6),
    KeyCreated(key_id="0" * 16, public=b"0" * 32),
    gone("b/x"),
    put("c"),
    put("b/x", 2, at_ns=8),
    gone("c"),
    shredded(("b/x", 1)),
)


def states() -> Iterator[State]:
    """A state behind each event of the story, the same one each time."""
    state = State()
    for seq, event in enumerate(STORY, 1):
        state.begin(seq, seq)
        state.evolve(event, seq)
        yield state


def state_of(*events: Event) -> State:
    """A state of these events, one a record."""
    state = State()
    for seq, event in enumerate(events, 1):
        state.begin(seq, seq)
        state.evolve(event, seq)
    return state


def test_every_state_of_the_story_holds_its_invariants() -> None:
    """Rows, lives and what is derived agree after each fact."""
    assert [check(state) for state in states()] == [[]] * len(STORY)


def test_a_row_says_first_and_newest_put_of_its_life() -> None:
    """A put behind a delete begins another life, with another creation."""
    table = state_of(*STORY).variables
    assert table.by_path["b/x"] == VariableRow(
        incarnation=2,
        revision=8,
        create_seq=8,
        create_ns=8,
        modify_seq=8,
        modify_ns=8,
        cipher=b"noise",
        digest=DIGEST,
        items=2,
        size=7,
        puts=(
            PutMark("r", DIGEST, 2, 5),
            PutMark("r", DIGEST, 4, 6),
            PutMark("r", DIGEST, 8, 8),
        ),
        deletes=("d1",),
    )
    (_, _, _, fourth, *_) = [copied(state.variables) for state in states()]
    row = fourth.by_path["b/x"]
    assert (row.create_seq, row.create_ns, row.revision, row.modify_ns) == (2, 5, 4, 6)


def test_a_deleted_path_keeps_its_incarnation_and_its_marks_alone() -> None:
    """So that no life is used twice, and no ciphertext stays in memory."""
    table = state_of(put("c"), gone("c")).variables
    assert table.by_path["c"] == VariableRow(
        incarnation=1, modify_seq=2, puts=(PutMark("r", DIGEST, 1, 5),), deletes=("d1",)
    )
    assert (table.find("c"), table.total_size, table.live) == (None, 0, [])
    assert table.incarnation_of_put("c") == 2


def test_lives_that_are_over_stay_until_they_are_shredded() -> None:
    """With the seq of their end; shredding what is not there changes nothing."""
    table = state_of(*STORY, shredded(("c", 7), ("none", 1))).variables
    assert table.ended == {("c", 1): 9}


def test_the_newest_marks_are_kept() -> None:
    """Of all lives of the path."""
    events: list[Event] = []
    for number in range(1, MARKS_KEPT + 3):
        events += [put("a", number, request_id=f"r{number}"), gone("a", number)]
    row = state_of(*events).variables.by_path["a"]
    expected = list(range(3, MARKS_KEPT + 3))
    assert [one.request_id for one in row.puts] == [f"r{number}" for number in expected]
    assert list(row.deletes) == [f"d{number}" for number in expected]


def test_paths_by_prefix() -> None:
    """Sorted, those that exist alone, and only with the beginning that was asked for."""
    paths = ["b", "a/b", "a", "ab", "a/c", "a~", "z"]
    events: list[Event] = [put(path) for path in paths]
    table = state_of(*events, gone("a/c")).variables
    for prefix in ("", "a", "a/", "a/b", "b", "c", "zz", "~"):
        expected = sorted(path for path in paths if path.startswith(prefix) and path != "a/c")
        assert table.paths(prefix) == expected, prefix


def test_the_newest_key_is_the_last_one() -> None:
    """In the order of creation, and a key that is known stays as it was."""
    again = KeyCreated(key_id="a" * 16, public=b"b" * 32)
    table = state_of(*STORY, again).variables
    assert list(table.keys.items()) == [
        ("a" * 16, KeyRow(b"a" * 32, 1)),
        ("0" * 16, KeyRow(b"0" * 32, 5)),
    ]


def test_each_fact_changes_the_hash() -> None:
    """A replica that missed one is found out."""
    digests = [State().variables.digest(), *(state.variables.digest() for state in states())]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "fields",
    [
        {"cipher": b"other"},
        {"digest": "1" * 32},
        {"items": 3},
        {"size": 8},
        {"at_ns": 6},
        {"request_id": "s"},
        {"incarnation": 2},
    ],
)
def test_each_field_is_hashed(fields: dict[str, int]) -> None:
    """Two puts that differ in any field make tables of different hashes."""
    other = state_of(put("a", **fields)).variables  # type: ignore[arg-type]
    assert other.digest() != state_of(put("a")).variables.digest()


def test_a_table_that_is_read_again_is_the_same() -> None:
    """From a snapshot behind each fact: every attribute, derived or not, its hash, and what comes after."""
    codec = TABLE_CODECS["variables"]
    for state in states():
        data = b"".join(codec.pieces(state.variables))
        again = codec.read(ByteReader(data))
        for name in ("by_path", "ended", "keys", "live", "total_size"):
            assert getattr(again, name) == getattr(state.variables, name), name
        assert list(again.keys) == list(state.variables.keys)
        assert again.digest() == state.variables.digest()
        assert b"".join(codec.pieces(again)) == data


def test_a_large_table_is_written_in_small_pieces() -> None:
    """A piece of a few variables of the largest size: the writer has other work in between."""
    state = state_of(*[put(f"p{n}", cipher=bytes([n]) * CIPHER_BYTES_MAX) for n in range(100)])
    codec = TABLE_CODECS["variables"]
    sizes = [len(piece) for piece in codec.pieces(state.variables)]
    assert len(sizes) > 6
    found = codec.read(ByteReader(b"".join(codec.pieces(state.variables))))
    assert found.by_path == state.variables.by_path


def test_a_broken_table_is_found() -> None:
    """Each derived part, and each rule of a row, is checked against the rows."""
    for spoil in (
        lambda table: table.live.append("zz"),
        lambda table: setattr(table, "total_size", 1),
        lambda table: table.ended.update({("a", 1): 3}),
        lambda table: table.ended.update({("none", 1): 3}),
        lambda table: table.by_path.update({"c": VariableRow(incarnation=1, size=5)}),
        lambda table: table.by_path.update({"a": VariableRow(incarnation=0, revision=5)}),
    ):
        state = state_of(*STORY)
        assert check(state) == []
        spoil(state.variables)  # type: ignore[no-untyped-call]
        assert {one.invariant for one in check(state)} == {"variables"}
