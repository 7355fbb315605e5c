"""Plan parts: splits a proposal into parts that fit a transaction.

Split between groups, and inside a group that is too large by itself between allocations, a stop always beside its
replacement; the end of the evaluation comes last. An all-at-once plan is never split. Almost every plan is one part,
which a count of its numbers shows.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import JobId
from schemas.envelope import ENCODER
from schemas.plans import Evictions, GroupPlacement, InPlace, Stops
from shared.core.scheduling.model import Proposal
from shared.core.scheduling.placement_columns import subset_placement
from shared.core.state.state import State

#: Maximum encoded size of a part; leaves a few per cent for the envelope.
PART_BYTES_MAX = 400_000
#: Maximum size of a transaction.
WHOLE_BYTES_MAX = 480_000
#: Upper bounds of the size of a row of a stop or update, and of an allocation with its predecessor and its stop.
_ROW_BYTES_MAX = 10
_PLACED_BYTES_MAX = 64
#: A port, or a slot.
_EXTRA_BYTES_MAX = 6
#: Upper bound of what a victim adds besides itself: an evaluation of its job.
_EVALUATION_BYTES_MAX = 330
#: Any number with its comma, and the names and texts of one placement, stop or update.
_NUMBER_BYTES_MAX = 20
_FIELDS_BYTES_MAX = 1_500


class TooLargeError(Exception):
    """An all-at-once proposal is larger than any transaction."""


class PlanPiece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Items that must stay in one part."""

    stops: tuple[Stops, ...] = ()
    updates: tuple[InPlace, ...] = ()
    #: sent with the first placement on their node.
    evictions: tuple[Evictions, ...] = ()
    placements: tuple[GroupPlacement, ...] = ()

    @property
    def bytes(self) -> int:
        """Encoded size, including what the applier adds for its victims."""
        return len(ENCODER.encode(self)) + _EVALUATION_BYTES_MAX * len(self.evictions)


def split_proposal(
    proposal: Proposal, state: State, bytes_max: int = PART_BYTES_MAX
) -> list[Proposal]:
    """Return the parts of a proposal in order. Raises TooLargeError."""
    if _is_small(proposal, bytes_max):
        return [proposal]
    whole = len(ENCODER.encode(proposal)) + _EVALUATION_BYTES_MAX * len(proposal.evictions)
    if whole <= bytes_max:
        return [proposal]
    if proposal.all_at_once:
        if whole > WHOLE_BYTES_MAX:
            raise TooLargeError(
                f"{whole} bytes in a plan that cannot be split, at most {WHOLE_BYTES_MAX}"
            )
        return [proposal]
    pieces = [
        small
        for piece in _by_group(proposal, state)
        for small in _split_group(piece, state, bytes_max)
    ]
    pieces = _with_victims(pieces, proposal.evictions, state)
    tail = msgspec.structs.replace(proposal, stops=(), updates=(), placements=(), evictions=())
    parts: list[PlanPiece] = []
    sizes: list[int] = []
    for piece in pieces:
        size = piece.bytes
        if parts and sizes[-1] + size <= bytes_max:
            parts[-1], sizes[-1] = _joined((parts[-1], piece)), sizes[-1] + size
        else:
            parts.append(piece)
            sizes.append(size)
    if not parts or sizes[-1] + len(ENCODER.encode(tail)) > bytes_max:
        parts.append(PlanPiece())
    open_ended = Proposal(end="")
    return [
        msgspec.structs.replace(
            tail if part is parts[-1] else open_ended,
            stops=part.stops,
            updates=part.updates,
            placements=part.placements,
            evictions=part.evictions,
        )
        for part in parts
    ]


def _is_small(proposal: Proposal, bytes_max: int) -> bool:
    """Tell by a count of its numbers that a proposal is far below the bound, without encoding it."""
    if proposal.follow_ups or proposal.evictions or proposal.decision is not msgspec.UNSET:
        return False
    if len(proposal.placements) == 1 and not (proposal.stops or proposal.updates):
        only = proposal.placements[0]
        if len(only.rows) == 1 == only.counts[0]:
            # One allocation: most jobs of a burst. Its ports and instances follow from its group.
            few = len(only.ports) + len(only.instances) + 5
            return few * _NUMBER_BYTES_MAX + 2 * _FIELDS_BYTES_MAX <= bytes_max
    numbers = sum(
        len(one.rows)
        + len(one.counts)
        + len(one.names)
        + len(one.previous)
        + len(one.reschedules)
        + len(one.ports)
        + len(one.instances)
        for one in proposal.placements
    )
    numbers += sum(len(stop.rows) for stop in proposal.stops)
    numbers += sum(len(update.rows) for update in proposal.updates)
    fields = len(proposal.placements) + len(proposal.stops) + len(proposal.updates)
    return numbers * _NUMBER_BYTES_MAX + (fields + 1) * _FIELDS_BYTES_MAX <= bytes_max


