"""`caravan node`: status, eligibility."""

from datetime import UTC, datetime

import msgspec

from schemas.answers import AllocsAnswer, NodeAnswer, NodesAnswer, PortLine
from schemas.hands import StatsAnswer, StatsAsk
from schemas.operator import EligibilityWish
from schemas.projections import NodeSummary, Query
from services.cli import alloc_orders, chosen, lines, resources
from services.cli.asking import ask_once, ask_pages, with_bus
from services.cli.handing import ask_node
from services.cli.output import CliError, Column, Output, short
from services.cli.wishing import wish
from shared.bus.client import Client


def status(
    out: Output, *, node_id: str, allocs: bool, stats: bool, limit: int, verbose: bool
) -> int:
    """List nodes, or show one."""
    if stats and (not node_id or chosen.at()):
        raise CliError("usage", "--stats asks one node what it uses now")
    if not node_id:
        return _list(out, allocs=allocs, limit=limit, verbose=verbose)
    one = ask_once("node", NodeAnswer, Query(id=node_id, limit=limit))
    used = _uses(one.nodes[0].id) if stats else None
    out.result(one if used is None else {**_fields(one), "stats": used})
    node = one.nodes[0]
    shown = [
        ("ID", node.id),
        ("Name", node.name),
        ("Datacenter", node.datacenter),
        ("Pool", node.pool),
    ]
    shown += [("Class", node.node_class)] if node.node_class else []
    shown += [("Status", node.status), ("Eligibility", node.eligibility)]
    shown += [("Drain", _drain(node))] if node.draining else []
    for name, key in (("CPU", "cpu_mhz"), ("Memory", "memory_mib"), ("Disk", "disk_mib")):
        shown.append((name, _used(node, key)))
    shown.append(("Ports", f"{len(one.ports)} in use, {node.ports_free} more can be picked"))
    out.fields(shown)
    resources.of_node(out, node)
    _ports(out, one.ports)
    lines.allocations(out, one.allocations, "Allocations", verbose=verbose)
    if len(one.allocations) < one.allocations_total:
        lines.footer(out, len(one.allocations), one.allocations_total, "allocations")
    if used is not None:
        _used_now(out, node, used)
    if verbose:
        out.table(
            [Column("ATTRIBUTE"), Column("VALUE")], sorted(one.attributes.items()), "Attributes"
        )
        out.table([Column("META"), Column("VALUE")], sorted(one.meta.items()), "Meta")
    return 0


def _fields(one: NodeAnswer) -> dict[str, object]:
    return {field.encode_name: getattr(one, field.name) for field in msgspec.structs.fields(one)}


def _drain(node: NodeSummary) -> str:
    if not node.drain_deadline_ns:
        return "until what runs there ends by itself"
    at = datetime.fromtimestamp(node.drain_deadline_ns / 1e9, UTC).astimezone()
    return f"what runs there is stopped at {at:%F %T}"


def _uses(node_id: str) -> StatsAnswer:
    async def work(client: Client) -> StatsAnswer:
        return await ask_node(client, node_id, "stats", StatsAsk(), answer=StatsAnswer)

    return with_bus(work)


def _used_now(out: Output, node: NodeSummary, used: StatsAnswer) -> None:
    """What tasks use, each, and together against what is reserved for them."""
    alloc_orders.uses(out, used.tasks, of_node=True)
    memory = sum(one.memory_bytes for one in used.tasks)
    cores = sum(one.cpu_millicores for one in used.tasks)
    disk = sum(used.disk_mib.values())
    rows = [
        ("CPU", f"{cores / 10:.1f}% of a core", f"{node.used['cpu_mhz']} MHz"),
        ("Memory", lines.mib(-(-memory >> 20)), lines.mib(node.used["memory_mib"])),
        ("Disk", lines.mib(disk), lines.mib(node.used["disk_mib"])),
    ]
    out.table([Column(""), Column("USED"), Column("RESERVED")], rows, "Use against reservation")


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
