"""Victim sets: the cheapest set of allocations on one node that releases enough.

Exact branch and bound, started from two greedy sets whose superfluous victims were dropped in reverse; when its steps
run out, the best set so far is returned.

Sets are compared by highest priority, sum of priorities, work lost (how many log positions ago each was placed,
summed). Raising the first key never helps the others, so the highest priority is found first, alone.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import sub

import msgspec

ResourceAmounts = tuple[int, ...]
#: highest priority, sum of priorities, work lost.
VictimCost = tuple[int, int, int]


class VictimCandidate(msgspec.Struct, frozen=True):
    """A candidate. `release`: the amounts it frees; `kind`: equal ones are interchangeable."""

    row: int
    priority: int
    work: int
    release: ResourceAmounts
    kind: object = None


def cost_of(items: Sequence[VictimCandidate], picked: Sequence[int]) -> VictimCost:
    """The cost of a set of victims."""
    priorities = [items[i].priority for i in picked]
    return max(priorities), sum(priorities), sum(items[i].work for i in picked)


def cheapest_set(
    need: Sequence[int],
    items: Sequence[VictimCandidate],
    enough: Callable[[Sequence[int]], bool] | None,
    steps: int,
) -> tuple[list[int] | None, int]:
    """Choose indexes of `items` that release `need` at the least cost; None: not even all of them do.

    `items` are ordered by priority, then work. `enough` checks what amounts do not show; more victims never make it
    false. Returns the set, ascending, and the steps taken; the set is exact unless the steps reach `steps`.
    """
    everyone = _within(need, items, enough)
    if everyone is None:
        return None, 1
    items = items[:everyone]
    best = min(
        (_greedy(need, items, enough, order) for order in _orders(need, items)),
        key=lambda picked: cost_of(items, picked),
    )
    return _search(need, items, enough, best, steps=steps)


def _within(
    need: Sequence[int],
    items: Sequence[VictimCandidate],
    enough: Callable[[Sequence[int]], bool] | None,
) -> int | None:
    """How many items have at most the highest priority that a set needs: the first exact key."""
    left = list(need)
    ends = [i for i in range(1, len(items)) if items[i].priority != items[i - 1].priority]
    begin = 0
    for end in [*ends, len(items)]:
        for item in items[begin:end]:
            left = [have - less for have, less in zip(left, item.release, strict=True)]
        begin = end
        if max(left, default=0) <= 0 and end and (enough is None or enough(range(end))):
            return end
    return None


def _orders(need: Sequence[int], items: Sequence[VictimCandidate]) -> Iterator[list[int]]:
    """Orders for the greedy choice: as given, and most useful for their priority first."""
    yield list(range(len(items)))

    def useful(i: int) -> tuple[int, int]:
        item = items[i]
        shares = [
            min(release, want) * 1_000 // want
            for release, want in zip(item.release, need, strict=True)
            if want
        ]
        return -(sum(shares) * 1_000 // max(item.priority, 1)), i

    yield sorted(range(len(items)), key=useful)


def _greedy(
    need: Sequence[int],
    items: Sequence[VictimCandidate],
    enough: Callable[[Sequence[int]], bool] | None,
    order: Sequence[int],
) -> list[int]:
    """Take items in this order until they suffice, then drop superfluous ones, most expensive first."""
    left = list(need)
    picked: list[int] = []
    for i in order:
        picked.append(i)
        left = [have - less for have, less in zip(left, items[i].release, strict=True)]
        if max(left, default=0) <= 0 and (enough is None or enough(picked)):
            break
    for i in sorted(picked, key=lambda i: (-items[i].priority, -items[i].work, -i)):
        back = [have + more for have, more in zip(left, items[i].release, strict=True)]
        rest = [one for one in picked if one != i]
        if rest and max(back, default=0) <= 0 and (enough is None or enough(rest)):
            picked, left = rest, back
    return sorted(picked)


class _Bounds(msgspec.Struct, frozen=True):
    """Upper bounds of what the items from `i` on release, and lower bounds of their cost. Index: `i`."""

    sums: list[list[int]]
    most: list[list[int]]
    least_work: list[int]
    #: first item after `i` that is not interchangeable with it.
    other: list[int]


def _bounds_of(items: Sequence[VictimCandidate]) -> _Bounds:
    width = len(items[0].release)
    sums, most, least = [[0] * width], [[0] * width], [0]
    other = [len(items)]
    for i in reversed(range(len(items))):
        item = items[i]
        sums.append([a + b for a, b in zip(sums[-1], item.release, strict=True)])
        most.append([max(a, b) for a, b in zip(most[-1], item.release, strict=True)])
        least.append(item.work if i == len(items) - 1 else min(least[-1], item.work))
        after = items[i + 1] if i + 1 < len(items) else None
        same = after is not None and (
            (after.priority, after.release, after.kind) == (item.priority, item.release, item.kind)
        )
        other.append(other[-1] if same else i + 1)
    return _Bounds(sums[::-1], most[::-1], least[::-1], other[::-1])


def _search(
    need: Sequence[int],
    items: Sequence[VictimCandidate],
    enough: Callable[[Sequence[int]], bool] | None,
    best: list[int],
    *,
    steps: int,
) -> tuple[list[int], int]:
    """Improve on `best` by branch and bound. Interchangeable items are taken youngest first."""
    bounds = _bounds_of(items)
    _, *cost = cost_of(items, best)
    cheapest = tuple(cost)
    stack: list[tuple[int, Sequence[int], int, int, tuple[int, ...]]] = [(0, need, 0, 0, ())]
    taken = 0
    while stack and taken < steps:
        i, left, total, work, picked = stack.pop()
        taken += 1
        if picked and max(left) <= 0 and (enough is None or enough(picked)):
            if (total, work) < cheapest:
                cheapest, best = (total, work), list(picked)
            continue
        if i == len(items):
            continue
        times = 1
        for want, in_all, in_one in zip(left, bounds.sums[i], bounds.most[i], strict=True):
            if want > in_all:
                times = 0
                break
            if want > times * in_one:
                times = -(-want // in_one)
        if not times:
            continue
        item = items[i]
        least = (total + times * item.priority, work + times * bounds.least_work[i])
        if least >= cheapest:
            continue
        stack.append((bounds.other[i], left, total, work, picked))
        rest = tuple(map(sub, left, item.release))
        stack.append((i + 1, rest, total + item.priority, work + item.work, (*picked, i)))
    return best, taken
