"""Fills secrets into what other handlers are given, and keeps them out of what these say of it.

What a handler gets has values; what comes back from it (reasons, events) goes to the role, and from there to the
journal and to everybody who may read the cluster: it has the references again.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote, quote_plus

import msgspec

from services.agent.inputs.input_handler import HOOK_FAILED, InputContext, InputFailed, InputHandler
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import ARTIFACT, SECRET, TEMPLATE
from shared.jobspec.secret_references import (
    MARK,
    SecretReference,
    fill_references,
    find_references,
)

#: kind of input -> its options in which references are filled in: those that Nomad interpolates.
FILLED_OPTIONS: Mapping[str, tuple[str, ...]] = {
    ARTIFACT: ("source", "options", "headers", "destination"),
    TEMPLATE: ("source", "destination"),
}
HIDDEN = "its reason may hold a secret, and is not shown"
#: A shorter value is masked as a word alone: else a reason would become unreadable.
_WORD_CHARS = 4
#: So much of the beginning of a value is masked, too: texts are cut.
_CUT_CHARS = 12

Values = Mapping[SecretReference, str]


@runtime_checkable
class ReferenceHandler(Protocol):
    """A handler whose inputs are values of references. They are kept by the agent's process alone."""

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """See InputHandler."""
        ...

    def references(self, alloc_id: str, task: str) -> Values:
        """Return the values that a task has so far."""
        ...

    def holds(self, alloc_id: str, task: str, wanted: TaskInput) -> bool:
        """Say whether an input is prepared."""
        ...

    def forget(self, alloc_id: str) -> None:
        """Drop those of an allocation that is over."""
        ...


class FilledInputs:
    """The secrets of one agent's tasks, for its other handlers."""

    def __init__(self, handlers: Mapping[str, InputHandler]) -> None:
        found: object = handlers.get(SECRET)
        self._source = found if isinstance(found, ReferenceHandler) else None

    def values(self, alloc_id: str, task: str, inputs: Iterable[TaskInput]) -> Values:
        """Return the values of a task. Raises KeyError where one of its secrets was not fetched."""
        if self._source is None:
            return {}
        for one in inputs:
            if one.kind == SECRET and not self._source.holds(alloc_id, task, one):
                raise KeyError(one.name)
        return self._source.references(alloc_id, task)

    async def fill(self, about: InputContext, wanted: TaskInput) -> tuple[InputContext, TaskInput]:
        """Fill in what a handler is given; fetches what this life of the agent has not. Raises InputFailed."""
        if self._source is None or wanted.kind not in FILLED_OPTIONS:
            return about, wanted
        for one in about.inputs:
            if one.kind == SECRET and not self._source.holds(about.alloc_id, about.task, one):
                await self._source.prepare(about, one)
        values = self._source.references(about.alloc_id, about.task)
        if not values:
            return about, wanted
        env = about.launch.env
        if text := missing_key([env, _options(wanted)], values):
            raise InputFailed(text, recoverable=False, kind=HOOK_FAILED)

        def note(kind: str, message: str) -> None:
            about.note(kind, masked(message, values))

        return (
            msgspec.structs.replace(
                about,
                launch=msgspec.structs.replace(about.launch, env=fill_references(env, values)),
                inputs=tuple(_filled(one, values) for one in about.inputs),
                note=note,
            ),
            _filled(wanted, values),
        )

    def mask(self, alloc_id: str, task: str, text: str) -> str:
        """Put references in the place of a task's values in a text."""
        return (
            text if self._source is None else masked(text, self._source.references(alloc_id, task))
        )

    def shown(self, about: InputContext, wanted: TaskInput, err: InputFailed) -> InputFailed:
        """Return a failure as everybody may read it. `about`, `wanted`: as they were before they were filled in."""
        if self._source is None or wanted.kind not in FILLED_OPTIONS:
            return err
        values = self._source.references(about.alloc_id, about.task)
        text = masked(str(err), values)
        if wanted.kind == TEMPLATE and values and _may_read(wanted, about.launch.env):
            # A template can turn a value into another form, and fail with it.
            text = f"{msgspec.json.decode(wanted.spec)['destination']}: {HIDDEN}"
        return InputFailed(text, recoverable=err.recoverable, kind=err.kind)


def missing_key(value: Any, values: Values) -> str:
    """Say which reference of a JSON value names a key that its secret does not have; empty: none does."""
    known = {one.secret for one in values}
    for one in find_references(value):
        if one.secret in known and one not in values:
            return f"secret {one.secret} has no key {one.key[:80]!r}"
    return ""


def masked(text: str, values: Values) -> str:
    """Put references in the place of values, in the forms in which a reason may show them, also where one was cut."""
    places: list[tuple[int, int, str]] = []
    for reference, value in values.items():
        for form in _forms(value, len(text)):
            if form[:_CUT_CHARS] in text:
                places += [(start, -end, reference.text) for start, end in _places(text, form)]
    found, told = "", 0
    # Of those that overlap the first is named, and of those that begin at one place the longest.
    for start, end, reference_text in sorted(places):
        if start >= told:
            found += text[told:start] + reference_text
        told = max(told, -end)
    return found + text[told:]


def _forms(value: str, chars: int) -> set[str]:
    """List the forms of a value, as far as a text of so many characters can have them."""
    forms = {value, *value.splitlines()}
    forms |= {repr(value)[1:-1], json.dumps(value)[1:-1]}
    # Of a long value the rest is not in the text: no character is shorter in a URL.
    begun = value[: chars + 1]
    forms |= {quote(begun), quote_plus(begun), quote(begun, safe="")}
    return {form[: chars + 1] for form in forms} - {""}


def _places(text: str, form: str) -> Iterator[tuple[int, int]]:
    """List where a text has a form, or its beginning where that is long enough: start and end."""
    if len(form) < _WORD_CHARS:
        yield from (one.span() for one in re.finditer(rf"(?<!\w){re.escape(form)}(?!\w)", text))
        return
    begun = form[:_CUT_CHARS]
    start, end = text.find(begun), 0
    while start >= 0 and end < len(text):
        lengths = range(len(begun) + 1, len(form) + 1)
        same = bisect_left(lengths, x=True, key=lambda n: not text.startswith(form[:n], start))
        end = start + len(begun) + same
        yield start, end
        start = text.find(begun, start + 1)


def _options(one: TaskInput) -> dict[str, Any]:
    """Return the options of an input in which references are filled in."""
    names = FILLED_OPTIONS.get(one.kind, ())
    if not names or MARK.encode() not in bytes(one.spec):
        return {}
    spec = msgspec.json.decode(one.spec)
    return {name: spec[name] for name in names if name in spec}


def _filled(one: TaskInput, values: Values) -> TaskInput:
    options = _options(one)
    if not options:
        return one
    spec = {**msgspec.json.decode(one.spec), **fill_references(options, values)}
    return msgspec.structs.replace(one, spec=msgspec.Raw(msgspec.json.encode(spec)))


def _may_read(wanted: TaskInput, env: Mapping[str, str]) -> bool:
    """Say whether a template may read a variable of the task that holds a secret; of a file that is not known."""
    names = [name for name, text in env.items() if next(find_references(text), None) is not None]
    spec = msgspec.json.decode(wanted.spec)
    return bool(names) and (bool(spec["source"]) or any(name in spec["data"] for name in names))
