"""Rules in job files: what is compiled from job, group and task, and what is refused with which path."""

import json
from typing import Any

import pytest

from schemas.jobs import (
    Affinity,
    Constraint,
    DistinctProperty,
    GroupSpec,
    Spread,
    SpreadTarget,
)
from shared.core.constraints import operators
from shared.jobspec.checks.error_list import ERRORS_MAX
from shared.jobspec.checks.placement import PATTERNS_MAX
from shared.jobspec.submission import JobInvalid, read_submission

HOSTS = {"Operand": "distinct_hosts", "RTarget": "true"}
RACK = "${meta.rack}"


def job(*, task: Any = None, group: Any = None, **fields: Any) -> dict[str, Any]:
    tasks = [{"Name": "t", "Driver": "any", "Config": {}, **(task or {})}]
    return {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": tasks, **(group or {})}], **fields}


def compiled(given: dict[str, Any]) -> GroupSpec:
    found = read_submission(json.dumps({"Job": given}).encode(), "submit")
    assert found.warnings == ()
    return found.groups[0]


def faults(given: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(JobInvalid) as caught:
        read_submission(json.dumps({"Job": given}).encode(), "submit")
    return {one.path: one.message for one in caught.value.errors}


def rule(left: str = "${a}", operator: str = "=", right: str = "1", **more: Any) -> dict[str, Any]:
    return {"LTarget": left, "Operand": operator, "RTarget": right, **more}


def test_rules_of_all_levels_come_together() -> None:
    """A group has the constraints and affinities of job, group and task, and the spreads of job and group."""
    given = job(
        Constraints=[rule("${j}")],
        Affinities=[rule("${j}", Weight=10)],
        Spreads=[{"Attribute": "${j}"}],
        group={
            "Constraints": [rule("${g}")],
            "Affinities": [rule("${g}", Weight=-20)],
            "Spreads": [{"Attribute": "${g}", "SpreadTarget": [{"Value": "x", "Percent": 7}]}],
        },
        task={"Constraints": [rule("${t}")], "Affinities": [rule("${t}")]},
    )
    found = compiled(given)
    assert [one.left for one in found.constraints] == ["${j}", "${g}", "${t}"]
    assert found.constraints[0] == Constraint(left="${j}", operator="=", right="1")
    assert [(one.left, one.weight) for one in found.affinities] == [
        *[("${j}", 10), ("${g}", -20), ("${t}", 50)]
    ]
    assert found.affinities[0] == Affinity(left="${j}", operator="=", right="1", weight=10)
    assert found.spreads == (
        Spread(attribute="${j}"),
        Spread(attribute="${g}", targets=(SpreadTarget(value="x", percent=7),)),
    )


@pytest.mark.parametrize(
    ("given", "scope"),
    [
        (job(Constraints=[HOSTS]), "job"),
        (job(group={"Constraints": [HOSTS]}), "group"),
        (job(task={"Constraints": [HOSTS]}), "group"),
        (job(Constraints=[HOSTS], group={"Constraints": [HOSTS]}), "job"),
        (job(Constraints=[{"Operand": "distinct_hosts"}]), "job"),
        (job(Constraints=[{**HOSTS, "RTarget": "false"}]), ""),
    ],
)
def test_distinct_hosts_have_the_scope_of_their_level(given: dict[str, Any], scope: str) -> None:
    """Over the job it covers all groups; of a group or task its own; `false` asks for nothing."""
    found = compiled(given)
    assert (found.distinct_hosts, found.constraints) == (scope, ())


def test_distinct_properties_have_the_scope_of_their_level() -> None:
    """A limit without a number is one; the job's counts all groups."""
    of_job = rule(RACK, "distinct_property", "3")
    of_group = {"LTarget": RACK, "Operand": "distinct_property"}
    found = compiled(job(Constraints=[of_job], group={"Constraints": [of_group]}))
    assert found.distinct_properties == (
        DistinctProperty(attribute=RACK, limit=3, job_wide=True),
        DistinctProperty(attribute=RACK, limit=1),
    )


def test_a_job_names_its_algorithm() -> None:
    """What a job says of its algorithm reaches every group, and does not replace what runs."""
    plain, spread = compiled(job()), compiled(job(SchedulerAlgorithm="spread"))
    assert (plain.algorithm, spread.algorithm) == ("", "spread")
    assert plain.digest == spread.digest


C, A, S = "Job.Constraints[0]", "Job.Affinities[0]", "Job.Spreads[0]"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (job(Constraints=[rule(operator="=~")]), f"{C}.Operand"),
        (job(Constraints=[rule("")]), f"{C}.LTarget"),
        (job(Constraints=[rule("", "is_set", "")]), f"{C}.LTarget"),
        (job(Constraints=[rule(operator="regexp", right="(a")]), f"{C}.RTarget"),
        (job(Constraints=[rule(operator="regexp", right=r"(a)\1")]), f"{C}.RTarget"),
        (job(Constraints=[rule(operator="version", right="latest")]), f"{C}.RTarget"),
        (job(Constraints=[rule(operator="semver", right="~> 1")]), f"{C}.RTarget"),
        (job(Constraints=[rule(operator="distinct_property", right="0")]), f"{C}.RTarget"),
        (job(Constraints=[rule(operator="distinct_property", right="1.5")]), f"{C}.RTarget"),
        (job(Constraints=[rule(operator="distinct_hosts", right="maybe")]), f"{C}.RTarget"),
        (job(Constraints=[rule()] * 101), "Job.Constraints"),
        (
            job(task={"Constraints": [rule(operator="=~")]}),
            "Job.TaskGroups[0].Tasks[0].Constraints[0].Operand",
        ),
        (job(Affinities=[rule(Weight=0)]), f"{A}.Weight"),
        (job(Affinities=[rule(Weight=101)]), f"{A}.Weight"),
        (job(Affinities=[rule(Weight=-101)]), f"{A}.Weight"),
        (job(Affinities=[rule(operator="distinct_hosts")]), f"{A}.Operand"),
        (job(group={"Affinities": [rule("")]}), "Job.TaskGroups[0].Affinities[0].LTarget"),
        (job(Spreads=[{"Attribute": ""}]), f"{S}.Attribute"),
        (job(Spreads=[{"Attribute": RACK, "Weight": 0}]), f"{S}.Weight"),
        (job(Spreads=[{"Attribute": RACK, "Weight": 101}]), f"{S}.Weight"),
        (job(Spreads=[{"Attribute": RACK}] * 9), "Job.Spreads"),
        (job(Type="system", Spreads=[{"Attribute": RACK}]), "Job.Spreads"),
        (job(Type="system", group={"Affinities": [rule()]}), "Job.TaskGroups[0].Affinities"),
        (job(SchedulerAlgorithm="best"), "Job.SchedulerAlgorithm"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_its_path(given: dict[str, Any], path: str) -> None:
    """Unknown operators, patterns and versions that are none, weights and limits out of bounds: the path says where."""
    assert set(faults(given)) == {path}


@pytest.mark.parametrize(
    ("targets", "path"),
    [
        ([("a", 60), ("b", 50)], ""),
        ([("a", 101)], "[0].Percent"),
        ([("a", -1)], "[0].Percent"),
        ([("a", 10), ("a", 20)], "[1].Value"),
        ([("", 10)], "[0].Value"),
    ],
)
def test_targets_that_conflict_are_refused(targets: list[tuple[str, int]], path: str) -> None:
    """More than a hundred percent, one value twice, or no value: refused with the target's path."""
    blocks = [{"Value": value, "Percent": percent} for value, percent in targets]
    found = faults(job(Spreads=[{"Attribute": RACK, "SpreadTarget": blocks}]))
    assert f"{S}.SpreadTarget{path}" in found


def test_the_regular_expressions_of_a_job_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and devices share one bound; patterns beyond it, or beyond the reported errors, are not read."""
    read: list[str] = []
    compile_pattern = operators.compile_pattern

    def counted(pattern: str) -> object:
        read.append(pattern)
        return compile_pattern(pattern)

    monkeypatch.setattr(operators, "compile_pattern", counted)

    def groups(make: str, count: int = 3) -> list[dict[str, Any]]:
        """Groups with a hundred constraints each, in turn of the group and of a device."""
        found = []
        for number in range(count):
            rules = [rule(operator="regexp", right=make.format(number, n)) for n in range(100)]
            held = {"Resources": {"Devices": [{"Name": "gpu", "Constraints": rules}]}}
            (one,) = job(task=held if number % 2 else {}, group={"Constraints": rules})[
                "TaskGroups"
            ]
            found.append(one | {"Name": f"g{number}"})
        return found

    told = faults({"ID": "a", "TaskGroups": groups("a{}b{}")})
    assert len(told) == ERRORS_MAX and len(read) == PATTERNS_MAX
    assert set(told.values()) == {f"a job has at most {PATTERNS_MAX} different regular expressions"}
    read.clear()
    told = faults({"ID": "a", "TaskGroups": groups("(a{{1,99}}){{1,99}}")})
    assert len(told) == len(read) == ERRORS_MAX
    assert "2000 states" in next(iter(told.values()))
    same = [rule(operator="regexp", right="a") for _ in range(100)]
    assert compiled(job(Constraints=same, group={"Constraints": same}))
