"""`caravan node status` and `caravan node eligibility`."""

import time

import msgspec
from msgspec import UNSET, UnsetType

from schemas.node_answers import AllocsAnswer, NodeAnswer, NodesAnswer, PortLine
from schemas.node_rpc import StatsAnswer, StatsAsk
from schemas.operator import EligibilityRequest
from schemas.projections import AllocSummary, NodeSummary, Query
from services.cli import global_options
from services.cli.alloc import actions
from services.cli.operator import resources
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_once, query_pages, with_bus
from services.cli.runtime.node_client import request_node
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CliError, CommandOutput, result_from, short_id
from shared.bus.connection.public_client import Client
from shared.display.formats import format_mib, format_size, format_time_and_age


class NodeListResult(msgspec.Struct, frozen=True, kw_only=True):
    """`node status --json`."""

    nodes: tuple[NodeSummary, ...]
    total: int
    seq: int
    #: running ones, with --allocs.
    allocations: tuple[AllocSummary, ...] | UnsetType = UNSET
    cluster_id: str


class NodeStatusResult(NodeAnswer, frozen=True, kw_only=True):
    """`node status ID --json`."""

    #: with --stats.
    stats: StatsAnswer | UnsetType = UNSET


class NodeEligibilityResult(OperatorResult, frozen=True):
    """`node eligibility --json`."""

    node: str


def status(
    out: CommandOutput, *, node_id: str, allocs: bool, stats: bool, limit: int, verbose: bool
) -> int:
    """List nodes, or show one."""
    if stats and (not node_id or global_options.at_position()):
        raise CliError("usage", "--stats requires ID and cannot be combined with --at")
    if not node_id:
        return _list(out, allocs=allocs, limit=limit, verbose=verbose)
    one = query_once("node", NodeAnswer, Query(id=node_id, limit=limit))
    used = _task_usage(one.nodes[0].id) if stats else None
    out.result(result_from(NodeStatusResult, one, stats=UNSET if used is None else used))
    print_node(out, one, used, verbose=verbose)
    return 0


def print_node(
    out: CommandOutput, one: NodeAnswer, used: StatsAnswer | None, *, verbose: bool
) -> None:
    """Print one node, what it has and runs, and with `used` what its tasks use now."""
    node = one.nodes[0]
    shown = [
        ("ID", node.id),
        ("Name", node.name),
        ("Datacenter", node.datacenter),
        ("Pool", node.pool),
    ]
    shown += [("Class", node.node_class)] if node.node_class else []
    shown += [("Status", node.status), ("Eligibility", node.eligibility)]
    texts = _drain_texts(node, one)
    shown += list(zip(("Drain", *[""] * len(texts)), texts, strict=False))
    for name, key in (("CPU", "cpu_mhz"), ("Memory", "memory_mib"), ("Disk", "disk_mib")):
        shown.append((name, _used(node, key)))
    shown.append(("Ports", f"{len(one.ports)} in use, {node.ports_free} free"))
    out.fields(shown)
    resources.print_node_resources(out, node)
    _ports(out, one.ports)
    tables.print_allocations(out, one.allocations, "Allocations", verbose=verbose)
    tables.print_cut(out, len(one.allocations), one.allocations_total, "allocations")
    if used is not None:
        _print_usage(out, node, used)
    if verbose:
        out.table(
            "ATTRIBUTE|VALUE",
            sorted(one.attributes.items()),
            "Attributes",
        )
        out.table("META|VALUE", sorted(one.meta.items()), "Meta")


def _drain_texts(node: NodeSummary, one: NodeAnswer) -> list[str]:
    """Lines about the drain of a node, running or complete; none where there is none."""
    if one.drained is not None:
        return ["complete" + (", the deadline was reached" if one.drained.deadline_reached else "")]
    if one.drain is None:
        return []
    when = "no deadline"
    if node.drain_deadline_ns:
        when = f"deadline {format_time_and_age(node.drain_deadline_ns, time.time_ns())}"
    left = f"{one.drain.left} allocations left, {one.drain.stopping} stopping"
    waits = [f"{w.job_id}.{w.group}: {w.allocations}, {w.why}" for w in one.drain.waits]
    if one.drain.started_ns:
        waits.insert(0, f"since {format_time_and_age(one.drain.started_ns, time.time_ns())}")
    return [when, *([one.drain.message] if one.drain.message else []), left, *waits]


