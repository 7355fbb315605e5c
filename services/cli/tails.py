"""`caravan log tail`: the last events of the log, one line each, of one job, node or kind where that is asked for.

Decides what a filter lets through, and how much of the log must be read for it: kinds are told by the event itself,
jobs and nodes by the state before it, which is rebuilt from the beginning.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence

from schemas.envelope import Record as LogRecord
from services.cli import event_names, events
from services.cli.asking import with_bus
from services.cli.logs import last_seq
from services.cli.output import CliError, Output
from shared.bus.client import Client
from shared.core.replica import Replica
from shared.core.role import Record
from shared.core.state import State
from shared.errors import LogError
from shared.query.concerns import concerns

#: Records looked at to find the last events, where nothing is filtered.
_RECORDS_MAX = 5_000


class Filter:
    """What is shown. `job` and `node` are ids, `kinds` beginnings of event types; empty: all of them."""

    def __init__(self, *, job: str = "", node: str = "", kinds: Sequence[str] = ()) -> None:
        self._job = job
        self._node = node
        self._kinds = tuple(kinds)
        self._replica = Replica()

    @property
    def needs_state(self) -> bool:
        """Tell whether the log must be read from its beginning."""
        return bool(self._job or self._node)

    @property
    def is_open(self) -> bool:
        """Tell whether everything is shown."""
        return not (self.needs_state or self._kinds)

    def lines(self, record: Record, before: State | None = None) -> list[events.EventLine]:
        """Describe what of a record is shown, by names where the state before it is known.

        Raises LogError where the log cannot be followed.
        """
        found = events.of_record(record, self._replica.state if self.needs_state else before)
        if self.needs_state:
            wanted = self._concerned(record)
            # A record without events of ours is about no job and no node.
            found = [one for at, one in enumerate(found) if at in wanted]
        if self._kinds:
            found = [one for one in found if one.type.startswith(self._kinds)]
        return found

    def _concerned(self, record: Record) -> set[int]:
        wanted: set[int] = set()

        def before(decoded: LogRecord) -> None:
            for at, event in enumerate(decoded.events):
                about = concerns(self._replica.state, event)
                if (not self._job or self._job in about.jobs) and (
                    not self._node or self._node in about.nodes
                ):
                    wanted.add(at)

        self._replica.apply(record, before)
        return wanted


def tail(out: Output, *, count: int, follow: bool, job: str, node: str, kind: Sequence[str]) -> int:
    """Print the last events, and with `follow` what comes."""
    shown_by = Filter(job=job, node=node, kinds=kind)

    async def work(client: Client) -> int:
        last = await _newest(client)
        wanted = min(max(count, 0), _RECORDS_MAX)
        first = max(1, last - wanted + 1) if last and shown_by.is_open else 1
        kept: deque[events.EventLine] = deque(maxlen=max(count, 0))
        end = first - 1
        try:
            async for record in client.read_log(first):
                end = record.seq
                kept.extend(shown_by.lines(record))
        except LogError:
            # What is sound is told all the same, before what is not.
            for one in kept:
                show(out, one, alone=False)
            raise
        if not follow:
            seqs = [one.seq for one in kept] or [0]
            out.result({"events": list(kept), "first_seq": seqs[0], "last_seq": seqs[-1]})
        for one in kept:
            show(out, one, alone=follow)
        if follow:
            async for one in _coming(client, shown_by, max(end, last) + 1):
                show(out, one, alone=True)
        return 0

    return with_bus(work)


async def _newest(client: Client) -> int:
    """Where the log ends; 0: no service is there to say so, and it is read from its beginning."""
    try:
        return await last_seq(client)
    except CliError as err:
        if err.code != "unavailable":
            raise
        return 0


async def _coming(client: Client, shown_by: Filter, first: int) -> AsyncIterator[events.EventLine]:
    async for record in client.follow_log(first):
        for one in shown_by.lines(record):
            yield one


def show(out: Output, line: events.EventLine, *, alone: bool) -> None:
    """Print one line; with `alone` it is an object of its own."""
    if alone:
        out.result(line)
    if not out.is_json:
        head = f"{line.seq:>7} {event_names.clock(line.t_ns)} "
        out.parts((head, "dim"), (line.type.ljust(24), "cyan"), (f" {line.text}", ""))
