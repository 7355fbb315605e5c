"""What nodes should do about remote tasks: by allocation and by node, as the projections say it.

An order is made of the table of slots alone (`shared/core/state/tables/remotes.py`), and repeated in each projection of
the node until the log shows that it was done.
"""

from collections.abc import Iterable, Mapping

from schemas.remotes import RemoteEnding, RemoteWanted
from shared.core.state.state import State


def remotes_wanted(state: State, keys: Iterable[int]) -> Mapping[int, RemoteWanted]:
    """Return by key what these allocations are to know of slots that they took over, or that end with them."""
    table = state.remotes
    found: dict[int, RemoteWanted] = {}
    for key in keys if table.tracked else ():
        generation = table.tracked.get(key)
        if generation is None:
            continue
        row = table.by_key[generation]
        ends = row.status == "ending"
        if generation != key or ends:
            found[key] = RemoteWanted(generation=generation, tasks=row.handed, ends=ends)
    return found


def remote_endings(state: State) -> Mapping[str, tuple[RemoteEnding, ...]]:
    """Return by node id the slots that nodes are to end without an allocation, by generation."""
    found: dict[str, list[RemoteEnding]] = {}
    for generation in sorted(state.remotes.endings):
        row = state.remotes.by_key[generation]
        order = RemoteEnding(
            generation=generation,
            epoch=row.epoch,
            job_id=row.job_id,
            group=row.group,
            index=row.index,
            tasks=row.live_tasks(),
        )
        found.setdefault(row.node_id, []).append(order)
    return {node_id: tuple(orders) for node_id, orders in found.items()}
