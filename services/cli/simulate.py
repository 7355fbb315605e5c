"""`caravan simulate`: a scenario's file becomes a run, a report, and files.

Decides what is told of a run. What a scenario means is shared/sim/scenario's matter, what is written
`simulated.py`'s. The machine's clocks are read here alone, for what stands apart in the report.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from services.cli.output import CliError, Column, Output
from services.cli.simulated import LogWriter, begin_folder, write_compared, write_report
from shared.archive.export import Reading
from shared.archive.segments import ArchiveInvalid
from shared.core.replica import Replica
from shared.core.role import Record
from shared.errors import CaravanError, ConfigInvalid
from shared.sim.scenario.page import number
from shared.sim.scenario.play import Played, play
from shared.sim.scenario.reading import Plan, ScenarioInvalid, policy_of, read_scenario
from shared.sim.scenario.report import Difference, Report, Waiting, differences
from shared.sim.scenario.traces import TraceInvalid

#: Differences shown to people; --json has all.
_SHOWN = 60


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What `simulate --json` prints. `report` is the same each time, `measured` is not."""

    report: Report
    measured: msgspec.Struct | None
    #: where the files are; empty: nowhere.
    out: str
    compared: list[Difference]


def simulate(
    out: Output,
    *,
    file: str,
    compare: str,
    data: str,
    policy: Sequence[str],
    seed: int,
    folder: str,
) -> int:
    """Play one scenario, or two side by side. Exit 2: something was refused, or is not placed at the end."""
    changes = dict(map(_change, policy))
    files = [compare, file] if compare else [file]
    plans = [_plan(one, seed=seed, data=data, changes=changes) for one in files]
    if folder:
        begin_folder(Path(folder))
    played: list[Played] = []
    for plan, name in zip(plans, ("a", "b") if compare else ("",), strict=True):
        into = Path(folder) / name if folder else None
        played.append(_played(plan, into))
    found: list[Difference] = []
    last = played[-1]
    if compare:
        found = differences(played[0].report, last.report)
        if folder:
            write_compared(Path(folder), played[0].report, last.report, found)
    out.result(Simulated(report=last.report, measured=last.measured, out=folder, compared=found))
    if compare:
        _show_compared(out, played[0].report, last.report, found)
    else:
        _show(out, last)
    if folder:
        out.line(f"\nwritten to {folder}", "dim")
    return 2 if last.report.allocations["waiting"] or last.report.jobs["refused"] else 0


def _change(text: str) -> tuple[str, object]:
    """Read NAME=VALUE. Raises CliError."""
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise CliError("usage", f"--policy is NAME=VALUE, was {text!r}")
    words: dict[str, object] = {"true": True, "false": False}
    return name, words.get(value, int(value) if value.isdecimal() else value)


def _plan(file: str, *, seed: int, data: str, changes: dict[str, object]) -> Plan:
    path = Path(file)
    try:
        plan = read_scenario(path.read_bytes(), file, path.parent, Path(data) if data else None)
        policy = policy_of(changes, plan.policy, "--policy")
    except ScenarioInvalid as err:
        raise _told(err) from err
    except ConfigInvalid as err:
        raise CliError("usage", str(err)) from err
    scenario = msgspec.structs.replace(plan.scenario, seed=seed or plan.scenario.seed)
    return msgspec.structs.replace(
        plan, scenario=scenario, policy=policy, changes={**plan.changes, **changes}
    )


def _told(err: ScenarioInvalid | TraceInvalid) -> CliError:
    return CliError("invalid", err.message, path=err.path, file=err.file, line=err.line)


def _played(plan: Plan, folder: Path | None) -> Played:
    """Play one plan; what it writes goes into `folder` as it goes on."""
    start, prefix = _start(plan)
    writer = LogWriter(folder, prefix) if folder is not None else None
    try:
        played = play(
            plan,
            opens=_records,
            start=start,
            sink=writer.write if writer is not None else _nowhere,
            cpu_ns=time.thread_time_ns,
            wall_ns=time.monotonic_ns,
            progress=_progress if sys.stderr.isatty() else None,
        )
    except TraceInvalid as err:
        raise _told(err) from err
    except ConfigInvalid as err:
        raise CliError("invalid", str(err)) from err
    except CaravanError as err:
        if isinstance(err, CliError):
            raise
        raise CliError("failed", str(err)) from err
    finally:
        if writer is not None:
            writer.close()
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if folder is not None:
        write_report(folder, played)
    return played


def _nowhere(_record: Record) -> None:
    """Keep nothing: a day's log needs more memory than the run itself."""


def _progress(passed_ns: int, all_ns: int) -> None:
    share = 100 * passed_ns // max(all_ns, 1)
    print(f"\r{share} % of virtual time", end="", file=sys.stderr, flush=True)


def _records(folder: Path) -> Iterator[Record]:
    """Read an export. Raises CliError."""
    try:
        reading = Reading(folder)
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path or str(folder)) from err
    if reading.problems:
        raise CliError("damaged", reading.problems[0], file=str(folder))
    yield from reading.records()


