"""Answers that are kept as bytes: made anew when their stamp changes, compressed once, bounded."""

import gzip

import pytest

from services.gateway.edge.encoded import BYTES_MAX, KEPT_MAX, EncodedAnswers


def test_an_answer_is_made_once_for_each_stamp() -> None:
    """The same stamp gives the same object; another one is made anew, and the old one is gone."""
    kept, made = EncodedAnswers(), []

    def make() -> object:
        made.append(len(made))
        return {"n": len(made)}

    first = kept.get("web", (1, 2), make)
    assert first.body == b'{"n":1}'
    assert kept.get("web", (1, 2), make) is first
    assert kept.get("web", (1, 3), make).body == b'{"n":2}'
    assert kept.get("web", (1, 2), make).body == b'{"n":3}'
    assert kept.get("shop", (1, 2), make).body == b'{"n":4}'


def test_an_answer_is_compressed_once() -> None:
    """Its bytes come out again."""
    answer = EncodedAnswers().get("a", 1, lambda: ["x" * 5_000])
    assert answer.zipped() is answer.zipped()
    assert gzip.decompress(answer.zipped()) == answer.body


def test_what_is_kept_is_bounded() -> None:
    """The oldest answer goes, and a large one is never kept."""
    kept = EncodedAnswers()
    first = kept.get(0, 1, lambda: 0)
    for number in range(1, KEPT_MAX + 1):
        kept.get(number, 1, lambda: 0)
    assert kept.get(0, 1, lambda: 0) is not first
    large = kept.get("large", 1, lambda: "x" * BYTES_MAX)
    assert kept.get("large", 1, lambda: "x" * BYTES_MAX) is not large


def test_a_fault_keeps_nothing() -> None:
    """What cannot be made now may be made later."""
    kept = EncodedAnswers()

    def fail() -> object:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            kept.get("a", 1, fail)
    assert kept.get("a", 1, lambda: 1).body == b"1"
