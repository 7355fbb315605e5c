"""What differs between two texts of a job: a list of fields, in the order of their paths.

Members of a list that have names (groups, tasks, volumes) are matched by name, so that an inserted group is one
addition instead of an edit of every later group.

A plain value that only one text has is compared with the field's default.
"""

import re

import msgspec

from schemas.job_answers import FieldChange
from shared.jobspec.nomad.job import JobSpec
from shared.jobspec.strict_json import JsonObject

#: More changes than this are cut: a person reads them, and the answer must fit a message.
CHANGES_MAX = 500
_NAMES = ("Name", "ID", "Label")
_ABSENT = object()
#: One step of a path: the name of a list's member, or a key.
_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_ENCODER = msgspec.json.Encoder(order="sorted")


def diff_jobs(old: bytes, new: bytes) -> tuple[FieldChange, ...]:
    """Compare two canonical texts; empty bytes: there is no such job. Raises msgspec.DecodeError for no JSON object."""
    before: JsonObject = msgspec.json.decode(old) if old else {}
    after: JsonObject = msgspec.json.decode(new) if new else {}
    found: list[FieldChange] = []
    _compare("", before, after, found)
    kept = found[:CHANGES_MAX]
    if not old or all(one.kind == "edited" for one in kept):
        return tuple(kept)
    full_old, full_new = (_with_defaults(text) for text in (old, new))
    return tuple(_resolved(one, full_old, full_new) for one in kept)


def _with_defaults(text: bytes) -> object:
    """A text with the defaults of all absent fields; unchanged if it is not a job."""
    try:
        return msgspec.json.decode(_ENCODER.encode(msgspec.json.decode(text, type=JobSpec)))
    except msgspec.ValidationError:
        return {}


def _resolved(one: FieldChange, old: object, new: object) -> FieldChange:
    """Describe a value that only one text has as an edit of the other's default."""
    if one.kind == "edited":
        return one
    value = _at(old if one.kind == "added" else new, one.path)
    if value is None or isinstance(value, dict | list | tuple):
        return one
    changes = {"old": _raw(value)} if one.kind == "added" else {"new": _raw(value)}
    return msgspec.structs.replace(one, kind="edited", **changes)


def _at(value: object, path: str) -> object:
    """What is at a path; None: nothing."""
    for named, key in _STEP.findall(path):
        if named and isinstance(value, list | tuple):
            value = (_by_name(list(value)) or {}).get(named)
        elif isinstance(value, dict):
            value = value.get(key or named)
        else:
            return None
    return value


def _compare(path: str, old: object, new: object, found: list[FieldChange]) -> None:
    if old == new and type(old) is type(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            _step(f"{path}.{key}" if path else key, old, new, key, found=found)
        return
    if isinstance(old, list) and isinstance(new, list):
        before, after = _by_name(old), _by_name(new)
        if before is not None and after is not None:
            for key in dict.fromkeys((*before, *after)):
                _step(f"{path}[{key}]", before, after, key, found=found)
            return
    _note(path, old, new, found)


def _step(
    path: str, old: JsonObject, new: JsonObject, key: str, *, found: list[FieldChange]
) -> None:
    before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
    if before is _ABSENT or after is _ABSENT:
        _note(path, before, after, found)
    else:
        _compare(path, before, after, found)


def _note(path: str, old: object, new: object, found: list[FieldChange]) -> None:
    kind = "added" if old is _ABSENT else "removed" if new is _ABSENT else "edited"
    found.append(FieldChange(kind=kind, path=path, old=_raw(old), new=_raw(new)))


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(b"null" if value is _ABSENT else _ENCODER.encode(value))


def _by_name(items: list[object]) -> JsonObject | None:
    """A list as an object by its members' names; None where they have none, or not different ones.

    A list of objects without names is compared by position; a list of anything else as a whole.
    """
    if not all(isinstance(one, dict) for one in items):
        return None
    for name in _NAMES:
        keys = [one.get(name) for one in items if isinstance(one, dict)]
        if all(isinstance(key, str) and key for key in keys) and len(set(keys)) == len(keys):
            return dict(zip(map(str, keys), items, strict=True))
    return {str(index): one for index, one in enumerate(items)}
