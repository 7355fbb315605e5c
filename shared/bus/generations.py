"""Generations of the log: which stream holds which seq, and where a log that was rolled goes on.

Decides by what the streams themselves say. A generation ends with a record of kind `roll`; what comes behind it in that
stream is nothing. It goes on in the lowest later stream that begins at the next seq; one that was made ready and never
used begins earlier, and stays empty. The oldest may be gone: an operator dropped it. Next: `replay.py`, `reading.py`.
"""

import msgspec

from shared.bus import streams, subjects
from shared.bus.connect import BusClient
from shared.bus.records import read_one
from shared.bus.streams import GENERATIONS
from shared.core.log import ends_generation


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of the chain. `end`: last seq of it that counts, 0: it is the newest."""

    number: int
    first_seq: int
    end: int
    state: streams.StreamState
    #: tells a stream from its namesake.
    created: str

    @property
    def stream(self) -> str:
        """Its stream's name."""
        return subjects.log_stream(self.number)


class Head:
    """Where the log is written now: known to who reads it and to who writes it, so that nobody writes behind a roll."""

    def __init__(self) -> None:
        self.number = 1
        self.first_seq = 1
        #: seq of the roll that ended this generation, where nobody has found the next one yet.
        self.rolled_at = 0

    @property
    def stream(self) -> str:
        """Its stream's name."""
        return subjects.log_stream(self.number)

    def rolled(self, seq: int) -> None:
        """A roll was read or written."""
        if seq >= self.first_seq:
            self.rolled_at = seq

    def goes_on(self, number: int, first_seq: int) -> None:
        """The newest generation was found."""
        if first_seq >= self.first_seq:
            self.number, self.first_seq = number, first_seq
            if self.rolled_at < first_seq:
                self.rolled_at = 0


async def chain(bus: BusClient) -> list[Generation]:
    """Ask the server which generations there are, oldest first. Raises BusRefused: none; BusUnavailable."""
    found: list[tuple[int, streams.StreamInfo]] = []
    for number in GENERATIONS:
        told = await streams.info(bus, subjects.log_stream(number), lost=True)
        if told is not None:
            found.append((number, told))
        elif found:
            break
    if not found:
        missing = "is missing: only a new cluster's bootstrap makes it"
        raise streams.BusRefused(f"stream {subjects.log_stream(1)} {missing}")
    used = [one for one in found if one[1].state.messages] or found[:1]
    last, told = used[-1]
    for number, other in found:
        if number > last and not other.state.messages and await _goes_on(bus, last, told, other):
            used.append((number, other))
            break
    firsts = [_first(told) for _, told in used]
    ends = [first - 1 for first in firsts[1:]] + [0]
    return [
        Generation(number=number, first_seq=first, end=end, state=told.state, created=told.created)
        for (number, told), first, end in zip(used, firsts, ends, strict=True)
    ]


def _first(told: streams.StreamInfo) -> int:
    assert told.config is not None
    return max(told.config.first_seq, told.state.first_seq, 1)


async def _goes_on(
    bus: BusClient, number: int, told: streams.StreamInfo, other: streams.StreamInfo
) -> bool:
    """Tell whether an empty stream follows a generation: what stands before its beginning ended that."""
    first = _first(other)
    if not told.state.first_seq < first <= told.state.last_seq + 1:
        return False
    before = await read_one(bus, subjects.log_stream(number), first - 1)
    return before is not None and ends_generation(before)


def damage(found: list[Generation], *, read: int) -> str:
    """Say what is missing of the log behind `read`; empty: nothing."""
    for one, later in zip(found, [*found[1:], None], strict=True):
        if later is not None and later.first_seq > one.state.last_seq + 1:
            ends, begins = one.state.last_seq, later.first_seq
            return f"{one.stream} ends at {ends}, and {later.stream} begins at {begins}"
        if one.state.missing or (one.state.damage and not read):
            # Who has replayed all that is there knows that only an unacknowledged write was torn.
            return f"{one.stream} is damaged: {one.state.damage}"
    return ""


def holding(found: list[Generation], seq: int) -> Generation | None:
    """Find the generation that holds a seq, or will; None: it was dropped."""
    return next((one for one in reversed(found) if one.first_seq <= seq), None)


async def successor(bus: BusClient, number: int, roll_seq: int) -> int:
    """Find where the log goes on behind the roll at `roll_seq` of a generation; 0: not yet. Raises BusUnavailable."""
    for later in range(number + 1, GENERATIONS[-1] + 1):
        told = await streams.info(bus, subjects.log_stream(later))
        if told is None:
            return 0
        if _first(told) == roll_seq + 1:
            return later
    return 0


async def follow(bus: BusClient, head: Head) -> bool:
    """Look where the log goes on behind its roll; True when that is known. Raises BusUnavailable."""
    roll_seq = head.rolled_at
    if roll_seq:
        number = await successor(bus, head.number, roll_seq)
        if number:
            head.goes_on(number, roll_seq + 1)
    return not head.rolled_at


async def prepare(bus: BusClient, wanted: streams.StreamConfig, after: int) -> int:
    """Make a stream that begins at `wanted.first_seq`, numbered behind `after`; returns its number.

    Raises BusRefused: the server does not want it; BusUnavailable.
    """
    for number in range(after + 1, GENERATIONS[-1] + 1):
        name, all_of = subjects.log_stream(number), subjects.log_all(number)
        config = msgspec.structs.replace(wanted, name=name, subjects=(all_of,))
        told = await streams.info(bus, name)
        if told is None:
            await streams.create(bus, config)
            return number
        if not told.state.messages and _first(told) == wanted.first_seq:
            return number
    raise streams.BusRefused(f"there are {GENERATIONS[-1]} generations, and no more")
