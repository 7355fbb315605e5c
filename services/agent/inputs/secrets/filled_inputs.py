"""Fills secrets into what other handlers are given, and keeps them out of what these say of it.

What a handler gets has values; what comes back from it (reasons, events) goes to the role, and from there to the
journal and to everybody who may read the cluster: it has the references again.
"""

import json
import re
from collections.abc import Iterable, Mapping
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
    """Put references in the place of values, in the forms in which a reason may show them."""
    forms: dict[str, str] = {}
    for reference, value in values.items():
        plain = (repr(value)[1:-1], json.dumps(value)[1:-1], quote(value), quote_plus(value))
        forms |= dict.fromkeys(
            (value, *plain, quote(value, safe=""), *value.splitlines()), reference.text
        )
    forms.pop("", None)
    if not forms:
        return text
    found = "|".join(_pattern(form) for form in sorted(forms, key=lambda one: (-len(one), one)))
    return re.sub(found, lambda match: forms[match.group(0)], text)


def _pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _WORD_CHARS else rf"(?<!\w){escaped}(?!\w)"


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
