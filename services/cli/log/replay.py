"""`caravan replay`: the state at a moment, the events before it, or the changes between two moments.

Every replay is verified against the checkpoints that it passes.
"""

from collections.abc import Sequence

import msgspec

from schemas.answers import Counts
from services.cli.log.tail import EventFilter, logged_job, print_event
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.log_position import (
    parse_log_position,
    read_log_until,
    replay_to,
    replica_before,
)
from services.cli.runtime.log_source import log_end_seq_or_zero
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.runtime.progress import ProgressBar
from services.cli.runtime.tables import count_fields
from shared.bus.connection.public_client import Client
from shared.core.runtime.replica import Replica
from shared.core.state.counts import count_state
from shared.display.formats import format_utc
from shared.numerals import is_digits
from shared.query.state_diff import StateDiff, diff_states

#: Changes printed for people; --json has more.
_SHOWN = 50
_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


class ReplayResult(msgspec.Struct, frozen=True):
    """`replay --json`."""

    seq: int
    time: str
    tables: dict[str, str]
    counts: Counts
    begun_seq: int


def replay(
    out: CommandOutput,
    *,
    to: str,
    step: bool,
    begin: str,
    diff: Sequence[str],
    other: str,
    whole: bool,
    job: str,
    node: str,
) -> int:
    """Rebuild the state at a moment; with `step` print each event, with `diff` compare two moments."""
    if diff or other:
        moments = [*diff, *([other] if other else [])]
        if len(moments) != 2 or not diff:
            raise CliError("usage", "--diff needs two moments, as in --diff 100 200")
        for one in moments:
            parse_log_position(one, "--diff")
        return _compare(out, *moments)
    if (begin or job or node) and not step:
        raise CliError("usage", "--from, --job and --node require --step")
    if begin and not is_digits(begin):
        raise CliError("usage", f"--from must be a seq, not {begin!r}")
    parse_log_position(to, "--to")  # Checked before a bus is needed.
    first = int(begin or 1)
    if step:
        replica, begun = with_bus(
            lambda client: _replay_steps(out, client, to, first=first, job=job, node=node)
        )
    else:
        replica, begun = with_bus(lambda client: _replay_to_end(client, to, whole=whole))
    if first > replica.seq:
        raise CliError("not_found", f"--from {begin}: the log ends at {replica.seq}")
    _print_state(out, replica, begun)
    return 0


async def _replay_steps(
    out: CommandOutput, client: Client, to: str, *, first: int, job: str, node: str
) -> tuple[Replica, int]:
    """Replay from the first record, and print each event from `first` on."""
    replica = Replica()
    name = await logged_job(client, job) if job else ""
    shown_by = EventFilter(job=name, node=node)
    async for record in read_log_until(client, to, "--to"):
        lines = shown_by.lines(record, replica.state)
        replica.apply(record)
        for line in lines if record.seq >= first else ():
            print_event(out, line, alone=False)
    return replica, 1


async def _replay_to_end(client: Client, to: str, *, whole: bool) -> tuple[Replica, int]:
    """Replay to a moment; also returns the seq of the first applied record."""
    replica = Replica() if whole else await replica_before(client, to, "--to")
    begun = replica.next_seq
    last = parse_log_position(to)[0] or await log_end_seq_or_zero(client)
    with ProgressBar("replaying", last) as bar:
        async for record in read_log_until(client, to, "--to", first=begun):
            replica.apply(record)
            bar.update(record.seq)
    return replica, begun


def _print_state(out: CommandOutput, replica: Replica, begun: int) -> None:
    counts = count_state(replica.state)
    tables = replica.state.hashes()
    when = format_utc(replica.chain.t_ns)
    out.result(ReplayResult(replica.seq, when, tables, counts, begun))
    out.fields(
        [
            ("Seq", str(replica.seq)),
            ("Time", when),
            *count_fields(counts),
            ("Started", f"at the snapshot of seq {begun - 1}" if begun > 1 else "at seq 1"),
            ("Checkpoints", f"{replica.checked}, all equal"),
        ]
    )
    out.table("TABLE|HASH", sorted(tables.items()), "State")


def _compare(out: CommandOutput, one: str, other: str) -> int:
    async def work(client: Client) -> StateDiff:
        before, after = await replay_to(client, one), await replay_to(client, other)
        return diff_states(before.state, after.state, (before.replica.seq, after.replica.seq))

    found = with_bus(work)
    out.result(found)
    out.line(f"from seq {found.from_seq} to seq {found.to_seq}", "bold")
    for change in found.changes[:_SHOWN]:
        sign, style = _SIGNS[change.what]
        text = " -> ".join(part for part in (change.old, change.new) if part)
        out.line(f"{sign} {change.kind} {change.id}: {text}", style)
    total = sum(found.counts.values())
    if total > _SHOWN:
        out.line(f"and {total - _SHOWN} more changes", "dim")
    if not total:
        out.line("no differences", "green")
    return 0
