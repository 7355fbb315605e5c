"""Files of settings, in YAML or JSON: from text to a checked struct, or to an error with file, path and line."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from shared.durations import InvalidDuration, parse_duration
from shared.errors import ConfigInvalid
from shared.fleet.distributions import DURATION_MAX_NS
from shared.jobspec.files.yaml_toml import read_yaml
from shared.jobspec.hcl.blocks import LineNumbers
from shared.jobspec.hcl.errors import StructuredTextError

A = TypeVar("A")
B = TypeVar("B")
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
#: Whole numbers have 64 bits.
_NUMBER_MAX = 2**63 - 1
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class FileInvalid(ConfigInvalid):
    """An invalid file, with the place of the error as far as it is known."""

    def __init__(self, message: str, *, file: str, path: str = "", line: int = 0) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(": ".join(part for part in (place, path, message) if part))
        self.message = message
        self.path = path
        self.file = file
        self.line = line


def read_config(text: bytes, file: str, kind: type[A], check: Callable[[A], B]) -> B:
    """Return what `check` makes of the file's struct. Raises FileInvalid.

    `check` raises ConfigInvalid("path: message"), or FileInvalid for an error in another file.
    """
    try:
        value, lines = read_yaml(text.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise FileInvalid("not UTF-8", file=file) from err
    except StructuredTextError as err:
        raise FileInvalid(err.message, file=file, line=err.line) from err
    try:
        _require_numbers(value, "")
        return check(msgspec.convert({} if value is None else value, kind))
    except FileInvalid:
        raise
    except (msgspec.ValidationError, ConfigInvalid) as err:
        is_type = isinstance(err, msgspec.ValidationError)
        path, message = split_type_error(str(err)) if is_type else _split(str(err))
        line = _line_of(lines, path)
        raise FileInvalid(message, path=path, file=file, line=line) from err


def _require_numbers(value: object, path: str) -> None:
    """Refuse numbers that nothing can be computed with: YAML has `.nan` and `.inf`. Raises ConfigInvalid."""
    if isinstance(value, dict):
        for key, item in value.items():
            _require_numbers(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _require_numbers(item, f"{path}[{at}]")
    elif isinstance(value, int | float) and not -_NUMBER_MAX <= value <= _NUMBER_MAX:
        raise ConfigInvalid(f"{path}: not a number, or out of range")


def split_type_error(text: str) -> tuple[str, str]:
    """Split a msgspec error into path and message; the path of an unknown key includes the key."""
    message, _, where = text.partition(" - at ")
    path = where.strip("`").removeprefix("$").removeprefix(".")
    unknown = _UNKNOWN.search(message)
    if unknown is not None:
        path = f"{path}.{unknown[1]}" if path else unknown[1]
        message = "unknown key"
    return path, message


def _split(text: str) -> tuple[str, str]:
    path, mark, message = text.partition(": ")
    return (path, message) if mark and " " not in path else ("", text)


def _line_of(lines: LineNumbers, path: str) -> int:
    """Return the line of a path or of its nearest parent; 0: unknown."""
    steps = tuple(
        int(number) if number else name for number, name in _STEP.findall(path) if number or name
    )
    while steps and steps not in lines:
        steps = steps[:-1]
    return lines.get(steps, 0)


def duration_ns(text: str, place: str) -> int:
    """Read a duration in ns. Raises ConfigInvalid."""
    try:
        found = parse_duration(text)
    except InvalidDuration as err:
        raise ConfigInvalid(f"{place}: {err}") from err
    if not 0 <= found <= DURATION_MAX_NS:
        raise ConfigInvalid(f"{place}: {text!r} is out of range")
    return found
