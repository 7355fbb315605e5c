"""Each reason of a wait that counts nodes, against the header and the tables of the same why-not."""

import re
from collections import Counter
from typing import NamedTuple

from schemas.evaluation_answers import WhyAnswer
from schemas.jobs import SYSTEM_JOB_TYPES
from shared.query.explain import RESERVED

COLUMNS = {"cpu": "cpu_mhz", "memory": "memory_mib", "disk": "disk_mib"}
CLOSED = re.compile("down|disconnected|initializing|draining|drained|ineligible")
RULE = re.compile(r"(.+) closes (\d+) of (\d+) nodes")
#: What a reason says: its kind, the name in it, how many nodes, of how many.
PATTERNS = {
    "short": re.compile(r"(?P<name>.+) (?:exhausted|taken) on (?P<n>\d+) of (?P<of>\d+) nodes"),
    "status": re.compile(r"(?P<n>\d+) of (?P<of>\d+) feasible nodes? (?:is|are) (?P<name>.+)"),
    "empty": re.compile(r"(?P<name>.+?),? on (?P<n>\d+) of (?P<of>\d+) feasible nodes?"),
    "held": re.compile(r"(?P<n>\d+) nodes with room are reserved for job (?P<name>.+)"),
    "above": re.compile(
        r"(?P<name>more important jobs) have its room on (?P<n>\d+) of (?P<of>\d+) nodes"
    ),
    "refuses": re.compile(r"(?P<name>.+) refuses (?P<n>\d+) of (?P<of>\d+) nodes"),
    "none": re.compile(r"(?P<name>none) of (?P<n>\d+) nodes satisfies its constraints"),
}


class Tables(NamedTuple):
    """Header and tables of an answer, as counts. `ready`: of the nodes that reasons count shortages among."""

    answer: WhyAnswer
    refused: Counter[str]
    exhausted: dict[str, int]
    feasible: int
    ready: int


def tables_of(answer: WhyAnswer, job_type: str) -> Tables:
    """Read an answer."""
    refused = Counter({one.name: one.refused for one in answer.filters})
    assert len(refused) == len(answer.filters), answer
    ready = answer.lacking + answer.fitting + refused[RESERVED]
    feasible = answer.feasible
    if job_type in SYSTEM_JOB_TYPES:
        # It waits for the nodes that are open to it and miss it.
        small = [
            n for name, n in refused.items() if name.endswith((", even empty", " is reserved"))
        ]
        feasible = ready + sum(small)
    return Tables(
        answer, refused, {one.dimension: one.nodes for one in answer.exhausted}, feasible, ready
    )


def told(kind: str, name: str, found: Tables, said: int) -> tuple[int | None, int | None]:
    """What the tables say of a reason: how many nodes, of how many; None: they do not tell."""
    answer, refused = found.answer, found.refused
    dimension = COLUMNS.get(name, name)
    if kind == "short":
        # Of several alternatives the table has one.
        is_other = name.startswith("alternative ")
        return None if is_other else found.exhausted.get(dimension, 0), found.ready
    return {
        "status": (refused[name], found.feasible),
        "empty": (refused[name], found.feasible),
        "held": (refused[RESERVED], None),
        "above": (min(said, answer.lacking), found.ready),
        "refuses": (refused[name], answer.nodes_considered),
        "none": (answer.nodes_considered, None),
    }[kind]


def check_reason_counts(answer: WhyAnswer, job_type: str) -> Counter[str]:
    """Check each; return how many of each kind there were."""
    found, seen = tables_of(answer, job_type), Counter[str]()
    check_rules(found)
    for text in answer.reasons:
        for kind, pattern in PATTERNS.items():
            if (said := pattern.fullmatch(text)) is None:
                continue
            groups = said.groupdict()
            n, of = told(kind, groups["name"], found, int(groups["n"]))
            assert n in (None, int(groups["n"])), (text, answer)
            assert of in (None, int(groups.get("of", of or 0))), (text, answer)
            seen[f"{kind} counted"] += 1
            break
    if answer.wait_class in {"capacity", "reservation", "priority"}:
        check_all_told(found, job_type)
    return seen


def check_rules(found: Tables) -> None:
    """Rules are counted one behind the other, and shortages behind them."""
    left = found.ready
    rules = [RULE.fullmatch(text) for text in found.answer.reasons]
    for said in reversed([one for one in rules if one is not None]):
        left += int(said[2])
        assert (found.refused[said[1]], left) == (int(said[2]), int(said[3])), found.answer


def check_all_told(found: Tables, job_type: str) -> None:
    """What the tables refuse or lack has a reason."""
    answer, text = found.answer, "; ".join(found.answer.reasons)
    assert not answer.fitting, answer
    names = {value: key for key, value in COLUMNS.items()}
    assert all(names.get(one, one) in text for one, n in found.exhausted.items() if n), answer
    if job_type in SYSTEM_JOB_TYPES:
        return
    for name in found.refused:
        if name == RESERVED:
            assert "are reserved for job" in text, answer
        elif name.endswith(", even empty") or CLOSED.fullmatch(name):
            assert name in text, answer
