"""Generations of the log: which stream holds which seq, and where a rolled log continues.

The streams themselves decide. A generation ends with a record of kind `roll`; later messages of that stream are
ignored. The log continues in the lowest later stream that begins at the next seq; a stream that was prepared and never
used begins earlier, and stays empty. An operator may have dropped the oldest generations.
"""

import msgspec

from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream import streams
from shared.bus.jetstream.streams import GENERATIONS
from shared.bus.log.stored_records import read_one
from shared.core.runtime.chain import ends_generation
from shared.protocol import subjects


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of the chain. `end`: last seq of it that counts, 0: it is the newest."""

    number: int
    first_seq: int
    #: where its stream was made to begin: a drop takes whole streams, so what lies between was lost.
    made_first_seq: int
    end: int
    state: streams.StreamState
    #: distinguishes streams of the same name.
    created: str
    #: where the log begins by a note of `log drop` or `log accept-loss`; 0: at the first record.
    noted_first_seq: int = 0
    #: why, by the same note.
    noted_why: str = ""

    @property
    def stream(self) -> str:
        """Its stream's name."""
        return subjects.log_stream(self.number)


class ActiveGeneration:
    """Where the log is written now: shared by reader and writer, so that nothing is written behind a roll."""

    def __init__(self) -> None:
        self.number = 1
        self.first_seq = 1
        #: seq of the roll that ended this generation, while the next one is not known.
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


async def list_generations(bus: BusClient) -> list[Generation]:
    """List the generations that the server holds, oldest first. Raises BusRefused: none; BusUnavailable."""
    found: list[tuple[int, streams.StreamInfo]] = []
    for number in GENERATIONS:
        found_info = await streams.info(bus, subjects.log_stream(number), lost=True)
        if found_info is not None:
            found.append((number, found_info))
        elif found:
            break
    if not found:
        missing = "is missing: only the bootstrap of a new cluster creates it"
        raise streams.BusRefused(f"stream {subjects.log_stream(1)} {missing}")
    used = [one for one in found if one[1].state.messages] or found[:1]
    last, found_info = used[-1]
    for number, other in found:
        if (
            number > last
            and not other.state.messages
            and await _continues(bus, last, found_info, other)
        ):
            used.append((number, other))
            break
    firsts = [_first(found_info) for _, found_info in used]
    ends = [first - 1 for first in firsts[1:]] + [0]
    return [
        Generation(
            number=number,
            first_seq=first,
            made_first_seq=_made_first(found_info),
            end=end,
            state=found_info.state,
            created=found_info.created,
            noted_first_seq=_noted(found_info),
            noted_why=_note(found_info, streams.BEGINS_WHY),
        )
        for (number, found_info), first, end in zip(used, firsts, ends, strict=True)
    ]


def _first(found_info: streams.StreamInfo) -> int:
    return max(_made_first(found_info), found_info.state.first_seq)


def _made_first(found_info: streams.StreamInfo) -> int:
    assert found_info.config is not None
    return max(found_info.config.first_seq, 1)


def _note(found_info: streams.StreamInfo, key: str) -> str:
    assert found_info.config is not None
    return found_info.config.metadata.get(key, "")


def _noted(found_info: streams.StreamInfo) -> int:
    noted = _note(found_info, streams.BEGINS)
    return int(noted) if noted.isdigit() and len(noted) < 20 else 0


async def _continues(
    bus: BusClient, number: int, found_info: streams.StreamInfo, other: streams.StreamInfo
) -> bool:
    """Return whether an empty stream follows a generation: the record before its beginning ended that one."""
    first = _first(other)
    if not found_info.state.first_seq < first <= found_info.state.last_seq + 1:
        return False
    before = await read_one(bus, subjects.log_stream(number), first - 1)
    return before is not None and ends_generation(before)


def describe_damage(found: list[Generation], *, read: int) -> str:
    """Describe what is missing of the log behind `read`; empty: nothing."""
    if fault := _describe_lost_beginning(found[0]):
        return fault
    for one in found[1:]:
        if one.state.messages and one.first_seq > one.made_first_seq:
            lost = f"records {one.made_first_seq} to {one.first_seq - 1} are lost"
            return f"{one.stream} begins at {one.first_seq}: {lost}"
    for one, later in zip(found, [*found[1:], None], strict=True):
        if later is not None and later.first_seq > one.state.last_seq + 1:
            ends, begins = one.state.last_seq, later.first_seq
            return f"{one.stream} ends at {ends}, and {later.stream} begins at {begins}"
        if one.state.missing or (one.state.damage and not read):
            # A replica that has replayed the whole stream proves that only an unacknowledged write was torn.
            return f"{one.stream} is damaged: {one.state.damage}"
        if one.state.is_write_failed and not read:
            return describe_lost_end(one)
    return ""


def describe_lost_end(one: Generation) -> str:
    """Describe a last record that the server reports as lost, for who has not read the log before that."""
    lost = f"{one.stream} ends at {one.state.last_seq}, and the server reports record {one.state.last_seq + 1} as lost"
    return (
        f"{lost}: its write failed and was never acknowledged, or it was damaged; only a process that read the log "
        "before can tell"
    )


def _describe_lost_beginning(oldest: Generation) -> str:
    """Return which records are lost before what is left; empty: none, or a drop or an operator accounts for it."""
    first = oldest.first_seq
    if first in (1, oldest.noted_first_seq):
        return ""
    if oldest.state.messages and first > oldest.made_first_seq:
        lost, why = oldest.made_first_seq, "`caravan log drop` deletes whole streams only"
    else:
        lost, why = 1, "no `caravan log drop` recorded their deletion"
    remedy = "if they cannot be restored, accept the loss with `caravan log accept-loss`"
    what = f"records {lost} to {first - 1} are lost"
    return f"{oldest.stream} begins at {first}: {what}; {why}; {remedy}"


def generation_holding(found: list[Generation], seq: int) -> Generation | None:
    """Find the generation that holds a seq, or will; None: it was dropped."""
    return next((one for one in reversed(found) if one.first_seq <= seq), None)


async def successor(bus: BusClient, number: int, roll_seq: int) -> int:
    """Find the generation after the roll at `roll_seq`; 0: none yet. Raises BusUnavailable."""
    for later in range(number + 1, GENERATIONS[-1] + 1):
        found_info = await streams.info(bus, subjects.log_stream(later))
        if found_info is None:
            return 0
        if _first(found_info) == roll_seq + 1:
            return later
    return 0


async def find_active_generation(bus: BusClient, head: ActiveGeneration) -> bool:
    """Search for the generation after the roll; True when it is found. Raises BusUnavailable."""
    roll_seq = head.rolled_at
    if roll_seq:
        number = await successor(bus, head.number, roll_seq)
        if number:
            head.goes_on(number, roll_seq + 1)
    return not head.rolled_at


async def prepare_generation(bus: BusClient, wanted: streams.StreamConfig, after: int) -> int:
    """Create a stream that begins at `wanted.first_seq`, numbered behind `after`; returns its number.

    Raises BusRefused if the server refuses it; BusUnavailable.
    """
    for number in range(after + 1, GENERATIONS[-1] + 1):
        name, all_of = subjects.log_stream(number), subjects.log_all(number)
        config = msgspec.structs.replace(wanted, name=name, subjects=(all_of,))
        found_info = await streams.info(bus, name)
        if found_info is None:
            await streams.create(bus, config)
            return number
        if not found_info.state.messages and _first(found_info) == wanted.first_seq:
            return number
    raise streams.BusRefused(f"the log has {GENERATIONS[-1]} generations, the maximum")
