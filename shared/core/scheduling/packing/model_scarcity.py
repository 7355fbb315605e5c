"""Model scarcity: which GPU models run short first, if asks with a choice are placed as well as possible.

Asks name the models they accept. Some name one, most accept any. Let demand
flow where there is room: the set of models with the most demand that can go nowhere else, for the
room it has left, is the scarcest; its price is that ratio. It is set aside with the demand it
catches, and the next is found among the rest. (These are the prices of a Fisher market between
models and asks.) An ask with a choice then pays least for models without other demand, and leaves
the T4 to asks that accept only a T4.

Models that no ask distinguishes are one group. All sets are enumerated, at most 2**GROUPS_MAX of
them: with more groups, the choices with the least demand count as free ones.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from shared.core.columns import Int64s

GROUPS_MAX: Final = 8
#: A price of 1: as scarce as all models taken together.
UNIT: Final = 1_024
#: Maximum price, also of a model without any room.
PRICE_MAX: Final = 16 * UNIT


class Scarcity:
    """Prices of models for one state of the demand, computed for the room left."""

    def __init__(self, demand: Mapping[int, int], models: int) -> None:
        """`demand`: set of models as bits -> GPUs asked for with it; `models`: their number."""
        everything = (1 << models) - 1
        choices: dict[int, int] = {}
        for bits, milli in demand.items():
            choices[bits & everything] = choices.get(bits & everything, 0) + milli
        choices.pop(0, None)
        wanted = sorted(choices, key=lambda bits: (-choices[bits], bits))
        signs = _signs(wanted, models)
        while len(set(signs)) > GROUPS_MAX:
            wanted.pop()
            signs = _signs(wanted, models)
        groups = sorted(set(signs))
        #: (models,) group of each model.
        self.group_of = np.array([groups.index(sign) for sign in signs], np.int64)
        self.groups = len(groups)
        self.total = sum(choices.values())
        #: (2**groups,) demand that accepts only this set of groups.
        self._within = self._closed(choices, wanted)
        self._sets = np.arange(1 << self.groups, dtype=np.int64)
        self._members = (self._sets[:, None] >> np.arange(self.groups)) & 1

    def prices(self, free_share: Int64s) -> Int64s:
        """Price the models, in 1 / UNIT. Shapes: free_share, result (models,)."""
        prices = np.full(len(self.group_of), UNIT, np.int64)
        room_all = int(free_share.sum())
        if self.groups < 2 or not self.total or not room_all:
            return prices
        # Sums of integers, exact in any order; bincount would count them in floats.
        room = np.zeros(self.groups, np.int64)
        np.add.at(room, self.group_of, free_share)
        room_of = self._members @ room
        by_group = np.empty(self.groups, np.int64)
        done, last = 0, (1 << self.groups) - 1
        while done != last:
            joined = self._sets | done
            demand = self._within[joined] - self._within[done]
            space = room_of[joined] - room_of[done]
            pressure = (demand << 24) // (space + 1)
            pressure[joined == done] = -1
            found = int(joined[int(np.argmax(pressure))])
            of_demand = int(self._within[found] - self._within[done]) * room_all
            of_room = int(room_of[found] - room_of[done]) * self.total
            price = min(of_demand * UNIT // of_room, PRICE_MAX) if of_room else PRICE_MAX
            for group in range(self.groups):
                if (found & ~done) >> group & 1:
                    by_group[group] = price
            done = found
        return by_group[self.group_of]

    def _closed(self, choices: Mapping[int, int], wanted: list[int]) -> Int64s:
        within = np.zeros(1 << self.groups, np.int64)
        sets = np.arange(1 << self.groups, dtype=np.int64)
        told_apart = set(wanted)
        for bits, milli in choices.items():
            needs = (1 << self.groups) - 1
            if bits in told_apart:
                members = [m for m in range(len(self.group_of)) if bits >> m & 1]
                needs = sum(1 << g for g in sorted({int(self.group_of[m]) for m in members}))
            within[sets & needs == needs] += milli
        return within


def _signs(wanted: list[int], models: int) -> list[tuple[int, ...]]:
    """List for each model the choices that accept it."""
    return [tuple(bits >> model & 1 for bits in wanted) for model in range(models)]
