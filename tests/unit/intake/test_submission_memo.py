"""The memo of submissions: it spares work, and nothing that is read differs by it."""

from typing import Any

import orjson
import pytest

from shared.errors import CommandInvalid
from shared.jobspec.submission import SubmissionCache, read_submission, to_command


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
    body(ID="c", Meta={"x": "1"}),
    body(ID="d", Meta={"x": "1"}),
    body(ID="e", Priority=70),
    body(),
]


def test_what_is_read_is_the_same_with_and_without() -> None:
    """Submission and command are equal, whatever was read before: id, name, digest, groups, warnings."""
    memo = SubmissionCache()
    for one in BODIES * 2:
        plain, known = read_submission(one, "submit"), read_submission(one, "submit", memo=memo)
        assert known == plain
        assert to_command(known, "s") == to_command(plain, "s")
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
    memo = SubmissionCache()
    read_submission(body(), "submit", memo=memo)
    with pytest.raises(CommandInvalid) as plain:
        read_submission(body(**changes), "submit")
    with pytest.raises(CommandInvalid) as known:
        read_submission(body(**changes), "submit", memo=memo)
    assert (known.value.message, known.value.path) == (plain.value.message, plain.value.path)
    assert len(memo) == 1


def test_it_is_bounded() -> None:
    """Only so many are kept, and none that is large."""
    memo = SubmissionCache()
    for priority in range(1, 101):
        for meta in range(4):
            read_submission(body(Priority=priority, Meta={"m": str(meta)}), "submit", memo=memo)
    assert len(memo) == 256
    small = SubmissionCache()
    read_submission(body(Meta={"m": "x" * 20_000}), "submit", memo=small)
    assert len(small) == 0


#: Names that are also spelled elsewhere in a body, or that JSON spells with an escape, and ordinary ones.
NAMES = ("a", "b", "g", "t", "ID", "Name", "Job", "service", "", 'q"q', "b\\s", "é", "x/y", "5")


def named() -> list[bytes]:
    """Bodies of all pairs of odd names, some under a submission id that is one of them."""
    found = [body(ID=one, Name=two) for one in NAMES for two in NAMES]
    text = [one.replace(b'"SubmissionID":"s"', b'"SubmissionID":"a"') for one in found]
    return found + text


def forms(one: bytes) -> list[bytes]:
    """A body in forms that look alike: spaced, a key twice, an escape, bad text, an index, a null, a name elsewhere."""
    job = b'{"Job":{'
    return [
        one,
        one.replace(b":", b": "),
        one.replace(job, job + b'"ID":"a",'),
        one.replace(job, job + b'"Name":"b",'),
        one.replace(b'"Name":"t"', b'"Name":"\\u0074"'),
        one.replace(b'"ID":"a"', b'"ID":"\\u0061"'),
        one.replace(b'"Name":"a"', b'"Name":"\x01"'),
        one.replace(b'"Name":"a"', b'"Name":"\x00"'),
        one.replace(b'"Name":"a"', b'"Name":"\xff"'),
        one.replace(job, b'{"EnforceIndex":true,"JobModifyIndex":7,' + job[1:]),
        one.replace(job, job + b'"Meta":{"a":"b"},'),
        one.replace(job, job + b'"Meta":{"k":"\\"a"},'),
        one.replace(job, job + b'"Meta":null,'),
        one.replace(b'"Count":1', b'"Count":12345678901234567890'),
        one[:-1],
        one + b"}",
    ]


def told(one: bytes, memo: SubmissionCache | None) -> object:
    """What is read of a body: the submission, or the faults."""
    try:
        return read_submission(one, "submit", memo=memo)
    except CommandInvalid as fault:
        return (fault.code, fault.message, fault.path, fault.submission_id)


def test_nothing_that_looks_alike_is_taken_for_another() -> None:
    """Whatever names stand in a body, and in whatever form, all is read, and refused, as without a memo."""
    memo = SubmissionCache()
    bodies = [form for one in named() for form in forms(one)]
    for one in [*bodies, *reversed(bodies)]:
        assert told(one, memo) == told(one, None), one
    # As it is, spaced, with an index, with more beside the names, and with a null.
    assert len(memo) == 5
