"""Two timelines compared: which decisions differ, for which jobs, and the first of them.

Decisions are matched by lineage. Where both timelines placed an allocation, its node and its wait are compared.
"""

import msgspec
import numpy as np

from shared.core.columns import Int64s
from shared.sim.virtual_time import SECOND
from shared.whatif.effects import placement_delays_ns, wait_s_by_job
from shared.whatif.timeline import Timeline

#: The most jobs in a comparison.
JOBS_MAX = 1_000
#: A smaller difference in time counts as equal: hops and flushes of a virtual machine.
SAME_NS = 100_000_000


class JobDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of one job's allocations."""

    job: str
    #: placed on another node.
    elsewhere: int = 0
    sooner: int = 0
    later: int = 0
    only_before: int = 0
    only_after: int = 0
    #: wait, allocation-seconds.
    waited_s_before: float = 0.0
    waited_s_after: float = 0.0

    @property
    def changed(self) -> int:
        """Affected allocations."""
        return self.elsewhere + self.only_before + self.only_after


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first decision that differs, in both timelines. Empty node: not placed."""

    allocation: str
    t_ns_before: int = 0
    node_before: str = ""
    t_ns_after: int = 0
    node_after: str = ""


class TimelineDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two timelines."""

    compared: int
    same: int
    elsewhere: int
    sooner: int
    later: int
    only_before: int
    only_after: int
    first: FirstDifference | None
    jobs_total: int
    #: most affected first, at most JOBS_MAX.
    jobs: tuple[JobDifference, ...]

    @property
    def changed(self) -> int:
        """Decisions that differ."""
        return self.elsewhere + self.only_before + self.only_after


class _Pairs(msgspec.Struct, frozen=True):
    """Positions of allocations placed in both timelines, pairwise, and in only one."""

    before: Int64s
    after: Int64s
    only_before: Int64s
    only_after: Int64s


def compare_timelines(before: Timeline, after: Timeline) -> TimelineDifferences:
    """Compare the placements of two timelines with the same name table, after their beginning."""
    pairs = _pairs(before, after)
    other = before.placed.column("node")[pairs.before] != after.placed.column("node")[pairs.after]
    shift = placement_delays_ns(after)[pairs.after] - placement_delays_ns(before)[pairs.before]
    sooner, later = shift < -SAME_NS, shift > SAME_NS
    jobs = _jobs(before, after, pairs=pairs, marks=(other, sooner, later))
    return TimelineDifferences(
        compared=len(pairs.before),
        same=int(np.count_nonzero(~other)),
        elsewhere=int(np.count_nonzero(other)),
        sooner=int(np.count_nonzero(sooner)),
        later=int(np.count_nonzero(later)),
        only_before=len(pairs.only_before),
        only_after=len(pairs.only_after),
        first=_first(before, after, pairs, other),
        jobs_total=len(jobs),
        jobs=jobs[:JOBS_MAX],
    )


def _pairs(before: Timeline, after: Timeline) -> _Pairs:
    one, two = before.placed.lineages()[before.there :], after.placed.lineages()[after.there :]
    _, at_one, at_two = np.intersect1d(one, two, assume_unique=True, return_indices=True)
    rest_one = np.ones(len(one), dtype=bool)
    rest_one[at_one] = False
    rest_two = np.ones(len(two), dtype=bool)
    rest_two[at_two] = False
    return _Pairs(
        at_one + before.there,
        at_two + after.there,
        np.flatnonzero(rest_one) + before.there,
        np.flatnonzero(rest_two) + after.there,
    )


def _jobs(
    before: Timeline, after: Timeline, *, pairs: _Pairs, marks: tuple[np.ndarray, ...]
) -> tuple[JobDifference, ...]:
    names = before.names
    job_number: dict[str, int] = {}
    of_group = np.asarray(
        [job_number.setdefault(job_id, len(job_number)) for job_id, _ in names.groups] or [0],
        dtype=np.int64,
    )
    size = max(len(job_number), 1)
    paired = of_group[before.placed.column("group")[pairs.before]]
    counts = [np.bincount(paired[mark], minlength=size).tolist() for mark in marks]
    for timeline, only in ((before, pairs.only_before), (after, pairs.only_after)):
        jobs = of_group[timeline.placed.column("group")[only]]
        counts.append(np.bincount(jobs, minlength=size).tolist())
    waited_before, waited_after = wait_s_by_job(before), wait_s_by_job(after)
    found = []
    for job_id, number in job_number.items():
        elsewhere, sooner, later, only_before, only_after = (one[number] for one in counts)
        waited = waited_before.get(job_id, 0.0), waited_after.get(job_id, 0.0)
        if any((elsewhere, sooner, later, only_before, only_after)) or _differ(*waited):
            found.append(
                JobDifference(
                    job=job_id,
                    elsewhere=elsewhere,
                    sooner=sooner,
                    later=later,
                    only_before=only_before,
                    only_after=only_after,
                    waited_s_before=round(waited[0], 3),
                    waited_s_after=round(waited[1], 3),
                )
            )
    return tuple(sorted(found, key=_most_concerned))


def _most_concerned(one: JobDifference) -> tuple[float, int, str]:
    return (-abs(one.waited_s_after - one.waited_s_before), -one.changed, one.job)


def _differ(before_s: float, after_s: float) -> bool:
    return abs(before_s - after_s) > SAME_NS / SECOND


def _first(
    before: Timeline, after: Timeline, pairs: _Pairs, other: np.ndarray
) -> FirstDifference | None:
    """Return the earliest difference in either timeline."""
    left, right = before.placed.column("placed_ns"), after.placed.column("placed_ns")
    at, and_at = pairs.before[other], pairs.after[other]
    none = np.full(max(len(pairs.only_before), len(pairs.only_after)), -1)
    candidates: list[tuple[int, int, int]] = []
    for placed_ns, ones, twos in (
        (left[at], at, and_at),
        (left[pairs.only_before], pairs.only_before, none),
        (right[pairs.only_after], none, pairs.only_after),
    ):
        if len(placed_ns):
            nth = int(np.argmin(placed_ns))
            candidates.append((int(placed_ns[nth]), int(ones[nth]), int(twos[nth])))
    if not candidates:
        return None
    _, one, two = min(candidates)
    return FirstDifference(
        allocation=alloc_name_at(before, one) if one >= 0 else alloc_name_at(after, two),
        t_ns_before=int(left[one]) if one >= 0 else 0,
        node_before=node_name_at(before, one) if one >= 0 else "",
        t_ns_after=int(right[two]) if two >= 0 else 0,
        node_after=node_name_at(after, two) if two >= 0 else "",
    )


def alloc_name_at(timeline: Timeline, position: int) -> str:
    """Name of an allocation, with its number among those of that name unless it is the first."""
    job_id, group = timeline.names.groups[int(timeline.placed.column("group")[position])]
    attempt = int(timeline.placed.column("attempt")[position])
    again = f" (no. {attempt + 1})" if attempt else ""
    return f"{job_id}.{group}[{int(timeline.placed.column('index')[position])}]{again}"


def node_name_at(timeline: Timeline, position: int) -> str:
    """Id of the node where an allocation was placed."""
    return timeline.names.nodes[int(timeline.placed.column("node")[position])]
