"""`caravan operator scheduler` and `system gc`."""

from collections.abc import Sequence

import msgspec

from schemas.answers import PolicyAnswer
from schemas.operator import CollectRequest, PolicyRequest, PolicyValue
from schemas.policy import Policy, Preemption, RemoteDriver
from schemas.projections import Query
from services.cli.runtime.bus_client import query_once
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CliError, CommandOutput
from shared.durations import parse_duration, write_in_one_unit
from shared.numerals import is_digits


class SchedulerSetResult(OperatorResult, frozen=True):
    """`operator scheduler set --json`."""

    policy: Policy | None


class GcResult(OperatorResult, frozen=True):
    """`system gc --json`."""

    collected: dict[str, int]


def scheduler_get(out: CommandOutput) -> int:
    """Show the current policy."""
    answer = query_once("policy", PolicyAnswer, Query())
    out.result(answer)
    _show(out, answer.policy)
    out.line(f"\nhash {answer.policy_hash}, since seq {answer.modify_index}", "dim")
    return 0


def scheduler_set(out: CommandOutput, *, changes: Sequence[str], check_hash: str) -> int:
    """Change fields of the policy."""
    body = PolicyRequest(change=parse_policy_changes(changes), policy_hash=check_hash)
    verdict = request_operator(out, body, SchedulerSetResult)
    _show(out, verdict.policy or Policy())
    out.line("\npolicy changed" if verdict.changed else "\nno change", "green")
    return 0


def collect(out: CommandOutput) -> int:
    """Delete everything that has ended."""
    verdict = request_operator(out, CollectRequest(), GcResult)
    words = ", ".join(f"{n} {name}" for name, n in sorted(verdict.collected.items()) if n)
    out.line(f"deleted: {words or 'nothing has ended'}")
    return 0


def parse_policy_changes(given: Sequence[str]) -> dict[str, PolicyValue]:
    """Read NAME=VALUE by the type of the field. Raises CliError `usage`."""
    found: dict[str, PolicyValue] = {}
    for one in given:
        name, sign, text = one.partition("=")
        like = _default_of(name)
        if not sign or like is None:
            known = ", ".join((*_plain_names(), *_NESTED))
            raise CliError("usage", f"{one!r} is not NAME=VALUE with one of these names: {known}")
        found[name] = (
            None if text == "none" and name.startswith(_MAP_PREFIXES) else _value(name, text, like)
        )
    return found


#: Names of nested fields.
_NESTED = (
    *(f"preemption.{name}" for name in Preemption.__struct_fields__),
    *("pool_algorithms.POOL", "remote_drivers.DRIVER"),
    *(f"remote_drivers.DRIVER.{name}" for name in RemoteDriver.__struct_fields__),
)
#: Fields whose entries the operator names; `none` removes an entry.
_MAP_PREFIXES = ("pool_algorithms.", "remote_drivers.")


def _plain_names() -> list[str]:
    return [
        name for name in Policy.__struct_fields__ if name not in {"preemption", "remote_drivers"}
    ]


def _default_of(name: str) -> object:
    """The default value of a field, for its type; None: unknown, or without a value of its own."""
    if name in _plain_names():
        return getattr(Policy(), name)
    field, _, rest = name.partition(".")
    entry, _, part = rest.rpartition(".")
    if field == "preemption":
        return getattr(Preemption(), rest, None) if rest in Preemption.__struct_fields__ else None
    if field == "pool_algorithms" and rest:
        return ""
    if field == "remote_drivers" and entry and part in RemoteDriver.__struct_fields__:
        return getattr(RemoteDriver(), part)
    return RemoteDriver() if field == "remote_drivers" and rest else None


def _value(name: str, text: str, like: object) -> PolicyValue:
    if isinstance(like, dict):
        pairs = [one.partition(":") for one in text.split(",") if one]
        if not all(sign and key and value for key, sign, value in pairs):
            raise CliError("usage", f"{name} must be KEY:VALUE,KEY:VALUE or empty, not {text!r}")
        return {key: value for key, _, value in pairs}
    if isinstance(like, bool):
        if text not in ("true", "false"):
            raise CliError("usage", f"{name} must be true or false, not {text!r}")
        return text == "true"
    if isinstance(like, int):
        return _number(name, text)
    if isinstance(like, RemoteDriver):
        parts = " and ".join(f"{name}.{one}" for one in RemoteDriver.__struct_fields__)
        raise CliError("usage", f"set {parts}, or remove the entry with {name}=none")
    return text


def _number(name: str, text: str) -> int:
    if is_digits(text):
        return int(text)
    if name.endswith("_ns"):
        try:
            return parse_duration(text)
        except ValueError:
            pass
    raise CliError("usage", f"{name} must be a number, not {text!r}")


def _show(out: CommandOutput, policy: Policy) -> None:
    pairs = []
    for name, value in msgspec.structs.asdict(policy).items():
        if isinstance(value, msgspec.Struct):
            pairs += [(f"{name}.{key}", _format_value(one)) for key, one in _struct_items(value)]
        elif name == "remote_drivers" and value:
            pairs += [
                (f"{name}.{driver}.{key}", _format_value(one))
                for driver, block in sorted(value.items())
                for key, one in _struct_items(block)
            ]
        elif name.endswith("_ns"):
            pairs.append((name, f"{value} ({write_in_one_unit(int(value))})"))
        else:
            pairs.append((name, _format_value(value)))
    out.fields(pairs)


def _struct_items(block: msgspec.Struct) -> list[tuple[str, object]]:
    return [(name, getattr(block, name)) for name in block.__struct_fields__]


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}:{one}" for key, one in sorted(value.items())) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
