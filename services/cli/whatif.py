"""`caravan what-if`: fork the log at a moment, run the real roles on in virtual time, and compare.

Decides what the words mean (a node class file, `3xnode-1`, `+10m`), what is read of the log, and that a faithful replay
comes first. What a fork is and what is compared: shared/whatif. Next: `whatif_shown.py`.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from schemas.base import JobId, NodeId
from schemas.nodes import NodeSpec
from schemas.operator import PolicyValue
from services.cli import events, twice
from services.cli.asking import with_bus
from services.cli.moments import begun_at, is_later, moment
from services.cli.operator import change_of
from services.cli.output import CliError, Output
from services.cli.whatif_shown import show
from shared.bus.client import Client
from shared.core.replica import Replica
from shared.core.role import Record
from shared.core.state import State
from shared.fleet.profile import Profile, node_specs, read_profile
from shared.jobspec.durations import nanoseconds
from shared.jobspec.structured import StructuredFault, read_yaml
from shared.whatif import fork, report, wishes
from shared.whatif.answer import Question, answered, in_turn, reported
from shared.whatif.fork import Played, Recorded

#: A log as long as this is read from a snapshot on; a shorter one from its beginning, where all durations are known.
_WHOLE_MAX = 50_000
#: So many placements are worth a second process.
_TWICE_ABOVE = 50_000
DURATIONS = ("recorded", "resampled")


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, as it came."""

    begin: str = ""
    until: str = ""
    policy: Sequence[str] = ()
    add_nodes: Sequence[str] = ()
    remove_nodes: Sequence[str] = ()
    drain: Sequence[str] = ()
    priority: Sequence[str] = ()
    workers: int = 0
    durations: str = DURATIONS[0]
    directory: str = ""


def what_if(
    out: Output,
    *,
    begin: str,
    until: str,
    policy: Sequence[str],
    add_nodes: Sequence[str],
    remove_nodes: Sequence[str],
    drain: Sequence[str],
    priority: Sequence[str],
    workers: int,
    durations: str,
    directory: str,
) -> int:
    """Ask what would have become of the cluster. Exit 1: recorded decisions come out otherwise today."""
    return _ask(
        out,
        Words(
            begin=begin,
            until=until,
            policy=policy,
            add_nodes=add_nodes,
            remove_nodes=remove_nodes,
            drain=drain,
            priority=priority,
            workers=workers,
            durations=durations,
            directory=directory,
        ),
    )


def drained_now(out: Output, *, node_id: str, wait_ns: int) -> int:
    """Ask what would become of a drain that begins now."""
    return _ask(out, Words(drain=(f"{node_id}={wait_ns}ns",)))


def _ask(out: Output, words: Words) -> int:
    _check(words)
    recorded = with_bus(lambda client: _read(out, client, words))
    if recorded.fork.state.policy.cluster_id == "":
        text = f"--from {words.begin}: there is no cluster yet at seq {recorded.fork.seq}"
        raise CliError("usage", text)
    wanted = _wishes(recorded.fork.state, words)
    until_ns = _until(recorded, words)
    told = _run(out, recorded, wanted, words=words, until_ns=until_ns)
    out.result(told)
    show(out, told)
    return 1 if told.faithful.divergence else 0


def _check(words: Words) -> None:
    """Refuse what is wrong whatever the log says. Raises CliError."""
    moment(words.begin, "--from")
    if not words.until.startswith("+"):
        moment(words.until, "--until")
    if words.durations not in DURATIONS:
        raise CliError("usage", f"--durations is {' or '.join(DURATIONS)}, was {words.durations!r}")
    if not 0 <= words.workers <= 256:
        raise CliError("usage", f"--workers: 1 to 256, or 0: as recorded, was {words.workers}")
    if words.directory and Path(words.directory).exists():
        raise CliError(
            "conflict", "it is there already; a fork overwrites nothing", file=words.directory
        )


# ---- reading ----


async def _read(out: Output, client: Client, words: Words) -> Recorded:
    last, last_ns = moment(words.begin, "--from")
    base, kept = Replica(), list[Record]()
    if not last or last > _WHOLE_MAX:
        found = await begun_at(client, words.begin, "--from")
        base = found if found.seq > _WHOLE_MAX else base
    while True:
        async for record in client.read_log(base.next_seq):
            kept.append(record)
            if record.seq % 100_000 == 0:
                out.progress(f"{record.seq} records")
        if kept or not base.seq:
            break
        # The newest snapshot is of the last record: an older one has something behind it that can be proven.
        base = await begun_at(client, str(base.seq - 1), "--from")

    def is_before(record: Record) -> bool:
        if last:
            return record.seq <= last
        return not last_ns or not is_later(record, last_ns)

    recorded = fork.read(kept, base=base, is_before=is_before)
    end = recorded.course.replica.seq
    if last > end:
        raise CliError(
            "not_found", f"--from {last}: the log ends at {end}, nothing is recorded beyond"
        )
    if not kept:
        raise CliError("not_found", "the log holds nothing")
    return recorded


def _until(recorded: Recorded, words: Words) -> int:
    """When a fork ends; without --until where the record does, and then when it comes to rest."""
    begin_ns, end_ns = recorded.at_fork.begin_ns, recorded.course.t_ns
    if not words.until:
        return end_ns
    if words.until.startswith("+"):
        try:
            until_ns = begin_ns + nanoseconds(words.until[1:])
        except ValueError as err:
            raise CliError("usage", f"--until {words.until}: {err}") from err
    else:
        seq, until_ns = moment(words.until, "--until")
        if seq:
            until_ns = recorded.time_of(seq)
            if not until_ns:
                end = recorded.course.replica.seq
                text = (
                    f"--until {seq}: the log ends at {end}; beyond it a time or +DURATION says when"
                )
                raise CliError("not_found", text)
    if until_ns <= begin_ns:
        raise CliError(
            "usage", f"--until {words.until} is not behind --from ({events.iso(begin_ns)})"
        )
    return until_ns


