"""The hermetic functions of Sprig on texts and numbers, under their names in consul-template: `sprig_*`."""

# The types of parameters are in the kinds of each row.
# pyright: reportUnknownLambdaType=false

import hashlib
import math
from collections.abc import Callable
from typing import Any, Final

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.convert import decode_base64, encode_base64, parse_float, parse_int
from shared.gotemplate.functions.numbers import divide_whole
from shared.gotemplate.functions.registry import (
    Body,
    declare_pure,
    pure_function,
    template_function,
)
from shared.gotemplate.functions.text import (
    BLANKS,
    compile_search,
    join_texts,
    lower,
    regex_match,
    replace_all,
    replace_matches,
    split_text,
    upper,
)
from shared.gotemplate.layouts.json_text import json_text, read_json
from shared.gotemplate.layouts.numbers import quoted
from shared.gotemplate.layouts.printing import general
from shared.gotemplate.syntax.constants import bytes_of, read_number, text_of
from shared.gotemplate.values import TextMap, Value, is_true, wrap_int

_FLOAT_MAX_INT: Final = 2.0**63


def as_plain_text(value: Value) -> str:
    """Return a value as text, as Sprig's toString does."""
    return value if isinstance(value, str) else general(value)


def as_whole(value: Value) -> int:
    """Return a value as an int; what is not a number is 0."""
    if isinstance(value, str):
        try:
            value = read_number(value.removesuffix(".0"), 0)
        except TemplateError:
            return 0
        return value if isinstance(value, int) else 0
    if isinstance(value, float):
        return int(value) if abs(value) < _FLOAT_MAX_INT else 0
    return wrap_int(int(value)) if isinstance(value, int) else 0


def as_float(value: Value) -> float:
    """Return a value as a float; what is not a number is 0."""
    if isinstance(value, str):
        try:
            return parse_float(value)
        except TemplateError:
            return 0.0
    return float(value) if isinstance(value, int | float) else 0.0


def _atoi(text: str) -> int:
    try:
        return parse_int(text)
    except TemplateError:
        return 0


def _digest(algorithm: str, text: str) -> str:
    return hashlib.new(algorithm, bytes_of(text), usedforsecurity=False).hexdigest()


def _product(values: tuple[Value, ...]) -> int:
    found = 1
    for value in values:
        found = wrap_int(found * as_whole(value))
    return found


def _rounded(work: Callable[[float], int], value: Value) -> float:
    number = as_float(value)
    return float(work(number)) if math.isfinite(number) else number


def _default(default: Value, *given: Value) -> Value:
    return given[0] if given and is_true(given[0]) else default


def _coalesce(values: tuple[Value, ...]) -> Value:
    return next((one for one in values if is_true(one)), None)


@pure_function("sprig_mod", "any any")
def _mod(first: Value, second: Value) -> Value:
    """Return the rest of a division."""
    a, b = as_whole(first), as_whole(second)
    return a - b * divide_whole(a, b)


@pure_function("sprig_quote", "any…")
def _quote(*values: Value) -> Value:
    """Put values into double quotes."""
    return " ".join(quoted(as_plain_text(one)) for one in values if one is not None)


@pure_function("sprig_squote", "any…")
def _squote(*values: Value) -> Value:
    """Put values into single quotes."""
    return " ".join(f"'{as_plain_text(one)}'" for one in values if one is not None)


@pure_function("sprig_cat", "any…")
def _cat(*values: Value) -> Value:
    """Join values with blanks."""
    return " ".join(general(one) for one in values if one is not None)


@template_function("sprig_replace", "text text text")
def _replace(execution: Any, old: str, new: str, text: str) -> Value:
    """Replace each occurrence: `sprig_replace old new text`."""
    return replace_all(execution, old, new, text)


@template_function("sprig_repeat", "int text")
def _repeat(execution: Any, count: int, text: str) -> Value:
    """Repeat a text."""
    if count < 0:
        raise TemplateError("negative repeat count")
    execution.check_text(count * len(text))
    return text * count


