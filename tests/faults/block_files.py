"""Block files of a stopped nats-server: where the parts of each record are, and damage at a named place."""

from pathlib import Path

#: A record begins with its length (4 bytes), seq (8), time (8) and the length of its subject (2).
_HEAD = 22
_CHECKSUM = 8
#: The highest bit of the length says that there are headers.
_HAS_HEADERS = 0x8000_0000
#: The parts of a record that hold something. The length of the headers alone is not under the server's checksum.
PLACES = (
    "length",
    "seq",
    "time",
    "subject_length",
    "subject",
    "headers_length",
    "headers",
    "payload",
    "checksum",
)


def records_of(block: Path) -> list[dict[str, int]]:
    """Where the parts of each record are, as offsets in the file; `seq_number` and `end` besides.

    Of a record without headers, which none of ours is, only these two.
    """
    data = block.read_bytes()
    found: list[dict[str, int]] = []
    at = 0
    while at < len(data):
        length = _number(data, at, 4)
        end = at + (length & ~_HAS_HEADERS)
        if not length & _HAS_HEADERS:
            # Tests of attacks before, on the same cluster, wrote to the log themselves.
            found.append({"seq_number": _number(data, at + 4, 8), "end": end})
            at = end
            continue
        headers_length = at + _HEAD + _number(data, at + 20, 2)
        payload = headers_length + 4 + _number(data, headers_length, 4)
        found.append(
            {
                "length": at,
                "seq": at + 4,
                "time": at + 12,
                "subject_length": at + 20,
                "subject": at + _HEAD,
                "headers_length": headers_length,
                "headers": (headers_length + 4 + payload) // 2,
                "payload": (payload + end - _CHECKSUM) // 2,
                "checksum": end - _CHECKSUM // 2,
                "seq_number": _number(data, at + 4, 8),
                "end": end,
            }
        )
        at = end
    return found


def flip(block: Path, at: int) -> None:
    """Change one bit of the byte there."""
    data = bytearray(block.read_bytes())
    data[at] ^= 0x10
    block.write_bytes(data)


def flip_middle(block: Path) -> None:
    """Change one bit in the middle of a file."""
    flip(block, block.stat().st_size // 2)


def flip_place(block: Path, place: str, *, last: bool = False) -> int:
    """Change one bit at a place of the middle record, or of the last one, of ours; returns its seq."""
    records = [one for one in records_of(block) if place in one]
    one = records[-1] if last else records[len(records) // 2]
    flip(block, one[place])
    return one["seq_number"]


def truncate(block: Path) -> None:
    """Lose the last third, within a record."""
    records = [one for one in records_of(block) if "payload" in one]
    one = records[len(records) * 2 // 3]
    block.write_bytes(block.read_bytes()[: one["payload"]])


def lose_end(block: Path) -> int:
    """Lose whole records, a third of them, so that nothing in the file shows it; returns the last seq left."""
    records = records_of(block)
    one = records[len(records) * 2 // 3]
    block.write_bytes(block.read_bytes()[: one["end"]])
    forget_index(block)
    return one["seq_number"]


def lose_beginning(block: Path) -> None:
    """Lose the first ten records, as if they had been the first block."""
    tenth = records_of(block)[9]
    block.write_bytes(block.read_bytes()[tenth["end"] :])


def forget_index(block: Path) -> None:
    """As after an unclean end: the server reads the block itself when it starts."""
    block.with_name("index.db").unlink(missing_ok=True)


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
