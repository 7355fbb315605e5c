"""Slots of remote tasks: who tracks one, who ends it, and when nothing of it is left.

An allocation that ends where it is leaves what runs elsewhere alone, and the next one of its index takes it over, for
as long as the job wants the very same text there. What no allocation wants any more is ended: by the one that tracks
it, or by any node with its driver.
"""

from collections.abc import Iterable, Iterator, Mapping

from schemas.allocations import AllocationsReported
from schemas.base import Event, JobId, NodeId
from schemas.jobs import SYSTEM_JOB_TYPES
from schemas.nodes import AllocReport
from schemas.plans import PlanCommitted
from schemas.remotes import (
    RemoteMoved,
    RemoteSlot,
    RemotesReported,
    ReportRemoteEnded,
)
from shared.core.decide.deciders import Deciders
from shared.core.state.ids import ORDINAL_BITS
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, FAILED, RUN, TERMINAL
from shared.core.state.tables.fleet import READY
from shared.core.state.tables.remotes import SlotRow


def reported_slot(state: State, entry: AllocReport) -> RemoteSlot | None:
    """Return the slot of an allocation as its node says it is; None: that is known, or not its to say."""
    table, remotes = state.allocations, state.remotes
    generation = remotes.tracked.get(entry.key)
    if generation is not None:
        tasks = remotes.by_key[generation].tasks
        if entry.remotes == tasks:
            return None
        # A task that the node leaves out is as it was: it was not started here yet.
        said = {**tasks, **entry.remotes}
        if said == tasks:
            return None
    else:
        is_wanted = table.desired[entry.row] == RUN and not TERMINAL[table.client[entry.row]]
        is_live = any(one.state != "ended" for one in entry.remotes.values())
        if not (is_wanted and is_live) or entry.key in remotes.by_key:
            return None
        generation, said = entry.key, entry.remotes
    ref = int(table.group[entry.row])
    return RemoteSlot(
        generation=generation,
        job_id=table.groups.job_ids[ref],
        group=table.groups.names[ref],
        index=int(table.index[entry.row]),
        digest=table.groups.digests[ref],
        tracker=entry.key,
        tasks=said,
    )


def remotes_reported(slots: list[RemoteSlot]) -> list[Event]:
    """Return the fact of what was reported, if there is any."""
    return [RemotesReported(slots=tuple(slots))] if slots else []


# ---- consequences ----


def slots_of_plan(state: State, event: PlanCommitted) -> Iterator[Event]:
    """What follows for slots when allocations are placed, stopped and evicted."""
    if state.remotes.by_key:
        yield from settle_slots(state, {event.job_id, *(one.job_id for one in event.evictions)})


def slots_of_reports(state: State, event: AllocationsReported) -> Iterator[Event]:
    """What follows for slots when allocations end."""
    if state.remotes.by_key:
        table = state.allocations
        yield from settle_slots(
            state, {table.groups.job_ids[int(table.group[row])] for row in event.rows}
        )


def slots_of_nodes(state: State) -> Iterator[Event]:
    """What follows for slots that are to end when nodes come or go."""
    if state.remotes.by_key:
        yield from settle_slots(state, state.remotes.of_job)


def settle_slots(state: State, job_ids: Iterable[JobId]) -> Iterator[Event]:
    """Move the slots of jobs to where they belong now; nothing where they are there."""
    for job_id in sorted(frozenset(job_ids)):
        generations = state.remotes.generations(job_id)
        if not generations:
            continue
        table = state.allocations
        rows = {int(table.key[row]): row for row in table.rows_of(job_id).tolist()}
        #: allocations that take over a slot in this transaction.
        taken: set[int] = set()
        for generation in generations:
            moved = _settled(state, generation, rows, taken)
            if moved is not None:
                yield moved


def _settled(
    state: State, generation: int, rows: Mapping[int, int], taken: set[int]
) -> RemoteMoved | None:
    slot = state.remotes.by_key[generation]
    at = rows.get(slot.tracker)
    if slot.status == "tracked" and at is not None and _is_wanted(state, at):
        return None
    if not slot.live_tasks():
        is_over = at is None or bool(TERMINAL[state.allocations.client[at]])
        return RemoteMoved(generation=generation, status="ended") if is_over else None
    if slot.status == "ending":
        return _ending(state, generation, slot, at)
    heir = _heir(state, slot, rows, taken)
    if heir:
        taken.add(heir)
        return RemoteMoved(generation=generation, status="tracked", tracker=heir)
    has_ended = at is not None and _ended_by_itself(state, at, slot)
    if not has_ended and _is_slot_wanted(state, slot) and not _is_occupied(state, slot, rows):
        if slot.status == "vacant":
            return None
        return RemoteMoved(generation=generation, status="vacant")
    if at is not None and _may_end(state, at):
        return RemoteMoved(generation=generation, status="ending", tracker=slot.tracker)
    return _ended_by_node(state, generation, slot)


