"""`caravan node drain|meta`: what an operator says about a node. Each is an event in the log."""

from collections.abc import Sequence
from datetime import UTC, datetime

from schemas.operator import DrainWish, MetaWish, OperatorVerdict
from services.cli.output import CliError, Column, Output
from services.cli.wishing import wish
from shared.jobspec.durations import nanoseconds

_PACE = (
    "At the deadline everything there is stopped together, system jobs last; migration at a pace comes with a later "
    "release."
)


def drain(
    out: Output,
    *,
    node_id: str,
    enable: bool,
    disable: bool,
    deadline: str,
    force: bool,
    no_deadline: bool,
    what_if: bool,
) -> int:
    """Empty a node, or stop doing so; with `what_if` only ask what would become of it."""
    if enable == disable and not (what_if and not disable):
        raise CliError("usage", "say --enable or --disable")
    if force and no_deadline:
        raise CliError("usage", "--force and --no-deadline say opposite things")
    wait_ns = 0 if force else -1 if no_deadline else _duration(deadline)
    if what_if:
        return _asked(out, node_id, wait_ns)
    body = DrainWish(node_id=node_id, draining=enable, deadline_ns=wait_ns)
    verdict = wish("node", "drain", body)
    out.result(
        {
            "node": verdict.node_id,
            "draining": enable,
            "deadline_ns": verdict.deadline_ns,
            **_told(verdict),
        }
    )
    if disable:
        word = "takes new allocations again" if verdict.changed else "was not drained"
        out.line(f"node {verdict.node_id}: {word}")
        return 0
    if not verdict.deadline_ns:
        when = "goes on until it ends by itself"
    else:
        at = datetime.fromtimestamp(verdict.deadline_ns / 1e9, UTC).astimezone()
        when = f"is stopped at {at:%F %T}, and placed elsewhere"
    out.line(f"node {verdict.node_id}: takes nothing new; what runs there {when}")
    if verdict.deadline_ns:
        out.line(_PACE, "dim")
    return 0


def _asked(out: Output, node_id: str, wait_ns: int) -> int:
    """Ask what would move where, in a fork of the log; nothing is done."""
    # Imported here: who orders needs no engine.
    from services.cli.whatif import drained_now

    if wait_ns < 0:
        raise CliError("usage", "--what-if: without a deadline nothing would move")
    return drained_now(out, node_id=node_id, wait_ns=wait_ns)


def _duration(text: str) -> int:
    try:
        return nanoseconds(text)
    except ValueError as err:
        raise CliError("usage", f"--deadline {text!r} is no duration like 90m") from err


def meta_set(out: Output, *, node_id: str, pairs: Sequence[str]) -> int:
    """Say something about a node."""
    change: dict[str, str | None] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise CliError("usage", f"{pair!r}: KEY=VALUE is wanted")
        change[key] = value
    return _meta(out, node_id, change)


def meta_unset(out: Output, *, node_id: str, keys: Sequence[str]) -> int:
    """Take something out of a node's meta."""
    return _meta(out, node_id, dict.fromkeys(keys))


def meta_list(out: Output, *, node_id: str) -> int:
    """Show a node's meta."""
    return _meta(out, node_id, {})


def _meta(out: Output, node_id: str, change: dict[str, str | None]) -> int:
    verdict = wish("node", "set_meta", MetaWish(node_id=node_id, change=change))
    said = verdict.operator_meta
    out.result(
        {
            "node": verdict.node_id,
            "meta": verdict.meta,
            "operator_meta": said,
            **_told(verdict),
        }
    )
    rows = [
        (key, verdict.meta.get(key, ""), _whose(key, verdict))
        for key in sorted({*verdict.meta, *said})
    ]
    out.table([Column("KEY"), Column("VALUE"), Column("SAID BY")], rows)
    if not rows:
        out.line(f"node {verdict.node_id} has no meta")
    return 0


def _whose(key: str, verdict: OperatorVerdict) -> str:
    if key not in verdict.operator_meta:
        return "agent"
    return "operator" if key in verdict.meta else "operator: taken out"


def _told(verdict: OperatorVerdict) -> dict[str, object]:
    return {
        "request_id": verdict.request_id,
        "status": verdict.status,
        "changed": verdict.changed,
        "seq": verdict.seq,
        "cluster_id": verdict.cluster_id,
    }
