"""Spread quotas: what each target of a spread block gets of a count, exactly, before scores decide about the rest.

Nomad's boost of a value fades to 0 as the value comes near its target, and anti-affinity and fit outweigh it: 70 and 30
percent of 10 on two nodes end as 6 and 4. So the count is apportioned to the targets, and a value that has its share
is closed. What finds no room that way is placed without the quotas of the block of the least weight, in the end without
any: then scores decide alone. Scores themselves are Nomad's all the time.
"""

import msgspec
import numpy as np

from schemas.jobs import GroupSpec
from shared.core.columns import Int64s
from shared.core.scheduling.selection.candidates import (
    EMPTY,
    Demand,
    NodeColumns,
    Placement,
    join_placements,
    with_placement,
)
from shared.core.scheduling.selection.coupling import Coupling, TargetSpread
from shared.core.scheduling.selection.greedy import SelectionOptions, select_nodes


def has_quotas(group: GroupSpec) -> bool:
    """Tell whether a group has targets, and no affinities that speak for other nodes."""
    return any(one.targets for one in group.spreads) and not group.affinities


def place_by_quotas(
    demand: Demand, nodes: NodeColumns, count: int, how: SelectionOptions
) -> Placement:
    """Place up to `count` as `select_nodes` does, by the quotas of all blocks with targets as far as possible."""
    coupling, steps = how.coupling, how.steps
    assert coupling is not None
    targets = _by_weight(coupling)
    parts: list[Placement] = []
    left = count
    for kept in range(len(targets), -1, -1):
        stage = with_quotas(coupling, targets[:kept])
        options = msgspec.structs.replace(how, coupling=stage, steps=max(steps, 1))
        part = select_nodes(demand, nodes, left, options)
        steps -= part.steps
        left -= part.placed
        if part.placed:
            parts.append(part)
        if not left or part.stopped:
            break
        if parts and steps <= 0:
            return msgspec.structs.replace(join_placements(parts), stopped=True)
        if part.placed:
            nodes = with_placement(demand, nodes, part)
            coupling = coupling.after(part.rows, part.counts)
    return join_placements(parts) if parts else EMPTY


def with_quotas(coupling: Coupling, targets: list[int]) -> Coupling:
    """Return the coupling in which these blocks close values that have their share."""
    blocks = list(coupling.blocks)
    for at in targets:
        block = blocks[at]
        assert isinstance(block, TargetSpread)
        quotas = apportion(block.percent_counts, block.counts)
        blocks[at] = msgspec.structs.replace(block, quotas=quotas)
    return Coupling(tuple(blocks))


def apportion(percent_counts: Int64s, counts: Int64s) -> Int64s:
    """Apportion a count by largest remainders. Shapes: (V,).

    `percent_counts`: percent of each value times the count. Among equal remainders a value goes first that has the
    additional one already, then the order of the targets.
    """
    quotas = percent_counts // 100
    left = int(percent_counts.sum()) // 100 - int(quotas.sum())
    order = np.lexsort((np.arange(len(quotas)), counts <= quotas, -(percent_counts % 100)))
    quotas[order[:left]] += 1
    return quotas


def _by_weight(coupling: Coupling) -> list[int]:
    """Positions of the blocks with targets, the heaviest first; of equal weight the first."""
    weights = {
        at: one.weight for at, one in enumerate(coupling.blocks) if isinstance(one, TargetSpread)
    }
    return sorted(weights, key=lambda at: -weights[at])