def _ending(state: State, generation: int, slot: SlotRow, at: int | None) -> RemoteMoved | None:
    """Give the order to end a slot to another node where its own cannot."""
    if slot.tracker:
        return (
            None
            if at is not None and _may_end(state, at)
            else _ended_by_node(state, generation, slot)
        )
    row = state.fleet.row_of.get(slot.node_id)
    if row is not None and _can_end(state, row, slot):
        return None
    moved = _ended_by_node(state, generation, slot)
    return None if moved.node_id == slot.node_id else moved


def _ended_by_node(state: State, generation: int, slot: SlotRow) -> RemoteMoved:
    fleet = state.fleet
    able = (row for row in range(fleet.size) if _can_end(state, row, slot))
    row = next(able, None)
    return RemoteMoved(
        generation=generation,
        status="ending",
        node_id=NodeId("") if row is None else NodeId(fleet.ids[row]),
        epoch=_placed_now(state),
    )


def _can_end(state: State, row: int, slot: SlotRow) -> bool:
    fleet = state.fleet
    if not fleet.ids[row] or int(fleet.status[row]) != READY:
        return False
    attributes = fleet.specs[row].attributes
    return all(attributes.get(f"driver.{one.driver}") == "1" for one in slot.live_tasks().values())


def _may_end(state: State, at: int) -> bool:
    """Say whether an allocation that must stop can end what it tracks: it has not ended, and its node is there."""
    table, fleet = state.allocations, state.fleet
    return not TERMINAL[table.client[at]] and int(fleet.status[table.node[at]]) == READY


def _is_wanted(state: State, at: int) -> bool:
    table = state.allocations
    return bool(table.desired[at] == RUN and not TERMINAL[table.client[at]])


def _ended_by_itself(state: State, at: int, slot: SlotRow) -> bool:
    """Say whether nothing of a slot is worth to be taken over: a failed tracker may have left what runs alone."""
    table = state.allocations
    client = int(table.client[at])
    if table.desired[at] != RUN or client not in (COMPLETE, FAILED):
        return False
    runs = any(one.state == "running" for one in slot.tasks.values())
    return client == COMPLETE or not runs


def _placed_now(state: State) -> int:
    """What the keys begin with of allocations that this transaction places: the epoch of what it orders."""
    return state.seq + state.allocations.incarnation


def _in_slot(state: State, slot: SlotRow, rows: Mapping[int, int]) -> Iterator[int]:
    """Keys of allocations that are wanted in the place of a slot, with its text."""
    table = state.allocations
    for key, at in rows.items():
        ref = int(table.group[at])
        same = (table.groups.names[ref], int(table.index[at]), table.groups.digests[ref])
        if same == (slot.group, slot.index, slot.digest) and _is_wanted(state, at):
            yield key


def _heir(state: State, slot: SlotRow, rows: Mapping[int, int], taken: set[int]) -> int:
    """Key of the allocation that takes a slot over; 0: none. Only a new one: any other may have begun its own."""
    job = state.jobs.by_id.get(slot.job_id)
    if job is None or job.job_type in SYSTEM_JOB_TYPES:
        return 0
    known = state.remotes.tracked
    placed = _placed_now(state)
    found = [
        key
        for key in _in_slot(state, slot, rows)
        if key >> ORDINAL_BITS == placed and key not in known and key not in taken
    ]
    return max(found, default=0)


def _is_occupied(state: State, slot: SlotRow, rows: Mapping[int, int]) -> bool:
    return any(key != slot.tracker for key in _in_slot(state, slot, rows))


def _is_slot_wanted(state: State, slot: SlotRow) -> bool:
    job = state.jobs.by_id.get(slot.job_id)
    if job is None or job.runs_nothing or job.job_type in SYSTEM_JOB_TYPES:
        return False
    return any(
        (one.name, one.digest) == (slot.group, slot.digest) and slot.index < one.count
        for one in job.groups
    )


# ---- the command ----


def decide_ended(state: State, command: ReportRemoteEnded) -> list[Event]:
    """Take the word of the node that had to end a slot."""
    slot = state.remotes.by_key.get(command.generation)
    if slot is None or slot.tracker or slot.status != "ending":
        return []
    if (slot.node_id, slot.epoch) != (command.node_id, command.epoch):
        return []
    return [RemoteMoved(generation=command.generation, status="ended")]


DECIDERS: Deciders = {ReportRemoteEnded: decide_ended}
