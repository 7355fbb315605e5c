"""Tables of jobs, allocations and evaluations that several commands print."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from schemas.answers import Counts
from schemas.job_answers import JobAnswer, JobDescription, JobLine, PeriodicShown
from schemas.jobs import ErrorDetail
from schemas.projections import AllocSummary, EvalSummary, GroupSummary, Rollout
from services.cli.runtime.output import CommandOutput, short_id
from shared.display.formats import format_age, format_time_and_age


def job_file_error(error: ErrorDetail) -> str:
    """One error of a job file: place and message."""
    place = ":".join(part for part in (error.file, str(error.line or "")) if part)
    return ": ".join(part for part in (place, error.path, error.message) if part)


def running_of_desired(groups: Mapping[str, GroupSummary]) -> str:
    """Running and desired allocations: `2/3`."""
    running = sum(group.running for group in groups.values())
    return f"{running}/{sum(group.desired for group in groups.values())}"


def count_fields(counts: Counts) -> list[tuple[str, str]]:
    """How much a state holds, for CommandOutput.fields."""
    allocations = ", ".join(f"{n} {name}" for name, n in counts.allocations.items() if n)
    return [
        ("Jobs", str(counts.jobs)),
        ("Nodes", str(counts.nodes)),
        ("Allocations", allocations or "0"),
        ("Evaluations", str(counts.evaluations)),
    ]


def print_footer(out: CommandOutput, shown: int, total: int, what: str) -> None:
    """Print that a list is empty, or that it was cut."""
    if not total:
        out.line(f"no {what}", "dim")
    print_cut(out, shown, total, what)


def print_cut(out: CommandOutput, shown: int, total: int, what: str) -> None:
    """Print that a list was cut, if it was."""
    if shown < total:
        out.line(f"{shown} of {total} {what}; --limit shows more", "dim")


def print_list(
    out: CommandOutput,
    answer: msgspec.Struct,
    columns: str,
    rows: Sequence[Sequence[object]],
    *,
    total: int,
    what: str,
) -> int:
    """Print the answer of a list query, one row an item, and how many there are in all. Returns the exit code."""
    out.result(answer)
    out.table(columns, rows)
    print_footer(out, len(rows), total, what)
    return 0


def job_status(one: JobLine) -> str:
    """The status of a job, and what is wrong; for a dead one with the cause."""
    groups = one.groups.values()
    if one.status != "dead":
        said = {"waiting", "failed"} | ({"progressing"} if one.status == "running" else set())
        return f"{one.status}, {one.rollout_status}" if one.rollout_status in said else one.status
    if one.stopped:
        return "dead, stopped"
    if any(group.failed or group.lost for group in groups):
        return "dead, failed" if one.job_type == "service" else "dead, not all complete"
    return "dead, complete" if any(group.complete for group in groups) else "dead"


def job_cells(one: JobLine) -> tuple[object, ...]:
    """ID, type, status, running of desired, priority and version of a job, as tables show them."""
    running = running_of_desired(one.groups)
    return (one.id, job_type(one), job_status(one), running, one.priority, one.version)


def job_type(one: JobLine) -> str:
    """The type of a job, and what makes it a pattern for others."""
    return f"{one.job_type}/{one.pattern}" if one.pattern else one.job_type


def _print_periodic(out: CommandOutput, shown: PeriodicShown, now_ns: int) -> None:
    """When the children of a job are launched, and which launches were skipped."""
    when = "never again"
    if not shown.enabled:
        when = "disabled"
    elif shown.next_ns:
        when = format_time_and_age(shown.next_ns, now_ns)
    out.fields(
        [
            ("Cron", "; ".join(shown.crons)),
            ("Time zone", shown.time_zone),
            ("Overlap", "prohibited" if shown.prohibit_overlap else "allowed"),
            ("Next launch", shown.problem or when),
        ]
    )
    words = {"overlap": "a child still ran", "exists": "the child was there already"}
    rows = [
        (
            format_time_and_age(one.at_ns, now_ns),
            words.get(one.why, one.why),
            one.missed or 1,
        )
        for one in shown.skips
    ]
    out.table("PLANNED|REASON|LAUNCHES>", rows, "Skipped launches")


def _print_children(out: CommandOutput, answer: JobAnswer, now_ns: int) -> None:
    """The children of a job, newest first."""
    launches = answer.periodic.launches if answer.periodic is not None else ()
    times = {one.child_id: one for one in launches}
    is_periodic = answer.periodic is not None
    rows = []
    for child in answer.children:
        known = times.get(child.id)
        when = format_age(known.at_ns, now_ns) if known is not None else ""
        forced = "forced" if known is not None and known.forced else ""
        row = (child.id, job_status(child), running_of_desired(child.groups))
        rows.append((*row, when, forced) if is_periodic else row)
    columns = "ID|STATUS|RUNNING>" + ("|PLANNED|" if is_periodic else "")
    out.table(columns, rows, "Children")
    print_cut(out, len(answer.children), answer.children_total, "children")


def _description(ui: JobDescription | None) -> list[tuple[str, str]]:
    """What the job says about itself, on one line each."""
    if ui is None:
        return []
    text = " ".join(ui.description.split())
    links = [("Link", f"{one.label}: {one.url}") for one in ui.links]
    return [*([("Description", text)] if text else []), *links]


def print_job(out: CommandOutput, answer: JobAnswer, *, verbose: bool) -> None:
    """One job: summary, groups, what waits, allocations, evaluations."""
    one, rollout = answer.job, answer.rollout
    now_ns = time.time_ns()
    retry = format_time_and_age(rollout.retry_at_ns, now_ns)
    out.fields(
        [
            ("ID", one.id),
            ("Type", job_type(one)),
            *([("Parent", one.parent)] if one.parent else []),
            ("Status", job_status(one)),
            *([("Why", rollout.reason)] if rollout.reason and rollout.status != "waiting" else []),
            *([("Next try", retry)] if rollout.retry_at_ns > now_ns else []),
            ("Priority", str(one.priority)),
            ("Datacenters", ", ".join(one.datacenters)),
            ("Version", str(one.version)),
            *_deployment(rollout),
            ("Modify index", str(one.modify_index)),
            *_description(answer.ui),
        ]
    )
    if answer.periodic is not None:
        out.line()
        _print_periodic(out, answer.periodic, now_ns)
    if answer.parameterized is not None:
        block = answer.parameterized
        out.line()
        out.fields(
            [
                ("Payload", block.payload),
                ("Required meta", ", ".join(block.meta_required) or "none"),
                ("Optional meta", ", ".join(block.meta_optional) or "none"),
            ]
        )
    if answer.unbuilt:
        out.line(f"not built yet, runs without: {', '.join(answer.unbuilt)}", "yellow")
    if answer.children:
        _print_children(out, answer, now_ns)
    if one.pattern:
        return
    rows = [
        (name, g.desired, g.pending, g.running, g.complete, g.failed, g.lost, g.unknown)
        for name, g in sorted(answer.groups.items())
    ]
    out.table("GROUP|DESIRED>|PENDING>|RUNNING>|COMPLETE>|FAILED>|LOST>|UNKNOWN>", rows, "Groups")
    if answer.waiting:
        out.line()
        for line in answer.waiting:
            text = "; ".join(line.reasons) or line.wait_class
            when = f"decided at seq {line.decided_seq}" if line.decided_seq else "not decided yet"
            out.line(f"{line.n} of {line.group} waiting: {text} ({when})", "yellow")
    print_allocations(out, answer.allocations, "Allocations", verbose=verbose)
    print_cut(out, len(answer.allocations), answer.allocations_total, "allocations")
    print_evaluations(out, answer.evaluations, "Evaluations", verbose=verbose, with_job=False)


def _deployment(rollout: Rollout) -> list[tuple[str, str]]:
    one = rollout.deployment
    return [("Deployment", f"{short_id(one.id)}: {one.description}")] if one is not None else []


def alloc_status(one: AllocSummary) -> str:
    """Client status of an allocation, and whether it is unhealthy or a canary."""
    words = [one.client_status]
    words += ["unhealthy"] if one.health == "unhealthy" else []
    words += ["canary"] if one.canary else []
    return ", ".join(words)


def print_allocations(
    out: CommandOutput,
    found: Sequence[AllocSummary],
    title: str,
    *,
    verbose: bool,
) -> None:
    """A table of allocations; CHANGED: the newest event of its tasks."""
    now_ns = time.time_ns()
    rows = [
        (
            one.id if verbose else short_id(one.id),
            one.name,
            one.node,
            one.desired_status,
            alloc_status(one),
            one.version,
            format_time_and_age(one.event_ns, now_ns)
            if verbose
            else format_age(one.event_ns, now_ns),
        )
        for one in found
    ]
    out.table("ID|NAME|NODE|DESIRED|STATUS|VERSION>|CHANGED", rows, title)


def print_evaluations(
    out: CommandOutput,
    found: Sequence[EvalSummary],
    title: str,
    *,
    verbose: bool,
    with_job: bool = True,
) -> None:
    """A table of evaluations."""
    rows = [
        (
            one.id if verbose else short_id(one.id),
            *((one.job_id,) if with_job else ()),
            one.status,
            one.triggered_by,
            one.priority,
            one.reason,
        )
        for one in found
    ]
    columns = f"ID|{'JOB|' if with_job else ''}STATUS|TRIGGERED BY|PRIORITY>|REASON"
    out.table(columns, rows, title)
