"""Functions of text."""

import re
from functools import partial
from typing import Any

from shared.jobspec.hcl.errors import HclError, HclLimitExceeded
from shared.jobspec.hcl.functions.encoding import json_text
from shared.jobspec.hcl.functions.registry import function
from shared.jobspec.hcl.values import (
    TEXT_MAX,
    Value,
    as_int,
    as_list,
    as_number,
    as_text,
    describe_value,
    normalize_number,
)
from shared.numerals import parse_whole
from shared.regexp.search import CapturingRegexp, RegexpMatch
from shared.regexp.syntax import PatternRefusedError

_VERB = re.compile(
    r"%(?:\[(?P<index>\d{1,3})\])?(?P<flags>[-+ 0#]*)(?P<width>\d{0,3})(?:\.(?P<digits>\d{0,2}))?(?P<verb>.)",
    re.DOTALL,
)
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(\$))")
_WORD_START = re.compile(r"(^|[^\w'])(\w)")

_PATTERN_STATES_MAX = 1000


def check_text_size(size: int) -> None:
    """Refuse to make a text that is too long, before it is made."""
    if size > TEXT_MAX:
        raise HclLimitExceeded(f"string of more than {TEXT_MAX} characters")


@function("upper")
def _upper(text: Value) -> Value:
    """Make all letters large."""
    return as_text(text).upper()


@function("lower")
def _lower(text: Value) -> Value:
    """Make all letters small."""
    return as_text(text).lower()


@function("title")
def _title(text: Value) -> Value:
    """Capitalize the first letter of each word."""
    return _WORD_START.sub(lambda found: found[1] + found[2].upper(), as_text(text))


@function("trimspace")
def _trimspace(text: Value) -> Value:
    """Take blanks off both ends."""
    return as_text(text).strip()


@function("trim")
def _trim(text: Value, characters: Value) -> Value:
    """Take any of these characters off both ends."""
    return as_text(text).strip(as_text(characters))


@function("trimprefix")
def _trimprefix(text: Value, prefix: Value) -> Value:
    """Take this beginning off."""
    return as_text(text).removeprefix(as_text(prefix))


@function("trimsuffix")
def _trimsuffix(text: Value, suffix: Value) -> Value:
    """Take this end off."""
    return as_text(text).removesuffix(as_text(suffix))


@function("chomp")
def _chomp(text: Value) -> Value:
    """Take new lines off the end."""
    return as_text(text).rstrip("\r\n")


@function("strlen")
def _strlen(text: Value) -> Value:
    """Count the characters of a text."""
    return len(as_text(text))


@function("strrev")
def _strrev(text: Value) -> Value:
    """Turn a text around."""
    return as_text(text)[::-1]


@function("substr")
def _substr(text: Value, offset: Value, length: Value) -> Value:
    """Take `length` characters from `offset` on; -1: to the end; a negative offset counts from the end."""
    whole, start, count = as_text(text), as_int(offset), as_int(length)
    if start < 0:
        start = max(len(whole) + start, 0)
    return whole[start:] if count < 0 else whole[start : start + count]


@function("replace", needs_world=True)
def _replace(world: Any, text: Value, old: Value, new: Value) -> Value:
    """Replace all of a text; `/pattern/` is a pattern, `$1` its first group."""
    whole, search, put = as_text(text), as_text(old), as_text(new)
    if len(search) > 2 and search[0] == search[-1] == "/":
        return _regex_replace(world, whole, search[1:-1], put)
    check_text_size(len(whole) + whole.count(search) * max(len(put) - len(search), 0))
    return whole.replace(search, put)


@function("regex_replace", needs_world=True)
def _regex_replace(world: Any, text: Value, pattern: Value, new: Value) -> Value:
    """Replace what a pattern matches; `$1` is its first group, `${name}` a named one."""
    whole, put = as_text(text), as_text(new)
    parts: list[str] = []
    at = size = 0
    for groups in _compile(pattern).find_all(whole, world.work):
        start, end = groups.span
        expanded = _REFERENCE.sub(partial(_group, groups), put)
        parts += [whole[at:start], expanded]
        size += len(expanded) + start - at
        check_text_size(size)
        at = end
    return "".join([*parts, whole[at:]])


def _group(groups: RegexpMatch, found: re.Match[str]) -> str:
    if found[3]:
        return "$"
    return groups.get(found[1] or found[2])


@function("regex", needs_world=True)
def _regex(world: Any, pattern: Value, text: Value) -> Value:
    """Give what a pattern matches: the text, a list of its groups, or an object of named ones."""
    for found in _compile(pattern).find_all(as_text(text), world.work):
        return _match_value(found)
    raise HclError("the pattern does not match")


@function("regexall", needs_world=True)
def _regexall(world: Any, pattern: Value, text: Value) -> Value:
    """List all that a pattern matches, each as regex() gives it."""
    matches = _compile(pattern).find_all(as_text(text), world.work)
    return [_match_value(match) for match in matches]


