"""References to secrets in the texts of a job: `${secret.NAME.KEY}`.

Both ends find them here: submission names those that cannot be filled in, the agent fills them in when it starts a
task. A value that is filled in is a text: what looks like a reference in it is none.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

#: What every reference holds, for a quick look.
MARK = "secret."
_REFERENCE = re.compile(r"\$\{\s*secret\.([^}\s]*)\s*\}")

#: A reference as far as it is there: its beginning at the end of a text, or its end at the beginning.
_PART = re.compile(r"\$\{\s*(env\[\"?)?secret\.|\$\{[^}]*\Z|\A\s*\{?\s*secret\.[^}]*\}")


class SecretReference(NamedTuple):
    """One reference: the secret's name in its task, and the key of one of its values."""

    secret: str
    key: str

    @property
    def text(self) -> str:
        """As it is written in a job."""
        return f"${{secret.{self.secret}.{self.key}}}" if self.key else f"${{secret.{self.secret}}}"


def find_references(value: Any) -> Iterator[SecretReference]:
    """List the references in all texts of a JSON value, keys of objects excepted."""
    if isinstance(value, str):
        if MARK in value:
            for found in _REFERENCE.finditer(value):
                secret, _, key = found.group(1).partition(".")
                yield SecretReference(secret, key)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from find_references(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from find_references(one)


def may_become_reference(text: str) -> bool:
    """Return whether a text that others fill in has a reference, or a part that the texts around it may complete."""
    return _PART.search(text) is not None


def fill_references(value: Any, values: Mapping[SecretReference, str]) -> Any:
    """Fill in the references of a JSON value, in one pass; one without a value stays as it is."""

    def filled(match: re.Match[str]) -> str:
        secret, _, key = match.group(1).partition(".")
        return values.get(SecretReference(secret, key), match.group(0))

    return _each_text(value, lambda text: _REFERENCE.sub(filled, text) if MARK in text else text)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_each_text(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _each_text(one, change) for key, one in value.items()}
    return value