def _start(plan: Plan) -> tuple[Replica | None, Path | None]:
    """Replay the recorded cluster that a plan begins with, up to its seq. Raises CliError."""
    cluster = plan.scenario.cluster
    if cluster is None:
        return None, None
    folder, replica = plan.data / cluster.export, Replica()
    for record in _records(folder):
        if cluster.seq and record.seq > cluster.seq:
            break
        replica.apply(record)
    if replica.seq < max(cluster.seq, 1):
        told = f"the export ends at seq {replica.seq}, {cluster.seq} was asked for"
        raise CliError("not_found", told, path="cluster.seq", file=str(folder))
    return replica, folder


# ---- for people ----


def _show(out: Output, played: Played) -> None:
    report, placed = played.report, played.report.placements
    rates = [number(placed[f"{one}_per_s"]) for one in ("groups", "jobs")]
    peaks = [number(placed[f"{one}_peak_per_s"]) for one in ("groups", "jobs")]
    most = f"at most {peaks[0]} and {peaks[1]} in a second"
    fairness = report.fairness
    even = f"{fairness['jain_jobs']:.3f} among jobs, {fairness['jain_kinds']:.3f} among kinds"
    out.fields(
        [
            ("Scenario", report.name),
            ("Virtual time", f"{number(report.duration_s)} s"),
            ("Cluster", f"{report.nodes} nodes, {report.schedulers} workers, {report.algorithm}"),
            ("Jobs", _counts(report.jobs)),
            ("Allocations", _counts(report.allocations)),
            ("Placed", f"{rates[0]} groups/s, {rates[1]} jobs/s; {most}"),
            ("No room", _counts(report.unplaced) or "-"),
            ("Evicted", _counts(report.evicted) or "-"),
            ("Fairness", f"{even} (Jain)"),
            ("Log", f"{report.records} records, {report.bytes} bytes, {report.digest}"),
        ]
    )
    for line in report.refusals:
        out.line(f"refused: {line}", "red")
    _waiting(out, report.waiting, "Waiting for the first placement", "KIND")
    _waiting(out, report.priorities, "By priority", "PRIORITY")
    columns = [Column("RESOURCE"), *(Column(one, right=True) for one in ("MEAN", "MAX", "END"))]
    for title, shares in (("Use", report.used), ("Fragmentation", report.fragmented)):
        rows = [
            (name, f"{one.mean:.1%}", f"{one.max:.1%}", f"{one.end:.1%}")
            for name, one in shares.items()
        ]
        out.table(columns, rows, title)
    _decisions(out, played)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def _waiting(out: Output, rows: list[Waiting], title: str, what: str) -> None:
    names = (what, "JOBS", "PLACED", "WAITING", "P50 S", "P90 S", "P99 S", "MAX S", "OLDEST S")
    ranks = (0, 2, 1, 0, 1, 2, 1, 0, 2)
    columns = [
        Column(name, rank, right=at > 0)
        for at, (name, rank) in enumerate(zip(names, ranks, strict=True))
    ]
    cells = [
        (
            *(one.name, one.jobs, one.placed, one.waiting),
            *(f"{v:.3f}" for v in (one.p50_s, one.p90_s, one.p99_s, one.max_s, one.oldest_s)),
        )
        for one in rows
    ]
    out.table(columns, cells, title)


def _decisions(out: Output, played: Played) -> None:
    names = ("LEASED", "DECISIONS", "P50 MS", "P99 MS", "MAX MS")
    columns = [Column(name, right=at > 0) for at, name in enumerate(names)]
    rows = [
        (one.load, one.decisions, f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{one.max_ms:.2f}")
        for one in played.report.decisions
    ]
    out.table(columns, rows, "From lease to log, in virtual time, by how many were leased")
    measured = played.measured
    if measured is not None:
        out.line(
            f"\nmeasured: {measured.wall_s:.1f} s, {measured.speed:.0f} times as fast as the time "
            f"that passed; a decision {measured.decide_p50_us:.0f} us (p99 "
            f"{measured.decide_p99_us:.0f}), {measured.decisions_per_cpu_s:.0f} decisions and "
            f"{measured.placements_per_cpu_s:.0f} placements a CPU second"
        )


def _show_compared(out: Output, a: Report, b: Report, found: list[Difference]) -> None:
    out.fields([("a", a.name), ("b", b.name)])
    columns = [Column("FIGURE"), *(Column(one, right=True) for one in ("A", "B", "B - A"))]
    rows = [(one.figure, number(one.a), number(one.b), number(one.b - one.a)) for one in found]
    changed = [row for row, one in zip(rows, found, strict=True) if one.a != one.b]
    out.table(columns, changed[:_SHOWN], "What differs")
    if not changed:
        out.line("nothing differs", "green")
    elif len(changed) > _SHOWN:
        out.line(f"… and {len(changed) - _SHOWN} more (--json)")
