"""Validation of where a job may run: constraints, affinities, spreads, and the algorithm.

A rule that no node satisfies is valid: the job waits, with the reason. Next: `shared/jobspec/compile/groups.py`.
"""

from collections.abc import Container, Iterator, Sequence

from schemas.jobs import SYSTEM_JOB_TYPES
from schemas.policy import ALGORITHMS
from shared.core.constraints.operators import (
    DISTINCT_HOSTS,
    DISTINCT_PROPERTY,
    OPERATORS,
    right_fault,
)
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.job import JobSpec
from shared.jobspec.nomad.placement import AffinityBlock, ConstraintBlock, SpreadBlock

#: Operators of constraints; those of affinities are feasibility's alone.
CONSTRAINT_OPERATORS = frozenset((*OPERATORS, DISTINCT_HOSTS, DISTINCT_PROPERTY))
WEIGHT_MAX = 100
#: Blocks of one level; job and group together stay within what a score can hold.
SPREADS_MAX = 8
TARGETS_MAX = 100
#: Constraints and affinities of one level.
RULES_MAX = 100
#: Different regular expressions of one job: the most costly ones take a quarter of a second, for each decision.
PATTERNS_MAX = 64


def check_placement(faults: ErrorList, job: JobSpec) -> None:
    """Find everything wrong with the rules of a job, its groups and its tasks."""
    if job.scheduler_algorithm not in ("", *ALGORITHMS):
        faults.add(
            "Job.SchedulerAlgorithm",
            f"must be binpack, spread, fragmentation or empty, was {job.scheduler_algorithm[:80]!r}",
        )
    one_node = job.type in SYSTEM_JOB_TYPES
    for path, constraints, affinities, spreads in _levels(job):
        if constraints:
            check_rules(faults, constraints, f"{path}.Constraints", CONSTRAINT_OPERATORS)
        if affinities:
            check_rules(faults, affinities, f"{path}.Affinities")
        if spreads:
            _spreads(faults, spreads, path)
        if one_node and (affinities or spreads):
            name = "Affinities" if affinities else "Spreads"
            faults.add(
                f"{path}.{name}",
                f"a {job.type} job runs on every node; affinities and spreads do not apply",
            )


_Level = tuple[str, Sequence[ConstraintBlock], Sequence[AffinityBlock], Sequence[SpreadBlock]]


def _levels(job: JobSpec) -> Iterator[_Level]:
    yield "Job", job.constraints, job.affinities, job.spreads
    for at, group in enumerate(job.groups):
        path = f"Job.TaskGroups[{at}]"
        yield path, group.constraints, group.affinities, group.spreads
        for number, task in enumerate(group.tasks):
            yield f"{path}.Tasks[{number}]", task.constraints, task.affinities, ()


def check_rules(
    faults: ErrorList,
    rules: Sequence[ConstraintBlock | AffinityBlock],
    path: str,
    operators: Container[str] = OPERATORS,
    *,
    subject: str = "",
) -> None:
    """Check the constraints or the affinities of one level; `subject` ends the message of an unknown operator."""
    if len(rules) > RULES_MAX:
        faults.add(path, _too_many(len(rules), RULES_MAX))
        return
    for at, one in enumerate(rules):
        if faults.is_full:
            return
        here = f"{path}[{at}]"
        if one.operator == "regexp":
            faults.patterns.add(one.right)
            if len(faults.patterns) > PATTERNS_MAX:
                text = f"a job has at most {PATTERNS_MAX} different regular expressions"
                faults.add(f"{here}.RTarget", text)
                continue
        if one.operator not in operators:
            faults.add(f"{here}.Operand", f"unknown operator {one.operator[:80]!r}{subject}")
        else:
            if not one.left and one.operator != DISTINCT_HOSTS:
                faults.add(f"{here}.LTarget", "must not be empty")
            if text := right_fault(one.operator, one.right):
                faults.add(f"{here}.RTarget", text)
        if isinstance(one, AffinityBlock):
            if not one.weight:
                faults.add(f"{here}.Weight", "must not be 0, which has no effect")
            faults.within(here, ".Weight", one.weight, (-WEIGHT_MAX, WEIGHT_MAX))


def _spreads(faults: ErrorList, spreads: Sequence[SpreadBlock], path: str) -> None:
    if len(spreads) > SPREADS_MAX:
        faults.add(f"{path}.Spreads", _too_many(len(spreads), SPREADS_MAX))
        return
    for at, one in enumerate(spreads):
        here = f"{path}.Spreads[{at}]"
        if not one.attribute:
            faults.add(f"{here}.Attribute", "must not be empty")
        faults.within(here, ".Weight", one.weight, (1, WEIGHT_MAX))
        _targets(faults, one, f"{here}.SpreadTarget")


def _targets(faults: ErrorList, spread: SpreadBlock, path: str) -> None:
    if len(spread.targets) > TARGETS_MAX:
        faults.add(path, _too_many(len(spread.targets), TARGETS_MAX))
        return
    seen: set[str] = set()
    for at, target in enumerate(spread.targets):
        if not target.value:
            faults.add(f"{path}[{at}].Value", "must not be empty")
        elif target.value in seen:
            faults.add(f"{path}[{at}].Value", f"another target names {target.value[:80]!r}")
        seen.add(target.value)
        faults.within(f"{path}[{at}]", ".Percent", target.percent, (0, 100))
    total = sum(max(target.percent, 0) for target in spread.targets)
    if total > 100:
        faults.add(path, f"the percentages of the targets sum to {total}, more than 100")


def _too_many(found: int, most: int) -> str:
    return f"{found} entries, at most {most} are allowed"
