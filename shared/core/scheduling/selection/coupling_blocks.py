"""Coupling blocks: the spread blocks and distinct properties of a group, with counts by value on this fleet.

coupling.py keeps the counts up to date while a count is placed. Source: Nomad spread.go, propertyset.go.
"""

import numpy as np

from schemas.jobs import DistinctProperty, GroupSpec, Spread
from shared.core.columns import Codes, Int64s, Mask
from shared.core.scheduling.selection.coupling import (
    Block,
    Coupling,
    DistinctValues,
    EvenSpread,
    TargetSpread,
)
from shared.core.state.node_attributes import AttributeColumns

#: The target value that covers all values without a target.
_ANY_OTHER_VALUE = "*"


def coupling_of(
    columns: AttributeColumns, group: GroupSpec, *, of_group: Int64s, of_job: Int64s
) -> Coupling | None:
    """Make the blocks of a group; None if its nodes do not depend on each other.

    `of_group`, `of_job`: allocations on each row that stay or are placed already, of the group and of the whole
    job. Shapes: (N,); `of_job` is read only for properties that are distinct over the job.
    """
    blocks = [_spread(columns, group, one, of_group) for one in group.spreads]
    for one in group.distinct_properties:
        held = of_job if one.job_wide else of_group
        blocks.append(_distinct(columns, one, held))
    return Coupling(tuple(blocks)) if blocks else None


def has_distinct_rules(group: GroupSpec) -> bool:
    """Tell whether allocations of a group keep others of it from nodes."""
    return bool(group.distinct_hosts or group.distinct_properties)


def is_job_wide(group: GroupSpec) -> bool:
    """Tell whether any rule of a group counts allocations of the whole job."""
    return group.distinct_hosts == "job" or any(rule.job_wide for rule in group.distinct_properties)


def distinct_mask(columns: AttributeColumns, one: DistinctProperty, held: Int64s) -> Mask:
    """Return the rows that a distinct property leaves open. Shapes: held (N,), result (N,)."""
    block = _distinct(columns, one, held)
    is_open = block.counts < block.most
    is_open[0] = False
    mask: Mask = is_open.take(block.codes)
    return mask


def _distinct(columns: AttributeColumns, one: DistinctProperty, held: Int64s) -> DistinctValues:
    codes, values = codes_of(columns, one.attribute)
    return DistinctValues(codes, _counts(codes, len(values), held), one.limit)


def _spread(columns: AttributeColumns, group: GroupSpec, one: Spread, held: Int64s) -> Block:
    codes, values = codes_of(columns, one.attribute)
    if not one.targets:
        return EvenSpread(codes, _counts(codes, len(values), held))
    percents = {target.value: target.percent for target in one.targets}
    named = sum(percents.values())
    # All values without a target count as one and share the remaining percent.
    percents.setdefault(_ANY_OTHER_VALUE, max(100 - named, 0) if named else 0)
    code_of = {value: code for code, value in enumerate(percents, 1)}
    merged = np.array([code_of.get(value, code_of[_ANY_OTHER_VALUE]) for value in values], np.int32)
    merged[0] = 0
    codes = merged.take(codes)
    counts = _counts(codes, len(percents) + 1, held)
    desired = np.array([0, *percents.values()], np.int64) * group.count
    weights = sum(block.weight for block in group.spreads)
    return TargetSpread(codes, counts, desired, one.weight, weights)


def codes_of(columns: AttributeColumns, target: str) -> tuple[Codes, list[str]]:
    """Return the code of each row and the value of each code; code 0 is absence."""
    if not target.startswith("${"):
        # A literal: the same on every node.
        return np.ones(columns.rows, np.int32), ["", target]
    name = target[2:].removesuffix("}")
    codes = columns.codes(name)
    if codes is None:
        return np.zeros(columns.rows, np.int32), [""]
    return codes, list(columns.values(name))


def _counts(codes: Codes, values: int, held: Int64s) -> Int64s:
    counts = np.zeros(values, np.int64)
    rows = np.flatnonzero(held)
    np.add.at(counts, codes[rows], held[rows])
    return counts