@template_function("sprig_indent", "int text")
def _indent(execution: Any, spaces: int, text: str) -> Value:
    """Put spaces before every line."""
    if spaces < 0:
        raise TemplateError("negative repeat count")
    execution.check_text(len(text) + spaces * (text.count("\n") + 1))
    return " " * spaces + text.replace("\n", "\n" + " " * spaces)


@template_function("sprig_nindent", "int text")
def _nindent(execution: Any, spaces: int, text: str) -> Value:
    """Put a line's end before the text, and spaces before every line."""
    return "\n" + str(_indent(execution, spaces, text))


@pure_function("sprig_trunc", "int text")
def _trunc(count: int, text: str) -> Value:
    """Cut a text to a number of bytes; a negative one keeps the end."""
    data = bytes_of(text)
    if count < 0:
        return text_of(data[count:]) if len(data) + count > 0 else text
    return text_of(data[:count])


@pure_function("sprig_substr", "int int text")
def _substr(start: int, end: int, text: str) -> Value:
    """Take the bytes from a start to an end."""
    data = bytes_of(text)
    first = max(start, 0)
    last = len(data) if start >= 0 and (end < 0 or end > len(data)) else end
    if not first <= last <= len(data):
        raise TemplateError("slice bounds out of range")
    return text_of(data[first:last])


@pure_function("sprig_nospace", "text")
def _nospace(text: str) -> Value:
    """Take all blanks out."""
    return "".join(one for one in text if one not in BLANKS)


@template_function("sprig_join", "text any")
def _join(execution: Any, separator: str, values: Value) -> Value:
    """Join values of any kind."""
    items = values if isinstance(values, list) else [] if values is None else [values]
    return join_texts(
        execution, separator, [as_plain_text(one) for one in items if one is not None]
    )


@template_function("sprig_splitList", "text text")
def _split_list(execution: Any, separator: str, text: str) -> Value:
    """Split a text into a list."""
    parts = split_text(text, separator)
    execution.charge(len(parts))
    return parts


@template_function("sprig_split", "text text")
def _split(execution: Any, separator: str, text: str) -> Value:
    """Split a text into a map whose keys are _0, _1 and so on."""
    parts = split_text(text, separator)
    execution.charge(len(parts))
    return TextMap({f"_{at}": part for at, part in enumerate(parts)})


@template_function("sprig_regexMatch", "text text")
def _regex_match(execution: Any, pattern: str, text: str) -> Value:
    """Return whether a text has a match."""
    return regex_match(execution, pattern, text)


@template_function("sprig_regexFind", "text text")
def _regex_find(execution: Any, pattern: str, text: str) -> Value:
    """Return the first match."""
    for match in compile_search(pattern).find_all(text, execution.charge):
        return match.get("0")
    return ""


@template_function("sprig_regexFindAll", "text text int")
def _regex_find_all(execution: Any, pattern: str, text: str, count: int) -> Value:
    """Return the first matches; a count of -1 takes all."""
    found: list[Value] = []
    last = -1
    for match in compile_search(pattern).find_all(text, execution.charge):
        if len(found) == count:
            break
        if match.span[0] == match.span[1] == last:
            continue
        found.append(match.get("0"))
        last = match.span[1]
    return found


@template_function("sprig_regexReplaceAll", "text text text")
def _regex_replace(execution: Any, pattern: str, text: str, new: str) -> Value:
    """Replace each match: `sprig_regexReplaceAll pattern text new`."""
    return replace_matches(execution, compile_search(pattern), new, text)


@template_function("sprig_regexReplaceAllLiteral", "text text text")
def _regex_literal(execution: Any, pattern: str, text: str, new: str) -> Value:
    """Replace each match; $ has no meaning in the new text."""
    return replace_matches(execution, compile_search(pattern), new.replace("$", "$$"), text)


@pure_function("sprig_fail", "text")
def _fail(message: str) -> Value:
    """Stop with a message."""
    raise TemplateError(message[:400])


