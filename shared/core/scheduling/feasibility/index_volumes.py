"""Volumes of single allocations: a request whose nodes depend on the index is split into one for each allocation.

An allocation with `per_alloc` runs where the volume `source[index]` is. Each part of a request has the rule of its
index as a constraint of its group, so that masks, evictions and explanations need to know nothing of volumes.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.jobs import Constraint, GroupSpec
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.state.state import State

#: Name of the attribute that a node has for each of its volumes: `rw` or `ro`.
VOLUME = "attr.volume."


def split_by_index(
    state: State, requests: Sequence[PlacementRequest]
) -> tuple[PlacementRequest, ...]:
    """Split the requests of groups whose nodes depend on the index; the order stays."""
    if not any(one.group.volumes for one in requests):
        return tuple(requests)
    found: list[PlacementRequest] = []
    for request in requests:
        if request.group.volumes and request.per_node is None:
            found += [_part(state, request, at) for at in range(request.count)]
        else:
            found.append(request)
    return tuple(found)


def index_constraints(group: GroupSpec, index: int) -> tuple[Constraint, ...]:
    """Say what the node of an allocation must have by the index alone."""
    return tuple(
        Constraint(
            left=f"${{{VOLUME}{one.source}[{index}]}}",
            operator="is_set" if one.read_only else "=",
            right="" if one.read_only else "rw",
        )
        for one in group.volumes
        if one.per_alloc
    )


def _part(state: State, request: PlacementRequest, at: int) -> PlacementRequest:
    """The request of one allocation."""
    here = slice(at, at + 1)
    first_tied = request.count - len(request.tied)
    tied = slice(at - first_tied, at - first_tied + 1) if at >= first_tied else slice(0)
    previous = None if request.previous is None else request.previous[here]
    origins = request.origins[:0]
    if previous is not None and len(request.origins):
        origins = request.origins[np.isin(state.allocations.key[request.origins], previous)]
    group = request.group
    rules = index_constraints(group, int(request.names[at]))
    return msgspec.structs.replace(
        request,
        group=msgspec.structs.replace(group, constraints=(*group.constraints, *rules)),
        count=1,
        names=request.names[here],
        previous=previous,
        reschedules=None if request.reschedules is None else request.reschedules[here],
        avoid=None if request.avoid is None else request.avoid[here],
        evicted=None if request.evicted is None else request.evicted[here],
        origins=origins,
        tied=request.tied[tied],
        tied_reasons=request.tied_reasons[tied],
    )
