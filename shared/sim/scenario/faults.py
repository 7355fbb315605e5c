"""Faults of a scenario: the nodes that each one affects, and the events on them.

Nodes meant by a count or a share are chosen by hashes of (seed, fault, time).
"""

from collections.abc import Iterator

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from schemas.policy import DrainNode, Policy, SetPolicy
from shared.core.splitmix import splitmix64
from shared.durations import parse_duration
from shared.sim.engine.engine import Scripted
from shared.sim.engine.run_setup import NodeComesBack, NodeFallsSilent
from shared.sim.scenario.arrivals import name_seed
from shared.sim.scenario.parser import ScenarioPlan
from shared.sim.scenario.schema import NodeSelection

#: Faults of nodes.
NODE_FAULTS = ("lose", "cut_off", "drain", "reclaim")
#: (ns from the start of the scenario, event).
TimedEvent = tuple[int, Scripted]


def select_nodes(whom: NodeSelection, nodes: list[tuple[NodeSpec, str]], seed: int) -> list[NodeId]:
    """Return the affected nodes, in order."""
    if whom.nodes:
        wanted = set(whom.nodes)
        return [spec.node_id for spec, _ in nodes if spec.node_id in wanted]
    among = [spec.node_id for spec, name in nodes if not whom.of or name == whom.of]
    count = whom.count or int(len(among) * whom.share)
    drawn = sorted((splitmix64(seed ^ at), at) for at in range(len(among)))[:count]
    return [among[at] for at in sorted(at for _, at in drawn)]


def fault_events(
    plan: ScenarioPlan,
    number: int,
    *,
    nodes: list[tuple[NodeSpec, str]],
    begin_ns: int,
    policy: Policy,
) -> Iterator[TimedEvent]:
    """Yield all events of a fault; not in order of time. `begin_ns`: wall time of the start."""
    fault = plan.scenario.faults[number]
    first = parse_duration(fault.at)
    every = parse_duration(fault.every) if fault.every else 0
    back_ns = parse_duration(fault.back_after) if fault.back_after else 0
    wait_ns = parse_duration(fault.warning)
    times = (fault.times or -1) if every else 1
    nth = 0
    while nth != times and first + nth * every < plan.duration_ns:
        at_ns = first + nth * every
        name = f"fault-{number}-{nth}"
        if fault.policy:
            yield at_ns, SetPolicy(request_id=name, policy=policy)
        for kind in NODE_FAULTS:
            whom = getattr(fault, kind)
            if whom is not None:
                some = select_nodes(whom, nodes, name_seed(plan.scenario.seed, name))
                for node_id in some:
                    yield from _befalls(
                        kind,
                        node_id,
                        name,
                        at_ns,
                        begin_ns=begin_ns,
                        wait_ns=wait_ns,
                        back_ns=back_ns,
                    )
        nth += 1


def _befalls(
    kind: str, node_id: NodeId, name: str, at_ns: int, *, begin_ns: int, wait_ns: int, back_ns: int
) -> Iterator[TimedEvent]:
    dies_ns = at_ns
    drained = kind in {"drain", "reclaim"}
    if drained:
        deadline = begin_ns + at_ns + wait_ns
        order = DrainNode(request_id=name, node_id=node_id, draining=True, deadline_ns=deadline)
        yield at_ns, order
    if kind != "drain":
        dies_ns = at_ns + (wait_ns if kind == "reclaim" else 0)
        yield dies_ns, NodeFallsSilent(node_id=node_id, dies=kind != "cut_off")
    if back_ns:
        if kind != "drain":
            yield dies_ns + back_ns, NodeComesBack(node_id=node_id)
        if drained:
            # A node that returns is another machine under the same name: it is not drained.
            done = DrainNode(request_id=f"{name}-over", node_id=node_id, draining=False)
            yield dies_ns + back_ns + 1_000_000_000, done
