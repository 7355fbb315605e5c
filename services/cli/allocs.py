"""`caravan alloc`: status, logs."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from schemas.answers import AllocAnswer
from schemas.projections import Query
from services.cli import running_ups
from services.cli.asking import ask_once, bus_url
from services.cli.output import CliError, Column, Output, short
from shared.bus.names import id_token

#: What `--json` holds of a log at the most: its end.
_TEXT_BYTES_MAX = 1 << 20


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
    out.fields([*shown, ("Why", answer.why)])
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


def logs(out: Output, *, alloc_id: str, task: str, stderr: bool, tail: int) -> int:
    """Print what a task wrote, from the files of a local agent."""
    answer = ask_once("alloc", AllocAnswer, Query(id=alloc_id))
    one = answer.allocation
    task = task or _only_task(sorted(answer.tasks), one.id)
    folder = running_ups.agent_dir(one.node, bus_url())
    if folder is None:
        text = f"node {one.node} has no agent of `caravan up` on this machine; its logs are there"
        raise CliError("not_found", text)
    stream = "stderr" if stderr else "stdout"
    path = log_path(folder, one.id, task, stream)
    if not path.exists():
        raise CliError(
            "not_found", f"task {task!r} of allocation {short(one.id)} wrote no {stream} yet"
        )
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TEXT_BYTES_MAX) if out.is_json or tail else 0)
        data = file.read()
    if tail > 0:
        data = b"".join(data.splitlines(keepends=True)[-tail:])
    if not out.is_json:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    out.result(
        {
            "allocation": one.id,
            "task": task,
            "stream": stream,
            "path": str(path),
            "size": size,
            "text": data.decode("utf-8", "replace"),
        }
    )
    return 0


def log_path(agent_dir: Path, alloc_id: str, task: str, stream: str) -> Path:
    """Where an agent keeps the newest output of a task (Nomad's layout, ids as tokens)."""
    folder = agent_dir / "alloc" / id_token(alloc_id) / "alloc" / "logs"
    return folder / f"{id_token(task)}.{stream}.0"


def _only_task(tasks: list[str], alloc_id: str) -> str:
    if len(tasks) == 1:
        return tasks[0]
    if not tasks:
        raise CliError("not_found", f"no task of allocation {short(alloc_id)} was reported yet")
    raise CliError("usage", f"which task? {', '.join(tasks)}")
