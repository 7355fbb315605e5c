"""Header blocks and subjects as any client may send them: reading them never raises, and says what is wrong."""

import random

import pytest

from shared.bus.connection.frame_parser import FrameParser
from shared.bus.connection.nats_client import (
    header,
    header_block,
    header_fault,
    header_number,
    status,
)
from shared.bus.jetstream.sender_proof import is_marked, mark_of
from shared.bus.shell.sources import read_message
from shared.protocol import subjects
from tests.faults.poison import HEADERS


@pytest.mark.parametrize("block", HEADERS)
def test_no_header_block_raises(block: bytes) -> None:
    """Every reader of headers takes every block, cut anywhere, and a message of it can be made."""
    draw = random.Random(block)
    for _ in range(50):
        at = draw.randrange(len(block) + 1)
        some = block[:at] + draw.randbytes(draw.randrange(4)) + block[at + draw.randrange(3) :]
        for one in (block, some):
            assert status(one) >= 0
            assert b"\r\n" not in header(one, b"Nats-Msg-Id")
            assert header_number(one, b"Nats-Sequence") >= 0
            message = read_message("jobs", b"jobs.\xff", one, b"{}", token=1)
            assert message.fault == "the subject is not UTF-8"


def test_what_cannot_be_read_is_named() -> None:
    """The fault of a block is a sentence; a block of ours has none."""
    assert header_fault(b"") == header_fault(header_block(nats_msg_id="x")) == ""
    assert header_fault(b"NATS/1.0\r\n\r\n") == ""
    assert "does not begin" in header_fault(b"garbage")
    assert "does not begin" in header_fault(b"NATS/1.0 503\r\n\r\n")
    assert "does not end" in header_fault(b"NATS/1.0\r\nA: b\r\n")
    assert "header 2 contains a line break" in header_fault(b"NATS/1.0\r\nA: b\r\nC: d\ne\r\n\r\n")
    assert "header 1 has no colon" in header_fault(b"NATS/1.0\r\nA\r\n\r\n")
    assert "not UTF-8" in header_fault(b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n")


def test_ids_that_are_no_text_do_not_become_one() -> None:
    """Two message ids that differ in invalid bytes alone are no id at all, not the same one; valid ones stay."""
    for raw in (b"a\xff", b"a\xfe", b"\xc3"):
        block = b"NATS/1.0\r\nNats-Msg-Id: " + raw + b"\r\n\r\n"
        message = read_message("jobs", b"jobs.submit", block, b"{}", token=1)
        assert (message.msg_id, message.fault) == ("", "the header Nats-Msg-Id is not UTF-8")
    message = read_message(
        "jobs", b"jobs.submit", header_block(nats_msg_id="a\ufffd"), b"", token=1
    )
    assert (message.msg_id, message.fault) == ("a\ufffd", "")


@pytest.mark.parametrize("token", [b"\x0b\x0c\x1c", b"\xff", b"\x00", b"\x85\xa0"])
def test_a_subject_is_any_bytes_but_four(token: bytes) -> None:
    """What the server takes for one subject is one frame: none of it ends the connection."""
    heard: list[tuple[bytes, ...]] = []
    frames = FrameParser(None, {7: lambda *one: heard.append(one)}, lambda _: None)
    subject = b"jobs." + token
    assert frames.take(b"HMSG %s 7 r.1 7 9\r\ngarbage{}\r\n" % subject) == b""
    assert heard == [(subject, b"r.1", b"garbage", b"{}")]


def test_any_text_has_a_place_among_the_dead() -> None:
    """A dead letter can be written about every subject."""
    assert subjects.dead("jobs.submit") == "dead.jobs~2Esubmit"
    for subject in ("jobs." + "ü" * 500, "\U0001f600" * 60, "x" * 5_000, "\x00" * 60, ""):
        assert subjects.dead(subject).startswith("dead.")
        assert len(subjects.dead(subject)) < 250


def test_only_a_mark_that_stands_first_counts() -> None:
    """A command without the mark of its stream, or with a decoy before it, is refused."""
    subject = subjects.command("plan")
    mark = mark_of(subject)
    assert is_marked("CMD", mark) and not is_marked("NODE", mark) and is_marked("JOBS", b"")
    decoy = b"NATS/1.0\r\nX: Nats-Expected-Stream: CMD\r\n" + mark.partition(b"\r\n")[2]
    for block in (b"", b"garbage", decoy, b"NATS/1.0\r\n\r\n"):
        message = read_message("plan", subject.encode(), block, b"{}", token=1, stream="CMD")
        assert message.fault
    assert not read_message("plan", subject.encode(), mark, b"{}", token=1, stream="CMD").fault