def _task_usage(node_id: str) -> StatsAnswer:
    async def work(client: Client) -> StatsAnswer:
        return await request_node(client, node_id, "stats", StatsAsk(), answer=StatsAnswer)

    return with_bus(work)


def _print_usage(out: CommandOutput, node: NodeSummary, used: StatsAnswer) -> None:
    """Print the use of each task, and the sums beside the reservations."""
    actions.print_usage(out, used.tasks, of_node=True)
    memory = sum(one.memory_bytes for one in used.tasks)
    cores = sum(one.cpu_millicores for one in used.tasks)
    disk = sum(used.disk_mib.values())
    rows = [
        ("CPU", f"{cores / 10:.1f}% of a core", f"{node.used['cpu_mhz']} MHz"),
        ("Memory", format_size(memory), format_mib(node.used["memory_mib"])),
        ("Disk", format_mib(disk), format_mib(node.used["disk_mib"])),
    ]
    out.table(
        "|USED|RESERVED",
        rows,
        "Use and reservations",
    )


def _used(node: NodeSummary, key: str) -> str:
    """Use and capacity; use exceeds capacity after the node has shrunk."""
    used, capacity = node.used[key], node.capacity[key]
    if key == "cpu_mhz":
        text, excess = f"{used} of {capacity} MHz", f"{used - capacity} MHz"
    else:
        text, excess = (
            f"{format_mib(used)} of {format_mib(capacity)}",
            format_mib(used - capacity),
        )
    return text if used <= capacity else f"{text}, exceeded by {excess}"


def _ports(out: CommandOutput, ports: tuple[PortLine, ...]) -> None:
    rows = [
        (one.port, short_id(one.allocation), "static" if one.static else "dynamic") for one in ports
    ]
    out.table("PORT>|ALLOCATION|KIND", rows, "Ports in use")


def _list(out: CommandOutput, *, allocs: bool, limit: int, verbose: bool) -> int:
    answer = query_pages("nodes", NodesAnswer, Query(limit=limit), "nodes")
    running: AllocsAnswer | None = None
    if allocs:
        query = Query(status="running", limit=limit)
        running = query_pages("allocs", AllocsAnswer, query, "allocations")
    allocations = UNSET if running is None else running.allocations
    out.result(result_from(NodeListResult, answer, allocations=allocations))
    _table(out, answer.nodes)
    tables.print_footer(out, len(answer.nodes), answer.total, "nodes")
    if running is not None:
        tables.print_allocations(out, running.allocations, "Running allocations", verbose=verbose)
        tables.print_cut(out, len(running.allocations), running.total, "allocations")
    return 0


def eligibility(out: CommandOutput, *, node_id: str, enable: bool, disable: bool) -> int:
    """Allow or forbid new allocations on a node."""
    if enable == disable:
        raise CliError("usage", "either --enable or --disable is required")
    body = EligibilityRequest(node_id=node_id, eligible=enable)
    verdict = request_operator(out, body, NodeEligibilityResult)
    word = "eligible" if enable else "ineligible"
    out.line(f"node {verdict.node_id}: {word}" + ("" if verdict.changed else " already"))
    return 0


def _table(out: CommandOutput, nodes: tuple[NodeSummary, ...]) -> None:
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
    out.table("ID|NAME|DC|POOL|CLASS|STATUS|ELIGIBILITY|CPU>|MEMORY>|ALLOCS>", rows)


def _share(node: NodeSummary, key: str) -> str:
    """Use of a resource in percent."""
    capacity = node.capacity.get(key, 0)
    return f"{100 * node.used.get(key, 0) // capacity}%" if capacity else "-"
