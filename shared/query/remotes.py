"""What nodes should do about remote tasks: by allocation and by node, as the projections say it."""

from collections.abc import Mapping

from schemas.remotes import RemoteEnding, RemoteWanted
from shared.core.state.state import State


def remotes_wanted(state: State) -> Mapping[int, RemoteWanted]:
    """Return by key what allocations are to know of the slots that they took over, or that end with them."""
    table = state.remotes
    found: dict[int, RemoteWanted] = {}
    for key, generation in table.tracked.items():
        row = table.by_key[generation]
        ends = row.status == "ending"
        if generation != key or ends:
            found[key] = RemoteWanted(generation=generation, tasks=row.handed, ends=ends)
    return found


def remote_endings(state: State) -> Mapping[str, tuple[RemoteEnding, ...]]:
    """Return by node id the slots that nodes are to end without an allocation."""
    found: dict[str, tuple[RemoteEnding, ...]] = {}
    for generation, row in sorted(state.remotes.by_key.items()):
        if row.status != "ending" or not row.node_id:
            continue
        order = RemoteEnding(
            generation=generation,
            epoch=row.epoch,
            job_id=row.job_id,
            group=row.group,
            index=row.index,
            tasks=row.live_tasks(),
        )
        found[row.node_id] = (*found.get(row.node_id, ()), order)
    return found
