"""`caravan operator` and `caravan system`: the cluster as a whole."""

from collections.abc import Mapping, Sequence

import msgspec

from schemas.answers import ClusterAnswer, PolicyAnswer
from schemas.operator import CollectWish, OperatorVerdict, PolicyWish
from schemas.policy import Policy
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
    body = PolicyWish(change=_change(changes), policy_hash=check_hash)
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


Value = str | int | bool | dict[str, str]


def _change(given: Sequence[str]) -> dict[str, Value]:
    """Read NAME=VALUE by the type of the field. Raises CliError `usage`."""
    fields = msgspec.structs.asdict(Policy())
    found: dict[str, Value] = {}
    for one in given:
        name, sign, text = one.partition("=")
        if not sign or name not in fields:
            known = ", ".join(fields)
            raise CliError("usage", f"{one!r}: NAME=VALUE is wanted, names are {known}")
        found[name] = _value(name, text, fields[name])
    return found


def _value(name: str, text: str, like: object) -> Value:
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
        if text.isdigit():
            return int(text)
        if name.endswith("_ns"):
            try:
                return nanoseconds(text)
            except ValueError:
                pass
        raise CliError("usage", f"{name} is a number, not {text!r}")
    return text


def _show(out: Output, policy: Policy) -> None:
    pairs = []
    for name, value in msgspec.structs.asdict(policy).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, dict):
            text = ",".join(f"{key}:{one}" for key, one in sorted(value.items())) or "none"
        if name.endswith("_ns"):
            text = f"{value} ({_span(int(value))})"
        pairs.append((name, text))
    out.fields(pairs)


def _span(ns: int) -> str:
    seconds = ns // 1_000_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
