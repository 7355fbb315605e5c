"""Moments of a log, and the state as it was at one: what --at and --to mean.

Decides how a moment is written. The log itself is read, by direct get, from its beginning or from behind a
snapshot that it proves; no service takes part.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec

from schemas.envelope import RECORD_DECODER
from services.cli import chosen
from services.cli.output import CliError
from shared.bus import snapshots
from shared.bus.client import Client
from shared.core.log import is_framed
from shared.core.replica import Replica
from shared.core.role import Record, Restored
from shared.core.state import TABLES
from shared.query.past import Past


def moment(text: str, flag: str = "--at") -> tuple[int, int]:
    """Turn a seq or a time into (last seq, moment in ns); 0: no bound. Raises CliError."""
    if not text:
        return 0, 0
    if text.isdigit():
        if int(text) < 1:
            raise CliError("usage", f"{flag}: the first seq is 1")
        return int(text), 0
    try:
        when = datetime.fromisoformat(text)
    except ValueError as err:
        raise CliError(
            "usage", f"{flag} is a seq or a time as 2026-01-31T12:00:00, was {text!r}"
        ) from err
    when = when if when.tzinfo is not None else when.astimezone()
    return 0, int(when.astimezone(UTC).timestamp() * 1e6) * 1000


def is_later(record: Record, until_ns: int) -> bool:
    """Tell whether a record of ours was written after a moment; a foreign one tells no time."""
    if not is_framed(record.data):
        return False
    try:
        return RECORD_DECODER.decode(record.data).t_ns > until_ns
    except msgspec.DecodeError:
        return False


async def records_to(
    client: Client, text: str, flag: str = "--at", *, first: int = 1
) -> AsyncIterator[Record]:
    """Yield the log from `first` up to a moment; the empty text means all of it.

    Raises CliError for a seq beyond the end.
    """
    last, until_ns = moment(text, flag)
    seen = first - 1
    async for record in client.read_log(first, last):
        if until_ns and is_later(record, until_ns):
            break
        seen = record.seq
        yield record
    if last and seen < last:
        raise CliError("not_found", f"the log ends at {seen}, asked for {last}")
    if not seen:
        raise CliError("not_found", "the log holds nothing, or nothing before that moment")


async def restored_before(client: Client, text: str, flag: str = "--at") -> Restored | None:
    """The newest snapshot that is fit and not newer than a moment; None: there is none, or an export is read."""
    last, until_ns = moment(text, flag)
    if chosen.from_file():
        return None
    return await snapshots.newest(client.bus, TABLES, last_seq=last, last_ns=until_ns, quiet=True)


async def begun_at(client: Client, text: str, flag: str = "--at") -> Replica:
    """A replica at the newest snapshot before a moment, an empty one where there is none."""
    restored = await restored_before(client, text, flag)
    return Replica() if restored is None else restored.replica


async def past(client: Client, text: str = "") -> Past:
    """Replay to a moment, from the newest snapshot before it. Raises CliError, LogError."""
    found = Past()
    restored = await restored_before(client, text)
    if restored is not None:
        found.begin_at(restored)
    async for record in records_to(client, text, first=found.replica.next_seq):
        found.apply(record)
    return found


async def chosen_past(client: Client) -> Past:
    """Replay to the moment that --at names, once a run. Raises CliError, LogError."""
    text = chosen.at()
    if _kept.get(text) is None:
        _kept[text] = await past(client, text)
    return _kept[text]


_kept: dict[str, Past] = {}
