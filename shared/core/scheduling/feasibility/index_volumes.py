"""Volumes of single allocations: a request whose nodes depend on the index is split into one for each allocation.

An allocation with `per_alloc` runs where the volume `source[index]` is, one with `sticky` where its index has a claim.
Each part of a request has the rule of its index as a constraint of its group, so that masks and evictions need to know
nothing of volumes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from schemas.base import JobId, NodeId
from schemas.jobs import Constraint, GroupSpec, VolumeAsk
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.state.state import State

#: Name of the attribute that a node has for each of its volumes: `rw` or `ro`.
VOLUME = "attr.volume."
_NODE = "${node.unique.id}"


class NewClaim(NamedTuple):
    """A claim that a plan makes: of which index, and on the volume of which node."""

    group: str
    number: int
    volume: VolumeAsk
    node_id: NodeId


def split_by_index(
    state: State, job_id: JobId, requests: Sequence[PlacementRequest]
) -> tuple[PlacementRequest, ...]:
    """Split the requests of groups whose nodes depend on the index; the order stays."""
    found: list[PlacementRequest] = []
    for request in requests:
        if request.group.volumes and request.per_node is None:
            found += [_part(state, job_id, request, at) for at in range(request.count)]
        else:
            found.append(request)
    return tuple(found)


def index_constraints(
    state: State, job_id: JobId, group: GroupSpec, index: int
) -> tuple[Constraint, ...]:
    """Say what the node of an allocation must have by the index alone."""
    found: list[Constraint] = []
    key = (job_id, group.name, index)
    for one in group.volumes:
        if one.per_alloc:
            operator, right = ("is_set", "") if one.read_only else ("=", "rw")
            left = f"${{{VOLUME}{one.source}[{index}]}}"
            found.append(Constraint(left=left, operator=operator, right=right))
        elif claim := state.claims.of_index(*key).get(one.source):
            found.append(Constraint(left=_NODE, operator="=", right=claim.node_id))
        else:
            closed = state.claims.closed_nodes(key, one.source, is_exclusive=one.is_exclusive)
            found += [Constraint(left=_NODE, operator="!=", right=node_id) for node_id in closed]
    return tuple(dict.fromkeys(found))


def apart_from_plan(
    state: State, job_id: JobId, request: PlacementRequest, claimed: Sequence[NewClaim]
) -> PlacementRequest:
    """Keep a request off the volumes that others of its plan just claimed, where one is to be alone."""
    if not claimed or request.count != 1:
        return request
    group, index = request.group, int(request.names[0])
    held = state.claims.of_index(job_id, group.name, index)
    rules = [
        Constraint(left=_NODE, operator="!=", right=other.node_id)
        for one in group.volumes
        for other in claimed
        if one.sticky
        and one.source == other.volume.source
        and one.source not in held
        and (other.group, other.number) != (group.name, index)
        and (one.is_exclusive or other.volume.is_exclusive)
    ]
    if not rules:
        return request
    constraints = tuple(dict.fromkeys((*group.constraints, *rules)))
    return msgspec.structs.replace(
        request, group=msgspec.structs.replace(group, constraints=constraints)
    )


def new_claims(request: PlacementRequest, nodes: Sequence[NodeId]) -> list[NewClaim]:
    """The claims of the allocation of a request that was placed on `nodes`: one, or none where it found no room."""
    group = request.group
    return [
        NewClaim(group.name, int(request.names[0]), volume, node_id)
        for node_id in nodes
        for volume in group.volumes
        if volume.sticky
    ]


def claim_reasons(state: State, job_id: JobId, request: PlacementRequest) -> tuple[str, ...]:
    """Say where the claims of a request's allocation lie."""
    return tuple(
        f"{request.group.name}[{index}] has its volume {one.source} on node {claim.node_id}"
        for index in request.names.tolist()
        for one in request.group.volumes
        if (claim := state.claims.of_index(job_id, request.group.name, index).get(one.source))
    )


def _part(state: State, job_id: JobId, request: PlacementRequest, at: int) -> PlacementRequest:
    """The request of one allocation."""
    here = slice(at, at + 1)
    first_tied = request.count - len(request.tied)
    tied = slice(at - first_tied, at - first_tied + 1) if at >= first_tied else slice(0)
    previous = None if request.previous is None else request.previous[here]
    origins = request.origins[:0]
    if previous is not None and len(request.origins):
        origins = request.origins[np.isin(state.allocations.key[request.origins], previous)]
    group = request.group
    rules = index_constraints(state, job_id, group, int(request.names[at]))
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
