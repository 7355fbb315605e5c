"""`caravan operator resource`: resources of nodes and of the cluster beside CPU, memory and disk."""

from collections.abc import Sequence

from schemas.node_answers import DeclaredLine, PoolLine, ResourcesAnswer
from schemas.nodes import Instance, Pool
from schemas.operator import PoolRequest
from schemas.projections import InstanceShown, NodeSummary, Query
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_pages
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CliError, CommandOutput, parse_pairs
from shared.display.formats import first_of
from shared.jobspec.amounts import amount_error, format_amount, to_parts
from shared.numerals import parse_decimal

#: Instances named in one cell of a table.
_NAMED_MAX = 8


class ResourceSetResult(OperatorResult, frozen=True):
    """`operator resource set --json`."""

    node: str
    pool: Pool | None


def declare(
    out: CommandOutput,
    *,
    name: str,
    amount: str,
    instances: str,
    node: str,
    vendor: str,
    model: str,
    attribute: Sequence[str],
) -> int:
    """Declare a resource of a node or of the cluster."""
    ids = [one.strip() for one in instances.split(",") if one.strip()]
    if bool(amount) == bool(ids):
        raise CliError(
            "usage",
            "either --amount N or --instances A,B is required; --amount 0 removes the resource",
        )
    pool = Pool(
        name=name,
        amount=_amount(amount) if amount else 0,
        instances=tuple(Instance(id=one) for one in ids),
        vendor=vendor,
        model=model,
        attributes=dict(sorted(parse_pairs(attribute, "--attribute").items())),
    )
    verdict = request_operator(out, PoolRequest(node_id=node, pool=pool), ResourceSetResult)
    where = f"node {verdict.node_id}" if verdict.node_id else "the cluster"
    out.line(f"{where}: {name} {_offered(pool)}" + ("" if verdict.changed else " already"))
    return 0


def _amount(text: str) -> int:
    """Read an amount, 0 included. Raises CliError `usage`."""
    try:
        value = parse_decimal(text)
    except ValueError:
        raise CliError("usage", f"--amount must be a number, not {text!r}") from None
    if value and (fault := amount_error(value)):
        raise CliError("usage", f"--amount {fault}")
    return to_parts(value) if value else 0


def list_all(out: CommandOutput, *, limit: int) -> int:
    """List every resource over all nodes, and the operators' declarations."""
    answer = query_pages("resources", ResourcesAnswer, Query(limit=limit), "pools")
    out.result(answer)
    _totals(out, answer.pools)
    tables.print_footer(out, len(answer.pools), answer.total, "resources")
    _declared(out, answer.declared)
    return 0


def _totals(out: CommandOutput, pools: Sequence[PoolLine]) -> None:
    rows = [
        (
            one.name,
            one.kind,
            one.nodes or "",
            *(format_amount(number) for number in (one.capacity, one.used, one.free)),
            format_amount(one.excess) if one.excess else "",
        )
        for one in pools
    ]
    out.table("NAME|KIND|NODES>|TOTAL>|USED>|FREE>|EXCESS>", rows)


def _declared(out: CommandOutput, found: Sequence[DeclaredLine]) -> None:
    rows = [
        (
            one.node or "the cluster",
            one.pool.name,
            _offered(one.pool),
            "/".join(word for word in (one.pool.vendor, one.pool.model) if word),
        )
        for one in found
    ]
    out.table("NODE|NAME|AMOUNT OR INSTANCES|MODEL", rows, "Declared by operators")


def _offered(pool: Pool) -> str:
    if pool.instances:
        return first_of((one.id for one in pool.instances), _NAMED_MAX)
    return format_amount(pool.amount) if pool.amount else "removed"


def _instance_text(one: InstanceShown) -> str:
    if one.unhealthy:
        return f"{one.id} (unhealthy: {one.unhealthy})"
    return one.id if one.present else f"{one.id} (gone)"


def print_node_resources(out: CommandOutput, node: NodeSummary) -> None:
    """Print the resources of one node and their instances."""
    pools = sorted(node.pools.items())
    rows = [
        (
            name,
            one.kind,
            *(format_amount(number) for number in (one.capacity, one.used, one.free)),
            format_amount(one.excess) if one.excess else "",
        )
        for name, one in pools
    ]
    out.table("RESOURCE|KIND|TOTAL>|USED>|FREE>|EXCESS>", rows, "Resources")
    instances = [
        (
            name,
            _instance_text(one),
            "/".join(word for word in (one.vendor, one.model) if word),
            one.group,
            format_amount(one.used),
        )
        for name, pool in pools
        for one in pool.instances
        if name != "cores" or one.used
    ]
    out.table("RESOURCE|INSTANCE|MODEL|GROUP>|USED>", instances, "Instances")
