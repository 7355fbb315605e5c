"""What differs between two jobs in Nomad's shape, as `job plan` and `job history -p` draw it."""

from typing import Any

from services.gateway.nomad.source import Object

#: Fields that say how a job stands, not what it asks for.
_OF_STATE = frozenset(
    (
        *("ID", "ParentID", "Dispatched", "Payload", "Status", "StatusDescription", "Stable"),
        *("Version", "SubmitTime", "CreateIndex", "ModifyIndex", "JobModifyIndex", "VersionTag"),
        *("NomadTokenID", "ConsulToken", "VaultToken", "Update"),
    )
)


def job_diff(old: Object | None, new: Object | None) -> Object:
    """Compare two jobs; None: there is none."""
    before, after = old or {}, new or {}
    names = sorted(({*before} | {*after}) - _OF_STATE - {"TaskGroups"})
    fields, objects = _compare(before, after, names)
    groups = _named(before.get("TaskGroups"), after.get("TaskGroups"), _group_diff)
    changed = fields or objects or any(one["Type"] != "None" for one in groups)
    return {
        "Type": _type(old, new, is_changed=bool(changed)),
        "ID": str((new or old or {}).get("ID", "")),
        "Fields": fields or None,
        "Objects": objects or None,
        "TaskGroups": groups or None,
    }


def _group_diff(name: str, old: Object | None, new: Object | None) -> Object:
    before, after = old or {}, new or {}
    names = sorted(({*before} | {*after}) - {"Tasks", "Name"})
    fields, objects = _compare(before, after, names)
    tasks = _named(before.get("Tasks"), after.get("Tasks"), _task_diff)
    changed = fields or objects or any(one["Type"] != "None" for one in tasks)
    return {
        "Type": _type(old, new, is_changed=bool(changed)),
        "Name": name,
        "Fields": fields or None,
        "Objects": objects or None,
        "Tasks": tasks or None,
        "Updates": None,
    }


def _task_diff(name: str, old: Object | None, new: Object | None) -> Object:
    before, after = old or {}, new or {}
    names = sorted(({*before} | {*after}) - {"Name"})
    fields, objects = _compare(before, after, names)
    return {
        "Type": _type(old, new, is_changed=bool(fields or objects)),
        "Name": name,
        "Fields": fields or None,
        "Objects": objects or None,
        "Annotations": None,
    }


def _named(old: Any, new: Any, diff: Any) -> list[Object]:
    """Compare lists of groups or tasks by name."""
    before = {one["Name"]: one for one in old or ()}
    after = {one["Name"]: one for one in new or ()}
    return [diff(name, before.get(name), after.get(name)) for name in sorted({*before} | {*after})]


def _compare(before: Object, after: Object, names: list[str]) -> tuple[list[Object], list[Object]]:
    fields: list[Object] = []
    objects: list[Object] = []
    for name in names:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if _is_object(old) or _is_object(new):
            objects += _object_diffs(name, old, new)
        else:
            fields.append(_field(name, _text(old), _text(new)))
    return fields, objects


def _object_diffs(name: str, old: Any, new: Any) -> list[Object]:
    """One difference for a map, one for each element of a list that only one side has."""
    if isinstance(old, list) or isinstance(new, list):
        before, after = list(old or ()), list(new or ())
        gone = [one for one in before if one not in after]
        come = [one for one in after if one not in before]
        if all(not _is_object(one) for one in (*gone, *come)):
            fields = [_field(name, _text(one), "") for one in gone]
            fields += [_field(name, "", _text(one)) for one in come]
            return [_object(name, "Edited", fields, [])]
        if len(gone) == len(come) == 1:
            return _object_diffs(name, gone[0], come[0])
        found = [part for one in gone for part in _object_diffs(name, one, None)]
        return found + [part for one in come for part in _object_diffs(name, None, one)]
    was: Object = old or {}
    becomes: Object = new or {}
    fields, objects = _compare(was, becomes, sorted({*was} | {*becomes}))
    return [_object(name, _type(old, new, is_changed=True), fields, objects)]


def _object(name: str, kind: str, fields: list[Object], objects: list[Object]) -> Object:
    return {"Type": kind, "Name": name, "Fields": fields or None, "Objects": objects or None}


def _field(name: str, old: str, new: str) -> Object:
    kind = "Added" if not old else "Deleted" if not new else "Edited"
    return {"Type": kind, "Name": name, "Old": old, "New": new, "Annotations": None}


def _type(old: object, new: object, *, is_changed: bool) -> str:
    if old is None:
        return "Added"
    if new is None:
        return "Deleted"
    return "Edited" if is_changed else "None"


def _is_object(value: object) -> bool:
    return isinstance(value, dict | list)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
