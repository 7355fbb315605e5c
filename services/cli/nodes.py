"""`caravan node status`."""

from schemas.answers import NodeAnswer, NodesAnswer
from schemas.projections import NodeSummary, Query
from services.cli import lines
from services.cli.asking import ask_once, ask_pages
from services.cli.output import Column, Output


def status(out: Output, *, node_id: str, limit: int, verbose: bool) -> int:
    """List nodes, or show one."""
    if not node_id:
        answer = ask_pages("nodes", NodesAnswer, Query(limit=limit), "nodes")
        out.result(answer)
        _table(out, answer.nodes)
        lines.footer(out, len(answer.nodes), answer.total, "nodes")
        return 0
    one = ask_once("node", NodeAnswer, Query(id=node_id, limit=limit))
    out.result(one)
    node = one.nodes[0]
    shown = [
        ("ID", node.id),
        ("Name", node.name),
        ("Datacenter", node.datacenter),
        ("Pool", node.pool),
    ]
    shown += [("Class", node.node_class)] if node.node_class else []
    shown += [("Status", node.status), ("Eligibility", node.eligibility)]
    shown += [("CPU", f"{node.used['cpu_mhz']} of {node.capacity['cpu_mhz']} MHz")]
    for name, key in (("Memory", "memory_mib"), ("Disk", "disk_mib")):
        shown.append((name, f"{lines.mib(node.used[key])} of {lines.mib(node.capacity[key])}"))
    out.fields(shown)
    lines.allocations(out, one.allocations, "Allocations", verbose=verbose)
    if verbose:
        out.table(
            [Column("ATTRIBUTE"), Column("VALUE")], sorted(one.attributes.items()), "Attributes"
        )
        out.table([Column("META"), Column("VALUE")], sorted(one.meta.items()), "Meta")
    return 0


def _table(out: Output, nodes: tuple[NodeSummary, ...]) -> None:
    columns = [
        Column("ID"),
        Column("NAME", 5),
        Column("DC", 4),
        Column("POOL", 6),
        Column("CLASS", 7),
        Column("STATUS"),
        Column("ELIGIBILITY", 3),
        Column("CPU", 1, right=True),
        Column("MEMORY", 1, right=True),
        Column("ALLOCS", 2, right=True),
    ]
    rows = [
        (
            node.id,
            "" if node.name == node.id else node.name,
            node.datacenter,
            node.pool,
            node.node_class,
            node.status,
            node.eligibility,
            _share(node, "cpu_mhz"),
            _share(node, "memory_mib"),
            node.allocations,
        )
        for node in nodes
    ]
    out.table(columns, rows)


def _share(node: NodeSummary, key: str) -> str:
    """How much of a resource is used, in percent."""
    capacity = node.capacity.get(key, 0)
    return f"{100 * node.used.get(key, 0) // capacity}%" if capacity else "-"