# ---- wishes ----


def _wishes(state: State, words: Words) -> wishes.Wishes:
    return wishes.Wishes(
        policy=_policy(words.policy),
        add_nodes=tuple(spec for one in words.add_nodes for spec in _added(state, one)),
        remove_nodes=tuple(_node(state, one) for one in _listed(words.remove_nodes)),
        drain=dict(_drained(state, one) for one in _listed(words.drain)),
        priorities=dict(_priority(one) for one in _listed(words.priority)),
    )


def _listed(given: Sequence[str]) -> list[str]:
    return [part for one in given for part in one.split(",") if part]


def _policy(given: Sequence[str]) -> dict[str, PolicyValue]:
    found: dict[str, PolicyValue] = {}
    for one in given:
        if "=" in one:
            found |= change_of([one])
            continue
        try:
            whole, _ = read_yaml(Path(one).read_text(encoding="utf-8"))
            found |= msgspec.convert(whole, dict[str, PolicyValue])
        except StructuredFault as err:
            raise CliError("invalid", err.message, file=one, line=err.line) from err
        except (UnicodeDecodeError, msgspec.ValidationError) as err:
            raise CliError(
                "invalid", f"a file of policy fields is wanted: {err}", file=one
            ) from err
    return found


def _added(state: State, text: str) -> Sequence[NodeSpec]:
    """Read `3xnode-1`, or a file of node classes."""
    count, sign, name = text.replace("\N{MULTIPLICATION SIGN}", "x").partition("x")
    if sign and count.isdigit() and name:
        if not 1 <= int(count) <= 100_000:
            raise CliError("usage", f"--add-nodes {text}: 1 to 100000 nodes")
        return wishes.copies(state, _node(state, name), int(count))
    profile: Profile = read_profile(Path(text).read_bytes(), text)
    return node_specs(profile, prefix="what-if-")


def _node(state: State, text: str) -> NodeId:
    """Find a node by its id, the one beginning of it that fits, or its name. Raises CliError."""
    fleet = state.fleet
    if text in fleet.row_of:
        return NodeId(text)
    found = sorted(one for one in fleet.row_of if one.startswith(text))
    found = found or [one for one, row in fleet.row_of.items() if fleet.specs[row].name == text]
    if len(found) != 1:
        said = f"several nodes begin with {text!r}" if found else f"there is no node {text!r}"
        raise CliError("ambiguous" if found else "not_found", f"{said} at seq {state.seq}")
    return found[0]


def _drained(state: State, text: str) -> tuple[NodeId, int]:
    """Read `node-1` (at once) or `node-1=10m`."""
    name, sign, lasts = text.partition("=")
    try:
        deadline_ns = state.t_ns + (nanoseconds(lasts) if sign else 0)
    except ValueError as err:
        raise CliError("usage", f"--drain {text}: {err}") from err
    return _node(state, name), deadline_ns


def _priority(text: str) -> tuple[JobId, int]:
    name, sign, number = text.rpartition("=")
    if not sign or not name or not number.isdigit():
        raise CliError("usage", f"--priority {text!r}: JOB=NUMBER is wanted")
    return JobId(name), int(number)


# ---- running ----


def _run(
    out: Output, recorded: Recorded, wanted: wishes.Wishes, *, words: Words, until_ns: int
) -> report.Report:
    question = Question(
        wishes=wanted,
        workers=words.workers,
        until_ns=until_ns,
        settle=not words.until,
        resample=words.durations == "resampled",
        keep=bool(words.directory),
    )
    is_much = recorded.course.totals.placements > _TWICE_ABOVE
    both = twice.at_once if is_much else in_turn
    progress = out.progress if is_much else _say_nothing
    found = answered(recorded, question, both=both, progress=progress)
    if words.directory:
        _write(recorded, found.last, words.directory)
    return msgspec.structs.replace(
        reported(recorded, question, found),
        from_time=events.iso(recorded.at_fork.begin_ns),
        until_time=events.iso(found.last.course.t_ns),
        wishes=_said(words),
        out=words.directory,
    )


def _say_nothing(_text: str) -> None:
    """What takes no time needs no words."""


def _said(words: Words) -> tuple[str, ...]:
    told = [
        *(f"policy {one}" for one in words.policy),
        *(f"more nodes: {one}" for one in words.add_nodes),
        *(f"without node {one}" for one in _listed(words.remove_nodes)),
        *(f"drained: {one}" for one in _listed(words.drain)),
        *(f"priority {one}" for one in _listed(words.priority)),
    ]
    if words.workers:
        told.append(f"{words.workers} scheduler workers")
    return tuple(told)


def _write(recorded: Recorded, played: Played, directory: str) -> None:
    """Write the fork's log, the recorded past included, as an export. Raises CliError."""
    # Imported here: it brings a database along.
    from shared.archive.export import Export
    from shared.archive.segments import Archive, ArchiveInvalid

    if recorded.base.seq:
        text = f"the log was read from seq {recorded.base.next_seq} on: only a whole one can be written"
        raise CliError("invalid", text, file=directory)
    archive = Archive(Path(directory))
    try:
        with archive.locked():
            archive.begin(recorded.fork.chain.cluster_id)
            work = Export(archive)
            work.wanted()
            for record in (*recorded.past(), *played.records):
                work.apply(record)
            work.flush()
            work.close()
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path) from err
