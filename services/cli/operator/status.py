"""`caravan operator status`: the servers of the bus, who leads, alarms, counts; and the wait for a bus that is whole.

Decides what an answer is worth: what it says of servers is of `looked_ns`, and a wait counts only what a
server said after the wait began.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from schemas.answers import ClusterAnswer
from schemas.base import SECOND_NS
from schemas.bus_answers import BusServer, BusStatus
from schemas.projections import Query
from services.cli import global_options
from services.cli.runtime.bus_client import query_once
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.runtime.tables import count_fields
from shared.display.formats import count_noun
from shared.durations import parse_duration

#: The service that answers looks every second; what it found is not of now after so long.
STALE_NS = 6 * SECOND_NS
_MS = SECOND_NS // 1000
_LOOK_S = 0.5
GOALS = ("quorum", "current")
NOT_LOOKED = "no server of the bus has answered: the view has not looked at them yet, or is of a release that does not"


def status(out: CommandOutput, *, hashes: bool, wait: str, timeout: str, server: str) -> int:
    """Show the servers of the bus, the leader, alarms and object counts; with `wait` once the bus is so.

    With `server` that server alone, which `wait` is about, too.
    """
    query = Query(id="hashes" if hashes else "")
    is_now = not (global_options.at_position() or global_options.export_dir())
    if wait or server:
        _require_now(wait, "--wait" if wait else "--server", is_now=is_now)

    def ask(within_s: float | None = None) -> ClusterAnswer:
        return query_once("cluster", ClusterAnswer, query, within_s=within_s)

    if wait:
        since_s = global_options.began_s()
        answer = wait_for(out, ask, wait, _seconds(timeout), server=server, since_s=since_s)
    else:
        answer = ask()
    if is_now and not answer.bus.servers:
        answer = _with_reason(answer, NOT_LOOKED)
    chosen = only_server(answer, server)
    out.result(chosen)
    if server and answer.bus.servers:
        _show_server(out, answer.bus, chosen.bus.servers[0])
    else:
        _show(out, answer)
    return 0 if wait or not is_now else exit_code(answer.bus, server)


def _require_now(wait: str, option: str, *, is_now: bool) -> None:
    if wait and wait not in GOALS:
        raise CliError("usage", f"--wait must be one of: {', '.join(GOALS)}, not {wait!r}")
    if not is_now:
        raise CliError("usage", f"{option} is about the bus of now, not with --at or --from-file")


def _seconds(text: str) -> float:
    try:
        return parse_duration(text) / SECOND_NS
    except ValueError as err:
        raise CliError("usage", f"--timeout: {err}") from err


def _with_reason(answer: ClusterAnswer, reason: str) -> ClusterAnswer:
    """The answer with a reason and an alarm, unless it has a reason."""
    if answer.bus.reason:
        return answer
    bus = msgspec.structs.replace(answer.bus, reason=reason)
    return msgspec.structs.replace(answer, bus=bus, alarms=(*answer.alarms, reason))


def only_server(answer: ClusterAnswer, name: str) -> ClusterAnswer:
    """The answer with one server of the bus; an empty name means all. Raises CliError: there is none of this name.

    An answer without any server is returned as it is: nothing is known of them.
    """
    bus = answer.bus
    if not bus.servers or not name:
        return answer
    found = tuple(one for one in bus.servers if one.name == name)
    if not found:
        known = ", ".join(one.name for one in bus.servers)
        raise CliError("not_found", f"the bus has no server {name!r}; it has: {known}")
    return msgspec.structs.replace(answer, bus=msgspec.structs.replace(bus, servers=found))


# ---- what an answer is worth ----


def is_stale(bus: BusStatus) -> bool:
    """Whether what is said of servers is not of now."""
    return bus.answered_ns - bus.confirmed_ns > STALE_NS


def is_led(bus: BusStatus) -> bool:
    """Whether a server leads the log, by an answer about all servers. Streams without a leader may be others alone."""
    return not bus.leaderless or any(one.leads for one in bus.servers)


def exit_code(bus: BusStatus, server: str = "") -> int:
    """What is so now. 0: every server holds everything; 2: one does not; 1: nothing can be committed, or is known.

    `bus` tells of all servers; with `server` that one alone counts, where commits are possible.
    """
    if not bus.servers or bus.blocked_since_ns or is_stale(bus) or not is_led(bus):
        return 1
    counted = [one.status for one in bus.servers if server in ("", one.name)]
    return 0 if not bus.leaderless and set(counted) == {"current"} else 2


def what_lacks(bus: BusStatus, goal: str, since_ns: int) -> str:
    """Say why the bus is not as wanted, by what was heard after `since_ns`; empty: it is."""
    if not bus.servers:
        return bus.reason or NOT_LOOKED
    if bus.reason:
        return bus.reason
    if goal == "quorum":
        if not is_led(bus):
            return _why_unled(bus)
        heard = sum(_is_after(bus, one.silent_ms, since_ns) for one in bus.servers)
        needed = len(bus.servers) // 2 + 1
        return "" if heard >= needed else f"{needed} of {len(bus.servers)} servers must be heard of"
    lacks = [_what_lacks(bus, one, since_ns) for one in bus.servers]
    lacks += _leaderless(bus)
    return "; ".join(text for text in lacks if text)


def _is_after(bus: BusStatus, age_ms: int, since_ns: int) -> bool:
    return age_ms >= 0 and bus.looked_ns - age_ms * _MS >= since_ns


def _what_lacks(bus: BusStatus, one: BusServer, since_ns: int) -> str:
    if one.status == "behind":
        return f"server {one.name} does not hold all of {', '.join(one.behind)} yet"
    if one.status != "current":
        return f"server {one.name} is {one.status}"
    if not _is_after(bus, one.current_ms, since_ns):
        return f"server {one.name} has not been heard of since the wait began"
    return ""


def wait_for(
    out: CommandOutput,
    ask: Callable[[float | None], ClusterAnswer],
    goal: str,
    timeout_s: float,
    *,
    server: str = "",
    since_s: float = 0.0,
) -> ClusterAnswer:
    """Ask until the bus, or one server of it, is as wanted; says on stderr what lacks.

    `ask` gets the bound of one answer. The timeout counts from `since_s`; a timeout of 0 waits for one answer. Raises
    CliError: `pending` after the timeout, `not_found` for an unknown server.
    """
    deadline = (since_s or time.monotonic()) + timeout_s
    since_ns, said = 0, ""
    while True:
        try:
            answer = ask(max(0.0, deadline - time.monotonic()) if timeout_s else None)
            # The first answer says what time it is there: what servers said before it does not count.
            since_ns = since_ns or answer.bus.answered_ns
            one = only_server(answer, server)
            # A majority is one of all servers.
            lacks = what_lacks(one.bus if goal == "current" else answer.bus, goal, since_ns)
            if not lacks:
                return answer
        except CliError as err:
            if err.code != "unavailable":
                raise
            # An answer that the end of the wait cut off says less than the one before.
            # The end of the wait says how long it was.
            text = err.untimed if timeout_s else err.message
            lacks = said if said and time.monotonic() >= deadline else text
        left_s = deadline - time.monotonic()
        if left_s > 0 and lacks != said:
            said = lacks
            out.note(f"waiting: {lacks}")
        time.sleep(max(0.0, min(_LOOK_S, left_s)))
        if time.monotonic() >= deadline:
            after = f" after {timeout_s:.0f} s" if timeout_s else ""
            raise CliError("pending", f"not {goal}{after}: {lacks}")


# ---- for people ----


def _show(out: CommandOutput, answer: ClusterAnswer) -> None:
    bus = answer.bus
    durability = "fsync on" if answer.fsync else "NO FSYNC"
    out.fields(
        [
            ("Cluster", answer.cluster_id),
            ("Seq", str(answer.seq)),
            ("Applier", f"{answer.holder}, epoch {answer.epoch}{_of_before(bus)}"),
            ("Bus", f"{durability}, {count_noun(answer.replicas, 'replica')}"),
            *([("Servers", _summary(bus))] if bus.servers or bus.reason else []),
            ("Foreign", f"{answer.foreign} records"),
            *count_fields(answer.counts),
        ]
    )
    rows = [_row(bus, one) for one in bus.servers]
    if len(rows) > 1 or (rows and exit_code(bus)):
        out.table("SERVER|STATUS|LEADS|LAST HEARD>|LACKS", rows, "Servers")
    out.table("TABLE|HASH", sorted(answer.tables.items()), "Tables")
    if not answer.fsync:
        text = "the bus does not fsync every write: a power failure may lose accepted writes"
        out.line(f"\n{text}", "red")
    for alarm in answer.alarms:
        out.line(f"\n{alarm}", "red")


def _show_server(out: CommandOutput, bus: BusStatus, one: BusServer) -> None:
    name, state, leads, heard, lacks = _row(bus, one)
    out.fields(
        [
            ("Server", name),
            ("Status", state),
            ("Leads", leads or "not the log"),
            ("Last heard", heard),
            ("Lacks", lacks or ("nothing" if state == "current" else "not known")),
            ("Looked", _summary(bus).partition(", ")[2]),
        ]
    )
    unled = "" if is_led(bus) or bus.reason else _why_unled(bus)
    for text in (bus.reason, unled, *_leaderless(bus)):
        if text:
            out.line(f"\n{text}", "red")


def _leaderless(bus: BusStatus) -> list[str]:
    """Say which streams no server leads: what is committed there waits, whatever a server holds."""
    return [f"stream {name} has no leader" for name in bus.leaderless]


def _why_unled(bus: BusStatus) -> str:
    """Say that nothing can be committed before an election; the same at each look, until there is an answer."""
    last = f"{datetime.fromtimestamp(bus.confirmed_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M:%S}Z"
    when = f"answered last at {last}" if bus.confirmed_ns else "has never answered"
    return f"no server leads the log: its leader {when}; nothing can be committed until another one is elected"


def _is_of_before(bus: BusStatus) -> bool:
    """Whether the status of a server is that of the last answer, and may have changed since."""
    return not bus.blocked_since_ns and (is_stale(bus) or not is_led(bus))


def _of_before(bus: BusStatus) -> str:
    is_blocked = bus.blocked_since_ns or not is_led(bus)
    return " (of before: nothing can be committed)" if is_blocked else ""


def _summary(bus: BusStatus) -> str:
    if not bus.servers:
        return "NOT KNOWN"
    current = sum(one.status == "current" for one in bus.servers)
    age = f"{max(0, bus.answered_ns - bus.confirmed_ns) / SECOND_NS:.0f} s ago"
    if not bus.confirmed_ns:
        age = "never"
    if bus.blocked_since_ns:
        up = sum(one.status == "up" for one in bus.servers)
        since_s = (bus.answered_ns - bus.blocked_since_ns) / SECOND_NS
        return f"{up} of {len(bus.servers)} answer, NO COMMITS for {since_s:.0f} s"
    found = ", NOT OF NOW" if is_stale(bus) else "" if is_led(bus) else ", NO LEADER"
    were = "were " if found else ""
    return f"{current} of {len(bus.servers)} {were}current, confirmed {age}{found}"


def _row(bus: BusStatus, one: BusServer) -> tuple[str, ...]:
    silent_s = one.silent_ms / 1000 + max(0, bus.answered_ns - bus.looked_ns) / SECOND_NS
    heard = f"{silent_s:.0f} s ago" if one.silent_ms >= 0 else "never"
    lacks = ", ".join(one.behind) if one.status == "behind" else ""
    lacks += f" (by {one.lag})" if lacks and one.lag else ""
    state = f"was {one.status}" if _is_of_before(bus) else one.status
    return one.name, state, "the log" if one.leads else "", heard, lacks
