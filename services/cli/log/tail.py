"""`caravan log tail`: the last events of the log, one line each, optionally of one job, node or kind.

The kind is part of the event; its jobs and nodes follow from the state before it, so that these filters read the log
from its beginning.
"""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from schemas.base import JobId
from schemas.envelope import RECORD_DECODER, LogRecord
from schemas.jobs import JobRegistered
from services.cli.runtime.bus_client import unique_job, with_bus
from services.cli.runtime.closed_pipe import ending_with_reader
from services.cli.runtime.log_source import log_end_seq_or_zero
from services.cli.runtime.output import CommandOutput
from shared.bus.connection.public_client import Client
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.state import State
from shared.display import event_text
from shared.display.formats import format_clock
from shared.errors import LogError
from shared.query.event_scope import event_scope

#: Records read to find the last events without a filter.
_RECORDS_MAX = 5_000
#: Every record that registers a job contains it.
_REGISTERED = str(JobRegistered.__struct_config__.tag).encode()


class LogTailResult(msgspec.Struct, frozen=True):
    """`log tail --json`."""

    events: list[event_text.EventLine]
    first_seq: int
    last_seq: int


class EventFilter:
    """Which events are printed. `job` and `node` are ids, `kinds` prefixes of event types; empty: all."""

    def __init__(self, *, job: str = "", node: str = "", kinds: Sequence[str] = ()) -> None:
        self._job = job
        self._node = node
        self._kinds = tuple(kinds)
        self._replica = Replica()

    @property
    def needs_state(self) -> bool:
        """Whether the log must be read from its beginning."""
        return bool(self._job or self._node)

    @property
    def is_open(self) -> bool:
        """Whether every event is printed."""
        return not (self.needs_state or self._kinds)

    def lines(self, record: Record, before: State | None = None) -> list[event_text.EventLine]:
        """Describe the events of a record that pass, by names if the state before it is known. Raises LogError."""
        found = event_text.describe_record(
            record, self._replica.state if self.needs_state else before
        )
        if self.needs_state:
            wanted = self._concerned(record)
            # A record without events concerns no job and no node.
            found = [one for at, one in enumerate(found) if at in wanted]
        if self._kinds:
            found = [one for one in found if one.type.startswith(self._kinds)]
        return found

    def _concerned(self, record: Record) -> set[int]:
        wanted: set[int] = set()

        def before(decoded: LogRecord) -> None:
            for at, event in enumerate(decoded.events):
                about = event_scope(self._replica.state, event)
                if (not self._job or self._job in about.jobs) and (
                    not self._node or self._node in about.nodes
                ):
                    wanted.add(at)

        self._replica.apply(record, before)
        return wanted


def tail(
    out: CommandOutput, *, count: int, follow: bool, job: str, node: str, kind: Sequence[str]
) -> int:
    """Print the last events, and with `follow` new ones."""

    async def work(client: Client) -> int:
        name = await logged_job(client, job) if job else ""
        shown_by = EventFilter(job=name, node=node, kinds=kind)
        last = await log_end_seq_or_zero(client)
        wanted = min(max(count, 0), _RECORDS_MAX)
        first = max(1, last - wanted + 1) if last and shown_by.is_open else 1
        kept: deque[event_text.EventLine] = deque(maxlen=max(count, 0))
        end = first - 1
        try:
            async for record in client.read_log(first):
                end = record.seq
                kept.extend(shown_by.lines(record))
        except LogError:
            # Sound records are printed before the error.
            for one in kept:
                print_event(out, one, alone=False)
            raise
        if not follow:
            seqs = [one.seq for one in kept] or [0]
            out.result(LogTailResult(list(kept), seqs[0], seqs[-1]))
        for one in kept:
            print_event(out, one, alone=follow)
        if follow:
            async with ending_with_reader():
                async for one in _follow(client, shown_by, max(end, last) + 1):
                    print_event(out, one, alone=True)
        return 0

    return with_bus(work)


async def logged_job(client: Client, text: str) -> JobId:
    """Find the job with this id or unique prefix among all that the log registers, collected ones too.

    Raises CliError, naming the candidates.
    """
    found: set[str] = set()
    # The reading after this one reports what is wrong with the log.
    with contextlib.suppress(LogError):
        async for record in client.read_log(1):
            found.update(one for one in _registered_jobs(record) if one.startswith(text))
            if text in found:
                break
    return unique_job(text, sorted(found))


def _registered_jobs(record: Record) -> list[str]:
    if _REGISTERED not in record.data:
        return []
    try:
        events = RECORD_DECODER.decode(record.data).events
    except msgspec.DecodeError:
        return []
    return [event.job_id for event in events if isinstance(event, JobRegistered)]


async def _follow(
    client: Client, shown_by: EventFilter, first: int
) -> AsyncIterator[event_text.EventLine]:
    async for record in client.follow_log(first):
        for one in shown_by.lines(record):
            yield one


def print_event(out: CommandOutput, line: event_text.EventLine, *, alone: bool) -> None:
    """Print one event; with `alone` as an object of its own."""
    if alone:
        out.result(line)
    if not out.is_json:
        head = f"{line.seq:>7} {format_clock(line.t_ns)} "
        out.parts((head, "dim"), (line.type.ljust(24), "cyan"), (f" {line.text}", ""))
