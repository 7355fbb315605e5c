"""YAML as consul-template reads and writes it: which plain words are numbers or truth values, and the layout.

PyYAML scans and emits; what a plain word means, and which texts are quoted, is decided here.
"""

import binascii
import math
import re
from base64 import b64decode
from collections.abc import Iterator
from functools import cmp_to_key
from typing import Any, Final

import yaml

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.layouts.numbers import float_text
from shared.gotemplate.syntax.constants import text_of
from shared.gotemplate.values import UNDEFINED, VALUE_DEPTH_MAX, Unsigned, Value, type_name

#: PyYAML reads about a megabyte in five seconds.
YAML_CHARS_MAX: Final = 256 * 1024
#: Values of one document, those that aliases repeat counted each time.
VALUES_MAX: Final = 100_000
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = "plain"
_TRUE: Final = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE: Final = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_WORDS: Final = {
    **dict.fromkeys(_TRUE, True),
    **dict.fromkeys(_FALSE, False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INT = re.compile(r"(?i)([+-]?)(?:0x([0-9a-f]{1,40})|0o([0-7]{1,40})|0b([01]{1,64})|([0-9]{1,40}))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"(?:[Tt][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
    r"| [0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(?:\.[0-9]+)?)?"
)
#: What a parser shows of the text: it may be secret, and faults are shown as events.
_QUOTED = re.compile("'[^']*'|\"[^\"]*\"")
#: Line ends of Unicode, which only an escape keeps.
_BREAKS = re.compile("[\x85\u2028\u2029]")
_DIGITS = re.compile("[0-9]+")
_HEAD = re.compile("[0-9]+$")
_BASE60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


def resolve_plain(text: str) -> Value:
    """Return what a plain word means; a text of no other kind is itself."""
    if text in _WORDS:
        return _WORDS[text]
    if not text[0].isdigit() and text[0] not in "+-.":
        return text
    digits = text.replace("_", "")
    if found := _INT.fullmatch(digits):
        return _whole(found, text)
    if _FLOAT.fullmatch(digits) and not _DATE.fullmatch(text) and len(digits) < 400:
        number = float(digits)
        return text if math.isinf(number) else number
    return text


def _whole(found: re.Match[str], text: str) -> Value:
    sign, hexadecimal, octal, binary, decimal = found.groups()
    if decimal and decimal[0] == "0" and len(decimal) > 1:
        octal, decimal = decimal, None
        if not set(octal) <= set("01234567"):
            return float(text.replace("_", ""))
    digits, base = next(
        (one, base)
        for one, base in ((hexadecimal, 16), (octal, 8), (binary, 2), (decimal, 10))
        if one
    )
    number = int(digits, base) * (-1 if sign == "-" else 1)
    if -(2**63) <= number < 2**63:
        return number
    if 0 <= number < 2**64 and not sign:
        return Unsigned(number)
    return float(number) if decimal else text


# ---- reading ----


class _Loader(yaml.SafeLoader):
    """Keeps apart what was plain and what was quoted."""

    depth = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return super().resolve(kind, value, (False, True))  # type: ignore[no-untyped-call]

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > VALUE_DEPTH_MAX:
            raise TemplateError("YAML: nested too deeply")
        found = super().compose_node(parent, index)
        self.depth -= 1
        return found


def read_yaml(text: str) -> Value:
    """Read the first document of a YAML text. Raises TemplateError."""
    if len(text) > YAML_CHARS_MAX:
        raise TemplateError(f"YAML: more than {YAML_CHARS_MAX} characters")
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        if not loader.check_node():
            return None
        return _Reader().value(loader.get_node(), 0)
    except yaml.MarkedYAMLError as err:
        place = f" at line {err.problem_mark.line + 1}" if err.problem_mark else ""
        problem = _QUOTED.sub("…", err.problem or err.context or "cannot be read")
        raise TemplateError(f"YAML: {problem}{place}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as err:
        reason = "nested too deeply" if isinstance(err, RecursionError) else "cannot be read"
        raise TemplateError(f"YAML: {reason}") from None
    finally:
        if loader is not None:
            loader.dispose()


class _Reader:
    """Turns nodes into values; an alias is read anew each time, and counted."""

    def __init__(self) -> None:
        self._count = 0

    def value(self, node: Any, depth: int) -> Value:
        """Return the value of a node. Raises TemplateError."""
        self._count += 1
        if self._count > VALUES_MAX or depth > VALUE_DEPTH_MAX:
            raise TemplateError(f"YAML: more than {VALUES_MAX} values, or nested too deeply")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(one, depth + 1) for one in node.value]
        found: dict[Any, Value] = {}
        merges: list[Any] = []
        for key_node, value_node in node.value:
            if key_node.tag == _PLAIN and key_node.value == "<<":
                merges.append(value_node)
                continue
            key = self.value(key_node, depth + 1)
            if isinstance(key, list | dict):
                raise TemplateError("YAML: a list or map cannot be a key")
            found[key] = self.value(value_node, depth + 1)
        for merge in merges:
            self._merge(found, merge, depth + 1)
        return found

    def _merge(self, found: dict[Any, Value], node: Any, depth: int) -> None:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for one in sources:
            source = self.value(one, depth)
            if not isinstance(source, dict):
                raise TemplateError("YAML: map merge requires a map or a list of maps")
            for key, value in source.items():
                found.setdefault(key, value)


def _scalar(node: Any) -> Value:
    tag, text = str(node.tag), str(node.value)
    if tag == _TAG + "binary":
        try:
            return text_of(b64decode(text))
        except (binascii.Error, ValueError):
            raise TemplateError("YAML: !!binary is not base64") from None
    if tag == _PLAIN or tag in {_TAG + one for one in ("int", "float", "bool", "null")}:
        value = resolve_plain(text)
        return float(value) if tag == _TAG + "float" and isinstance(value, int) else value
    return text


# ---- writing ----


def yaml_text(value: Value) -> str:
    """Write YAML. Raises TemplateError."""
    if value == "":
        return '""'
    events = [
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_events(value),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    ]
    try:
        found = str(yaml.emit(events, allow_unicode=True))
    except (yaml.YAMLError, RecursionError) as err:
        raise TemplateError(f"cannot be written as YAML: {str(err)[:80]}") from None
    return found.strip().removesuffix("\n...").strip()


def _events(value: Value) -> Iterator[Any]:
    if isinstance(value, list):
        yield yaml.SequenceStartEvent(None, None, True, flow_style=not value)
        for one in value:
            yield from _events(one)
        yield yaml.SequenceEndEvent()
    elif isinstance(value, dict):
        yield yaml.MappingStartEvent(None, None, True, flow_style=not value)
        for key in sorted(value, key=cmp_to_key(_compare_keys)):
            yield from _events(key)
            yield from _events(value[key])
        yield yaml.MappingEndEvent()
    else:
        yield _scalar_event(value)


def _scalar_event(value: Value) -> Any:
    if isinstance(value, str):
        return _text_event(value)
    if value is None or value is UNDEFINED:
        shown = "null"
    elif isinstance(value, bool):
        shown = "true" if value else "false"
    elif isinstance(value, int):
        shown = str(int(value))
    elif isinstance(value, float):
        shown = float_text(value)
        shown = {"+Inf": ".inf", "-Inf": "-.inf", "NaN": ".nan"}.get(shown, shown)
    else:
        raise TemplateError(f"cannot be written as YAML: {type_name(value)}")
    return yaml.ScalarEvent(None, None, (True, False), shown, style=None)


def _text_event(text: str) -> Any:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise TemplateError("text that is not UTF-8 cannot be written as YAML")
    is_plain = isinstance(resolve_plain(text) if text else None, str)
    is_plain = is_plain and not _BASE60.fullmatch(text) and not _DATE.fullmatch(text)
    style = "|" if "\n" in text else None if is_plain else '"'
    if _BREAKS.search(text):
        style = '"'
    return yaml.ScalarEvent(None, None, (is_plain, True), text, style=style)


def _compare_keys(left: Value, right: Value) -> int:
    """Order keys: numbers, then texts, whose runs of digits count as numbers and whose letters stand last."""
    numbers = [isinstance(one, int | float) for one in (left, right)]
    if any(numbers):
        return numbers[1] - numbers[0] if not all(numbers) else (left > right) - (left < right)
    a, b = str(left), str(right)
    for at in range(min(len(a), len(b))):
        if a[at] == b[at]:
            continue
        letters = a[at].isalpha(), b[at].isalpha()
        if any(letters):
            return (ord(a[at]) - ord(b[at])) if all(letters) else (-1 if letters[1] else 1)
        return _compare_runs(a, b, at)
    return len(a) - len(b)


def _compare_runs(a: str, b: str, at: int) -> int:
    """Compare the numbers that begin at the first difference; what is not a digit counts as none."""
    runs = [_DIGITS.match(one, at) for one in (a, b)]
    sizes = [len(run[0]) if run else 0 for run in runs]
    # Behind digits a zero is a place of the number, not its start.
    head = _HEAD.search(a, 0, at) if "0" in {a[at], b[at]} else None
    lead = "1" if head and head[0].strip("0") else "0"
    first, second = (int(lead + (run[0][:40] if run else "")) for run in runs)
    return (first > second) - (first < second) or sizes[0] - sizes[1] or ord(a[at]) - ord(b[at])
