"""What the server tells of a stream that nothing may leave, read as damage or none."""

import pytest

from shared.bus.jetstream.streams import LostData, StreamState
from shared.bus.log.generations import Generation, describe_damage


@pytest.mark.parametrize(
    "state",
    [
        StreamState(),
        StreamState(messages=124, first_seq=1, last_seq=124),
        StreamState(messages=10, first_seq=91, last_seq=100),
        StreamState(messages=0, first_seq=8, last_seq=7),
        StreamState(messages=3, first_seq=1, last_seq=3, lost=LostData(bytes=0)),
    ],
)
def test_a_whole_stream_is_no_damage(state: StreamState) -> None:
    """Empty, whole, or begun later: nothing is missing."""
    assert (state.missing, state.damage) == (0, "")


def test_a_hole_and_a_cut_are_named() -> None:
    """Fewer messages than seqs, or bytes that the server removed, are damage in words with the numbers."""
    hole = StreamState(messages=80, first_seq=1, last_seq=124)
    assert hole.missing == 44 and "44 are missing" in hole.damage
    cut = StreamState(messages=58, first_seq=1, last_seq=58, lost=LostData(bytes=53772))
    assert cut.missing == 0 and "53772 damaged bytes" in cut.damage and "58" in cut.damage


def test_a_failed_write_is_no_damage() -> None:
    """On a full disk the server names the seq that it could not store: above the last one nothing was acknowledged."""
    full = StreamState(messages=5, first_seq=1, last_seq=5, lost=LostData(bytes=406, msgs=(6,)))
    assert full.is_write_failed and full.damage == ""
    within = StreamState(messages=4, first_seq=1, last_seq=5, lost=LostData(bytes=9, msgs=(3,)))
    assert not within.is_write_failed and within.damage


def test_a_cut_end_is_no_failed_write() -> None:
    """More than one record is lost behind the end: the log has one append in flight, so they were acknowledged."""
    cut = StreamState(
        messages=29, first_seq=1, last_seq=29, lost=LostData(bytes=31079, msgs=(30, 31, 32))
    )
    assert cut.is_end_lost and not cut.is_write_failed
    assert "31079 damaged bytes" in cut.damage and "29" in cut.damage


def test_a_lost_last_record_is_judged_by_who_read_the_log_before() -> None:
    """A failed write, or a damaged last record: a process that begins cannot tell, one that has read the log can."""
    lost = StreamState(messages=5, first_seq=1, last_seq=5, lost=LostData(bytes=406, msgs=(6,)))
    one = Generation(
        number=1, first_seq=1, made_first_seq=1, end=0, state=lost, created="", noted_first_seq=0
    )
    assert "record 6 as lost" in describe_damage([one], read=0)
    assert describe_damage([one], read=5) == ""
