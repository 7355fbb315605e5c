"""What nodes say in brief of their allocations: columns of statuses and health, taken in a few vector passes.

Decides which of it counts: of rows that are the sender's own, a status that may follow, and the first word about each.
What follows from it: `reports.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES, HEALTHS
from schemas.nodes import BriefStates, ReportNode
from shared.core.columns import Rows, StatusCodes
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    COMPLETE,
    FAILED,
    PENDING,
    RUNNING,
    UNHEALTHY,
    UNKNOWN,
)

#: client status code -> those that may follow.
LEGAL_TRANSITIONS = {
    PENDING: {RUNNING, COMPLETE, FAILED},
    # A task that ended is pending until it is started again in place.
    RUNNING: {PENDING, COMPLETE, FAILED},
    UNKNOWN: {PENDING, RUNNING, COMPLETE, FAILED},
}
_MAY_FOLLOW = np.zeros((len(CLIENT_STATUSES),) * 2, dtype=np.bool_)
for _before, _after in LEGAL_TRANSITIONS.items():
    _MAY_FOLLOW[_before, sorted(_after)] = True
#: Of a health of which no version is said.
NOT_SAID = -1
_VERSIONS = range(NOT_SAID, 2**53)
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)
_NO_CODES: StatusCodes = np.empty(0, dtype=np.int8)


class BriefWords(NamedTuple):
    """What counts of brief reports. Shapes: rows, codes (A,); health_rows, healths (H,)."""

    rows: Rows = _NO_ROWS
    #: new client statuses.
    codes: StatusCodes = _NO_CODES
    health_rows: Rows = _NO_ROWS
    healths: StatusCodes = _NO_CODES


def brief_words(
    state: State, reports: Sequence[ReportNode], nodes: Sequence[int], told: list[int]
) -> BriefWords:
    """Find what counts: of rows of these nodes that are not `told` of otherwise. `nodes`: their fleet rows."""
    table = state.allocations
    keys: list[int] = []
    rows: list[int] = []
    codes: list[int] = []
    counts: list[int] = []
    health_codes: list[int] = []
    health_counts: list[int] = []
    versions: list[int] = []
    version_counts: list[int] = []
    lengths: list[int] = []
    for report in reports:
        said = report.brief
        if not _is_well_formed(said):
            lengths.append(0)
            continue
        lengths.append(len(said.keys))
        keys += said.keys
        rows += said.rows
        codes += said.statuses[0::2]
        counts += said.statuses[1::2]
        health_codes += said.healths[0::2] or (0,)
        health_counts += said.healths[1::2] or (len(said.keys),)
        versions += said.health_versions[0::2] or (NOT_SAID,)
        version_counts += said.health_versions[1::2] or (len(said.keys),)
    if not keys:
        return BriefWords()
    at = np.array(rows, dtype=np.int64)
    after = np.repeat(np.array(codes, dtype=np.int8), counts)
    inside = (at >= 0) & (at < table.size)
    at = np.where(inside, at, 0).astype(np.int32)
    own = inside & (table.key[at] == np.array(keys, dtype=np.int64))
    own &= table.node[at] == np.repeat(np.array(nodes, dtype=np.int32), lengths)
    if told:
        own &= ~np.isin(at, told)
    before = table.client[at]
    legal = own & _MAY_FOLLOW[before, after]
    found = BriefWords(*_first_words(at[legal], after[legal]))
    failed = legal & (after == FAILED)
    if not (any(health_codes) or failed.any()):
        return found
    healths = np.repeat(np.array(health_codes, dtype=np.int8), health_counts)
    if max(versions) > NOT_SAID:
        about = np.repeat(np.array(versions, dtype=np.int64), version_counts)
        # An update in place may have come between health and its report.
        healths[(about > NOT_SAID) & (about != _versions(state, at))] = 0
    # What failed without a word about its health is unhealthy in its deployment.
    healths[failed & (healths == 0) & (table.deployment[at] != 0)] = UNHEALTHY
    is_said = (healths > 0) & (legal | (own & (before == after)))
    health_rows, healths = _first_words(at[is_said], healths[is_said])
    return found._replace(health_rows=health_rows, healths=healths)


def _versions(state: State, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Versions of the job that these rows run. Shapes: rows, result (A,)."""
    refs, inverse = np.unique(state.allocations.group[rows], return_inverse=True)
    versions = [state.allocations.groups.versions[ref] for ref in refs.tolist()]
    return np.array(versions, dtype=np.int64)[inverse]


def _first_words(rows: Rows, codes: StatusCodes) -> tuple[Rows, StatusCodes]:
    """Rows in order, each once: the first word about each counts. Shapes: (A,)."""
    if len(rows) > 1 and not (rows[1:] > rows[:-1]).all():
        _, firsts = np.unique(rows, return_index=True)
        return rows[firsts], codes[firsts]
    return rows, codes


def _is_well_formed(said: BriefStates) -> bool:
    """Tell whether columns are of one length and of numbers that can be; others say nothing."""
    length = len(said.keys)
    if len(said.rows) != length or not length:
        return False
    if not _are_runs(said.statuses, length, range(len(CLIENT_STATUSES))):
        return False
    if said.healths and not _are_runs(said.healths, length, range(len(HEALTHS))):
        return False
    if said.health_versions and not _are_runs(said.health_versions, length, _VERSIONS):
        return False
    try:
        np.array((said.keys, said.rows), dtype=np.int64)
    except OverflowError:
        return False
    return True


def _are_runs(runs: tuple[int, ...], length: int, codes: range) -> bool:
    counts = runs[1::2]
    if len(runs) % 2 or sum(counts) != length or min(counts, default=0) < 1:
        return False
    return all(code in codes for code in runs[0::2])
