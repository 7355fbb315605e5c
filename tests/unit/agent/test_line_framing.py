"""Lines of shipped output: how bytes become lines, and how a reader puts them together again."""

import msgspec

from schemas.shipped_logs import ShippedLogs
from services.agent.executor.shipped_output import LINE_BYTES_MAX, LineFramer
from services.cli.alloc.shipped_text import LastLines, ShippedText

ONE = ShippedLogs(node_id="n", alloc_id="a", task="t", stream="stdout")


def message(offset: int, *lines: str, lost: int = 0) -> ShippedLogs:
    sizes = tuple(len(line.encode()) for line in lines)
    return msgspec.structs.replace(ONE, offset=offset, lost=lost, lines=lines, sizes=sizes)


def test_lines_come_whole_whatever_the_chunks() -> None:
    """However the bytes are cut into chunks, the lines are the same, each with its end."""
    data = b"one\n\ntwo and more\nthree"
    for step in range(1, len(data)):
        framer = LineFramer()
        found = [
            line for at in range(0, len(data), step) for line in framer.add(data[at : at + step])
        ]
        assert (found, framer.rest) == ([b"one\n", b"\n", b"two and more\n"], b"three")
        assert (framer.end(), framer.end()) == ([b"three"], [])


def test_a_long_line_comes_in_parts() -> None:
    """No part is above the bound, no character is cut, and nothing is lost."""
    line = ("ä" * 3 * LINE_BYTES_MAX + "x").encode()
    framer = LineFramer()
    found = framer.add(b"a" + line)
    found += framer.add(b"\nrest\n")
    assert b"".join(found) == b"a" + line + b"\nrest\n"
    assert max(map(len, found)) <= LINE_BYTES_MAX
    assert all(part.decode() for part in found)
    bad = LineFramer().add(b"\x80" * 3 * LINE_BYTES_MAX + b"\n")
    assert sum(map(len, bad)) == 3 * LINE_BYTES_MAX + 1


def test_what_is_repeated_is_shown_once() -> None:
    """A message that came again, or with more of a line whose beginning was shipped, adds only what is new."""
    text = ShippedText("stdout")
    shown = [*text.add(message(0, "a\n", "be"))]
    shown += text.add(message(0, "a\n", "be"))
    shown += text.add(message(2, "begun\n", "c\n"))
    shown += text.add(msgspec.structs.replace(message(99, "no\n"), stream="stderr"))
    assert "".join(shown) == "a\nbegun\nc\n"
    assert (text.size, text.lost) == (10, 0)


def test_a_gap_is_a_mark() -> None:
    """What was given up by the node, and what the stream does not keep any more, is named with its size."""
    text = ShippedText("stdout")
    shown = [*text.add(message(5, "ab")), *text.add(message(107, "c\n", lost=100))]
    assert "".join(shown) == "[5 bytes lost]\nab\n[100 bytes lost]\nc\n"
    assert (text.size, text.lost) == (4, 105)


def test_what_a_node_invents_breaks_nothing() -> None:
    """Columns of different lengths and negative numbers are left out; control characters are made harmless."""
    text = ShippedText("stdout")
    assert [*text.add(msgspec.structs.replace(ONE, lines=("x",)))] == []
    assert [*text.add(msgspec.structs.replace(ONE, lines=("x",), sizes=(-1,)))] == []
    assert [*text.add(message(0, "\x1b[2Jx\t\x9b\n"))] == ["?[2Jx\t?\n"]


def test_last_lines_are_whole() -> None:
    """Parts of a line count as one."""
    last = LastLines(2)
    last.add(["a\n", "b", "c\n", "d"])
    last.add(["e\n"])
    assert last.text() == "bc\nde\n"
