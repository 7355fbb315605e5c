"""Reads a driver's options by its table (`docker.py`): kinds, allowed values, and options that are refused.

Values become text, number, flag, list or map, as leniently as in Nomad. An option that is not in the table is an error,
which names the nearest known option.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from shared.durations import InvalidDuration, parse_duration
from shared.numerals import is_digits, parse_whole

OptionValues = Mapping[str, Any]


#: Lowest and highest number of a port.
PORT_BOUNDS = (1, 65_535)


class OptionDiagnostic(NamedTuple):
    """What is wrong with an option; `path` below the driver's options, such as `mount[0].source`."""

    path: str
    message: str


class Option(msgspec.Struct, frozen=True):
    """One option. `kind` is a key of KINDS, `meaning` documentation."""

    name: str
    kind: str
    meaning: str
    #: allowed texts; empty: any.
    choices: tuple[str, ...] = ()
    #: lowest and highest number, or number of each entry of a map; None: any.
    bounds: tuple[int, int] | None = None

    def faults(self, value: Any, path: str) -> Iterator[OptionDiagnostic]:
        """Check a value of the option's kind against `choices` and `bounds`."""
        if self.choices and value and "${" not in value and value not in self.choices:
            text = f"must be one of {', '.join(self.choices)}, was {value[:40]!r}"
            yield OptionDiagnostic(path, text + suggest(value, list(self.choices)))
        if self.bounds is not None:
            low, high = self.bounds
            entries = value if isinstance(value, dict) else {"": value}
            for label, number in sorted(entries.items()):
                if not low <= number <= high:
                    here = f"{path}.{label[:80]}" if label else path
                    yield OptionDiagnostic(here, f"must be {low} to {high}, was {number}")


class OptionMismatch(ValueError):
    """A value that cannot be of its option's kind."""


class UnresolvedReference(Exception):
    """A value that is not known before the node resolves its references."""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return _float_text(value)
    raise OptionMismatch(f"must be a string, was {_describe_value(value)}")


def _float_text(value: float) -> str:
    """Write a number with a fraction as Nomad does: the shortest digits, never with an exponent."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number(value: Any) -> int:
    if isinstance(value, str) and "${" in value:
        raise UnresolvedReference
    if isinstance(value, str) and is_digits(value.strip().removeprefix("-")) and len(value) < 20:
        return parse_whole(value.strip())
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise OptionMismatch(f"must be a whole number, was {_describe_value(value)}")


def _flag(value: Any) -> bool:
    if isinstance(value, str) and "${" in value:
        raise UnresolvedReference
    if isinstance(value, bool):
        return value
    if value in ("true", "1", 1):
        return True
    if value in ("false", "0", 0, ""):
        return False
    raise OptionMismatch(f"must be true or false, was {_describe_value(value)}")


def _duration(value: Any) -> int:
    text = _text(value)
    if "${" in text:
        raise UnresolvedReference
    try:
        return parse_duration(text)
    except InvalidDuration as err:
        raise OptionMismatch(str(err)) from err


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise OptionMismatch(f"must be a list of strings, was {_describe_value(value)}")
    return tuple(_text(one) for one in value)


def _merge_maps(value: Any) -> dict[str, Any]:
    """A block arrives as a list of maps, an attribute as one map."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in parts):
        raise OptionMismatch(f"must be a map, was {_describe_value(value)}")
    return {key: item for one in parts for key, item in one.items()}


def _map(value: Any) -> dict[str, str]:
    return {key: _text(item) for key, item in _merge_maps(value).items()}


def _numbers(value: Any) -> dict[str, int]:
    return {key: _number(item) for key, item in _merge_maps(value).items()}


def _blocks(value: Any) -> tuple[dict[str, Any], ...]:
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in found):
        raise OptionMismatch(f"must be blocks, was {_describe_value(value)}")
    return tuple(found)


def _describe_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "a list"
    return "a block" if isinstance(value, dict) else repr(value)[:60]


KINDS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "number": _number,
    "flag": _flag,
    "duration": _duration,
    "list": _texts,
    "map": _map,
    "numbers": _numbers,
    "blocks": _blocks,
}


#: Unknown options of one config that get a suggestion.
HINTS_MAX = 10


def suggest(name: str, known: list[str]) -> str:
    """Suggest the nearest known name: ` (did you mean image?)`, or nothing."""
    found = difflib.get_close_matches(name[:60], known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def read_options(
    config: OptionValues,
    table: Mapping[str, Option],
    never: Mapping[str, str],
    *,
    path: str = "",
) -> tuple[dict[str, Any], list[OptionDiagnostic]]:
    """Read options by a table. Returns the values that could be read, and what is wrong.

    `never`: known options that are refused, with the reason; an empty or false value passes.
    """
    found: dict[str, Any] = {}
    faults: list[OptionDiagnostic] = []
    strange = 0
    for name in sorted(config):
        value = config[name]
        option = table.get(name)
        if option is None:
            if name not in never:
                strange += 1
                # A search through all names takes long; a config may have thousands of strange ones.
                known = [*sorted(table), *sorted(never)] if strange <= HINTS_MAX else []
                text = f"unknown option {name[:60]!r}{suggest(name, known)}"
                faults.append(OptionDiagnostic(path + name[:60], text))
            elif value not in (None, False, "", 0, [], {}, "false"):
                faults.append(OptionDiagnostic(path + name, never[name]))
        elif value is not None:
            try:
                found[name] = KINDS[option.kind](value)
                faults += option.faults(found[name], path + name)
            except UnresolvedReference:
                continue
            except OptionMismatch as err:
                faults.append(OptionDiagnostic(path + name, str(err)))
    return found, faults


def option_table(*options: Option) -> dict[str, Option]:
    """A table of options."""
    return {option.name: option for option in options}
