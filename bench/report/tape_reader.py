"""Reads tapes: the header and the steps of a recorded role, and effects in the form that is compared.

The form of a tape is that of `shared/bus/shell/tape.py`, which writes it. Knows no role: `tape_replay.py` plays them.
"""

import gzip
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from schemas.base import Wire
from shared.bus.shell.tape import EFFECTS, FORMAT, INPUTS, LENGTH_BYTES, PACK, Header, tagged
from shared.errors import ConfigInvalid

_TAG_OF_EFFECT = {kind: tag for tag, kind in EFFECTS.items()}


def read_tape(path: Path) -> tuple[Header, Iterator[tuple[list[Any], int]]]:
    """Open a tape, `*.gz` too: its header and its steps. A truncated step ends the tape.

    Raises ConfigInvalid for a file that is not a tape of this format.
    """
    frames = _frames(path)
    try:
        header = msgspec.msgpack.decode(next(frames, b""), type=Header)
    except msgspec.MsgspecError as err:
        raise ConfigInvalid(f"{path} is not a tape of format {FORMAT}") from err
    if header.format != FORMAT:
        raise ConfigInvalid(f"{path} is of format {header.format}, this release reads {FORMAT}")
    return header, _steps(frames)


def _steps(frames: Iterator[bytes]) -> Iterator[tuple[list[Any], int]]:
    for data in frames:
        now_ns, inputs = msgspec.msgpack.decode(data)
        yield [_input(one) for one in inputs], now_ns


def _frames(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while (data := _frame(cast("IO[bytes]", file))) is not None:
            yield data


def _frame(file: IO[bytes]) -> bytes | None:
    """Read the next frame; None: the tape ends here."""
    try:
        head = file.read(LENGTH_BYTES)
        wanted = int.from_bytes(head, "big")
        data = file.read(wanted)
    except EOFError:
        return None
    return data if len(head) == LENGTH_BYTES and len(data) == wanted else None


def _input(entry: list[Any]) -> msgspec.Struct:
    """Create an input from its tag and fields; those that a newer release has beyond them keep their defaults."""
    tag, *values = entry
    kind = INPUTS[tag]
    names = kind.__struct_fields__[: len(values)]
    fields = {
        name: value if read is None else read(value)
        for name, value, read in zip(names, values, _readers(kind), strict=False)
    }
    return kind(**fields)


@cache
def _readers(kind: type[msgspec.Struct]) -> tuple[Callable[[bytes], Any] | None, ...]:
    """By field, what reads its wire bytes; None: it is plain."""
    return tuple(
        msgspec.json.Decoder(field.type).decode
        if isinstance(field.type, type) and issubclass(field.type, Wire)
        else None
        for field in msgspec.structs.fields(kind)
    )


def effect_lists(effects: Iterable[object]) -> list[list[Any]]:
    """Return effects as `[tag, field, …]`, in plain values and wire bytes."""
    return tagged(effects, _TAG_OF_EFFECT)


def packed(value: object) -> bytes:
    """Return plain values as msgpack, the same for the same ones."""
    return PACK.encode(value)
