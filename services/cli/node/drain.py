"""`caravan node drain`: the request is an event in the log."""

import asyncio
import socket
import time

import msgspec

from schemas.node_answers import DrainShown, NodeAnswer, NodesAnswer
from schemas.operator import DrainRequest, OperatorVerdict
from schemas.projections import Query
from services.cli.runtime.bus_client import query_once, query_pages, query_view, with_bus
from services.cli.runtime.operator_client import OperatorResult, request_verdict
from services.cli.runtime.output import CliError, CommandOutput, result_from
from shared.bus.connection.public_client import Client
from shared.display.formats import count_noun, format_time_and_age
from shared.durations import parse_duration

_POLL_S = 0.5
#: Until when what runs on a node may continue, unless a flag says otherwise.
DEADLINE = "1h"
_HOSTNAME = "unique.hostname"


class NodeDrainResult(OperatorResult, frozen=True):
    """`node drain --json`."""

    node: str
    draining: bool
    deadline_ns: int


class NodeDrainMonitorResult(msgspec.Struct, frozen=True, kw_only=True):
    """`node drain --monitor --json`, when the drain is over or there is none."""

    node: str
    #: allocations that left the node, and those that are still there.
    migrated: int
    remaining: int
    deadline_reached: bool
    #: the drain is complete; false: an operator ended it, or there was none.
    done: bool
    seq: int


def drain(
    out: CommandOutput,
    *,
    node_id: str,
    enable: bool,
    disable: bool,
    monitor: bool,
    deadline: str,
    force: bool,
    no_deadline: bool,
    ignore_system: bool,
    keep_ineligible: bool,
    message: str,
    this_node: bool,
    yes: bool,
    what_if: bool,
) -> int:
    """Start or stop draining a node, or follow its drain; with `what_if` only show the migrations."""
    del yes
    if enable == disable and not (not disable and (what_if or monitor)):
        raise CliError("usage", "either --enable or --disable is required")
    given = {"--deadline": deadline, "--force": force, "--no-deadline": no_deadline}
    until = [flag for flag, value in given.items() if value]
    if len(until) > 1:
        raise CliError("usage", f"{until[0]} and {until[1]} exclude each other")
    if disable and monitor:
        raise CliError("usage", "--disable and --monitor exclude each other")
    terms = {"--ignore-system": ignore_system, "-m": message}
    until += [flag for flag, value in terms.items() if value]
    if until and not (enable or what_if):
        raise CliError("usage", f"{until[0]} requires --enable")
    if keep_ineligible and not disable:
        raise CliError("usage", "--keep-ineligible requires --disable")
    if bool(node_id) == this_node:
        raise CliError("usage", "either ID or --self is required")
    node_id = _own_node() if this_node else node_id
    wait_ns = 0 if force else -1 if no_deadline else _duration(deadline or DEADLINE)
    if what_if:
        return _what_if_drain(out, node_id, wait_ns)
    before = _allocations(node_id) if monitor else 0
    if enable or disable:
        body = DrainRequest(
            node_id=node_id,
            draining=enable,
            deadline_ns=wait_ns,
            ignore_system=ignore_system,
            keep_ineligible=keep_ineligible,
            message=message,
        )
        verdict = request_verdict(body)
        node_id = verdict.node_id
        if not monitor:
            own = {"node": node_id, "draining": body.draining}
            out.result(result_from(NodeDrainResult, verdict, **own))
        _print_verdict(out, body, verdict)
    return _monitor(out, node_id, before) if monitor else 0


def _allocations(node_id: str) -> int:
    """How many allocations run on a node."""
    return query_once("node", NodeAnswer, Query(id=node_id, limit=0)).nodes[0].allocations


def _print_verdict(out: CommandOutput, body: DrainRequest, verdict: OperatorVerdict) -> None:
    if not body.draining:
        shown = query_once("node", NodeAnswer, Query(id=verdict.node_id, limit=0)).nodes[0]
        is_open = shown.eligibility == "eligible"
        ended = (
            "accepts new allocations again" if is_open else "its drain is over; it stays ineligible"
        )
        if not verdict.changed:
            ended = "does not drain" + ("" if is_open else "; it stays ineligible")
        out.line(f"node {verdict.node_id}: {ended}")
    elif not body.deadline_ns:
        what = "all but system jobs" if body.ignore_system else "all that runs there"
        out.line(f"node {verdict.node_id}: draining; {what} is stopped now")
    elif verdict.deadline_ns:
        when = format_time_and_age(verdict.deadline_ns, time.time_ns())
        out.line(f"node {verdict.node_id}: draining; what remains is stopped at {when}")
    else:
        out.line(f"node {verdict.node_id}: draining; what cannot move runs until it ends")


def _monitor(out: CommandOutput, node_id: str, before: int) -> int:
    """Print what is left on a node whenever that changes, until its drain ends. `before`: how many ran there."""

    async def work(client: Client) -> NodeAnswer:
        shown: DrainShown | None = None
        while True:
            one = await query_view(client, "node", NodeAnswer, Query(id=node_id, limit=0))
            if one.drain is None:
                return one
            if one.drain != shown:
                shown = one.drain
                _print_left(out, shown)
            await asyncio.sleep(_POLL_S)

    one = with_bus(work)
    node, end = one.nodes[0], one.drained
    if end is None:
        text = "does not drain"
    elif end.deadline_reached:
        text = "drain complete; the deadline stopped what was left"
    else:
        text = "drain complete"
    out.line(f"node {node.id}: {text}")
    out.result(
        NodeDrainMonitorResult(
            node=node.id,
            migrated=max(before - node.allocations, 0),
            remaining=node.allocations,
            deadline_reached=end is not None and end.deadline_reached,
            done=end is not None,
            seq=one.seq,
        )
    )
    return 0


def _print_left(out: CommandOutput, drain: DrainShown) -> None:
    """Print how many allocations are left, and what each group waits for."""
    stopping = f", {drain.stopping} stopping" if drain.stopping else ""
    out.line(f"{count_noun(drain.left, 'allocation')} left{stopping}")
    for wait in drain.waits:
        out.line(f"  {wait.job_id}.{wait.group}: {wait.allocations}, {wait.why}")


def _own_node() -> str:
    """Id of the node whose agent runs on this machine. Raises CliError: none, or several."""
    name = socket.gethostname()
    nodes = query_pages("nodes", NodesAnswer, Query(), "nodes").nodes
    answers = [query_once("node", NodeAnswer, Query(id=one.id, limit=0)) for one in nodes]
    own = [one.nodes[0].id for one in answers if one.attributes.get(_HOSTNAME) == name]
    if len(own) != 1:
        found = ", ".join(own) or "none"
        raise CliError("not_found", f"nodes on this machine ({name}): {found}; give a node id")
    return own[0]


def _what_if_drain(out: CommandOutput, node_id: str, wait_ns: int) -> int:
    """Show the migrations, computed in a fork of the log."""
    # Imported here: it brings the scheduler along.
    from services.cli.what_if.what_if import what_if_drain

    if wait_ns < 0:
        raise CliError("usage", "--what-if needs a deadline: the simulation runs until then")
    return what_if_drain(out, node_id=node_id, wait_ns=wait_ns)


def _duration(text: str) -> int:
    try:
        found = parse_duration(text)
    except ValueError as err:
        raise CliError("usage", f"--deadline {text!r} is not a duration like 90m") from err
    if found <= 0:
        raise CliError("usage", "--deadline must be positive; --force stops everything at once")
    return found
