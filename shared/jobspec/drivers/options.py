"""Reading a driver's options by a table: what is known, of which kind, and what is never given.

Decides how a value of a job file becomes text, number, flag, list or map, as leniently as Nomad does. Must not know a
driver: each has its table (`docker.py`). What is not in a table is a fault, and names the nearest known option.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from shared.jobspec.durations import Misread, nanoseconds

Json = Mapping[str, Any]


class OptionFault(NamedTuple):
    """What is wrong with an option; `path` below the driver's options, such as `mount[0].source`."""

    path: str
    message: str


class Option(msgspec.Struct, frozen=True):
    """One option. `kind` is a key of KINDS; `meaning` is for people."""

    name: str
    kind: str
    meaning: str


class Unfit(ValueError):
    """A value that cannot be of its option's kind."""


class Open(Exception):
    """A value that is not known before the node resolves its references."""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise Unfit(f"must be a text, was {_shown(value)}")


def _number(value: Any) -> int:
    if isinstance(value, str) and "${" in value:
        raise Open
    if isinstance(value, str) and value.strip().removeprefix("-").isdigit() and len(value) < 20:
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Unfit(f"must be a whole number, was {_shown(value)}")


def _flag(value: Any) -> bool:
    if isinstance(value, str) and "${" in value:
        raise Open
    if isinstance(value, bool):
        return value
    if value in ("true", "1", 1):
        return True
    if value in ("false", "0", 0, ""):
        return False
    raise Unfit(f"must be true or false, was {_shown(value)}")


def _duration(value: Any) -> int:
    text = _text(value)
    if "${" in text:
        raise Open
    try:
        return nanoseconds(text)
    except Misread as err:
        raise Unfit(str(err)) from err


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Unfit(f"must be a list of texts, was {_shown(value)}")
    return tuple(_text(one) for one in value)


def _merged(value: Any) -> dict[str, Any]:
    """A block arrives as a list of maps, an attribute as one map."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in parts):
        raise Unfit(f"must be a map, was {_shown(value)}")
    return {key: item for one in parts for key, item in one.items()}


def _map(value: Any) -> dict[str, str]:
    return {key: _text(item) for key, item in _merged(value).items()}


def _numbers(value: Any) -> dict[str, int]:
    return {key: _number(item) for key, item in _merged(value).items()}


def _blocks(value: Any) -> tuple[dict[str, Any], ...]:
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in found):
        raise Unfit(f"must be blocks, was {_shown(value)}")
    return tuple(found)


def _shown(value: Any) -> str:
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


def nearest(name: str, known: list[str]) -> str:
    """Say which known name was probably meant: ` (did you mean image?)`, or nothing."""
    found = difflib.get_close_matches(name[:60], known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def read_options(
    config: Json,
    table: Mapping[str, Option],
    never: Mapping[str, str],
    *,
    path: str = "",
) -> tuple[dict[str, Any], list[OptionFault]]:
    """Read options by a table. Returns the values that could be read, and what is wrong.

    `never`: options that are known and not given, with the reason; one that asks for nothing (false, empty) passes.
    """
    found: dict[str, Any] = {}
    faults: list[OptionFault] = []
    for name in sorted(config):
        value = config[name]
        option = table.get(name)
        if option is None:
            if name not in never:
                known = [*sorted(table), *sorted(never)]
                text = f"unknown option {name[:60]!r}{nearest(name, known)}"
                faults.append(OptionFault(path + name[:60], text))
            elif value not in (None, False, "", 0, [], {}, "false"):
                faults.append(OptionFault(path + name, never[name]))
        elif value is not None:
            try:
                found[name] = KINDS[option.kind](value)
            except Open:
                continue
            except Unfit as err:
                faults.append(OptionFault(path + name, str(err)))
    return found, faults


def by_name(*options: Option) -> dict[str, Option]:
    """A table of options."""
    return {option.name: option for option in options}
