"""Moments of a log, as --at and --to name them, and the state at a moment.

The log is read by direct get, from its beginning or from a verified snapshot; no service is involved.
"""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec

from schemas.envelope import RECORD_DECODER
from services.cli import global_options
from services.cli.runtime.output import CliError
from shared.bus.connection.public_client import Client
from shared.bus.log import snapshots
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored
from shared.core.state.state import TABLES
from shared.numerals import is_digits
from shared.query.historical_state import HistoricalState

_EPOCH = datetime.fromtimestamp(0, UTC)
#: Digits of a second behind those that a datetime holds.
_NANOS = re.compile(r"\.([0-9]{6})([0-9]{1,3})(?![0-9])")


def parse_log_position(text: str, flag: str = "--at") -> tuple[int, int]:
    """Turn a seq or a time into (last seq, moment in ns); 0: no bound. Raises CliError.

    A time includes the whole of its last microsecond: times are shown so, and records are dated in nanoseconds.
    """
    if not text:
        return 0, 0
    if is_digits(text):
        if int(text) < 1:
            raise CliError("usage", f"{flag}: seqs start at 1")
        return int(text), 0
    try:
        return 0, _moment_ns(text) or -1
    except (ValueError, OverflowError) as err:
        raise CliError(
            "usage", f"{flag} must be a seq or a time like 2026-01-31T12:00:00, not {text!r}"
        ) from err


def _moment_ns(text: str) -> int:
    """Nanoseconds since 1970; a time without a zone is a local one. Raises ValueError, OverflowError."""
    if not text.isascii():
        raise ValueError(text)
    nanos = _NANOS.search(text)
    when = datetime.fromisoformat(_NANOS.sub(r".\1", text))
    # Not by astimezone: in UTC it may be before the first year or after the last one.
    when = when if when.tzinfo is not None else when.astimezone()
    micros = (when - _EPOCH) // timedelta(microseconds=1)
    return micros * 1000 + (int(nanos[2].ljust(3, "0")) if nanos else 999)


def is_written_after(record: Record, until_ns: int) -> bool:
    """Whether a record was written after a moment; a foreign one has no time."""
    if not is_framed(record.data):
        return False
    try:
        return RECORD_DECODER.decode(record.data).t_ns > until_ns
    except msgspec.DecodeError:
        return False


async def read_log_until(
    client: Client, text: str, flag: str = "--at", *, first: int = 1
) -> AsyncIterator[Record]:
    """Yield the log from `first` up to a moment; the empty text means all of it.

    Raises CliError for a seq beyond the end.
    """
    last, until_ns = parse_log_position(text, flag)
    seen = first - 1
    async for record in client.read_log(first, last):
        if until_ns and is_written_after(record, until_ns):
            break
        seen = record.seq
        yield record
    if last and seen < last:
        raise CliError("not_found", f"the log ends at {seen}, before seq {last}")
    if not seen:
        raise CliError("not_found", "the log has no records before that moment")


async def snapshot_before(client: Client, text: str, flag: str = "--at") -> Restored | None:
    """The newest valid snapshot not newer than a moment; None without one, or for an export."""
    last, until_ns = parse_log_position(text, flag)
    if global_options.export_dir():
        return None
    return await snapshots.restore_newest(
        client.bus, TABLES, last_seq=last, last_ns=until_ns, quiet=True
    )


async def replica_before(client: Client, text: str, flag: str = "--at") -> Replica:
    """A replica at the newest snapshot before a moment, else an empty one."""
    restored = await snapshot_before(client, text, flag)
    return Replica() if restored is None else restored.replica


async def replay_to(client: Client, text: str = "") -> HistoricalState:
    """Replay to a moment, from the newest snapshot before it. Raises CliError, LogError."""
    found = HistoricalState()
    restored = await snapshot_before(client, text)
    if restored is not None:
        found.begin_at(restored)
    async for record in read_log_until(client, text, first=found.replica.next_seq):
        found.apply(record)
    return found


async def replay_to_at_option(client: Client) -> HistoricalState:
    """Replay to the moment of --at, once per run. Raises CliError, LogError."""
    text = global_options.at_position()
    key = (global_options.export_dir(), text)
    if _replayed.get(key) is None:
        _replayed[key] = await replay_to(client, text)
    return _replayed[key]


#: By export and moment.
_replayed: dict[tuple[str, str], HistoricalState] = {}
