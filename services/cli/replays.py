"""`caravan replay`: the state as it was, the way to it, or what changed between two moments.

Decides nothing about events; every replay proves itself against the checkpoints on its way.
"""

from collections.abc import Sequence

from services.cli import events
from services.cli.asking import with_bus
from services.cli.moments import begun_at, moment, past, records_to
from services.cli.output import CliError, Column, Output
from services.cli.tails import Filter, show
from shared.bus.client import Client
from shared.core.counts import count_state
from shared.core.replica import Replica
from shared.query.differences import Differences, differences

#: Changes shown to people; --json has more.
_SHOWN = 50
_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


def replay(
    out: Output,
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
    """Rebuild the state at a moment; with `step` show each event on the way, with `diff` compare two moments."""
    if diff or other:
        moments = [*diff, *([other] if other else [])]
        if len(moments) != 2 or not diff:
            raise CliError("usage", "--diff takes two moments, as in --diff 100 200")
        for one in moments:
            moment(one, "--diff")
        return _compare(out, *moments)
    if (begin or job or node) and not step:
        raise CliError("usage", "--from, --job and --node go with --step")
    if begin and not begin.isdigit():
        raise CliError("usage", f"--from is a seq, was {begin!r}")
    moment(to, "--to")  # What is no moment is told without a bus.
    first = int(begin or 1)
    if step:
        replica, begun = with_bus(
            lambda client: _walk(out, client, to, first=first, shown_by=Filter(job=job, node=node))
        )
    else:
        replica, begun = with_bus(lambda client: _arrive(client, to, whole=whole))
    if first > replica.seq:
        raise CliError("not_found", f"--from {begin}: it ends at {replica.seq}")
    _tell(out, replica, begun)
    return 0


async def _walk(
    out: Output, client: Client, to: str, *, first: int, shown_by: Filter
) -> tuple[Replica, int]:
    """Replay from the first record, and show each event from `first` on."""
    replica = Replica()
    async for record in records_to(client, to, "--to"):
        lines = shown_by.lines(record, replica.state)
        replica.apply(record)
        for line in lines if record.seq >= first else ():
            show(out, line, alone=False)
    return replica, 1


async def _arrive(client: Client, to: str, *, whole: bool) -> tuple[Replica, int]:
    """Replay to a moment; says which record was the first that was applied."""
    replica = Replica() if whole else await begun_at(client, to, "--to")
    begun = replica.next_seq
    async for record in records_to(client, to, "--to", first=begun):
        replica.apply(record)
    return replica, begun


def _tell(out: Output, replica: Replica, begun: int) -> None:
    counts = count_state(replica.state)
    tables = replica.state.hashes()
    when = events.iso(replica.chain.t_ns)
    told = {"seq": replica.seq, "time": when, "tables": tables, "counts": counts}
    out.result({**told, "begun_seq": begun})
    living = {name: n for name, n in counts.allocations.items() if n}
    out.fields(
        [
            ("Seq", str(replica.seq)),
            ("Time", when),
            ("Jobs", str(counts.jobs)),
            ("Nodes", str(counts.nodes)),
            ("Allocations", ", ".join(f"{n} {name}" for name, n in living.items()) or "0"),
            ("Evaluations", str(counts.evaluations)),
            ("Begun", f"at a snapshot of seq {begun - 1}" if begun > 1 else "at the first record"),
            ("Checkpoints", f"{replica.checked}, all equal"),
        ]
    )
    out.table([Column("TABLE"), Column("HASH")], sorted(tables.items()), "State")


def _compare(out: Output, one: str, other: str) -> int:
    async def work(client: Client) -> Differences:
        before, after = await past(client, one), await past(client, other)
        return differences(before.state, after.state)

    found = with_bus(work)
    out.result(found)
    out.line(f"from seq {found.from_seq} to seq {found.to_seq}", "bold")
    for change in found.changes[:_SHOWN]:
        sign, style = _SIGNS[change.what]
        told = " -> ".join(part for part in (change.old, change.new) if part)
        out.line(f"{sign} {change.kind} {change.id}: {told}", style)
    total = sum(found.counts.values())
    if total > _SHOWN:
        out.line(f"and {total - _SHOWN} changes more", "dim")
    if not total:
        out.line("nothing that is shown differs", "green")
    return 0
