"""Faults of an HCL text: what is wrong and where.

A fault is an exception inside one expression; whoever evaluates a body catches it, notes it, and goes on with the next
expression, so that a file's faults are told together.
"""

import difflib
from collections.abc import Iterable
from itertools import islice

#: Nested deeper than this is refused, by the parser and by every walk over values.
DEPTH_MAX = 50
#: Faults told at once.
FAULTS_MAX = 100


class HclFault(Exception):
    """One fault. `at` is a character offset into the text, -1 where the caller knows better."""

    def __init__(self, message: str, at: int = -1) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class TooMuch(HclFault):
    """The work a text asks for has passed its bound. Never caught by `try()` and `can()`."""


def hint(name: str, known: Iterable[str]) -> str:
    """Name the nearest of the first hundred known names, as the end of a message; empty: none is near."""
    near = difflib.get_close_matches(name[:40], islice(known, 100), 1)
    return f"; did you mean {near[0]}?" if near else ""
