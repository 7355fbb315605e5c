"""Wishes about what runs (drain and meta of a node, stop of an allocation), and about the log: from body to effect.

Decides what is asked of the plan applier and which event shows it, and what is so already. Must not know who waits:
`door.py` sends, sends again and answers.
"""

from collections.abc import Callable

import msgspec

from schemas.allocations import AllocationsDisplaced
from schemas.base import Command, Event
from schemas.nodes import NodeDrainChanged, NodeMetaChanged
from schemas.operator import DrainWish, MetaWish, OperatorVerdict, RollWish
from schemas.policy import (
    DrainNode,
    LogRolled,
    OperatorRefused,
    RollLog,
    SetNodeMeta,
    StopAllocation,
)
from shared.core.decide.displacing import changed_meta, decide_drain, decide_meta, decide_stop
from shared.core.ids import ALLOC_SALT, shown_id
from shared.core.state import State
from shared.core.tables.fleet import laid_over
from shared.errors import CommandInvalid

Fulfils = Callable[[Event], bool]


class Asked(msgspec.Struct, frozen=True, eq=False):
    """What a wish comes to; `command` None: it is so already."""

    verdict: OperatorVerdict
    command: Command | None = None
    fulfils: Fulfils = lambda _: False


def roll(state: State, body: RollWish, request_id: str) -> Asked:
    """Let a generation of the log end. Raises CommandInvalid."""
    now = state.policy.generation
    wanted = body.generation or now
    if not 1 <= wanted <= now:
        raise CommandInvalid("invalid", f"the log is in generation {now}", "generation")
    verdict = OperatorVerdict(request_id=request_id, status="accepted", generation=now)
    if wanted < now:
        return Asked(verdict)
    verdict = msgspec.structs.replace(verdict, generation=now + 1)

    def fulfils(event: Event) -> bool:
        return isinstance(event, LogRolled) and event.generation > wanted

    return Asked(verdict, RollLog(request_id=request_id, generation=wanted), fulfils)


def drain(state: State, row: int, body: DrainWish, request_id: str, *, now_ns: int) -> Asked:
    """Empty a node, or stop doing so. Raises CommandInvalid."""
    node_id = state.fleet.ids[row]
    if body.deadline_ns < -1:
        raise CommandInvalid("invalid", "a deadline lies ahead, or is -1", "deadline_ns")
    at_ns = 0
    if body.draining and body.deadline_ns >= 0:
        # Log time does not run behind; a deadline of now is due with the next record.
        at_ns = max(now_ns, state.t_ns) + body.deadline_ns
    command = DrainNode(
        request_id=request_id, node_id=node_id, draining=body.draining, deadline_ns=at_ns
    )
    verdict = OperatorVerdict(
        request_id=request_id, status="accepted", node_id=node_id, deadline_ns=at_ns
    )
    if not _decided(decide_drain(state, command)):
        return Asked(verdict)

    def fulfils(event: Event) -> bool:
        ours = isinstance(event, NodeDrainChanged) and event.draining == body.draining
        same = ours and getattr(event, "deadline_ns", -1) == at_ns
        return same and state.fleet.row_of.get(node_id) == getattr(event, "row", -1)

    return Asked(verdict, command, fulfils)


def meta(state: State, row: int, body: MetaWish, request_id: str) -> Asked:
    """Change what an operator says of a node. Raises CommandInvalid."""
    fleet = state.fleet
    spec = fleet.specs[row]
    node_id = spec.node_id
    wanted = changed_meta(fleet.operator_meta.get(node_id, {}), body.change, spec.meta)
    verdict = OperatorVerdict(
        request_id=request_id,
        status="accepted",
        node_id=node_id,
        meta=laid_over(spec, wanted).meta,
        operator_meta=wanted,
    )
    command = SetNodeMeta(request_id=request_id, node_id=node_id, change=body.change)
    if not _decided(decide_meta(state, command)):
        return Asked(verdict)

    def fulfils(event: Event) -> bool:
        if not isinstance(event, NodeMetaChanged) or event.node_id != node_id:
            return False
        masks = {key for key, value in body.change.items() if value is None}
        said = all(event.meta.get(k) == v for k, v in body.change.items() if v is not None)
        return said and all(event.meta.get(key) is None for key in masks)

    return Asked(verdict, command, fulfils)


def stop(state: State, row: int, request_id: str) -> Asked:
    """End an allocation where it is. Raises CommandInvalid."""
    key = int(state.allocations.key[row])
    verdict = OperatorVerdict(
        request_id=request_id, status="accepted", alloc_id=shown_id(key, ALLOC_SALT)
    )
    command = StopAllocation(request_id=request_id, alloc_key=key)
    if not _decided(decide_stop(state, command)):
        return Asked(verdict)

    def fulfils(event: Event) -> bool:
        rows = event.rows if isinstance(event, AllocationsDisplaced) else ()
        return any(int(state.allocations.key[one]) == key for one in rows)

    return Asked(verdict, command, fulfils)


def _decided(events: list[Event]) -> list[Event]:
    """What would follow. Raises CommandInvalid with the refusal that would."""
    for event in events:
        if isinstance(event, OperatorRefused):
            raise CommandInvalid(event.code, event.reason)
    return events
