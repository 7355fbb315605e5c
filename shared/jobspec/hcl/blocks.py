"""What a job file yields once it is evaluated: blocks of plain values, and the errors found on the way."""

import msgspec

from shared.jobspec.hcl.values import Value

#: Path of keys and indexes -> line.
LineNumbers = dict[tuple[str | int, ...], int]

#: Replaces a value that could not be evaluated; its error is reported where it arose.
UNKNOWN_VALUE: Value = object()


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One error in a file. `line` counts from 1; 0: no line."""

    message: str
    line: int = 0
    file: str = ""
    path: str = ""


class ResolvedBlock(msgspec.Struct, frozen=True):
    """A block whose attributes are values: name -> (value, line)."""

    name: str
    labels: tuple[str, ...]
    attributes: dict[str, tuple[Value, int]]
    blocks: tuple["ResolvedBlock", ...]
    line: int