def _by_group(proposal: Proposal, state: State) -> list[PlanPiece]:
    """Group a proposal's stops, updates and placements by task group, sorted by name."""
    names, refs = state.allocations.groups.names, state.allocations.group
    by_name: dict[str, list[PlanPiece]] = {}
    for stop in proposal.stops:
        rows: dict[str, list[int]] = {}
        for row in stop.rows:
            rows.setdefault(names[refs[row]], []).append(row)
        for name, some in rows.items():
            part = msgspec.structs.replace(stop, rows=tuple(some))
            by_name.setdefault(name, []).append(PlanPiece(stops=(part,)))
    for update in proposal.updates:
        by_name.setdefault(update.group, []).append(PlanPiece(updates=(update,)))
    for placement in proposal.placements:
        by_name.setdefault(placement.group, []).append(PlanPiece(placements=(placement,)))
    return [_joined(by_name[name]) for name in sorted(by_name)]


def _joined(pieces: Iterable[PlanPiece]) -> PlanPiece:
    some = list(pieces)
    return PlanPiece(
        stops=tuple(stop for piece in some for stop in piece.stops),
        updates=tuple(update for piece in some for update in piece.updates),
        evictions=tuple(one for piece in some for one in piece.evictions),
        placements=tuple(placement for piece in some for placement in piece.placements),
    )


def _with_victims(
    pieces: list[PlanPiece], evictions: tuple[Evictions, ...], state: State
) -> list[PlanPiece]:
    """Put every victim beside the first placement on its node: no earlier one needs its room."""
    if not evictions:
        return pieces
    first: dict[int, int] = {}
    for at, piece in enumerate(pieces):
        for placement in piece.placements:
            for node in placement.rows:
                first.setdefault(node, at)
    nodes = state.allocations.node
    victims: dict[int, dict[JobId, list[int]]] = {}
    for one in evictions:
        for row in one.rows:
            victims.setdefault(first[int(nodes[row])], {}).setdefault(one.job_id, []).append(row)
    out = list(pieces)
    for at, by_job in victims.items():
        some = tuple(Evictions(job_id=job, rows=tuple(rows)) for job, rows in by_job.items())
        out[at] = msgspec.structs.replace(out[at], evictions=some)
    return out


def _split_group(piece: PlanPiece, state: State, bytes_max: int) -> list[PlanPiece]:
    """Split one group: stops and updates without replacement by rows, the rest by allocations placed."""
    if piece.bytes <= bytes_max:
        return [piece]
    rows_max = max(bytes_max // _ROW_BYTES_MAX, 1)
    keys = state.allocations.key
    previous = [key for placement in piece.placements for key in placement.previous]
    slices = [
        PlanPiece(updates=(msgspec.structs.replace(update, rows=rows),))
        for update in piece.updates
        for rows in _chunks(update.rows, rows_max)
    ]
    for stop in piece.stops:
        free = _rows_with(stop, keys, previous, replaced=False)
        slices += [
            PlanPiece(stops=(msgspec.structs.replace(stop, rows=rows),))
            for rows in _chunks(free, rows_max)
        ]
    for placement in piece.placements:
        count = sum(placement.counts)
        numbers = (len(placement.ports) + len(placement.instances)) // max(count, 1)
        placed_max = max(bytes_max // (_PLACED_BYTES_MAX + numbers * _EXTRA_BYTES_MAX), 1)
        for start in range(0, count, placed_max):
            part = _between(placement, start, start + placed_max)
            beside = [
                msgspec.structs.replace(stop, rows=rows)
                for stop in piece.stops
                if (rows := _rows_with(stop, keys, part.previous, replaced=True))
            ]
            slices.append(PlanPiece(stops=tuple(beside), placements=(part,)))
    return slices


def _chunks(rows: tuple[int, ...], size: int) -> Iterable[tuple[int, ...]]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def _rows_with(
    stop: Stops, keys: NDArray[np.int64], previous: Sequence[int], *, replaced: bool
) -> tuple[int, ...]:
    """Rows of a stop whose allocation is, or is not, among those replaced."""
    rows = np.asarray(stop.rows, dtype=np.int64)
    among = np.isin(keys[rows], np.asarray(previous, dtype=np.int64))
    return tuple(rows[among == replaced].tolist())


def _between(placement: GroupPlacement, start: int, end: int) -> GroupPlacement:
    """Take the allocations [start, end) of a placement, in its order."""
    at = np.arange(sum(placement.counts))
    return subset_placement(placement, (at >= start) & (at < end))
