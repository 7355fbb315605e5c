"""What the console reads beside queries: the fleet, the time bar, events in words, differences, the live feed."""

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.responses import Response

from schemas.envelope import RECORD_DECODER
from schemas.plans import PlanCommitted
from services.gateway.edge.agents import streamed
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.followed_log import dropped
from services.gateway.edge.route import Endpoint
from shared.core.runtime.messages import Record
from shared.core.state.state import State
from shared.errors import BusUnavailable, LogDropped
from shared.query.explain import explain_placement
from shared.query.fleet_columns import fleet_columns
from shared.query.historical_state import HistoricalState
from shared.query.lookup import find_alloc
from shared.query.state_diff import diff_states

T = TypeVar("T")
POINTS_MAX = 2_000
#: Records of one answer, and those between a decision and the state that it was made on.
RECORDS_MAX, EXPLAINED_MAX = 1_000, 200_000


async def at_moment(call: Call, *, past: Callable[[HistoricalState], T], now: Callable[[], T]) -> T:
    """Answer from the state at the parameter `at`, or from the present one. Raises HttpFault 400, 410, 503."""
    seq = call.number("at")
    if not seq:
        return now()
    if seq < 0 or seq > call.role.seq:
        raise HttpFault(400, f"at must be a seq up to {call.role.seq}, was {seq}")
    call.headers["X-Caravan-At"] = str(seq)
    return await call.server.past.read(seq, past)


async def read_fleet(call: Call) -> object:
    """The fleet's columns: bytes, laid out by `FleetColumns.encode`."""
    server = call.server

    def encoded(state: State) -> bytes:
        found = fleet_columns(state, server.members)
        server.members = found.members
        return found.encode()

    raw = await at_moment(
        call, past=lambda one: encoded(one.state), now=lambda: encoded(call.role.state)
    )
    return Response(raw, 200, media_type="application/octet-stream")


async def read_state(call: Call) -> object:
    """Hashes of all tables, now or at a seq: what `caravan replay` prints."""

    def hashed(state: State) -> dict[str, object]:
        return {"seq": state.seq, "tables": state.hashes()}

    return await at_moment(
        call, past=lambda one: hashed(one.state), now=lambda: hashed(call.role.state)
    )


