"""`caravan job timeline`: every state of a job, every reason why it waited, and their durations.

The intervals come from the SQL macro `timeline` (shared/archive); this module prints them and writes the Chrome trace.
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from services.cli.runtime.bus_client import CANDIDATES_MAX, unique_job
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.sql.source import SqlSource
from shared.display.formats import count_noun, format_utc

#: Threads of the trace, in this order.
_LANES = ("job", "launch", "rollout", "deployment", "waiting", "evaluation", "allocation", "stop")
#: Longer details stand below their row on a terminal.
_DETAIL_MAX = 16
#: An open state lasts until now; in an export until its last record.
_QUESTION = """SELECT lane, name, state, detail, from_seq, to_seq, from_time, to_time,
    coalesce(to_time, greatest((SELECT max(time) FROM records), make_timestamp(?))) AS until FROM timeline(?)"""

#: Jobs whose id begins with a text.
_NEAR = "SELECT DISTINCT job_id FROM jobs WHERE starts_with(job_id, ?) ORDER BY job_id LIMIT ?"


class TimelineInterval(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one object. `to_seq` 0: it still holds; `held_s` then counts to now, or to the end of the export."""

    lane: str
    name: str
    state: str
    detail: str
    from_seq: int
    to_seq: int
    from_ns: int
    held_s: float


class TimelineResult(msgspec.Struct, frozen=True):
    """`job timeline --json`."""

    job_id: str
    intervals: list[TimelineInterval]
    waited_s: float
    trace: str
    seq: int
    cluster_id: str


def timeline(out: CommandOutput, *, job_id: str, directory: str, live: bool, trace: str) -> int:
    """Show a job's states over time; with `trace` also into a file. Exit 2: a part of the log could not be read."""
    with SqlSource(directory, is_live=live) as source:
        for problem in source.problems:
            out.note(problem)
        now_us = time.time_ns() // 1000 if source.is_live else 0
        rows = source.ask(_QUESTION, [now_us, job_id]).rows
        if not rows:
            # Asked only now: the id of a job that exists is never taken for a prefix.
            near = [str(row[0]) for row in source.ask(_NEAR, [job_id, CANDIDATES_MAX]).rows]
            job_id = unique_job(job_id, near)
            rows = source.ask(_QUESTION, [now_us, job_id]).rows if near else rows
    if not rows:
        raise CliError("not_found", f"job {job_id!r} is not in the log")
    found = [_interval(row) for row in rows]
    if trace:
        _write(Path(trace), job_id, found)
    reasons = [one for one in found if one.lane == "waiting"]
    waited_s = waited_time_s(reasons)
    out.result(TimelineResult(job_id, found, waited_s, trace, source.seq, source.cluster_id))
    base_ns = found[0].from_ns
    # A narrow column would break a sentence into single words.
    below = {
        index: one.detail
        for index, one in enumerate(found)
        if out.is_terminal and len(one.detail) > _DETAIL_MAX
    }
    cells = [
        (
            one.from_seq,
            f"+{(one.from_ns - base_ns) / 1e9:.3f}s",
            f"{one.lane} {one.name}" if one.lane != "job" else "job",
            one.state,
            _duration(one),
            "" if index in below else one.detail,
        )
        for index, one in enumerate(found)
    ]
    out.line(f"job {job_id} since {format_utc(base_ns)}", "bold")
    out.table("SEQ>|AT>|OBJECT|STATE|HELD>|DETAIL", cells, below=below)
    # It is decided anew each time that it is woken, often with the same outcome.
    different = {(one.name, one.state, one.detail.rpartition(" (")[0]) for one in reasons}
    waits = (
        f"waited {waited_s:.3f} s, for {count_noun(len(different), 'reason')}"
        if reasons
        else "never waited"
    )
    out.line(f"\n{waits}")
    if trace:
        out.line(f"{trace} can be opened in chrome://tracing or ui.perfetto.dev")
    return 2 if source.problems else 0


def waited_time_s(waits: list[TimelineInterval]) -> float:
    """How long something of the job waited, in s: two groups that wait at the same time wait once."""
    total_s, end_s = 0.0, 0.0
    for from_ns, held_s in sorted((one.from_ns, one.held_s) for one in waits):
        begin_s = max(from_ns / 1e9, end_s)
        end_s = max(end_s, from_ns / 1e9 + held_s)
        total_s += max(0.0, end_s - begin_s)
    return round(total_s, 6)


def _interval(row: tuple[Any, ...]) -> TimelineInterval:
    lane, name, state, detail, from_seq, to_seq, since, _, until = row
    return TimelineInterval(
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


def _duration(one: TimelineInterval) -> str:
    return f"{one.held_s:.3f}s" + ("" if one.to_seq else " ...")


class _Threads:
    """Threads of a trace: those of one object hold intervals that lie behind or within each other."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[int]] = {}
        #: by thread: ends of the intervals that are open, the innermost last; microseconds.
        self._ends: dict[int, list[int]] = {}

    def place(self, one: TimelineInterval) -> tuple[int, bool]:
        """Return the thread of an interval, and whether it is a new one. Intervals come by their start."""
        start = one.from_ns // 1000
        end = start + round(one.held_s * 1e6)
        mine = self._of.setdefault((one.lane, one.name), [])
        for tid in mine:
            ends = self._ends[tid]
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return tid, False
        tid = len(self._ends) + 1
        mine.append(tid)
        self._ends[tid] = [end]
        return tid, True


def _write(path: Path, job_id: str, found: list[TimelineInterval]) -> None:
    """Write a trace for Chrome and Perfetto: one process for each kind of object, one thread for each object."""
    events: list[dict[str, object]] = []
    threads = _Threads()
    for at, lane in enumerate(_LANES, 1):
        name = {"name": f"{job_id}: {lane}"}
        events.append({"ph": "M", "pid": at, "tid": 0, "name": "process_name", "args": name})
    for one in sorted(found, key=lambda one: (one.from_ns, -one.held_s)):
        pid = _LANES.index(one.lane) + 1
        tid, is_new = threads.place(one)
        if is_new:
            name = {"name": one.name}
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": name})
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
        raise CliError("conflict", "file exists; not overwritten", file=str(path)) from err
