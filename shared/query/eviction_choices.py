"""Why these victims: what they cost, and the other choices that a placement had, as the search compared them."""

from collections.abc import Sequence
from typing import TypedDict

from schemas.evaluation_answers import EvictionChoice
from shared.core.scheduling.explain.placement_probe import PlacementProbe
from shared.core.scheduling.preemption.search import ChosenNode
from shared.core.state.state import State

ALTERNATIVES_SHOWN = 3
_JOBS_SHOWN = 5
_KEYS = ("highest priority of a victim", "sum of priorities", "work lost")


class EvictionFields(TypedDict):
    """Fields of WhyAnswer."""

    eviction: EvictionChoice
    alternatives: tuple[EvictionChoice, ...]


def eviction_fields(
    state: State,
    looking: PlacementProbe,
    node: int,
    victims: Sequence[int],
    *,
    gone: Sequence[int] = (),
    placed: int = 1,
) -> EvictionFields:
    """Compare victims on a node with the alternatives. `gone`: what the plan evicted before; `placed`: on that node."""
    chosen, others = looking.other_evictions(node, victims, gone=gone, most=ALTERNATIVES_SHOWN)
    return EvictionFields(
        eviction=_choice(state, chosen),
        alternatives=tuple(_choice(state, one, _worse_by(one, chosen, placed)) for one in others),
    )


def _choice(state: State, one: ChosenNode, worse_by: str = "") -> EvictionChoice:
    table = state.allocations
    jobs = sorted({table.groups.job_ids[int(table.group[row])] for row in one.victims})
    highest, total, work = one.cost
    return EvictionChoice(
        node=state.fleet.ids[one.node],
        victims=len(one.victims),
        jobs=tuple(jobs[:_JOBS_SHOWN]),
        highest_priority=highest,
        priority_sum=total,
        work_lost=work,
        worse_by=worse_by,
    )


def _worse_by(one: ChosenNode, chosen: ChosenNode, placed: int) -> str:
    """Name the first key of the comparison in which an alternative was worse."""
    if one.cost < chosen.cost:
        if placed > 1:
            return f"room for one alone; the plan placed {placed} on the chosen node"
        return "cheaper by its victims; it was not among the sets that the search compared"
    for name, cost, least in zip(_KEYS, one.cost, chosen.cost, strict=True):
        if cost != least:
            return f"{name} {cost}, not {least}"
    return "equal cost" if one.node == chosen.node else "equal cost; ties go to the older node"
