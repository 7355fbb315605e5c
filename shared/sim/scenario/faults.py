"""Faults of a scenario: which nodes each one befalls, and what happens to them when.

Decides by hashes of (seed, fault, time) who is meant by a count or a share. Must not know what comes of it.
"""

from collections.abc import Callable, Iterator

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from schemas.policy import DrainNode, Policy, SetPolicy
from shared.core.splitmix import splitmix64
from shared.sim.engine.engine import Scripted
from shared.sim.engine.setup import NodeComesBack, NodeFallsSilent
from shared.sim.scenario.arrivals import salt
from shared.sim.scenario.form import Fault, Whom

#: What befalls nodes.
KINDS = ("lose", "cut_off", "drain", "reclaim")
#: (ns from the scenario's first moment, what happens).
Happens = tuple[int, Scripted]


def chosen(whom: Whom, nodes: list[tuple[NodeSpec, str]], seed: int) -> list[NodeId]:
    """Name the nodes that are meant, in order."""
    if whom.nodes:
        wanted = set(whom.nodes)
        return [spec.node_id for spec, _ in nodes if spec.node_id in wanted]
    among = [spec.node_id for spec, name in nodes if not whom.of or name == whom.of]
    count = whom.count or int(len(among) * whom.share)
    drawn = sorted((splitmix64(seed ^ at), at) for at in range(len(among)))[:count]
    return [among[at] for at in sorted(at for _, at in drawn)]


def happening(
    fault: Fault,
    number: int,
    *,
    seed: int,
    nodes: list[tuple[NodeSpec, str]],
    begin_ns: int,
    duration_ns: int,
    policy: Policy,
    ns: Callable[[str], int],
) -> Iterator[Happens]:
    """Yield what a fault does, all of it; not in order of time. `begin_ns`: wall time of the first moment."""
    first, every = ns(fault.at), ns(fault.every) if fault.every else 0
    times = (fault.times or -1) if every else 1
    nth = 0
    while nth != times and first + nth * every < duration_ns:
        at_ns = first + nth * every
        name = f"fault-{number}-{nth}"
        if fault.policy:
            yield at_ns, SetPolicy(request_id=name, policy=policy)
        for kind in KINDS:
            whom = getattr(fault, kind)
            if whom is not None:
                back_ns = ns(fault.back_after) if fault.back_after else 0
                some = chosen(whom, nodes, salt(seed, name))
                wait_ns = ns(fault.warning)
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
) -> Iterator[Happens]:
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
            # A node that comes back was not drained: it is another machine under the same name.
            done = DrainNode(request_id=f"{name}-over", node_id=node_id, draining=False)
            yield dies_ns + back_ns + 1_000_000_000, done
