"""The memo of submissions: it spares work, and nothing that is read differs by it."""

from typing import Any

import orjson
import pytest

from shared.errors import CommandInvalid
from shared.jobspec.submission import Memo, command_of, read_submission


def body(**changes: Any) -> bytes:
    """A small job with changes."""
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    group = {"Name": "g", "Count": 1, "Tasks": [task]}
    job = {"ID": "a", "Name": "a", "Type": "service", "TaskGroups": [group]}
    return orjson.dumps({"Job": {**job, **changes}, "SubmissionID": "s"})


BODIES = [
    body(),
    body(ID="b"),
    body(ID="b", Name="other"),
    body(ID="b", Priority=70),
    body(ID="c", Stray={"x": 1}),
    body(ID="d", Stray={"x": 1}),
    body(ID="e", Priority=70),
    body(),
]


def test_what_is_read_is_the_same_with_and_without() -> None:
    """Submission and command are equal, whatever was read before: id, name, digest, groups, warnings."""
    memo = Memo()
    for one in BODIES * 2:
        plain, known = read_submission(one, "submit"), read_submission(one, "submit", memo=memo)
        assert known == plain
        assert command_of(known, "s") == command_of(plain, "s")
    assert len(memo) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"ID": ""},
        {"ID": 5},
        {"ID": "a\nb"},
        {"Name": 5},
        {"ID": "x" * 300},
        {"Priority": 1_000_000},
    ],
)
def test_what_is_wrong_is_refused_all_the_same(changes: dict[str, Any]) -> None:
    """A fault in what is not remembered is found, and told in the same words."""
    memo = Memo()
    read_submission(body(), "submit", memo=memo)
    with pytest.raises(CommandInvalid) as plain:
        read_submission(body(**changes), "submit")
    with pytest.raises(CommandInvalid) as known:
        read_submission(body(**changes), "submit", memo=memo)
    assert (known.value.message, known.value.path) == (plain.value.message, plain.value.path)
    assert len(memo) == 1


def test_it_is_bounded() -> None:
    """Only so many are kept, and none that is large."""
    memo = Memo()
    for priority in range(1, 101):
        for meta in range(4):
            read_submission(body(Priority=priority, Meta={"m": str(meta)}), "submit", memo=memo)
    assert len(memo) == 256
    small = Memo()
    read_submission(body(Meta={"m": "x" * 20_000}), "submit", memo=small)
    assert len(small) == 0
