"""Prints the report of a what-if: verification, effects, differences, migrations, assumptions."""

from collections.abc import Sequence

from services.cli.runtime.output import CommandOutput
from shared.display.formats import count_noun, format_clock
from shared.whatif.effects import RESOURCES, TimelineEffects
from shared.whatif.migrations import Migration
from shared.whatif.report import DeploymentComparison, DeploymentOutcome, WhatIfReport

_JOBS = 15
_MOVES = 30
_DEPLOYMENTS = 30


def print_report(out: CommandOutput, result: WhatIfReport) -> None:
    """Print a report."""
    out.fields(
        [
            ("Fork", f"after seq {result.from_seq} of {result.end_seq}, {result.from_time}"),
            ("Until", result.until_time),
            ("Workers", str(result.workers)),
            ("Changes", "; ".join(result.wishes) or "none"),
        ]
    )
    _proof(out, result)
    _effects(out, result)
    _differences(out, result)
    _deployments(out, result.deployments)
    _moves(out, result.moves)
    for job_id, classes in list(result.still_waiting.items())[:_JOBS]:
        text = ", ".join(f"{n} {name}" for name, n in classes.items())
        out.line(f"{job_id} is waiting at the end: {text}", "yellow")
    out.line("\nAssumptions", "bold")
    for text in result.assumptions.texts:
        out.line(f"  {text}", "dim")
    if result.out:
        out.line(f"\nlog of the fork: {result.out} (caravan log verify --from-file {result.out})")


def _proof(out: CommandOutput, result: WhatIfReport) -> None:
    found = result.faithful
    also = f", {found.other_version} by other releases not compared" if found.other_version else ""
    also += f", {found.untold} recorded incompletely" if found.untold else ""
    if found.divergence:
        out.line(
            f"\nDIVERGENCE {found.divergence}: recorded decisions differ when repeated{also}",
            "red",
        )
        first = found.differences[0]
        out.line(f"first: plan {first.number} of {first.worker} at seq {first.seq}", "red")
        out.line(f"  recorded {first.recorded}", "red")
        out.line(f"  decided  {first.decided}", "red")
        out.line(
            "the comparison below is about this release, not about the recorded decisions", "red"
        )
    else:
        decisions = count_noun(found.checked, "recorded decision")
        text = f"\nfaithful: {decisions} repeated, divergence 0{also}"
        out.line(text, "green")
    agreed = result.agreement
    if agreed.recorded:
        text = f"unchanged fork: {agreed.same} of {agreed.recorded} placements on the recorded node"
        rest = f"{agreed.elsewhere} on another node, {agreed.missing} missing, {agreed.extra} additional"
        out.line(f"{text} ({rest})", "dim")


def _effects(out: CommandOutput, result: WhatIfReport) -> None:
    before, after = result.before, result.after
    columns = "|UNCHANGED>" if after is None else "|UNCHANGED>|CHANGED>"
    rows = [
        [name, *values]
        for name, values in _rows([before] if after is None else [before, after])
        if any(value not in ("0", "") for value in values)
    ]
    out.table(columns, rows, "Effects")


def _rows(sides: Sequence[TimelineEffects]) -> list[tuple[str, list[str]]]:
    counts = [
        ("decisions", "decisions"),
        ("refused plans", "refused"),
        ("placements", "placements"),
        ("completed", "complete"),
        ("failed", "failed"),
        ("lost", "lost"),
        ("evicted", "evicted"),
        ("unplaced at the end", "unplaced"),
    ]
    rows = [(title, [str(getattr(one, name)) for one in sides]) for title, name in counts]
    rows += [
        (f"submission to placement, {title}", [_span(getattr(one.delays, name)) for one in sides])
        for title, name in (("mean", "mean_ms"), ("p99", "p99_ms"), ("max", "max_ms"))
    ]
    for wait_class in sorted({name for one in sides for name in one.waiting}):
        waits = [one.waiting.get(wait_class) for one in sides]
        sums = [f"{one.allocation_s:g} s" if one is not None else "0" for one in waits]
        rows.append((f"waiting for {wait_class.replace('_', ' ')} (sum)", sums))
    for name in RESOURCES:
        use = [one.use[name] for one in sides]
        rows.append(
            (
                f"{name} in use, mean (peak)",
                [f"{u.mean_pct:.1f} % ({u.peak_pct:.1f} %)" for u in use],
            )
        )
    return rows


def _span(ms: float) -> str:
    return f"{ms / 1000:.3f} s"


def _differences(out: CommandOutput, result: WhatIfReport) -> None:
    found = result.differences
    if found is None:
        return
    if not found.changed and not found.sooner and not found.later:
        out.line("\nno decisions differ", "green")
        return
    parts = [
        f"{found.elsewhere} on another node",
        f"{found.only_before} only in the unchanged fork",
        f"{found.only_after} only in the changed fork",
        f"{found.sooner} earlier",
        f"{found.later} later",
    ]
    total = found.compared + found.only_before + found.only_after
    out.line(f"\n{found.changed} of {total} decisions differ: {', '.join(parts)}", "bold")
    first = found.first
    if first is not None:
        one = _side(first.node_before, first.t_ns_before)
        other = _side(first.node_after, first.t_ns_after)
        out.line(f"first: {first.allocation}: {one}; changed: {other}")
    rows = [
        (
            *(one.job, one.elsewhere, one.only_before, one.only_after, one.sooner, one.later),
            *(f"{one.waited_s_before:g}", f"{one.waited_s_after:g}"),
        )
        for one in found.jobs[:_JOBS]
    ]
    out.table("JOB|OTHER NODE>|ONLY BEFORE>|ONLY AFTER>|EARLIER>|LATER>|WAITED S>|CHANGED S>", rows)
    if found.jobs_total > _JOBS:
        out.line(f"and {found.jobs_total - _JOBS} more jobs", "dim")


def _side(node: str, t_ns: int) -> str:
    return f"on {node} at {format_clock(t_ns)}" if node else "not placed"


def _deployments(out: CommandOutput, found: Sequence[DeploymentComparison]) -> None:
    columns = "JOB|VERSION>|UNCHANGED|TOOK>|LOWEST>"
    is_compared = any(one.after is not None for one in found)
    columns += "|CHANGED|TOOK>|LOWEST>" if is_compared else ""
    rows = [
        (
            *(one.job, str(one.version), *_outcome(one.before)),
            *(_outcome(one.after) if is_compared else ()),
        )
        for one in found
    ]
    out.table(columns, rows, "Deployments", limit=_DEPLOYMENTS)
    if rows:
        out.line("LOWEST: fewest healthy allocations of the job meanwhile", "dim")


def _outcome(one: DeploymentOutcome | None) -> tuple[str, str, str]:
    if one is None:
        return "none", "", ""
    return one.status, f"{one.seconds:.1f} s", str(one.lowest_healthy)


def _moves(out: CommandOutput, moves: Sequence[Migration]) -> None:
    rows = [
        (
            one.allocation,
            one.from_node,
            one.to or ("ended" if one.ended else "not placed"),
            f"{one.after_s:g} s",
        )
        for one in moves
    ]
    out.table("ALLOCATION|FROM|TO|AFTER>", rows, "Migrations", limit=_MOVES)
