"""Two courses side by side: which decisions differ, whom they concern, and the first of them.

Decides what is the same decision: one allocation's place in history (its lineage). Where both courses placed it, node
and waiting are compared; else only one of them did. Must not know which changes were asked for. Next: `fork.py`.
"""

import msgspec
import numpy as np

from shared.whatif.course import Course
from shared.whatif.effects import NS, delays_ns, wait_s_by_job
from shared.whatif.placed import Int64s

#: Jobs that are listed at the most.
JOBS_MAX = 1_000
#: Sooner or later by less is the same: hops and flushes of a virtual machine.
SAME_NS = 100_000_000


class JobDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What became otherwise of a job's allocations."""

    job: str
    #: placed on another node.
    elsewhere: int = 0
    sooner: int = 0
    later: int = 0
    only_before: int = 0
    only_after: int = 0
    #: seconds times allocations that it waited.
    waited_s_before: float = 0.0
    waited_s_after: float = 0.0

    @property
    def changed(self) -> int:
        """Allocations concerned."""
        return self.elsewhere + self.only_before + self.only_after


class First(msgspec.Struct, frozen=True, kw_only=True):
    """The first decision that differs, in both courses. Empty node: not placed."""

    allocation: str
    t_ns_before: int = 0
    node_before: str = ""
    t_ns_after: int = 0
    node_after: str = ""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """Two courses compared, allocation by allocation."""

    compared: int
    same: int
    elsewhere: int
    sooner: int
    later: int
    only_before: int
    only_after: int
    first: First | None
    jobs_total: int
    #: those most concerned first, at most JOBS_MAX.
    jobs: tuple[JobDifference, ...]

    @property
    def changed(self) -> int:
        """Decisions that differ."""
        return self.elsewhere + self.only_before + self.only_after


class _Pairs(msgspec.Struct, frozen=True):
    """Positions: of what both placed, pairwise, and of what only one did."""

    before: Int64s
    after: Int64s
    only_before: Int64s
    only_after: Int64s


def compare(before: Course, after: Course) -> Differences:
    """Compare what two courses of the same names placed behind their beginning."""
    pairs = _pairs(before, after)
    other = before.placed.column("node")[pairs.before] != after.placed.column("node")[pairs.after]
    shift = delays_ns(after)[pairs.after] - delays_ns(before)[pairs.before]
    sooner, later = shift < -SAME_NS, shift > SAME_NS
    jobs = _jobs(before, after, pairs=pairs, marks=(other, sooner, later))
    return Differences(
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


def _pairs(before: Course, after: Course) -> _Pairs:
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
    before: Course, after: Course, *, pairs: _Pairs, marks: tuple[np.ndarray, ...]
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
    for course, only in ((before, pairs.only_before), (after, pairs.only_after)):
        jobs = of_group[course.placed.column("group")[only]]
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
    return abs(before_s - after_s) > SAME_NS / NS


def _first(before: Course, after: Course, pairs: _Pairs, other: np.ndarray) -> First | None:
    """Find the difference that came first in either course."""
    candidates: list[tuple[int, int, int]] = []
    if other.any():
        at = pairs.before[other]
        nth = int(np.argmin(before.placed.column("placed_ns")[at]))
        one, two = int(at[nth]), int(pairs.after[other][nth])
        candidates.append((int(before.placed.column("placed_ns")[one]), one, two))
    if len(pairs.only_before):
        times = before.placed.column("placed_ns")[pairs.only_before]
        one = int(pairs.only_before[int(np.argmin(times))])
        candidates.append((int(times.min()), one, -1))
    if len(pairs.only_after):
        times = after.placed.column("placed_ns")[pairs.only_after]
        two = int(pairs.only_after[int(np.argmin(times))])
        candidates.append((int(times.min()), -1, two))
    if not candidates:
        return None
    _, one, two = min(candidates)
    return First(
        allocation=name_of(before, one) if one >= 0 else name_of(after, two),
        t_ns_before=int(before.placed.column("placed_ns")[one]) if one >= 0 else 0,
        node_before=node_of(before, one) if one >= 0 else "",
        t_ns_after=int(after.placed.column("placed_ns")[two]) if two >= 0 else 0,
        node_after=node_of(after, two) if two >= 0 else "",
    )


def name_of(course: Course, position: int) -> str:
    """Name of an allocation, and which one of that name where it is not the first."""
    job_id, group = course.names.groups[int(course.placed.column("group")[position])]
    attempt = int(course.placed.column("attempt")[position])
    again = f" (no. {attempt + 1})" if attempt else ""
    return f"{job_id}.{group}[{int(course.placed.column('index')[position])}]{again}"


def node_of(course: Course, position: int) -> str:
    """Id of the node where an allocation was placed."""
    return course.names.nodes[int(course.placed.column("node")[position])]
