"""`caravan node meta`: operator metadata of a node. Each change is an event in the log."""

from collections.abc import Sequence

from schemas.operator import MetaRequest, OperatorVerdict
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CommandOutput, parse_pairs


class NodeMetaResult(OperatorResult, frozen=True):
    """`node meta set|unset|list --json`."""

    node: str
    meta: dict[str, str]
    operator_meta: dict[str, str | None]


def meta_set(out: CommandOutput, *, node_id: str, pairs: Sequence[str]) -> int:
    """Set node metadata."""
    return _meta(out, node_id, {**parse_pairs(pairs)})


def meta_unset(out: CommandOutput, *, node_id: str, keys: Sequence[str]) -> int:
    """Remove node metadata."""
    return _meta(out, node_id, dict.fromkeys(keys))


def meta_list(out: CommandOutput, *, node_id: str) -> int:
    """Show node metadata."""
    return _meta(out, node_id, {})


def _meta(out: CommandOutput, node_id: str, change: dict[str, str | None]) -> int:
    verdict = request_operator(out, MetaRequest(node_id=node_id, change=change), NodeMetaResult)
    rows = [
        (key, verdict.meta.get(key, ""), _set_by(key, verdict))
        for key in sorted({*verdict.meta, *verdict.operator_meta})
    ]
    out.table("KEY|VALUE|SET BY", rows)
    if not rows:
        out.line(f"node {verdict.node_id} has no metadata", "dim")
    return 0


def _set_by(key: str, verdict: OperatorVerdict) -> str:
    if key not in verdict.operator_meta:
        return "agent"
    return "operator" if key in verdict.meta else "operator (removed)"
