"""Projections of nodes as a test means them: allocations one by one, turned into columns."""

from collections.abc import Sequence
from typing import Any

from schemas.projections import DesiredExtra, GroupRef, NodeProjection
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.core.state.ids import alloc_id


def projected(allocs: Sequence[DesiredAlloc], **fields: Any) -> NodeProjection:
    """Make a projection of these allocations; who is replaced is among them, or has one of the small keys of tests."""
    key_of = {alloc_id(key): key for key in (*range(1, 100), *(one.key for one in allocs))}
    assert all(one.previous in key_of for one in allocs if one.previous)
    extras = tuple(
        DesiredExtra(
            at=at,
            ports=one.ports,
            instances=one.instances,
            variant=one.variant,
            previous=key_of.get(one.previous, 0),
            remote=one.remote,
        )
        for at, one in enumerate(allocs)
        if one.ports or one.instances or one.variant or one.previous or one.remote
    )
    return NodeProjection(
        groups=tuple(GroupRef(one.job_id, one.version, one.group) for one in allocs),
        keys=tuple(one.key for one in allocs),
        rows=tuple(one.row for one in allocs),
        groups_at=tuple(range(len(allocs))),
        indexes=tuple(one.index for one in allocs),
        stops=tuple(at for at, one in enumerate(allocs) if one.desired == "stop"),
        evicts=tuple(at for at, one in enumerate(allocs) if one.desired == "evict"),
        extras=extras,
        **fields,
    )
