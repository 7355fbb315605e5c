"""What differs between two texts of a job: a list of fields, in the order of their paths.

Decides how fields are named: members of a list that have names (groups, tasks, volumes) are found by them, so that one
group more is one group added and not every later one edited. Must not know what a field means.
"""

import msgspec

from schemas.answers import FieldChange
from shared.jobspec.strict import JsonObject

#: More changes than this are cut: a person reads them, and the answer must fit a message.
CHANGES_MAX = 500
_NAMES = ("Name", "ID", "Label")
_ABSENT = object()
_ENCODER = msgspec.json.Encoder(order="sorted")


def diff_jobs(old: bytes, new: bytes) -> tuple[FieldChange, ...]:
    """Compare two canonical texts; empty bytes: there is no such job. Raises msgspec.DecodeError for no JSON object."""
    before: JsonObject = msgspec.json.decode(old) if old else {}
    after: JsonObject = msgspec.json.decode(new) if new else {}
    found: list[FieldChange] = []
    _compare("", before, after, found)
    return tuple(found[:CHANGES_MAX])


def _compare(path: str, old: object, new: object, found: list[FieldChange]) -> None:
    if old == new and type(old) is type(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            _step(f"{path}.{key}" if path else key, old, new, key, found=found)
        return
    if isinstance(old, list) and isinstance(new, list):
        before, after = _named(old), _named(new)
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


def _named(items: list[object]) -> JsonObject | None:
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
