"""Changes of the policy by name, as operators write them: whole fields, or parts of one (`preemption.batch`).

Checks names and types. Whether the resulting policy is possible is decided with the state
(shared/core/decide/operator.py). Pure.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.operator import PolicyValue
from schemas.policy import Policy, Preemption, RemoteDriver
from shared.errors import CommandInvalid

#: Fields that hold entries under names of the operator's own -> the fields of an entry, empty: it is a text.
ENTRY_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pool_algorithms": (),
    "remote_drivers": RemoteDriver.__struct_fields__,
}
#: Fields that hold fields.
NESTED_FIELDS: Mapping[str, tuple[str, ...]] = {"preemption": Preemption.__struct_fields__}


def apply_policy_change(policy: Policy, change: Mapping[str, PolicyValue]) -> Policy:
    """Change fields of a policy by their names. Raises CommandInvalid for an unknown name or a wrong type."""
    whole: dict[str, Any] = msgspec.to_builtins(policy)
    # Sorted, so that `remote_drivers` comes before `remote_drivers.ecs.cpu_mhz`.
    for name in sorted(change):
        _put(whole, name, change[name])
    try:
        found = msgspec.convert(whole, Policy)
    except msgspec.ValidationError as err:
        raise CommandInvalid("invalid", str(err), "change") from err
    for name, value in msgspec.structs.asdict(found).items():
        if isinstance(value, int) and value < 0:
            raise CommandInvalid("invalid", f"{name} must not be negative", f"change.{name}")
    return found


def _put(whole: dict[str, Any], name: str, value: PolicyValue) -> None:
    field, dot, rest = name.partition(".")
    if field not in whole:
        raise _unknown(
            name, f"the policy has no field {field!r}; expected one of {', '.join(whole)}"
        )
    if field in NESTED_FIELDS:
        _put_part(whole[field], name, rest, value)
    elif not dot:
        whole[field] = value
    elif field in ENTRY_FIELDS and rest:
        _put_entry(whole[field], name, rest, value)
    else:
        raise _unknown(name, f"{field!r} has no fields; unknown field {name!r}")


def _put_part(block: dict[str, Any], name: str, rest: str, value: PolicyValue) -> None:
    given = {rest: value} if rest else value
    if not isinstance(given, dict):
        raise _unknown(name, f"{name!r} is an object of {', '.join(block)}")
    for part, one in given.items():
        if part not in block:
            raise _unknown(
                name, f"{name!r}: unknown field {part!r}; expected one of {', '.join(block)}"
            )
        block[part] = one


def _put_entry(entries: dict[str, Any], name: str, rest: str, value: PolicyValue) -> None:
    """Set an entry, or a field of one; null takes an entry out. Entries may have dots in their names."""
    fields = ENTRY_FIELDS[name.partition(".")[0]]
    entry, dot, part = rest.rpartition(".")
    if fields and dot and part in fields:
        entries.setdefault(entry, {})
        entries[entry] = {**entries[entry], part: value}
    elif fields and isinstance(value, dict) and not set(value) <= set(fields):
        strange = ", ".join(sorted(set(value) - set(fields)))
        raise _unknown(
            name, f"{name!r}: unknown field {strange!r}; expected one of {', '.join(fields)}"
        )
    elif value is None:
        entries.pop(rest, None)
    elif fields and not isinstance(value, dict):
        raise _unknown(name, f"{name!r} is an object of {', '.join(fields)}, or null to remove it")
    else:
        entries[rest] = value


def _unknown(name: str, text: str) -> CommandInvalid:
    return CommandInvalid("invalid", text, f"change.{name}")
