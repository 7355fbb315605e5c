"""What a job says that nothing acts on yet: kept in the spec, named in one warning, never a refusal.

Decides by the keys of the decoded JSON: a key that no field of `nomad_json.py` reads is unbuilt, unless its value says
nothing (empty, zero, false, or the default that Nomad writes itself). Next: `compiling.py`.
"""

from typing import Any

import msgspec

from shared.jobspec.nomad_json import (
    Constraint,
    EphemeralDisk,
    Job,
    ReschedulePolicy,
    Resources,
    RestartPolicy,
    Task,
    TaskGroup,
)
from shared.jobspec.strict import JsonObject
from shared.jobspec.validate import LATER_OPERATORS

NAMED_MAX = 20

#: What the server itself writes into a job it returns; submitting that text again asks for nothing new.
_SERVER_WRITTEN = frozenset(
    (
        *("Status", "StatusDescription", "Stable", "Version", "SubmitTime", "CreateIndex"),
        *("ModifyIndex", "JobModifyIndex", "ParentID", "NomadTokenID", "ConsulToken"),
        *("VaultToken", "Dispatched", "VersionTag"),
    )
)
#: Values that change nothing.
_DEFAULTS = {"Region": "global", "Namespace": "default"}
_TYPES_BUILT = frozenset(("service", "batch"))


def _names(struct: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(struct))


_JOB = _names(Job)
_JOB_SILENT = _JOB | _SERVER_WRITTEN
_GROUP = _names(TaskGroup)
_TASK = _names(Task)
_Blocks = tuple[tuple[str, frozenset[str]], ...]
_JOB_BLOCKS: _Blocks = (("Reschedule", _names(ReschedulePolicy)),)
_GROUP_BLOCKS: _Blocks = (
    ("EphemeralDisk", _names(EphemeralDisk)),
    ("RestartPolicy", _names(RestartPolicy)),
    ("ReschedulePolicy", _names(ReschedulePolicy)),
)
_TASK_BLOCKS: _Blocks = (
    ("Resources", _names(Resources)),
    ("RestartPolicy", _names(RestartPolicy)),
)
_CONSTRAINT = _names(Constraint)


def warnings_of(job: Job, value: JsonObject) -> tuple[str, ...]:
    """Name everything in a valid job that is kept but not acted on: no warning, or one."""
    found: list[str] = []
    if not _JOB.issuperset(value):
        _stray(found, value, _JOB_SILENT, "Job")
    if job.type not in _TYPES_BUILT:
        found.append(f"Job.Type {job.type}")
    _blocks(found, value, _JOB_BLOCKS, "Job")
    for at, group in enumerate(value["TaskGroups"]):
        path = f"Job.TaskGroups[{at}]"
        if not _GROUP.issuperset(group):
            _stray(found, group, _GROUP, path)
        _blocks(found, group, _GROUP_BLOCKS, path)
        for number, task in enumerate(group["Tasks"]):
            here = f"{path}.Tasks[{number}]"
            if not _TASK.issuperset(task):
                _stray(found, task, _TASK, here)
            _blocks(found, task, _TASK_BLOCKS, here)
    if not found:
        return ()
    rest = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return (f"kept, not acted on yet: {', '.join(found[:NAMED_MAX])}{rest}",)


def _blocks(found: list[str], parent: JsonObject, blocks: _Blocks, path: str) -> None:
    for name, known in blocks:
        block = parent.get(name)
        if block and not known.issuperset(block):
            _stray(found, block, known, f"{path}.{name}")
    if "Constraints" not in parent:
        return
    for at, constraint in enumerate(parent["Constraints"]):
        if constraint.get("Operand") in LATER_OPERATORS:
            found.append(f"{path}.Constraints[{at}] {constraint['Operand']}")
        if not _CONSTRAINT.issuperset(constraint):
            _stray(found, constraint, _CONSTRAINT, f"{path}.Constraints[{at}]")


def _stray(found: list[str], block: JsonObject, known: frozenset[str], path: str) -> None:
    for key in sorted(block):
        value: Any = block[key]
        if key not in known and value and _DEFAULTS.get(key) != value:
            found.append(f"{path}.{key[:60]}")
