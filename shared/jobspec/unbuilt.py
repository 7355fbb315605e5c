"""What a job says that nothing acts on yet: kept in the spec, named in one warning, never a refusal.

Decides by the keys of the decoded JSON: a key that is no field is unknown, one that `built.py` does not name is
unbuilt, unless its value says nothing (empty, zero, false, or the default). Next: `compiling.py`.
"""

from difflib import get_close_matches
from functools import cache
from typing import Any

from shared.jobspec.built import BUILT, BUILT_TYPES
from shared.jobspec.nomad_base import Json
from shared.jobspec.nomad_json import Job
from shared.jobspec.shapes import Field, Shape, shape_of
from shared.jobspec.strict import JsonObject

NAMED_MAX = 20

#: What the server itself writes into a job it returns; submitting that text again asks for nothing new.
_SERVER_WRITTEN = frozenset(
    (
        *("Status", "StatusDescription", "Stable", "Version", "SubmitTime", "CreateIndex"),
        *("ModifyIndex", "JobModifyIndex", "ParentID", "NomadTokenID", "ConsulToken"),
        *("VaultToken", "Dispatched", "VersionTag", "Stop", "Payload", "DispatchIdempotencyToken"),
        *("ConsulNamespace", "VaultNamespace"),
    )
)


class _Plan:
    """What to look at in a block: `quiet` keys need no look, `inner` ones are blocks that are acted on."""

    def __init__(self, struct: type[Json]) -> None:
        self.shape: Shape = shape_of(struct)
        built = BUILT.get(struct, frozenset(self.shape.by_json))
        self.inner = {
            field.json: field
            for field in self.shape.fields
            if field.json in built and field.inner is not None
        }
        self.quiet = built - self.inner.keys()
        if struct is Job:
            self.quiet |= _SERVER_WRITTEN
        self.known = self.quiet | self.inner.keys()
        #: (key, kind, plan) of each inner block.
        self.blocks = [(key, one.kind, _plan(one.inner)) for key, one in self.inner.items()]


@cache
def _plan(struct: type[Json] | None) -> _Plan:
    assert struct is not None
    return _Plan(struct)


def _is_quiet(plan: _Plan, block: JsonObject) -> bool:
    """Tell whether everything in a block is acted on: the common case, with no path built."""
    if not plan.known.issuperset(block):
        return False
    for key, kind, inner in plan.blocks:
        value = block.get(key)
        if not value:
            continue
        blocks = (value,) if kind == "block" else value.values() if kind == "labelled" else value
        for one in blocks:
            if not (inner.quiet.issuperset(one) or _is_quiet(inner, one)):
                return False
    return True


def warnings_of(job: Job, value: JsonObject) -> tuple[str, ...]:
    """Name what a valid job hardly means, and everything in it that is kept but not acted on: no warning, or one."""
    unbuilt: list[str] = []
    unknown: list[str] = []
    if job.type not in BUILT_TYPES:
        unbuilt.append(f"Job.Type {job.type}")
    if not _is_quiet(_plan(Job), value):
        _look(Job, value, "Job", (unbuilt, unknown))
    parts = [
        f"group {group.name!r} has no main task, one without lifecycle: it ends when the others have run"
        for group in job.groups
        if group.tasks and all(task.lifecycle is not None for task in group.tasks)
    ]
    if unbuilt:
        parts.append("kept, not acted on yet: " + _listed(unbuilt))
    if unknown:
        parts.append("kept, but known to nobody: " + _listed(unknown))
    return ("; ".join(parts),) if parts else ()


def _listed(found: list[str]) -> str:
    rest = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return ", ".join(found[:NAMED_MAX]) + rest


def _look(
    struct: type[Json], block: JsonObject, path: str, into: tuple[list[str], list[str]]
) -> None:
    """Look through one block and the blocks inside it that are acted on."""
    plan = _plan(struct)
    if plan.quiet.issuperset(block):
        return
    for key in sorted(block):
        if key in plan.quiet:
            continue
        field = plan.inner.get(key)
        if field is not None:
            _inside(field, block[key], f"{path}.{key}", into)
            continue
        field = plan.shape.by_json.get(key)
        if field is None:
            if block[key]:
                names = plan.shape.by_json if len(into[1]) < NAMED_MAX else ()
                near = get_close_matches(key[:60], names, 1)
                into[1].append(f"{path}.{key[:60]}" + (f" (is it {near[0]}?)" if near else ""))
        elif not _says_nothing(field, block[key]):
            into[0].append(f"{path}.{key}")


def _inside(field: Field, value: Any, path: str, into: tuple[list[str], list[str]]) -> None:
    """Look through the blocks of a field that is acted on."""
    assert field.inner is not None
    if field.kind == "block":
        _look(field.inner, value, path, into)
        return
    pairs = sorted(value.items()) if field.kind == "labelled" else enumerate(value)
    for at, block in pairs:
        _look(field.inner, block, f"{path}[{at}]", into)


def _says_nothing(field: Field, value: Any) -> bool:
    """Tell whether a value asks for nothing that is not so anyway."""
    if not value or value == field.default:
        return True
    if field.kind != "block" or field.inner is None or not isinstance(value, dict):
        return False
    if field.default is None:
        return False
    shape = shape_of(field.inner)
    return all(
        key in shape.by_json and _says_nothing(shape.by_json[key], item)
        for key, item in value.items()
    )