_ROWS: Final[tuple[tuple[str, str, str, Body], ...]] = (
    ("trim", "text", "Take blanks off both ends.", lambda text: text.strip(BLANKS)),
    ("upper", "text", "Make all letters large.", upper),
    ("lower", "text", "Make all letters small.", lower),
    ("trimAll", "text text", "Take these characters off.", lambda cut, text: text.strip(cut)),
    ("trimPrefix", "text text", "Take a beginning off.", lambda cut, text: text.removeprefix(cut)),
    ("trimSuffix", "text text", "Take an end off.", lambda cut, text: text.removesuffix(cut)),
    ("contains", "text text", "Return whether a text has a part.", lambda part, text: part in text),
    (
        "hasPrefix",
        "text text",
        "Return whether it begins so.",
        lambda cut, text: text.startswith(cut),
    ),
    ("hasSuffix", "text text", "Return whether it ends so.", lambda cut, text: text.endswith(cut)),
    ("toString", "any", "Write a value as text.", as_plain_text),
    ("b64enc", "text", "Encode in base64.", encode_base64),
    ("b64dec", "text", "Decode base64.", decode_base64),
    ("plural", "text text int", "Choose by a count.", lambda one, many, n: one if n == 1 else many),
    (
        "ternary",
        "any any any",
        "Choose by a condition.",
        lambda yes, no, on: yes if on is True else no,
    ),
    ("atoi", "text", "Read a decimal int; 0 if it is none.", _atoi),
    ("int", "any", "Return an int.", as_whole),
    ("int64", "any", "Return an int.", as_whole),
    ("float64", "any", "Return a float.", as_float),
    ("add", "any…", "Add ints.", lambda *all_: wrap_int(sum(map(as_whole, all_)))),
    ("add1", "any", "Add one.", lambda value: wrap_int(as_whole(value) + 1)),
    ("sub", "any any", "Subtract the second.", lambda a, b: wrap_int(as_whole(a) - as_whole(b))),
    ("mul", "any any…", "Multiply ints.", lambda *all_: wrap_int(_product(all_))),
    (
        "div",
        "any any",
        "Divide by the second.",
        lambda a, b: divide_whole(as_whole(a), as_whole(b)),
    ),
    ("max", "any any…", "Return the greatest.", lambda *all_: max(map(as_whole, all_))),
    ("min", "any any…", "Return the least.", lambda *all_: min(map(as_whole, all_))),
    ("floor", "any", "Round down.", lambda value: _rounded(math.floor, value)),
    ("ceil", "any", "Round up.", lambda value: _rounded(math.ceil, value)),
    ("sha1sum", "text", "Return the SHA-1.", lambda text: _digest("sha1", text)),
    ("sha256sum", "text", "Return the SHA-256.", lambda text: _digest("sha256", text)),
    ("sha512sum", "text", "Return the SHA-512.", lambda text: _digest("sha512", text)),
    ("toJson", "any", "Write JSON.", json_text),
    (
        "toPrettyJson",
        "any",
        "Write JSON on many lines.",
        lambda value: json_text(value, indent="  "),
    ),
    ("toRawJson", "any", "Write JSON, plain.", lambda value: json_text(value, escapes_html=False)),
    ("fromJson", "text", "Read JSON.", read_json),
    ("default", "any any…", "Return a default for an empty value.", _default),
    ("empty", "any", "Return whether a value is empty.", lambda value: not is_true(value)),
    ("all", "any…", "Return whether no value is empty.", lambda *all_: all(map(is_true, all_))),
    ("any", "any…", "Return whether a value is not empty.", lambda *all_: any(map(is_true, all_))),
    ("coalesce", "any…", "Return the first that is not empty.", lambda *all_: _coalesce(all_)),
)
for _name, _kinds, _purpose, _body in _ROWS:
    declare_pure("sprig_" + _name, _kinds, _purpose, _body)
