"""`caravan alloc status`."""

import time

from schemas.node_answers import AllocAnswer
from schemas.projections import Query
from services.cli.runtime.bus_client import query_once
from services.cli.runtime.output import CommandOutput, short_id
from shared.display.formats import format_age, format_clock, format_time_and_age
from shared.jobspec.amounts import format_amount


def status(out: CommandOutput, *, alloc_id: str, verbose: bool) -> int:
    """Show one allocation and its tasks."""
    answer = query_once("alloc", AllocAnswer, Query(id=alloc_id))
    out.result(answer)
    print_alloc(out, answer, verbose=verbose)
    return 0


def print_alloc(out: CommandOutput, answer: AllocAnswer, *, verbose: bool) -> None:
    """Print one allocation, its tasks and their events."""
    one, now_ns = answer.allocation, time.time_ns()
    shown = [
        ("ID", one.id if verbose else short_id(one.id)),
        ("Name", one.name),
        ("Node", one.node),
        ("Version", str(one.version)),
        ("Desired", one.desired_status),
        ("Status", one.client_status),
        ("Created", f"seq {one.create_seq}"),
        ("Modified", f"seq {one.modify_seq}"),
    ]
    shown += [("Changed", format_time_and_age(one.event_ns, now_ns))] if one.event_ns else []
    shown += (
        [("Replaces", one.previous if verbose else short_id(one.previous))] if one.previous else []
    )
    shown += [("Alternative", str(answer.variant))] if answer.variant else []
    out.fields([*shown, ("Why", answer.why)])
    out.table(
        "LABEL|PORT>",
        sorted(answer.ports.items()),
        "Ports",
    )
    parts = [(one.pool, one.instance, format_amount(one.amount)) for one in answer.resources]
    out.table("RESOURCE|INSTANCE|AMOUNT>", parts, "Resources")
    columns = "TASK|STATE|RESTARTS>|EXIT>|PID>"
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
        events = [
            (
                format_clock(event.t_ns).strip(),
                format_age(event.t_ns, now_ns),
                event.kind,
                event.message,
            )
            for event in task.events
        ]
        columns = "TIME|AGE>|EVENT|MESSAGE"
        out.table(columns, events, f"Events of {name}")
