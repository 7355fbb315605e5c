"""`caravan operator` and `caravan system`: the cluster as a whole."""

from collections.abc import Mapping, Sequence

import msgspec

from schemas.answers import ClusterAnswer, PolicyAnswer
from schemas.operator import CollectWish, OperatorVerdict, PolicyValue, PolicyWish
from schemas.policy import Policy, Preemption, RemoteDriver
from schemas.projections import Query
from services.cli.asking import ask_once
from services.cli.output import CliError, Column, Output
from services.cli.wishing import wish
from shared.jobspec.durations import nanoseconds


def status(out: Output, *, hashes: bool) -> int:
    """Show who leads, how safe the bus is, and how much there is."""
    answer = ask_once("cluster", ClusterAnswer, Query(id="hashes" if hashes else ""))
    out.result(answer)
    counts = answer.counts
    living = {name: n for name, n in counts.allocations.items() if n}
    out.fields(
        [
            ("Cluster", answer.cluster_id),
            ("Seq", str(answer.seq)),
            ("Applier", f"{answer.holder}, epoch {answer.epoch}"),
            ("Bus", f"{'fsync on' if answer.fsync else 'NO FSYNC'}, {answer.replicas} replica(s)"),
            ("Foreign", f"{answer.foreign} records"),
            ("Jobs", str(counts.jobs)),
            ("Nodes", str(counts.nodes)),
            ("Allocations", ", ".join(f"{n} {name}" for name, n in living.items()) or "0"),
            ("Evaluations", str(counts.evaluations)),
        ]
    )
    out.table([Column("TABLE"), Column("HASH")], sorted(answer.tables.items()), "Tables")
    if not answer.fsync:
        text = "the bus does not fsync every write: what was accepted may be lost with its power"
        out.line(f"\n{text}", "red")
    return 0


def scheduler_get(out: Output) -> int:
    """Show the policy in force."""
    answer = ask_once("policy", PolicyAnswer, Query())
    out.result(answer)
    _show(out, answer.policy)
    out.line(f"\nhash {answer.policy_hash}, since seq {answer.modify_index}", "dim")
    return 0


def scheduler_set(out: Output, *, changes: Sequence[str], check_hash: str) -> int:
    """Change fields of the policy."""
    body = PolicyWish(change=change_of(changes), policy_hash=check_hash)
    verdict = wish("operator", "set_policy", body)
    policy = verdict.policy or Policy()
    out.result({"policy": policy, **_told(verdict)})
    _show(out, policy)
    out.line("\nin force" if verdict.changed else "\nnothing to change", "green")
    return 0


def collect(out: Output) -> int:
    """Forget everything that ended."""
    verdict = wish("system", "gc", CollectWish())
    out.result({"collected": verdict.collected, **_told(verdict)})
    words = ", ".join(f"{n} {name}" for name, n in sorted(verdict.collected.items()) if n)
    out.line(f"forgotten: {words or 'nothing, there was nothing that had ended'}")
    return 0


def _told(verdict: OperatorVerdict) -> Mapping[str, object]:
    return {
        "request_id": verdict.request_id,
        "status": verdict.status,
        "changed": verdict.changed,
        "seq": verdict.seq,
        "cluster_id": verdict.cluster_id,
    }


def change_of(given: Sequence[str]) -> dict[str, PolicyValue]:
    """Read NAME=VALUE by the type of the field. Raises CliError `usage`."""
    found: dict[str, PolicyValue] = {}
    for one in given:
        name, sign, text = one.partition("=")
        like = _example(name)
        if not sign or like is None:
            known = ", ".join((*_plain_names(), *_NESTED))
            raise CliError("usage", f"{one!r}: NAME=VALUE is wanted, names are {known}")
        found[name] = (
            None if text == "none" and name.startswith(_MAPS) else _value(name, text, like)
        )
    return found


#: Names of what is in a field.
_NESTED = (
    *(f"preemption.{name}" for name in Preemption.__struct_fields__),
    *("pool_algorithms.POOL", "remote_drivers.DRIVER"),
    *(f"remote_drivers.DRIVER.{name}" for name in RemoteDriver.__struct_fields__),
)
#: Fields with entries of the operator's own naming; `none` takes one out.
_MAPS = ("pool_algorithms.", "remote_drivers.")


def _plain_names() -> list[str]:
    return [
        name for name in Policy.__struct_fields__ if name not in {"preemption", "remote_drivers"}
    ]


def _example(name: str) -> object:
    """Return a value of the type that a field has; None: there is no such field, or not with a value of its own."""
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
            raise CliError("usage", f"{name} is KEY:VALUE,KEY:VALUE or empty, not {text!r}")
        return {key: value for key, _, value in pairs}
    if isinstance(like, bool):
        if text not in ("true", "false"):
            raise CliError("usage", f"{name} is true or false, not {text!r}")
        return text == "true"
    if isinstance(like, int):
        return _number(name, text)
    if isinstance(like, RemoteDriver):
        parts = " and ".join(f"{name}.{one}" for one in RemoteDriver.__struct_fields__)
        raise CliError("usage", f"{name} is set by {parts}, or taken out by {name}=none")
    return text


def _number(name: str, text: str) -> int:
    if text.isdigit():
        return int(text)
    if name.endswith("_ns"):
        try:
            return nanoseconds(text)
        except ValueError:
            pass
    raise CliError("usage", f"{name} is a number, not {text!r}")


def _show(out: Output, policy: Policy) -> None:
    pairs = []
    for name, value in msgspec.structs.asdict(policy).items():
        if isinstance(value, msgspec.Struct):
            pairs += [(f"{name}.{key}", _shown(one)) for key, one in _parts(value)]
        elif name == "remote_drivers" and value:
            pairs += [
                (f"{name}.{driver}.{key}", _shown(one))
                for driver, block in sorted(value.items())
                for key, one in _parts(block)
            ]
        elif name.endswith("_ns"):
            pairs.append((name, f"{value} ({_span(int(value))})"))
        else:
            pairs.append((name, _shown(value)))
    out.fields(pairs)


def _parts(block: msgspec.Struct) -> list[tuple[str, object]]:
    return [(name, getattr(block, name)) for name in block.__struct_fields__]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}:{one}" for key, one in sorted(value.items())) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _span(ns: int) -> str:
    seconds = ns // 1_000_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
