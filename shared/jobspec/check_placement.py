"""Validation of where a job may run: constraints, affinities, spreads, and the algorithm.

Decides which rules can be answered, on every level. What no node has is no fault: such a job waits and says why.
Next: `compiling.py`.
"""

from collections.abc import Iterator, Sequence

from shared.core.operators import DISTINCT_HOSTS, DISTINCT_PROPERTY, OPERATORS, right_fault
from shared.jobspec.faults import Faults
from shared.jobspec.nomad_json import Affinity, Constraint, Job, Spread

#: Operators of constraints; those of affinities are feasibility's alone.
BUILT_OPERATORS = frozenset((*OPERATORS, DISTINCT_HOSTS, DISTINCT_PROPERTY))
ALGORITHMS = ("", "binpack", "spread", "fragmentation")
WEIGHT_MAX = 100
#: Blocks of one level; job and group together stay within what a score can hold.
SPREADS_MAX = 8
TARGETS_MAX = 100
#: Constraints and affinities of one level.
RULES_MAX = 100


def check_placement(faults: Faults, job: Job) -> None:
    """Find everything wrong with the rules of a job, its groups and its tasks."""
    if job.scheduler_algorithm not in ALGORITHMS:
        faults.add(
            "Job.SchedulerAlgorithm",
            f"must be binpack, spread, fragmentation or empty, was {job.scheduler_algorithm[:80]!r}",
        )
    one_node = job.type in {"system", "sysbatch"}
    for path, constraints, affinities, spreads in _levels(job):
        if constraints:
            _constraints(faults, constraints, path)
        if affinities:
            _affinities(faults, affinities, path)
        if spreads:
            _spreads(faults, spreads, path)
        if one_node and (affinities or spreads):
            name = "Affinities" if affinities else "Spreads"
            faults.add(f"{path}.{name}", f"a {job.type} job runs on every node: it prefers none")


_Level = tuple[str, Sequence[Constraint], Sequence[Affinity], Sequence[Spread]]


def _levels(job: Job) -> Iterator[_Level]:
    yield "Job", job.constraints, job.affinities, job.spreads
    for at, group in enumerate(job.groups):
        path = f"Job.TaskGroups[{at}]"
        yield path, group.constraints, group.affinities, group.spreads
        for number, task in enumerate(group.tasks):
            yield f"{path}.Tasks[{number}]", task.constraints, task.affinities, ()


def _constraints(faults: Faults, constraints: Sequence[Constraint], path: str) -> None:
    if len(constraints) > RULES_MAX:
        faults.add(f"{path}.Constraints", _too_many(len(constraints), RULES_MAX))
        return
    for at, one in enumerate(constraints):
        here = f"{path}.Constraints[{at}]"
        if one.operator not in BUILT_OPERATORS:
            faults.add(f"{here}.Operand", f"unknown operator {one.operator[:80]!r}")
        else:
            _sides(faults, one, here)


def _affinities(faults: Faults, affinities: Sequence[Affinity], path: str) -> None:
    if len(affinities) > RULES_MAX:
        faults.add(f"{path}.Affinities", _too_many(len(affinities), RULES_MAX))
        return
    for at, one in enumerate(affinities):
        here = f"{path}.Affinities[{at}]"
        if one.operator not in OPERATORS:
            faults.add(f"{here}.Operand", f"unknown operator {one.operator[:80]!r}")
        else:
            _sides(faults, one, here)
        if not one.weight:
            faults.add(f"{here}.Weight", "must not be 0: it would change nothing")
        faults.within(here, ".Weight", one.weight, (-WEIGHT_MAX, WEIGHT_MAX))


def _sides(faults: Faults, one: Constraint | Affinity, path: str) -> None:
    if not one.left and one.operator != DISTINCT_HOSTS:
        faults.add(f"{path}.LTarget", "must not be empty")
    if text := right_fault(one.operator, one.right):
        faults.add(f"{path}.RTarget", text)


def _spreads(faults: Faults, spreads: Sequence[Spread], path: str) -> None:
    if len(spreads) > SPREADS_MAX:
        faults.add(f"{path}.Spreads", _too_many(len(spreads), SPREADS_MAX))
        return
    for at, one in enumerate(spreads):
        here = f"{path}.Spreads[{at}]"
        if not one.attribute:
            faults.add(f"{here}.Attribute", "must not be empty")
        faults.within(here, ".Weight", one.weight, (1, WEIGHT_MAX))
        _targets(faults, one, f"{here}.SpreadTarget")


def _targets(faults: Faults, spread: Spread, path: str) -> None:
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
        faults.add(path, f"the targets ask for {total} percent together, there are 100")


def _too_many(found: int, most: int) -> str:
    return f"{found} of them, at most {most} are allowed"
