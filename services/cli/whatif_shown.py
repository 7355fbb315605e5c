"""How the answer to a what-if looks to people: proof first, then what changes, then what was assumed."""

from collections.abc import Sequence

from services.cli.event_names import clock
from services.cli.output import Column, Output
from shared.whatif.effects import RESOURCES, Effects
from shared.whatif.moves import Move
from shared.whatif.report import Report

_JOBS = 15
_MOVES = 30


def show(out: Output, told: Report) -> None:
    """Print a report."""
    out.fields(
        [
            ("Fork", f"behind seq {told.from_seq} of {told.end_seq}, {told.from_time}"),
            ("Until", told.until_time),
            ("Workers", str(told.workers)),
            ("Otherwise", "; ".join(told.wishes) or "nothing"),
        ]
    )
    _proof(out, told)
    _effects(out, told)
    _differences(out, told)
    _moves(out, told.moves)
    for job_id, classes in list(told.still_waiting.items())[:_JOBS]:
        said = ", ".join(f"{n} {name}" for name, n in classes.items())
        out.line(f"{job_id} waits at the end: {said}", "yellow")
    out.line("\nAssumed", "bold")
    for text in told.assumptions.texts:
        out.line(f"  {text}", "dim")
    if told.out:
        out.line(f"\nthe fork's log: {told.out} (caravan log verify --from-file {told.out})")


def _proof(out: Output, told: Report) -> None:
    found = told.faithful
    also = f", {found.other_version} of other releases not compared" if found.other_version else ""
    also += f", {found.untold} not told whole" if found.untold else ""
    if found.divergence:
        out.line(
            f"\nDIVERGENCE {found.divergence}: recorded decisions come out otherwise today{also}",
            "red",
        )
        first = found.differences[0]
        out.line(f"the first: plan {first.number} of {first.worker} at seq {first.seq}", "red")
        out.line(f"  recorded {first.recorded}", "red")
        out.line(f"  decided  {first.decided}", "red")
        out.line("what follows is about this release, not about what was recorded", "red")
    else:
        text = f"\nfaithful: {found.checked} recorded decisions decided again, divergence 0{also}"
        out.line(text, "green")
    agreed = told.agreement
    if agreed.recorded:
        text = f"the unchanged fork puts {agreed.same} of {agreed.recorded} placements on the node of the record"
        rest = f"{agreed.elsewhere} elsewhere, {agreed.missing} not at all, {agreed.extra} more"
        out.line(f"{text} ({rest})", "dim")


def _effects(out: Output, told: Report) -> None:
    before, after = told.before, told.after
    columns = [Column(""), Column("UNCHANGED", right=True)]
    if after is not None:
        columns.append(Column("OTHERWISE", right=True))
    rows = [
        [name, *(shown for shown in values)]
        for name, values in _rows([before] if after is None else [before, after])
        if any(value not in ("0", "") for value in values)
    ]
    out.table(columns, rows, "Effect")


def _rows(sides: Sequence[Effects]) -> list[tuple[str, list[str]]]:
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
        (f"asked to placed, {title}", [_span(getattr(one.delays, name)) for one in sides])
        for title, name in (("mean", "mean_ms"), ("p99", "p99_ms"), ("max", "max_ms"))
    ]
    for wait_class in sorted({name for one in sides for name in one.waiting}):
        waits = [one.waiting.get(wait_class) for one in sides]
        said = [f"{one.allocation_s:g} s" if one is not None else "0" for one in waits]
        rows.append((f"waited for {wait_class.replace('_', ' ')} (sum)", said))
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


def _differences(out: Output, told: Report) -> None:
    found = told.differences
    if found is None:
        return
    if not found.changed and not found.sooner and not found.later:
        out.line("\nno decision differs", "green")
        return
    parts = [
        f"{found.elsewhere} on another node",
        f"{found.only_before} only unchanged",
        f"{found.only_after} only otherwise",
        f"{found.sooner} sooner",
        f"{found.later} later",
    ]
    total = found.compared + found.only_before + found.only_after
    out.line(f"\n{found.changed} of {total} decisions differ: {', '.join(parts)}", "bold")
    first = found.first
    if first is not None:
        one = _side(first.node_before, first.t_ns_before)
        other = _side(first.node_after, first.t_ns_after)
        out.line(f"the first: {first.allocation}: {one}; otherwise {other}")
    rows = [
        (
            *(one.job, one.elsewhere, one.only_before, one.only_after, one.sooner, one.later),
            *(f"{one.waited_s_before:g}", f"{one.waited_s_after:g}"),
        )
        for one in found.jobs[:_JOBS]
    ]
    columns = [
        Column("JOB"),
        Column("ELSEWHERE", 3, right=True),
        Column("ONLY BEFORE", 4, right=True),
        Column("ONLY AFTER", 4, right=True),
        Column("SOONER", 2, right=True),
        Column("LATER", 2, right=True),
        Column("WAITED S", right=True),
        Column("OTHERWISE S", right=True),
    ]
    out.table(columns, rows)
    if found.jobs_total > _JOBS:
        out.line(f"and {found.jobs_total - _JOBS} jobs more", "dim")


def _side(node: str, t_ns: int) -> str:
    return f"on {node} at {clock(t_ns)}" if node else "not placed"


def _moves(out: Output, moves: Sequence[Move]) -> None:
    columns = [
        Column("ALLOCATION"),
        Column("LEAVES"),
        Column("GOES TO"),
        Column("AFTER", right=True),
    ]
    rows = [
        (
            one.allocation,
            one.from_node,
            one.to or ("ended by itself" if one.ended else "nowhere"),
            f"{one.after_s:g} s",
        )
        for one in moves[:_MOVES]
    ]
    out.table(columns, rows, "What would move")
    if len(moves) > _MOVES:
        out.line(f"and {len(moves) - _MOVES} more", "dim")
