"""Go's own functions. `and` and `or` are evaluated by the execution, which stops at the argument that decides."""

from typing import Any, Final
from urllib.parse import quote_plus

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.registry import pure_function, template_function
from shared.gotemplate.layouts.printing import sprint, sprintf, sprintln
from shared.gotemplate.syntax.constants import bytes_of, text_of
from shared.gotemplate.values import (
    UNDEFINED,
    Channel,
    Value,
    equal,
    is_true,
    less,
    type_name,
    zero_of,
)

_HTML: Final = str.maketrans(
    {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_JS: Final = {
    "\\": "\\\\",
    "'": "\\'",
    '"': '\\"',
    "<": "\\u003C",
    ">": "\\u003E",
    "&": "\\u0026",
    "=": "\\u003D",
}


@pure_function("and", "any any…", is_light=True)
def _and(*_values: Value) -> Value:
    """Return the first argument that is empty, or the last one."""
    raise AssertionError("evaluated by the execution")


@pure_function("or", "any any…", is_light=True)
def _or(*_values: Value) -> Value:
    """Return the first argument that is not empty, or the last one."""
    raise AssertionError("evaluated by the execution")


@pure_function("not", "any", is_light=True)
def _not(value: Value) -> Value:
    """Return whether the argument is empty."""
    return not is_true(value)


@pure_function("len", "any", is_light=True)
def length(value: Value) -> int:
    """Return the number of elements, or of bytes of a text."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(bytes_of(value))
    if isinstance(value, list | dict):
        return len(value)
    if isinstance(value, Channel):
        return 0
    raise TemplateError(
        "len of nil pointer" if value is None else f"len of type {type_name(value)}"
    )


def _place(index: Value, size: int) -> int:
    if index is None or index is UNDEFINED:
        raise TemplateError("cannot index slice/array with nil")
    if isinstance(index, bool) or not isinstance(index, int):
        raise TemplateError(f"cannot index slice/array with type {type_name(index)}")
    if not 0 <= index <= size:
        raise TemplateError(f"index out of range: {index}")
    return index


@pure_function("index", "any any…", is_light=True)
def element(value: Value, *indexes: Value) -> Value:
    """Take an element of a list or map, and of that one its element."""
    if value is None:
        raise TemplateError("index of untyped nil")
    for index in indexes:
        if value is None:
            raise TemplateError("index of nil pointer")
        if isinstance(value, dict):
            value = _entry(value, index)
            continue
        if not isinstance(value, str | list):
            raise TemplateError(f"can't index item of type {type_name(value)}")
        items = bytes_of(value) if isinstance(value, str) else value
        at = _place(index, len(items))
        if at == len(items):
            raise TemplateError(f"index out of range [{at}] with length {len(items)}")
        value = items[at]
    return value


def _entry(value: dict[Value, Value], key: Value) -> Value:
    if key is None:
        raise TemplateError("value is nil; should be of type string")
    if isinstance(key, list | dict) or (
        not isinstance(key, str) and all(isinstance(one, str) for one in value)
    ):
        raise TemplateError(f"value has type {type_name(key)}; should be string")
    return value[key] if key in value else zero_of(value)


@template_function("slice", "any any…", is_light=True)
def _slice(execution: Any, value: Value, *indexes: Value) -> Value:
    """Take a part of a list or text: `slice x 1 3` is x[1:3]."""
    if value is None:
        raise TemplateError("slice of untyped nil")
    if len(indexes) > 3:
        raise TemplateError(f"too many slice indexes: {len(indexes)}")
    if not isinstance(value, str | list):
        raise TemplateError(f"can't slice item of type {type_name(value)}")
    if isinstance(value, str) and len(indexes) == 3:
        raise TemplateError("cannot 3-index slice a string")
    items = bytes_of(value) if isinstance(value, str) else value
    places = [_place(index, len(items)) for index in indexes]
    start, end = [*places, 0][0], [*places, len(items), len(items)][1] if places else len(items)
    if start > end or (len(places) == 3 and end > places[2]):
        raise TemplateError(f"invalid slice index: {start} > {end}")
    execution.charge((end - start) >> 3)
    part = items[start:end]
    return text_of(part) if isinstance(part, bytes) else part


@template_function("call", "any any…")
def _call(_execution: object, value: Value, *_arguments: Value) -> Value:
    """Call a value that is a function; no data has one."""
    raise TemplateError(
        "call of nil" if value is None else f"non-function of type {type_name(value)}"
    )


@pure_function("print", "any…")
def _print(*values: Value) -> Value:
    """Join values, with blanks between two that are not texts."""
    return sprint(list(values))


@pure_function("println", "any…")
def _println(*values: Value) -> Value:
    """Join values with blanks, and end the line."""
    return sprintln(list(values))


@pure_function("printf", "text any…")
def _printf(pattern: str, *values: Value) -> Value:
    """Format values with Go's verbs."""
    return sprintf(pattern, list(values))


def _joined(values: tuple[Value, ...]) -> str:
    shown = ["<no value>" if one is None else one for one in values]
    return sprint(shown)


@pure_function("html", "any…")
def _html(*values: Value) -> Value:
    """Escape for HTML."""
    return _joined(values).translate(_HTML)


@pure_function("js", "any…")
def _js(*values: Value) -> Value:
    """Escape for JavaScript."""
    return "".join([_js_char(one) for one in _joined(values)])


def _js_char(char: str) -> str:
    if char in _JS:
        return _JS[char]
    if char < " ":
        return f"\\u{ord(char):04X}"
    if "\ud800" <= char <= "\udfff":
        return "\\uFFFD"
    return char if char < "\x80" or char.isprintable() else f"\\u{ord(char):04X}"


@pure_function("urlquery", "any…")
def _urlquery(*values: Value) -> Value:
    """Escape for the query of a URL."""
    return quote_plus(bytes_of(_joined(values)), safe="~")


@pure_function("eq", "any any…", is_light=True)
def _eq(left: Value, *rest: Value) -> Value:
    """Return whether the first argument equals any of the others."""
    if not rest:
        raise TemplateError("missing argument for comparison")
    return any(equal(left, one) for one in rest)


@pure_function("ne", "any any", is_light=True)
def _ne(left: Value, right: Value) -> Value:
    """Return whether two values differ."""
    return not equal(left, right)


@pure_function("lt", "any any", is_light=True)
def _lt(left: Value, right: Value) -> Value:
    """Return whether the first is less."""
    return less(left, right)


def _at_most(left: Value, right: Value) -> bool:
    return less(left, right) or equal(left, right)


@pure_function("le", "any any", is_light=True)
def _le(left: Value, right: Value) -> Value:
    """Return whether the first is less or equal."""
    return _at_most(left, right)


@pure_function("gt", "any any", is_light=True)
def _gt(left: Value, right: Value) -> Value:
    """Return whether the first is greater."""
    return not _at_most(left, right)


@pure_function("ge", "any any", is_light=True)
def _ge(left: Value, right: Value) -> Value:
    """Return whether the first is greater or equal."""
    return not less(left, right)
