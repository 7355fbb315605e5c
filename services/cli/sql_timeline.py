"""`caravan job timeline`: every state that a job was in, every reason why it waited, and how long each held.

Decides what is shown, and the Chrome trace file. The intervals are those of the macro `timeline` (shared/archive).
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from services.cli.output import CliError, Column, Output
from services.cli.sqls import Source

#: Threads of the trace, in this order.
_LANES = ("job", "waiting", "evaluation", "allocation", "stop")
#: What holds still has held until now; an export knows no later moment than its last record.
_QUESTION = """SELECT lane, name, state, detail, from_seq, to_seq, from_time, to_time,
    coalesce(to_time, greatest((SELECT max(time) FROM records), make_timestamp(?))) AS until FROM timeline(?)"""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one thing. `to_seq` 0: it holds still; `held_s` counts up to now then, or to the export's end."""

    lane: str
    name: str
    state: str
    detail: str
    from_seq: int
    to_seq: int
    from_ns: int
    held_s: float


def timeline(out: Output, *, job_id: str, directory: str, live: bool, trace: str) -> int:
    """Show a job's states over time; with `trace` write them into a file too."""
    with Source(directory, is_live=live) as source:
        for problem in source.problems:
            out.note(problem)
        now_us = time.time_ns() // 1000 if source.is_live else 0
        rows = source.ask(_QUESTION, [now_us, job_id]).rows
    if not rows:
        raise CliError("not_found", f"job {job_id!r} is not in the log")
    found = [_interval(row) for row in rows]
    if trace:
        _write(Path(trace), job_id, found)
    reasons = [one for one in found if one.lane == "waiting"]
    waited_s = round(sum(one.held_s for one in reasons), 6)
    out.result(
        {
            "job_id": job_id,
            "intervals": found,
            "waited_s": waited_s,
            "trace": trace,
            "seq": source.seq,
            "cluster_id": source.cluster_id,
        }
    )
    base_ns = found[0].from_ns
    columns = [
        Column("SEQ", 1, right=True),
        Column("AT", right=True),
        Column("WHAT"),
        Column("STATE"),
        Column("HELD", right=True),
        Column("DETAIL", 1),
    ]
    cells = [
        (
            one.from_seq,
            f"+{(one.from_ns - base_ns) / 1e9:.3f}s",
            f"{one.lane} {one.name}" if one.lane != "job" else "job",
            one.state,
            _held(one),
            one.detail,
        )
        for one in found
    ]
    out.line(f"job {job_id} since {_clock(base_ns)}", "bold")
    out.table(columns, cells)
    waits = f"waited {waited_s:.3f} s, for {len(reasons)} reasons" if reasons else "never waited"
    out.line(f"\n{waits}")
    if trace:
        out.line(f"{trace} can be opened in chrome://tracing or ui.perfetto.dev")
    return 0


def _interval(row: tuple[Any, ...]) -> Interval:
    lane, name, state, detail, from_seq, to_seq, since, _, until = row
    return Interval(
        lane=lane,
        name=name,
        state=state,
        detail=detail or "",
        from_seq=from_seq,
        to_seq=to_seq or 0,
        from_ns=_ns(since),
        held_s=max((until - since).total_seconds(), 0.0),
    )


def _ns(moment: datetime) -> int:
    return (
        (moment.replace(tzinfo=UTC) - datetime.fromtimestamp(0, UTC))
        // timedelta(microseconds=1)
        * 1000
    )


def _held(one: Interval) -> str:
    return f"{one.held_s:.3f}s" + ("" if one.to_seq else " ...")


def _clock(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def _write(path: Path, job_id: str, found: list[Interval]) -> None:
    """Write a trace as Chrome and Perfetto read it: one process for each kind of thing, one thread for each thing."""
    events: list[dict[str, object]] = []
    threads: dict[tuple[str, str], int] = {}
    for at, lane in enumerate(_LANES, 1):
        name = {"name": f"{job_id}: {lane}"}
        events.append({"ph": "M", "pid": at, "tid": 0, "name": "process_name", "args": name})
    for one in found:
        pid = _LANES.index(one.lane) + 1
        tid = threads.get((one.lane, one.name))
        if tid is None:
            tid = threads[one.lane, one.name] = len(threads) + 1
            told = {"name": one.name}
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": told})
        events.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "name": one.state,
                "cat": one.lane,
                "ts": one.from_ns // 1000,
                "dur": round(one.held_s * 1e6),
                "args": {
                    "detail": one.detail,
                    "from_seq": one.from_seq,
                    "to_seq": one.to_seq or None,
                },
            }
        )
    try:
        with path.open("xb") as file:
            file.write(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))
    except FileExistsError as err:
        raise CliError(
            "conflict", "exists already, and is not overwritten", file=str(path)
        ) from err
