"""Why pools, ports and cores have no room, in words.

Decides which of an ask's conditions are named: those that could never be met, else those that are short right now. Must
not know the three columns, nor other rules that close a node.
"""

from shared.core.columns import Int64s, Mask
from shared.core.resources.asks import WHOLE, ExtraAsks
from shared.core.resources.headroom import HeadroomQuery, cluster_pools, headroom_conditions
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import OfferedResources


def fits_when_empty(
    offers: OfferedResources, extras: ExtraAsks, cpu_mhz: int, mask: Mask, *, capacity: Int64s
) -> tuple[Mask, tuple[str, ...]]:
    """Which of some rows could take one allocation by any alternative, were nothing held; else why none could.

    Shapes: mask, result (N,); capacity (N, 3).
    """
    nothing = HeldResources()
    possible = mask & False
    reasons: list[str] = []
    for variant in range(len(extras.alternatives)):
        need = HeadroomQuery(extras, variant, mask, capacity[:, 0], cpu_mhz, 1)
        prefix = _prefix(extras, variant)
        fits, known = mask, len(reasons)
        for one in headroom_conditions(offers, nothing, need):
            if not (mask & (one.room > 0)).any():
                reasons.append(
                    prefix + _never_fits_reason(offers, one.name, one.verb, int(mask.sum()))
                )
            fits = fits & (one.room > 0)
        if not fits.any() and len(reasons) == known:
            reasons.append(f"{prefix}no feasible node has all of it, even empty")
        for countable in cluster_pools(offers, nothing, need.asks):
            if not countable.room:
                fits = fits & False
                has, takes = _units(countable.left), _units(countable.amount)
                reasons.append(f"{prefix}the cluster has {has} {countable.name}, one takes {takes}")
        possible |= fits
    return possible, tuple(dict.fromkeys(reasons))


def refused_when_empty(
    offers: OfferedResources, extras: ExtraAsks, cpu_mhz: int, mask: Mask, *, capacity: Int64s
) -> list[tuple[str, Mask]]:
    """Say why some rows could take no allocation, were nothing held: each by the first condition that refuses it.

    `mask` (N,): rows that no alternative fits, as `fits_when_empty` tells. "on so many nodes" continues a reason.
    """
    need = HeadroomQuery(extras, 0, mask, capacity[:, 0], cpu_mhz, 1)
    found: list[tuple[str, Mask]] = []
    for one in headroom_conditions(offers, HeldResources(), need):
        is_port = one.verb == "taken"
        if not is_port and len(extras.alternatives) > 1:
            # What the nodes have may be too little for each alternative in another way.
            break
        refused = mask & (one.room <= 0)
        if refused.any():
            found.append((_refused_reason(one.name, is_port=is_port), refused))
            mask = mask & ~refused
    if mask.any():
        found.append(("no alternative fits, even empty,", mask))
    return found


def _refused_reason(name: str, *, is_port: bool) -> str:
    return f"{name} is reserved" if is_port else f"too little of {name}, even empty,"


def current_shortages(
    offers: OfferedResources,
    held: HeldResources,
    extras: ExtraAsks,
    cpu_mhz: int,
    *,
    mask: Mask,
    free: Int64s,
) -> list[str]:
    """What is short on how many of some rows, alternative by alternative. Shapes: mask, free (N,), MHz."""
    nodes = int(mask.sum())
    found: list[str] = []
    for variant in range(len(extras.alternatives)):
        need = HeadroomQuery(extras, variant, mask, free, cpu_mhz, 1)
        prefix = _prefix(extras, variant)
        for one in headroom_conditions(offers, held, need):
            count = int((mask & (one.room <= 0)).sum())
            if count:
                found.append(f"{prefix}{one.name} {one.verb} on {count} of {nodes} nodes")
        for countable in cluster_pools(offers, held, need.asks):
            if not countable.room:
                there = _units(offers.cluster.get(countable.name, 0))
                left = _units(max(countable.left, 0))
                found.append(
                    f"{prefix}{countable.name} exhausted: {left} of {there} left in the cluster"
                )
    # What alternatives share is said once.
    return list(dict.fromkeys(found))


def _prefix(extras: ExtraAsks, variant: int) -> str:
    return f"alternative {variant + 1}: " if len(extras.alternatives) > 1 else ""


def _never_fits_reason(offers: OfferedResources, name: str, verb: str, nodes: int) -> str:
    if verb == "taken":
        return f"{name} is reserved on all {nodes} feasible nodes"
    # What is not a pool (the range of ports, cores' MHz) has a blank in its name.
    if " " in name or offers.is_offered(name):
        return f"no feasible node has enough of {name}, even empty"
    return f"no node offers {name}"


def _units(amount: int) -> str:
    whole, part = divmod(amount, WHOLE)
    return f"{whole}" if not part else f"{amount / WHOLE:g}"
