"""`caravan node`: status, eligibility."""

from schemas.answers import AllocsAnswer, NodeAnswer, NodesAnswer, PortLine
from schemas.operator import EligibilityWish
from schemas.projections import NodeSummary, Query
from services.cli import lines, resources
from services.cli.asking import ask_once, ask_pages
from services.cli.output import CliError, Column, Output, short
from services.cli.wishing import wish


def status(out: Output, *, node_id: str, allocs: bool, limit: int, verbose: bool) -> int:
    """List nodes, or show one."""
    if not node_id:
        return _list(out, allocs=allocs, limit=limit, verbose=verbose)
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
    for name, key in (("CPU", "cpu_mhz"), ("Memory", "memory_mib"), ("Disk", "disk_mib")):
        shown.append((name, _used(node, key)))
    shown.append(("Ports", f"{len(one.ports)} in use, {node.ports_free} more can be picked"))
    out.fields(shown)
    resources.of_node(out, node)
    _ports(out, one.ports)
    lines.allocations(out, one.allocations, "Allocations", verbose=verbose)
    if len(one.allocations) < one.allocations_total:
        lines.footer(out, len(one.allocations), one.allocations_total, "allocations")
    if verbose:
        out.table(
            [Column("ATTRIBUTE"), Column("VALUE")], sorted(one.attributes.items()), "Attributes"
        )
        out.table([Column("META"), Column("VALUE")], sorted(one.meta.items()), "Meta")
    return 0


def _used(node: NodeSummary, key: str) -> str:
    """How much is used; what is used beyond what there is came to be when the node lost it."""
    used, capacity = node.used[key], node.capacity[key]
    if key == "cpu_mhz":
        text, excess = f"{used} of {capacity} MHz", f"{used - capacity} MHz"
    else:
        text, excess = f"{lines.mib(used)} of {lines.mib(capacity)}", lines.mib(used - capacity)
    return text if used <= capacity else f"{text}, {excess} too much"


def _ports(out: Output, ports: tuple[PortLine, ...]) -> None:
    columns = [Column("PORT", right=True), Column("ALLOCATION"), Column("KIND", 1)]
    rows = [
        (one.port, short(one.allocation), "static" if one.static else "picked") for one in ports
    ]
    out.table(columns, rows, "Ports in use")


def _list(out: Output, *, allocs: bool, limit: int, verbose: bool) -> int:
    answer = ask_pages("nodes", NodesAnswer, Query(limit=limit), "nodes")
    running: AllocsAnswer | None = None
    if allocs:
        query = Query(status="running", limit=limit)
        running = ask_pages("allocs", AllocsAnswer, query, "allocations")
    shown = {"nodes": answer.nodes, "total": answer.total, "seq": answer.seq}
    if running is not None:
        shown["allocations"] = running.allocations
    out.result({**shown, "cluster_id": answer.cluster_id})
    _table(out, answer.nodes)
    lines.footer(out, len(answer.nodes), answer.total, "nodes")
    if running is not None:
        lines.allocations(out, running.allocations, "Running allocations", verbose=verbose)
        if len(running.allocations) < running.total:
            lines.footer(out, len(running.allocations), running.total, "allocations")
    return 0


def eligibility(out: Output, *, node_id: str, enable: bool, disable: bool) -> int:
    """Allow or forbid new allocations on a node."""
    if enable == disable:
        raise CliError("usage", "say --enable or --disable")
    verdict = wish("node", "set_eligibility", EligibilityWish(node_id=node_id, eligible=enable))
    out.result(
        {
            "node": verdict.node_id,
            "request_id": verdict.request_id,
            "status": verdict.status,
            "changed": verdict.changed,
            "seq": verdict.seq,
            "cluster_id": verdict.cluster_id,
        }
    )
    word = "eligible" if enable else "ineligible"
    out.line(f"node {verdict.node_id}: {word}" + ("" if verdict.changed else " as before"))
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
