"""`caravan simulate`: run scenario files (shared/sim/scenario) and print or write their reports.

The machine's clocks are read only here, for the measured part of the report.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from schemas.base import SECOND_NS
from services.cli.runtime.export_client import open_export
from services.cli.runtime.output import CliError, CommandOutput, parse_pairs
from services.cli.runtime.progress import ProgressBar
from services.cli.simulate.scenario_files import (
    SimulationLogWriter,
    create_output_folder,
    write_compared,
    write_report,
)
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.display.formats import count_noun, format_size
from shared.errors import CaravanError, ConfigInvalid
from shared.fleet.config_file import FileInvalid
from shared.numerals import is_digits
from shared.sim.scenario.html_report import format_number
from shared.sim.scenario.parser import ScenarioPlan, policy_of, read_scenario
from shared.sim.scenario.report import FigureDifference, ScenarioReport, WaitStats, compare_reports
from shared.sim.scenario.run import ScenarioRun, run_scenario
from shared.whatif.continuation import Continuation
from shared.whatif.fork import RecordedLog, read_log

#: Differences printed for people; --json has all.
_SHOWN = 60


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """`simulate --json`. `report` is deterministic, `measured` is not."""

    report: ScenarioReport
    measured: msgspec.Struct | None
    #: folder of the files; empty: none.
    out: str
    compared: list[FigureDifference]


def simulate(
    out: CommandOutput,
    *,
    file: str,
    compare: str,
    data: str,
    policy: Sequence[str],
    seed: int,
    folder: str,
) -> int:
    """Run one scenario, or two side by side. Exit 2: refused jobs, or unplaced allocations at the end."""
    changes = {name: _policy_value(text) for name, text in parse_pairs(policy, "--policy").items()}
    files = [compare, file] if compare else [file]
    plans = [_plan(one, seed=seed, data=data, changes=changes) for one in files]
    if folder:
        create_output_folder(Path(folder))
    played: list[ScenarioRun] = []
    for plan, name in zip(plans, ("a", "b") if compare else ("",), strict=True):
        into = Path(folder) / name if folder else None
        played.append(_play_plan(plan, into))
    found: list[FigureDifference] = []
    last = played[-1]
    if compare:
        found = compare_reports(played[0].report, last.report)
        if folder:
            write_compared(Path(folder), played[0].report, last.report, found)
    out.result(
        SimulationResult(report=last.report, measured=last.measured, out=folder, compared=found)
    )
    if compare:
        _show_compared(out, played[0].report, last.report, found)
    else:
        _show(out, last)
    if folder:
        out.line(f"\nwritten to {folder}", "dim")
    return 2 if last.report.allocations["waiting"] or last.report.jobs["refused"] else 0


def _policy_value(text: str) -> object:
    words: dict[str, object] = {"true": True, "false": False}
    return words.get(text, int(text) if is_digits(text) else text)


def _plan(file: str, *, seed: int, data: str, changes: dict[str, object]) -> ScenarioPlan:
    path = Path(file)
    try:
        plan = read_scenario(path.read_bytes(), file, path.parent, Path(data) if data else None)
        policy = policy_of(changes, plan.policy, "--policy")
    except FileInvalid as err:
        raise _as_cli_error(err) from err
    except ConfigInvalid as err:
        raise CliError("usage", str(err)) from err
    scenario = msgspec.structs.replace(plan.scenario, seed=seed or plan.scenario.seed)
    return msgspec.structs.replace(
        plan, scenario=scenario, policy=policy, changes={**plan.changes, **changes}
    )


def _as_cli_error(err: FileInvalid) -> CliError:
    return CliError("invalid", err.message, path=err.path, file=err.file, line=err.line)


def _play_plan(plan: ScenarioPlan, folder: Path | None) -> ScenarioRun:
    """Run one plan, writing its log to `folder` on the way."""
    recorded, prefix = _recorded(plan)
    start = None if recorded is None else recorded.fork
    record = None if recorded is None else Continuation(recorded, plan.scenario.seed)
    writer = SimulationLogWriter(folder, prefix) if folder is not None else None
    try:
        with ProgressBar("simulating", unit="s of virtual time") as bar:
            played = run_scenario(
                plan,
                opens=_records,
                start=start,
                record=record,
                sink=writer.write if writer is not None else _discard,
                cpu_ns=time.thread_time_ns,
                wall_ns=time.monotonic_ns,
                progress=lambda passed_ns, all_ns: bar.update(
                    passed_ns // SECOND_NS, all_ns // SECOND_NS
                ),
            )
    except FileInvalid as err:
        raise _as_cli_error(err) from err
    except ConfigInvalid as err:
        raise CliError("invalid", str(err)) from err
    except CaravanError as err:
        if isinstance(err, CliError):
            raise
        raise CliError("failed", str(err)) from err
    finally:
        if writer is not None:
            writer.close()
    if folder is not None:
        write_report(folder, played)
    return played


def _discard(_record: Record) -> None:
    """Discard a record: the log of a day needs more memory than the run."""


def _records(folder: Path) -> Iterator[Record]:
    """Read an export. Raises CliError."""
    reading = open_export(folder)
    if reading.problems:
        raise CliError("damaged", reading.problems[0], file=str(folder))
    yield from reading.records()


def _recorded(plan: ScenarioPlan) -> tuple[RecordedLog | None, Path | None]:
    """Read the recorded cluster that a plan starts from, up to its seq and beyond. Raises CliError, LogError."""
    cluster = plan.scenario.cluster
    if cluster is None:
        return None, None
    folder = plan.data / cluster.export
    recorded = read_log(
        _records(folder),
        base=Replica(),
        is_before=lambda record: not cluster.seq or record.seq <= cluster.seq,
    )
    if recorded.fork.seq < max(cluster.seq, 1):
        text = f"the export ends at seq {recorded.fork.seq}, before seq {cluster.seq}"
        raise CliError("not_found", text, path="cluster.seq", file=str(folder))
    return recorded, folder


# ---- for people ----


def _show(out: CommandOutput, played: ScenarioRun) -> None:
    report, placed = played.report, played.report.placements
    rates = [format_number(placed[f"{one}_per_s"]) for one in ("groups", "jobs")]
    peaks = [format_number(placed[f"{one}_peak_per_s"]) for one in ("groups", "jobs")]
    most = f"at most {peaks[0]} and {peaks[1]} in a second"
    fairness = report.fairness
    even = f"{fairness['jain_jobs']:.3f} among jobs, {fairness['jain_kinds']:.3f} among kinds"
    out.fields(
        [
            ("Scenario", report.name),
            ("Virtual time", f"{format_number(report.duration_s)} s"),
            ("Cluster", f"{report.nodes} nodes, {report.schedulers} workers, {report.algorithm}"),
            ("Jobs", _counts(report.jobs)),
            ("Allocations", _counts(report.allocations)),
            ("Placed", f"{rates[0]} groups/s, {rates[1]} jobs/s; {most}"),
            ("Unplaced", _counts(report.unplaced) or "-"),
            ("Evicted", _counts(report.evicted) or "-"),
            ("Fairness", f"{even} (Jain)"),
            (
                "Log",
                f"{count_noun(report.records, 'record')}, {format_size(report.bytes)}, {report.digest}",
            ),
        ]
    )
    for line in report.refusals:
        out.line(f"refused: {line}", "red")
    _waiting(out, report.waiting, "Waiting for the first placement", "KIND")
    _waiting(out, report.priorities, "By priority", "PRIORITY")
    for title, shares in (("Use", report.used), ("Fragmentation", report.fragmented)):
        rows = [
            (name, f"{one.mean:.1%}", f"{one.max:.1%}", f"{one.end:.1%}")
            for name, one in shares.items()
        ]
        out.table("RESOURCE|MEAN>|MAX>|END>", rows, title)
    _decisions(out, played)
    for line in report.assumptions:
        out.line(f"assumed: {line}", "dim")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def _waiting(out: CommandOutput, rows: list[WaitStats], title: str, what: str) -> None:
    cells = [
        (
            *(one.name, one.jobs, one.placed, one.waiting),
            *(f"{v:.3f}" for v in (one.p50_s, one.p90_s, one.p99_s, one.max_s, one.oldest_s)),
        )
        for one in rows
    ]
    out.table(f"{what}|JOBS>|PLACED>|WAITING>|P50 S>|P90 S>|P99 S>|MAX S>|OLDEST S>", cells, title)


def _decisions(out: CommandOutput, played: ScenarioRun) -> None:
    rows = [
        (one.load, one.decisions, f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{one.max_ms:.2f}")
        for one in played.report.decisions
    ]
    out.table(
        "LEASED|DECISIONS>|P50 MS>|P99 MS>|MAX MS>",
        rows,
        "Time from lease to commit in virtual time, by number of leased evaluations",
    )
    measured = played.measured
    if measured is not None:
        out.line(
            f"\nmeasured: {measured.wall_s:.1f} s, {measured.speed:.0f} times faster than virtual "
            f"time; a decision takes {measured.decide_p50_us:.0f} us (p99 "
            f"{measured.decide_p99_us:.0f}), {measured.decisions_per_cpu_s:.0f} decisions and "
            f"{measured.placements_per_cpu_s:.0f} placements per CPU second"
        )


def _show_compared(
    out: CommandOutput, a: ScenarioReport, b: ScenarioReport, found: list[FigureDifference]
) -> None:
    out.fields([("a", a.name), ("b", b.name)])
    rows = [
        (one.figure, format_number(one.a), format_number(one.b), format_number(one.b - one.a))
        for one in found
    ]
    changed = [row for row, one in zip(rows, found, strict=True) if one.a != one.b]
    out.table("FIGURE|A>|B>|B - A>", changed, "Differences", limit=_SHOWN)
    if not changed:
        out.line("no differences", "green")
