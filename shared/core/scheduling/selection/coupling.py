"""Coupling: spread blocks and distinct properties, which make nodes depend on each other, as counts by attribute value.

Keeps the boost that each value of a spread attribute gives, and the values that a distinct property leaves open, up to
date with every placement. greedy_coupled.py takes rows value by value.

A value is a code of the attribute's column; code 0 means that a node lacks it: it scores -1 in every spread block, and
is closed to every distinct property. Counts are of the group's allocations that stay; for a distinct property of the
job, of all its groups. Formulas: scores.py, whose scalar twins the property tests compare.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Codes, Int64s
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.scoring.scores import BOOST_MAX, even_boost, target_boost

#: A value whose count exceeds the minimum by this factor may have an unbounded boost.
_FAR: Final = BOOST_MAX // SCALE
#: Up to this many values each boost is computed; above, once for each distinct count.
_VALUES_FEW: Final = 6
#: If several blocks have more combinations than this, rows are scored in passes over all rows.
_COMBINATIONS_MAX: Final = 256
#: Up to this many possible combinations are numbered by a table; above, by sorting.
_TABLE_MAX: Final = 1 << 16


#: Boost of a row that a distinct property closes; remains below all scores when summed and divided.
CLOSED: Final = -(1 << 58)
#: Below every open boost and sum.
CLOSED_BELOW: Final = -(1 << 54)


class EvenSpread(msgspec.Struct, frozen=True, eq=False):
    """A spread block without targets: all values in use count equally. Shapes: codes (N,), counts (V,)."""

    codes: Codes
    counts: Int64s


class TargetSpread(msgspec.Struct, frozen=True, eq=False):
    """A spread block with targets. Shapes: codes (N,), counts, percent_counts (V,).

    `percent_counts`: percent times the group's count, 0 where none are desired.
    """

    codes: Codes
    counts: Int64s
    percent_counts: Int64s
    weight: int
    weights: int
    #: (V,) values that have as many are closed; None: none are.
    quotas: Int64s | None = None


class DistinctValues(msgspec.Struct, frozen=True, eq=False):
    """At most `most` allocations on nodes that share a value. Shapes: codes (N,), counts (V,)."""

    codes: Codes
    counts: Int64s
    most: int


Block = EvenSpread | TargetSpread | DistinctValues


class Coupling(msgspec.Struct, frozen=True, eq=False):
    """All blocks of one group."""

    blocks: tuple[Block, ...]

    def begin(self) -> "Tally":
        """Return mutable counters."""
        return Tally(self)

    def after(self, rows: NDArray[np.int32], counts: NDArray[np.int32]) -> "Coupling":
        """Return the blocks once `counts` more are placed on `rows`."""
        blocks = []
        for block in self.blocks:
            held = block.counts.copy()
            np.add.at(held, block.codes.take(rows), counts)
            blocks.append(msgspec.structs.replace(block, counts=held))
        return Coupling(tuple(blocks))


class BlockCounter(Protocol):
    """Counters of one block: counts as a plain list, boosts kept up to date."""

    #: boost of each value; None: closed.
    boosts: list[int | None]

    def take(self, code: int) -> bool:
        """Count one more on a value. Returns True if boosts of other values changed too."""
        ...


class _EvenCounter:
    def __init__(self, block: EvenSpread) -> None:
        self._counts: list[int] = block.counts.tolist()
        self._counts[0] = 0
        #: number of values that have this many allocations.
        self._having: dict[int, int] = {}
        for count in self._counts:
            if count:
                self._having[count] = self._having.get(count, 0) + 1
        self._least = min(self._having, default=0)
        self._most = max(self._having, default=0)
        self.boosts: list[int | None] = []
        self._refresh()

    def take(self, code: int) -> bool:
        if not code:
            return False
        having = self._having
        old = self._counts[code]
        self._counts[code] = new = old + 1
        having[new] = having.get(new, 0) + 1
        least, most = self._least, max(self._most, new)
        if old:
            having[old] -= 1
            if not having[old]:
                del having[old]
                if old == least:
                    least = new
        else:
            least = 1
        if least != self._least or most != self._most:
            self._least, self._most = least, most
            self._refresh()
            return True
        self.boosts[code] = (
            max((least - new) * SCALE // least, -BOOST_MAX)
            if new != least
            else even_boost(new, (least, most))
        )
        return False

    def _refresh(self) -> None:
        """Recompute the boost of each value with `even_boost`, once for each distinct count."""
        least, most = self._least, self._most
        if not most:
            self.boosts = [0] * len(self._counts)
        elif most == least + 1 and sum(self._having.values()) == len(self._counts) - 1:
            # Nearly even, and every value in use: the usual case.
            ahead, behind = -SCALE // least, SCALE // least
            self.boosts = [behind if count == least else ahead for count in self._counts]
        elif len(self._counts) <= _VALUES_FEW and most <= _FAR * least:
            at_least = -SCALE if least == most else (most - least) * SCALE // least
            self.boosts = [
                at_least if count == least else (least - count) * SCALE // least
                for count in self._counts
            ]
        else:
            boost_of = {count: (least - count) * SCALE // least for count in self._having}
            if most > _FAR * least:
                boost_of = {count: max(boost, -BOOST_MAX) for count, boost in boost_of.items()}
            boost_of[least] = even_boost(least, (least, most))
            boost_of[0] = SCALE
            self.boosts = [boost_of[count] for count in self._counts]
        self.boosts[0] = -SCALE


class _TargetCounter:
    def __init__(self, block: TargetSpread) -> None:
        self._counts: list[int] = block.counts.tolist()
        self._desired: list[int] = block.percent_counts.tolist()
        self._weight, self._weights = block.weight, block.weights
        self._quotas: list[int] | None = None if block.quotas is None else block.quotas.tolist()
        self.boosts: list[int | None] = [self._boost(code) for code in range(len(self._counts))]
        self.boosts[0] = -SCALE if self._quotas is None else None

    def take(self, code: int) -> bool:
        if code:
            self._counts[code] += 1
            self.boosts[code] = self._boost(code)
        return False

    def _boost(self, code: int) -> int | None:
        if self._quotas is not None and self._counts[code] >= self._quotas[code]:
            return None
        return target_boost(self._counts[code], self._desired[code], self._weight, self._weights)


class _DistinctCounter:
    def __init__(self, block: DistinctValues) -> None:
        self._counts: list[int] = block.counts.tolist()
        self._most = block.most
        self.boosts: list[int | None] = [
            0 if count < self._most else None for count in self._counts
        ]
        self.boosts[0] = None

    def take(self, code: int) -> bool:
        self._counts[code] += 1
        if self._counts[code] >= self._most:
            self.boosts[code] = None
        return False


def _counter_of(block: Block) -> BlockCounter:
    match block:
        case EvenSpread():
            return _EvenCounter(block)
        case TargetSpread():
            return _TargetCounter(block)
        case DistinctValues():
            return _DistinctCounter(block)


class Tally:
    """Counters of all blocks, and combinations of values: nodes of one combination always have the same boost.

    Combinations are numbered over the rows given to `combine`.
    """

    def __init__(self, coupling: Coupling) -> None:
        self._blocks = coupling.blocks
        self._rules = [_counter_of(block) for block in coupling.blocks]
        #: block -> combination -> code.
        self._codes: list[list[int]] = []
        #: block -> code -> combinations.
        self._having: list[dict[int, list[int]]] = []
        #: combination -> boost, the sum over all blocks; None: closed.
        self.boosts: list[int | None] = []

    def combine(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Number the combinations of values on these rows. Shapes: rows, result (H,)."""
        columns = [block.codes.take(rows) for block in self._blocks]
        joint: NDArray[np.integer] = columns[0]
        size = len(self._blocks[0].counts)
        for block, column in zip(self._blocks[1:], columns[1:], strict=True):
            if size * len(block.counts) > _TABLE_MAX:
                # Renumber, so that numbers stay small with many blocks.
                distinct, numbers = np.unique(joint, return_inverse=True)
                joint, size = numbers, len(distinct)
            joint = joint.astype(np.int64) * len(block.counts) + column
            size *= len(block.counts)
        of_row, first = _numbered(joint, size)
        self._codes = [column.take(first).tolist() for column in columns]
        self._having = []
        if len(columns) > 1:
            for codes in self._codes:
                having: dict[int, list[int]] = {}
                for number, code in enumerate(codes):
                    having.setdefault(code, []).append(number)
                self._having.append(having)
        self.boosts = self._all_boosts()
        return of_row

    def by_row(self, rows: NDArray[np.intp]) -> "RowBoosts":
        """Return the same counts as vectors over rows, for a few placements. Shapes: rows (H,)."""
        return RowBoosts(self._blocks, self._rules, rows)

    @property
    def has_many_combinations(self) -> bool:
        """Tell whether one placement changes the boost of very many combinations."""
        return len(self._rules) > 1 and len(self.boosts) > _COMBINATIONS_MAX

    @property
    def alone(self) -> tuple[BlockCounter, list[int]] | None:
        """The counter of the only block, and the code of each combination; None: there are several blocks."""
        return (self._rules[0], self._codes[0]) if len(self._rules) == 1 else None

    def take(self, number: int) -> list[int] | None:
        """Count one more on a combination. Returns the combinations whose boosts changed; None: all of them."""
        if self.alone is not None:
            rule, codes = self.alone
            if rule.take(codes[number]):
                self.boosts = self._all_boosts()
                return None
            self.boosts[number] = rule.boosts[codes[number]]
            return [number]
        all_changed = False
        touched: list[int] = []
        for rule, codes, having in zip(self._rules, self._codes, self._having, strict=True):
            code = codes[number]
            all_changed |= rule.take(code)
            touched += having[code]
        if all_changed:
            self.boosts = self._all_boosts()
            return None
        touched = list(dict.fromkeys(touched))
        for one in touched:
            self.boosts[one] = _sum([rule.boosts[codes[one]] for rule, codes in self._pairs()])
        return touched

    def _pairs(self) -> Iterator[tuple[BlockCounter, list[int]]]:
        return zip(self._rules, self._codes, strict=True)

    def _all_boosts(self) -> list[int | None]:
        if len(self._rules) == 1:
            boosts = self._rules[0].boosts
            return [boosts[code] for code in self._codes[0]]
        by_block = [[rule.boosts[code] for code in codes] for rule, codes in self._pairs()]
        return [_sum(boosts) for boosts in zip(*by_block, strict=True)]


