"""Operators: what `left operator right` means for two texts, either of which a node may lack.

Covers every comparison on a single node, in each of Nomad's spellings. constraint_masks.py evaluates an operator once
for each distinct value. Source: Nomad scheduler/feasible.go checkConstraint, checkOrder, checkVersionMatch,
checkSetContainsAll; hashicorp/go-version constraint.go; semver.org 2.0.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import zip_longest
from math import isnan
from typing import Final

import msgspec

from shared.core.constraints.regex import compile_pattern
from shared.regexp.syntax import PatternRefusedError

DISTINCT_HOSTS: Final = "distinct_hosts"
DISTINCT_PROPERTY: Final = "distinct_property"
#: Operators about other allocations, not about one node.
DISTINCT: Final = frozenset((DISTINCT_HOSTS, DISTINCT_PROPERTY))
#: Characters of a version or of a constraint on versions.
VERSION_CHARS_MAX: Final = 256
_INT64: Final = 1 << 63
_INT_CHARS_MAX: Final = 20


class Operand(msgspec.Struct, frozen=True):
    """One side of a constraint on one node: its text, and whether the node has it at all."""

    text: str
    found: bool = True


Operation = Callable[[Operand, Operand], bool]


def _both(holds: Callable[[str, str], bool]) -> Operation:
    """Lift a comparison of texts: false if either side is missing."""
    return lambda left, right: left.found and right.found and holds(left.text, right.text)


def _differ(left: Operand, right: Operand) -> bool:
    return left.text != right.text


# ---- order: whole numbers, else numbers, else text ----

_INT: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def compare(left: str, right: str) -> int | None:
    """Order two values as Nomad does: -1, 0, 1; None where they have no order (not a number)."""
    for parse in (_whole, _number):
        a, b = parse(left), parse(right)
        if a is not None and b is not None:
            return None if isnan(a) or isnan(b) else (a > b) - (a < b)
    # Go compares bytes.
    first, second = left.encode("utf-8", "replace"), right.encode("utf-8", "replace")
    return (first > second) - (first < second)


def _whole(text: str) -> int | None:
    if len(text) > _INT_CHARS_MAX or not _INT.fullmatch(text):
        return None
    value = int(text)
    return value if -_INT64 <= value < _INT64 else None


def _number(text: str) -> float | None:
    if len(text) > VERSION_CHARS_MAX:
        return None
    named = text.lower().lstrip("+-")
    if not _FLOAT.fullmatch(text) and named not in {"inf", "infinity", "nan"}:
        return None
    return float(text)


def _ordered(accepted: frozenset[int]) -> Operation:
    return _both(lambda left, right: compare(left, right) in accepted)


# ---- sets: comma-separated texts ----


def members(text: str) -> frozenset[str]:
    """Split a comma-separated list into its trimmed members."""
    return frozenset(part.strip() for part in text.split(","))


# ---- versions ----


class Version(msgspec.Struct, frozen=True):
    """A version: numbers, pre-release text, and how many numbers were written."""

    segments: tuple[int, ...]
    pre: str = ""
    written: int = 3


_DASHED: Final = r"-([0-9]+[0-9A-Za-z\-~]*(?:\.[0-9A-Za-z\-~]+)*)"
_WORDED: Final = r"([A-Za-z\-~]+[0-9A-Za-z\-~]*(?:\.[0-9A-Za-z\-~]+)*)"
_META: Final = r"(?:\+[0-9A-Za-z\-~]+(?:\.[0-9A-Za-z\-~]+)*)?"
#: go-version's two forms: the dash before a pre-release may be missing, or not.
_LENIENT: Final = re.compile(rf"v?([0-9]+(?:\.[0-9]+)*)(?:{_DASHED}|-?{_WORDED})?{_META}")
_STRICT: Final = re.compile(rf"v?([0-9]+(?:\.[0-9]+)*)(?:{_DASHED}|-{_WORDED})?{_META}")
_TERM: Final = re.compile(r"\s*(=|!=|>=|<=|~>|>|<|)\s*(\S+)\s*")
#: Digits of one number in a version; beyond, it is none.
_SEGMENT_CHARS_MAX: Final = 18


@lru_cache(maxsize=8192)
def parse_version(text: str, *, strict: bool) -> Version | None:
    """Parse a version: go-version's lenient form, or semver's; None if it is neither."""
    text = text.strip()
    found = (
        None if len(text) > VERSION_CHARS_MAX else (_STRICT if strict else _LENIENT).fullmatch(text)
    )
    if found is None:
        return None
    parts = found[1].split(".")
    if max(map(len, parts)) > _SEGMENT_CHARS_MAX:
        return None
    numbers = [int(part) for part in parts]
    written = len(numbers)
    numbers += [0] * (3 - written)
    pre = "".join(part or "" for part in found.groups()[1:])
    return Version(tuple(numbers), pre, written)


def compare_versions(left: Version, right: Version) -> int:
    """Order two versions: -1, 0, 1. A pre-release comes before its release."""
    for a, b in zip_longest(left.segments, right.segments, fillvalue=0):
        if a != b:
            return -1 if a < b else 1
    if left.pre == right.pre:
        return 0
    if not left.pre or not right.pre:
        return 1 if not left.pre else -1
    for one, other in zip_longest(left.pre.split("."), right.pre.split(".")):
        if one != other:
            return _compare_parts(one, other)
    return 0


def _compare_parts(left: str | None, right: str | None) -> int:
    """Order two parts of a pre-release: fewer parts first, numbers before text, else by value."""
    if left is None or right is None:
        return -1 if left is None else 1
    a, b = left.isdecimal(), right.isdecimal()
    if a and b:
        x, y = int(left), int(right)
        return (x > y) - (x < y)
    if a != b:
        return -1 if a else 1
    return (left > right) - (left < right)


Term = tuple[str, Version]


@lru_cache(maxsize=1024)
def parse_constraint(text: str, *, strict: bool) -> tuple[Term, ...] | None:
    """Parse `>= 1.2, < 2`; None if it is not a version constraint."""
    if len(text) > VERSION_CHARS_MAX:
        return None
    terms: list[Term] = []
    for part in text.split(","):
        found = _TERM.fullmatch(part)
        version = parse_version(found[2], strict=strict) if found else None
        if found is None or version is None or (strict and found[1] == "~>"):
            return None
        terms.append((found[1] or "=", version))
    return tuple(terms)


def _versions(*, strict: bool) -> Operation:
    def holds(left: str, right: str) -> bool:
        version = parse_version(left, strict=strict)
        terms = parse_constraint(right, strict=strict)
        if version is None or terms is None:
            return False
        return all(_meets(version, sign, bound, strict=strict) for sign, bound in terms)

    return _both(holds)


_SIGNS: Final[Mapping[str, frozenset[int]]] = {
    "=": frozenset((0,)),
    "!=": frozenset((-1, 1)),
    "<": frozenset((-1,)),
    "<=": frozenset((-1, 0)),
    ">": frozenset((1,)),
    ">=": frozenset((0, 1)),
}


def _meets(version: Version, sign: str, bound: Version, *, strict: bool) -> bool:
    if sign == "~>":
        return _meets_pessimistic(version, bound)
    if not strict and sign not in {"=", "!="} and not _may_compare(version, bound):
        return False
    return compare_versions(version, bound) in _SIGNS[sign]


def _may_compare(version: Version, bound: Version) -> bool:
    """go-version: a pre-release meets only bounds that name a pre-release of the same numbers."""
    if not version.pre:
        return True
    return bool(bound.pre) and version.segments == bound.segments


def _meets_pessimistic(version: Version, bound: Version) -> bool:
    """`~>`: at least the bound, and equal to it in all written numbers but the last."""
    if not _may_compare(version, bound) or (bound.pre and not version.pre):
        return False
    if compare_versions(version, bound) < 0 or len(bound.segments) > len(version.segments):
        return False
    kept = bound.written - 1
    return version.segments[:kept] == bound.segments[:kept]


def _matches(left: str, right: str) -> bool:
    try:
        return compile_pattern(right).is_in(left)
    except PatternRefusedError:
        return False


_equal = _both(str.__eq__)
_contains_all = _both(lambda left, right: members(right) <= members(left))

#: Every operator on a single node, in each of its spellings.
OPERATORS: Final[Mapping[str, Operation]] = {
    "=": _equal,
    "==": _equal,
    "is": _equal,
    "!=": _differ,
    "not": _differ,
    "<": _ordered(_SIGNS["<"]),
    "<=": _ordered(_SIGNS["<="]),
    ">": _ordered(_SIGNS[">"]),
    ">=": _ordered(_SIGNS[">="]),
    "regexp": _both(_matches),
    "version": _versions(strict=False),
    "semver": _versions(strict=True),
    "set_contains": _contains_all,
    "set_contains_all": _contains_all,
    "set_contains_any": _both(lambda left, right: not members(right).isdisjoint(members(left))),
    "is_set": lambda left, _: left.found,
    "is_not_set": lambda left, _: not left.found,
}


def right_fault(operator: str, right: str) -> str:
    """Say what is wrong with the right side of a constraint, judged by its text; empty: nothing."""
    if right.startswith("${") and operator not in DISTINCT:
        return ""
    if operator in {"is_set", "is_not_set"}:
        return "must be empty: the operator looks at the attribute alone" if right else ""
    if not right and operator not in DISTINCT and operator != "regexp":
        return "must not be empty"
    if operator == "regexp":
        try:
            compile_pattern(right)
        except PatternRefusedError as err:
            return f"invalid regular expression: {err}"
    if (
        operator in {"version", "semver"}
        and parse_constraint(right, strict=operator == "semver") is None
    ):
        return f"invalid version constraint: {right[:80]!r}"
    if operator == DISTINCT_HOSTS and right and right not in TRUE | FALSE:
        return f"must be true or false, was {right[:80]!r}"
    if operator == DISTINCT_PROPERTY and right and not _is_limit(right):
        return f"must be a whole number from 1, was {right[:80]!r}"
    return ""


#: What Go's strconv.ParseBool takes.
TRUE: Final = frozenset(("1", "t", "T", "true", "TRUE", "True"))
FALSE: Final = frozenset(("0", "f", "F", "false", "FALSE", "False"))


def _is_limit(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0