async def read_time(call: Call) -> object:
    """Where the log begins and ends, log times of some seqs, and marks."""
    role = call.role
    marks = role.marks
    return {
        "first_seq": max(await call.server.log.first_seq(), 1),
        "seq": role.seq,
        "t_ms": role.times.at(role.seq) // 1_000_000,
        "points": [(seq, t_ns // 1_000_000) for seq, t_ns in role.times.points(POINTS_MAX)],
        "marks_first_seq": marks.first_seq,
        "marks": [
            {"seq": one.seq, "t_ms": one.t_ns // 1_000_000, "kind": one.kind, "text": one.text}
            for one in marks.marks
        ],
    }


async def read_step(call: Call) -> object:
    """The record with a plan `by` steps behind the parameter `from`; `seq` 0: there is none."""
    by = call.number("by", 1)
    if not by or abs(by) > RECORDS_MAX:
        raise HttpFault(400, f"by must be between 1 and {RECORDS_MAX}, or negative, was {by}")
    return {"seq": call.role.marks.plan_seq(call.number("from") or call.role.seq, by)}


async def read_seq(call: Call) -> object:
    """The last record written by a log time, `t_ms`; `seq` 0: the log begins later."""
    return {"seq": call.role.times.seq_at(call.number("t_ms") * 1_000_000)}


async def read_events(call: Call) -> object:
    """Events of the records up to `to` (default: the last) in words, oldest first: at most `limit` records."""
    limit = call.number("limit", 100)
    if not 0 < limit <= RECORDS_MAX:
        raise HttpFault(400, f"limit must be between 1 and {RECORDS_MAX}, was {limit}")
    last = call.number("to") or call.role.seq
    if last < 1 or last > call.role.seq:
        raise HttpFault(400, f"to must be a seq up to {call.role.seq}, was {last}")
    first = await call.server.log.first_seq()
    begin = max(call.number("from") or last - limit + 1, first, 1)
    if begin > last:
        raise HttpFault(400, f"from must be up to {last}, was {begin}")
    last = min(last, begin + limit - 1)
    lines = await call.server.past.events(begin, last)
    kinds, job, node = tuple(call.texts("kind")), call.text("job"), call.text("node")
    wanted = [
        one
        for one in lines
        if (not kinds or one.type.startswith(kinds))
        and (not job or job in one.jobs)
        and (not node or node in one.nodes)
    ]
    return {"from": begin, "to": last, "lines": wanted}


async def read_diff(call: Call) -> object:
    """What differs between the states at `from` and `to`."""
    first, last = call.number("from"), call.number("to") or call.role.seq
    if not 0 < first <= last <= call.role.seq:
        raise HttpFault(400, f"from and to must be seqs up to {call.role.seq}, in this order")
    # A kept state moves on, so the older one is a state of its own.
    before = await call.server.past.replay(first)
    return await call.server.past.read(
        last, lambda after: diff_states(before.state, after.state, (first, last))
    )


async def read_why(call: Call) -> object:
    """Explain the placement of an allocation: the decision is made again on the snapshot that it was made on."""
    state = call.role.state
    alloc = call.path["alloc"]
    key = int(state.allocations.key[find_alloc(state, alloc)])
    placed = state.policy.incarnations.seq(key)
    try:
        snapshot_seq = _snapshot_seq((await _records(call, placed, placed))[0])
        if placed - snapshot_seq > EXPLAINED_MAX:
            text = f"the placement is {placed - snapshot_seq} records behind its snapshot"
            raise HttpFault(503, f"{text}, this answer reads {EXPLAINED_MAX}: use `caravan why`")
        records = await _records(call, snapshot_seq + 1, placed)
    except LogDropped as err:
        raise dropped(err.first_seq) from err
    before = await call.server.past.replay(snapshot_seq)
    now = await call.server.past.replay(placed)
    row = find_alloc(now.state, alloc)
    return explain_placement(now.state, records, row, before.replica, later=state)


def _snapshot_seq(record: Record) -> int:
    """The oldest state that a plan of a record was made on. Raises HttpFault 404: it has none."""
    events = RECORD_DECODER.decode(record.data).events
    seqs = [one.origin.snapshot_seq for one in events if isinstance(one, PlanCommitted)]
    if not seqs:
        raise HttpFault(404, f"record {record.seq} has no plan")
    return min(seqs)


async def _records(call: Call, first: int, last: int) -> list[Record]:
    """Records of the log, both ends included. Raises BusUnavailable, LogDropped."""
    found: list[Record] = []
    while first + len(found) <= last:
        batch = await call.server.log.read(first + len(found))
        if not batch:
            raise BusUnavailable(f"the stored log does not hand out record {first + len(found)}")
        found += batch
    return found[: last - first + 1]


async def read_delays(call: Call) -> object:
    """How long allocations took to be placed and to run, up to the parameter `at`."""
    role = call.role
    seq = call.number("at") or role.seq
    if not 0 < seq <= role.seq:
        raise HttpFault(400, f"at must be a seq up to {role.seq}, was {seq}")
    return role.delays.delays(seq, role.times.at(seq))


async def read_live(call: Call) -> object:
    """What changes from now on, as server-sent events."""
    feed = call.server.feed
    viewer = feed.join()

    async def parts() -> AsyncIterator[bytes]:
        try:
            async for one in viewer.messages():
                yield one
        finally:
            feed.leave(viewer)

    return streamed(call, parts(), "text/event-stream")


def _read(pattern: str, summary: str, handler: Any) -> Endpoint:
    return Endpoint(pattern=f"/v1/caravan/{pattern}", summary=summary, read=handler)


ENDPOINTS = (
    _read("fleet", "The fleet's columns, now or at a seq.", read_fleet),
    _read("state", "Hashes of all tables, now or at a seq.", read_state),
    _read("time", "The time bar: log times and marks.", read_time),
    _read("step", "The next or the last record with a plan.", read_step),
    _read("seq", "The last record written by a log time.", read_seq),
    _read("events", "Events in words.", read_events),
    _read("diff", "Differences between two moments.", read_diff),
    _read("why/{alloc}", "Why an allocation is on its node.", read_why),
    _read("delays", "Distributions of the times to place and to start allocations.", read_delays),
    _read("live", "What changes, as server-sent events.", read_live),
)
