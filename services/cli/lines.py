"""How jobs, allocations, evaluations and errors look to people: the tables that several commands share."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from schemas.answers import JobAnswer, JobLine
from schemas.jobs import ErrorDetail
from schemas.projections import AllocSummary, EvalSummary, GroupSummary
from services.cli.output import Column, Output, short


def of_error(error: ErrorDetail) -> str:
    """One fault of a job file: where, what."""
    place = ":".join(part for part in (error.file, str(error.line or "")) if part)
    return ": ".join(part for part in (place, error.path, error.message) if part)


def alive(groups: Mapping[str, GroupSummary]) -> str:
    """How many of the desired allocations run."""
    running = sum(group.running for group in groups.values())
    return f"{running}/{sum(group.desired for group in groups.values())}"


def footer(out: Output, shown: int, total: int, what: str) -> None:
    """Say that there is nothing, or that there is more."""
    if not total:
        out.line(f"no {what}", "dim")
    elif shown < total:
        out.line(f"{shown} of {total} {what}; --limit shows more", "dim")


def status(one: JobLine) -> str:
    """The job's status; of a dead one, why: stopped, complete or failed."""
    groups = one.groups.values()
    if one.status != "dead":
        return one.status
    if one.stopped:
        return "dead, stopped"
    if any(group.failed or group.lost for group in groups):
        return "dead, failed" if one.job_type == "service" else "dead, not all complete"
    return "dead, complete" if any(group.complete for group in groups) else "dead"


def job(out: Output, answer: JobAnswer, *, verbose: bool) -> None:
    """One job: summary, groups, what waits, allocations, evaluations."""
    one = answer.job
    out.fields(
        [
            ("ID", one.id),
            ("Type", one.job_type),
            ("Status", status(one)),
            ("Priority", str(one.priority)),
            ("Datacenters", ", ".join(one.datacenters)),
            ("Version", str(one.version)),
            ("Modify index", str(one.modify_index)),
        ]
    )
    columns = [
        Column("GROUP"),
        Column("DESIRED", right=True),
        Column("PENDING", 3, right=True),
        Column("RUNNING", right=True),
        Column("COMPLETE", 5, right=True),
        Column("FAILED", 2, right=True),
        Column("LOST", 4, right=True),
        Column("UNKNOWN", 6, right=True),
    ]
    rows = [
        (name, g.desired, g.pending, g.running, g.complete, g.failed, g.lost, g.unknown)
        for name, g in sorted(answer.groups.items())
    ]
    out.table(columns, rows, "Groups")
    if answer.waiting:
        out.line()
        for line in answer.waiting:
            text = "; ".join(line.reasons) or line.wait_class
            out.line(f"{line.n} of {line.group} wait: {text}", "yellow")
    allocations(out, answer.allocations, "Allocations", verbose=verbose, with_job=False)
    if len(answer.allocations) < answer.allocations_total:
        footer(out, len(answer.allocations), answer.allocations_total, "allocations")
    evaluations(out, answer.evaluations, "Evaluations", verbose=verbose, with_job=False)


def allocations(
    out: Output, found: Sequence[AllocSummary], title: str, *, verbose: bool, with_job: bool = True
) -> None:
    """A table of allocations."""
    columns = [
        Column("ID"),
        *([Column("JOB", 1)] if with_job else []),
        Column("GROUP", 2),
        Column("INDEX", 4, right=True),
        Column("NODE", 3),
        Column("DESIRED", 5),
        Column("STATUS"),
        Column("VERSION", 6, right=True),
    ]
    rows = [
        (
            one.id if verbose else short(one.id),
            *([one.job_id] if with_job else []),
            one.group,
            one.index,
            one.node,
            one.desired_status,
            one.client_status,
            one.version,
        )
        for one in found
    ]
    out.table(columns, rows, title)


def evaluations(
    out: Output, found: Sequence[EvalSummary], title: str, *, verbose: bool, with_job: bool = True
) -> None:
    """A table of evaluations."""
    columns = [
        Column("ID"),
        *([Column("JOB", 1)] if with_job else []),
        Column("STATUS"),
        Column("TRIGGERED BY", 2),
        Column("PRIORITY", 4, right=True),
        Column("REASON", 3),
    ]
    rows = [
        (
            one.id if verbose else short(one.id),
            *([one.job_id] if with_job else []),
            one.status,
            one.triggered_by,
            one.priority,
            one.reason,
        )
        for one in found
    ]
    out.table(columns, rows, title)


def moment(t_ns: int) -> str:
    """A time of the log on this machine's clock; nothing where it is not known."""
    if not t_ns:
        return ""
    return datetime.fromtimestamp(t_ns / 1e9, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def mib(amount: int) -> str:
    """An amount of MiB for people."""
    return f"{amount / 1024:.1f} GiB" if amount >= 10_240 else f"{amount} MiB"
