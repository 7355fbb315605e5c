"""Errors of templates, with their position."""

import msgspec


class TemplateError(Exception):
    """One fault. `at` is a character offset into the text, -1 where the caller knows better."""

    def __init__(self, message: str, at: int = -1) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class TemplateLimitExceeded(TemplateError):
    """The work that a template requests has passed its bound."""


class TemplateFault(msgspec.Struct, frozen=True):
    """A fault as it is reported: `line` counts from 1."""

    line: int
    message: str
    #: the template uses what is not built: a job may be accepted without it.
    is_unbuilt: bool = False

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


def line_of(text: str, at: int) -> int:
    """Count the line of a place."""
    return text.count("\n", 0, max(at, 0)) + 1
