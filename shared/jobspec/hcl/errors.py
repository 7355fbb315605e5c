"""Errors of an HCL text, with their position.

An error is an exception inside one expression. The evaluation of a body catches it, records it and continues with the
next expression, so that all errors of a file are reported together.
"""

import difflib
from collections.abc import Iterable
from itertools import islice

#: Nested deeper than this is refused, by the parser and by every walk over values.
DEPTH_MAX = 50
#: Errors reported at once.
DIAGNOSTICS_MAX = 100


class HclError(Exception):
    """One fault. `at` is a character offset into the text, -1 where the caller knows better."""

    def __init__(self, message: str, at: int = -1) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class HclLimitExceeded(HclError):
    """The work a text requests has passed its bound. Never caught by `try()` and `can()`."""


class StructuredTextError(Exception):
    """YAML, TOML or JSON that cannot be read. `line` counts from 1, 0: unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Name the nearest of the first hundred known names, as the end of a message; empty: none is near."""
    near = difflib.get_close_matches(name[:40], islice(known, 100), 1)
    return f"; did you mean {near[0]}?" if near else ""
