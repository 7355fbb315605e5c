"""`caravan operator resource`: what nodes and the cluster offer beside CPU, memory and disk."""

from collections.abc import Sequence

from schemas.answers import DeclaredLine, PoolLine, ResourcesAnswer
from schemas.nodes import Instance, Pool
from schemas.operator import PoolWish
from schemas.projections import NodeSummary, PoolShown, Query
from services.cli import lines
from services.cli.asking import ask_pages
from services.cli.output import CliError, Column, Output
from services.cli.wishing import wish
from shared.jobspec.amounts import amount_fault, parts_of, shown_amount

#: Instances named in one cell of a table.
_NAMED_MAX = 8


def declare(
    out: Output,
    *,
    name: str,
    amount: str,
    instances: str,
    node: str,
    vendor: str,
    model: str,
    attribute: Sequence[str],
) -> int:
    """Say what a node, or the cluster as a whole, offers under a name."""
    ids = [one.strip() for one in instances.split(",") if one.strip()]
    if bool(amount) == bool(ids):
        raise CliError("usage", "say --amount N, or --instances A,B for what has names; 0: no more")
    pool = Pool(
        name=name,
        amount=_amount(amount) if amount else 0,
        instances=tuple(Instance(id=one) for one in ids),
        vendor=vendor,
        model=model,
        attributes=_attributes(attribute),
    )
    verdict = wish("operator", "declare", PoolWish(node_id=node, pool=pool))
    out.result(
        {
            "node": verdict.node_id,
            "pool": verdict.pool,
            "request_id": verdict.request_id,
            "status": verdict.status,
            "changed": verdict.changed,
            "seq": verdict.seq,
            "cluster_id": verdict.cluster_id,
        }
    )
    where = f"node {verdict.node_id}" if verdict.node_id else "the cluster"
    out.line(f"{where}: {name} {_offered(pool)}" + ("" if verdict.changed else " as before"))
    return 0


def _amount(text: str) -> int:
    """Read an amount, 0 included. Raises CliError `usage`."""
    try:
        value = float(text)
    except ValueError:
        raise CliError("usage", f"--amount is a number, not {text!r}") from None
    if value and (fault := amount_fault(value)):
        raise CliError("usage", f"--amount {fault}")
    return parts_of(value) if value else 0


def _attributes(given: Sequence[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    for key, sign, _ in pairs:
        if not (sign and key):
            raise CliError("usage", "--attribute is KEY=VALUE")
    return {key: value for key, _, value in sorted(pairs)}


def list_all(out: Output, *, limit: int) -> int:
    """List every pool over all nodes, and what operators declared."""
    answer = ask_pages("resources", ResourcesAnswer, Query(limit=limit), "pools")
    out.result(answer)
    _totals(out, answer.pools)
    lines.footer(out, len(answer.pools), answer.total, "pools")
    _declared(out, answer.declared)
    return 0


def _totals(out: Output, pools: Sequence[PoolLine]) -> None:
    columns = [Column("NAME"), Column("KIND", 1), Column("NODES", 2, right=True)]
    columns += [Column(one, right=True) for one in ("WHOLE", "USED", "FREE")]
    columns += _excess_column(pools)
    rows = [
        (
            one.name,
            one.kind,
            one.nodes or "",
            *(shown_amount(number) for number in (one.capacity, one.used, one.free)),
            *([shown_amount(one.excess) if one.excess else ""] if len(columns) > 6 else []),
        )
        for one in pools
    ]
    out.table(columns, rows)


def _declared(out: Output, found: Sequence[DeclaredLine]) -> None:
    columns = [Column("NODE"), Column("NAME"), Column("OFFERS"), Column("MODEL", 1)]
    rows = [
        (
            one.node or "the cluster",
            one.pool.name,
            _offered(one.pool),
            "/".join(word for word in (one.pool.vendor, one.pool.model) if word),
        )
        for one in found
    ]
    out.table(columns, rows, "Declared by operators")


def _offered(pool: Pool) -> str:
    if pool.instances:
        return _names([one.id for one in pool.instances])
    return shown_amount(pool.amount) if pool.amount else "no more"


def _names(found: Sequence[str]) -> str:
    rest = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return ", ".join(found[:_NAMED_MAX]) + rest


def _excess_column(pools: Sequence[PoolShown]) -> list[Column]:
    """Excess is rare: no column where there is none."""
    return [Column("EXCESS", right=True)] if any(one.excess for one in pools) else []


def of_node(out: Output, node: NodeSummary) -> None:
    """Show the pools of one node, and its instances."""
    pools = sorted(node.pools.items())
    columns = [Column("RESOURCE"), Column("KIND", 2)]
    columns += [Column(one, right=True) for one in ("WHOLE", "USED", "FREE")]
    columns += _excess_column([one for _, one in pools])
    rows = [
        (
            name,
            one.kind,
            *(shown_amount(number) for number in (one.capacity, one.used, one.free)),
            *([shown_amount(one.excess) if one.excess else ""] if len(columns) > 5 else []),
        )
        for name, one in pools
    ]
    out.table(columns, rows, "Resources")
    instances = [
        (
            name,
            one.id if one.present else f"{one.id} (gone)",
            "/".join(word for word in (one.vendor, one.model) if word),
            one.group,
            shown_amount(one.used),
        )
        for name, pool in pools
        for one in pool.instances
        if name != "cores" or one.used
    ]
    columns = [Column("RESOURCE"), Column("INSTANCE"), Column("MODEL", 1)]
    columns += [Column("GROUP", 2, right=True), Column("USED", right=True)]
    out.table(columns, instances, "Instances")