class RowBoosts:
    """Counters, and the boost of each row as a vector: one pass over all rows for each placement."""

    def __init__(
        self, blocks: tuple[Block, ...], rules: list[BlockCounter], rows: NDArray[np.intp]
    ) -> None:
        self._rules = rules
        self._codes = [block.codes.take(rows) for block in blocks]
        self._values = [_vector(rule.boosts) for rule in rules]

    def boosts(self) -> Int64s:
        """Return the boost of each row; far below every score where closed. Shape: (H,)."""
        total = self._values[0].take(self._codes[0])
        for values, codes in zip(self._values[1:], self._codes[1:], strict=True):
            total += values.take(codes)
        return total

    def take(self, at: int) -> None:
        """Count one more on the row at a position of `rows`."""
        for block, (rule, codes) in enumerate(zip(self._rules, self._codes, strict=True)):
            code = int(codes[at])
            if rule.take(code):
                self._values[block] = _vector(rule.boosts)
            else:
                boost = rule.boosts[code]
                self._values[block][code] = CLOSED if boost is None else boost


def _vector(boosts: list[int | None]) -> Int64s:
    return np.array([CLOSED if one is None else one for one in boosts], np.int64)


def _sum(boosts: Iterable[int | None]) -> int | None:
    """Sum boosts; None (closed) if one of them is None."""
    total = 0
    for boost in boosts:
        if boost is None:
            return None
        total += boost
    return total


def _numbered(joint: NDArray[np.integer], size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number distinct values from 0. Returns the number of each element, and one element of each number."""
    if size > _TABLE_MAX:
        _, first, numbers = np.unique(joint, return_index=True, return_inverse=True)
        return numbers, first
    table = np.full(size, -1, np.intp)
    table[joint] = np.arange(len(joint))
    present = np.flatnonzero(table >= 0)
    first = table[present]
    table[present] = np.arange(len(present))
    return table.take(joint), first
