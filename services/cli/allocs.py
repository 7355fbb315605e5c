"""`caravan alloc status`."""

from datetime import UTC, datetime

from schemas.answers import AllocAnswer
from schemas.projections import Query
from services.cli.asking import ask_once
from services.cli.output import Column, Output, short
from shared.jobspec.amounts import shown_amount


def status(out: Output, *, alloc_id: str, verbose: bool) -> int:
    """Show one allocation and its tasks."""
    answer = ask_once("alloc", AllocAnswer, Query(id=alloc_id))
    out.result(answer)
    one = answer.allocation
    shown = [
        ("ID", one.id if verbose else short(one.id)),
        ("Name", one.name),
        ("Node", one.node),
        ("Version", str(one.version)),
        ("Desired", one.desired_status),
        ("Status", one.client_status),
        ("Created", f"seq {one.create_seq}"),
        ("Modified", f"seq {one.modify_seq}"),
    ]
    shown += (
        [("Replaces", one.previous if verbose else short(one.previous))] if one.previous else []
    )
    shown += [("Alternative", str(answer.variant))] if answer.variant else []
    out.fields([*shown, ("Why", answer.why)])
    out.table([Column("LABEL"), Column("PORT", right=True)], sorted(answer.ports.items()), "Ports")
    columns = [Column("RESOURCE"), Column("INSTANCE"), Column("AMOUNT", right=True)]
    parts = [(one.pool, one.instance, shown_amount(one.amount)) for one in answer.resources]
    out.table(columns, parts, "Resources")
    columns = [
        Column("TASK"),
        Column("STATE"),
        Column("RESTARTS", 2, right=True),
        Column("EXIT", 1, right=True),
        Column("PID", 3, right=True),
    ]
    rows = [
        (
            name,
            "failed" if task.failed else task.state,
            task.restarts,
            task.exit_code if task.exit_code is not None else "",
            task.pid or "",
        )
        for name, task in sorted(answer.tasks.items())
    ]
    out.table(columns, rows, "Tasks")
    for name, task in sorted(answer.tasks.items()):
        events = [(_clock(event.t_ns), event.kind, event.message) for event in task.events]
        columns = [Column("TIME", 2), Column("EVENT"), Column("MESSAGE", 1)]
        out.table(columns, events, f"Events of {name}")
    return 0


def _clock(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns / 1e9, UTC).astimezone().strftime("%H:%M:%S") if t_ns else ""