def _compile(pattern: Value) -> CapturingRegexp:
    try:
        return CapturingRegexp(as_text(pattern), states_max=_PATTERN_STATES_MAX)
    except PatternRefusedError as err:
        raise HclError(f"pattern: {err}") from None


def _match_value(match: RegexpMatch) -> Value:
    """Return the text of a match, or its groups as a list, or as an object where they have names."""
    if match.names:
        return {name: match.groups[number] for name, number in sorted(match.names.items())}
    return match.groups[1:] if len(match.groups) > 1 else match.groups[0]


@function("split")
def _split(separator: Value, text: Value) -> Value:
    """Cut a text at a separator."""
    mark, whole = as_text(separator), as_text(text)
    return whole.split(mark) if mark else list(whole)


@function("join")
def _join(separator: Value, *lists: Value) -> Value:
    """Join the texts of lists with a separator."""
    parts = [as_text(item) for one in lists for item in as_list(one)]
    mark = as_text(separator)
    check_text_size(sum(map(len, parts)) + len(mark) * len(parts))
    return mark.join(parts)


@function("indent")
def _indent(spaces: Value, text: Value) -> Value:
    """Put spaces before every line but the first."""
    whole, count = as_text(text), max(as_int(spaces), 0)
    check_text_size(len(whole) + whole.count("\n") * count)
    return whole.replace("\n", "\n" + " " * count)


@function("startswith")
def _startswith(text: Value, prefix: Value) -> Value:
    """Return whether a text starts with another."""
    return as_text(text).startswith(as_text(prefix))


@function("endswith")
def _endswith(text: Value, suffix: Value) -> Value:
    """Return whether a text ends with another."""
    return as_text(text).endswith(as_text(suffix))


@function("strcontains")
def _strcontains(text: Value, part: Value) -> Value:
    """Return whether a text contains another."""
    return as_text(part) in as_text(text)


@function("format")
def _format(text: Value, *values: Value) -> Value:
    """Fill values into a text, by Go's verbs: %s %d %q %v %t %x %f and their like."""
    whole = as_text(text)
    parts: list[str] = []
    at = used = size = 0
    while (start := whole.find("%", at)) >= 0:
        parts.append(whole[at:start])
        found = _VERB.match(whole, start)
        if found is None:
            raise HclError("the format string ends inside a verb")
        at = found.end()
        if found["verb"] == "%":
            parts.append("%")
            continue
        number = int(found["index"]) - 1 if found["index"] else used
        if not 0 <= number < len(values):
            raise HclError(f"no value for {found[0]!r}")
        parts.append(_verb(found, values[number]))
        size += len(parts[-1])
        check_text_size(size)
        used = number + 1
    if used < len(values) and "[" not in whole:
        raise HclError(f"{len(values)} values for {used} verbs")
    return "".join([*parts, whole[at:]])


def _verb(found: re.Match[str], value: Value) -> str:
    verb, flags = found["verb"], found["flags"]
    digits = "" if found["digits"] is None else f".{found['digits'] or 0}"
    sign = "+" if "+" in flags else " " if " " in flags else ""
    if verb == "s":
        text = as_text(value) if not isinstance(value, list | dict) else json_text(value)
        text = text[: int(found["digits"] or 0)] if digits else text
    elif verb == "v":
        text = (
            json_text(value) if isinstance(value, list | dict) or value is None else as_text(value)
        )
    elif verb == "q":
        text = json_text(as_text(value))
    elif verb == "t":
        text = as_text(bool(value)) if isinstance(value, bool) else as_text(value)
    elif verb in "dboxX":
        text = f"{int(as_number(value)):{sign}{verb}}"
    elif verb in "eEfFgG":
        text = f"{float(as_number(value)):{sign}{digits}{verb}}"
    else:
        raise HclError(f"unknown verb {found[0]!r}")
    width = int(found["width"] or 0)
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and verb not in "sqvt":
        return text.zfill(width)
    return text.rjust(width)


@function("formatlist")
def _formatlist(text: Value, *values: Value) -> Value:
    """Fill lists into a text, element by element; what is not a list is the same in each."""
    lengths = {len(one) for one in values if isinstance(one, list)}
    if len(lengths) > 1:
        raise HclError(f"lists of different lengths: {', '.join(map(str, sorted(lengths)))}")
    count = lengths.pop() if lengths else 1
    rows = [[one[n] if isinstance(one, list) else one for one in values] for n in range(count)]
    found = [_format(text, *row) for row in rows]
    check_text_size(sum(map(len, found)))
    return found


@function("parseint")
def _parseint(text: Value, base: Value) -> Value:
    """Read a whole number in a base from 2 to 36."""
    whole, radix = as_text(text), as_int(base)
    if not 2 <= radix <= 36 or len(whole) > 80:
        raise HclError("the base must be 2 to 36, the number at most 80 digits")
    try:
        return normalize_number(parse_whole(whole, radix))
    except ValueError:
        raise HclError(f"{describe_value(whole)} is not a number in base {radix}") from None
