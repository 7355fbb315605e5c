"""Who takes part: how each role of the product is built for the simulated world.

Decides counts and settings. Roles are imported by name: services stand above this package, and only a shell may know
them at all. Next: `world.py`.
"""

from collections.abc import Callable
from importlib import import_module

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from schemas.policy import Policy, Preemption
from shared.core import role
from shared.sim.drivers import Node
from shared.sim.loop import SECOND
from shared.sim.pools import CORE_MHZ, PORTS, offered_by

CLUSTER_ID = "simulated"
#: module and class of each role that follows the log, and how many of it run.
ROLES = (
    ("plan_applier", "PlanApplier", 2),
    ("intake", "Intake", 2),
    ("eval_broker", "EvalBroker", 2),
    ("scheduler", "Scheduler", 2),
    ("heartbeat", "Heartbeat", 2),
    ("view", "View", 1),
)
#: What ended is forgotten within seconds, so that rows are used again while everything else goes on; every job type
#: may evict what is less important.
FORGETFUL = Policy(
    preemption=Preemption(service=True, batch=True, system=True, sysbatch=True),
    evaluation_keep_ns=3 * SECOND,
    allocation_keep_ns=3 * SECOND,
    job_keep_ns=6 * SECOND,
)
#: Small enough that a plan of some allocations travels in parts.
PART_BYTES_MAX = 250
NODES = 10
#: Far more often than in earnest: every replica proves itself several times a world.
CHECKPOINT_EVERY = 60
#: Units: MHz, MiB.
NODE_CPU_MHZ = 4000
NODE_MEMORY_MIB = 8192


def builder(module: str, name: str) -> Callable[[str], role.Role]:
    """Return what makes a life of a role."""
    made = getattr(import_module(f"services.{module}.role"), name)
    settings: dict[str, object] = {}
    if module == "plan_applier":
        settings = {
            "cluster_id": CLUSTER_ID,
            "checkpoint_every": CHECKPOINT_EVERY,
            "policy": FORGETFUL,
        }

    elif module == "scheduler":
        settings = {"part_bytes_max": PART_BYTES_MAX}

    def build(instance: str) -> role.Role:
        one: role.Role = made(instance=instance, **settings)
        return one

    return build


def agent_builder(node: Node) -> Callable[[str], role.Role]:
    """Return what makes an agent's next life from its node's journal."""
    made = getattr(import_module("services.agent.role"), "Agent")  # noqa: B009 - by name, see above.
    spec = NodeSpec(
        node_id=NodeId(node.node_id),
        name=node.node_id,
        cpu_mhz=NODE_CPU_MHZ,
        memory_mib=NODE_MEMORY_MIB,
        disk_mib=100_000,
        attributes={"driver.raw_exec": "1"},
        pools=offered_by(int(node.node_id.rpartition("-")[2])),
        core_mhz=CORE_MHZ,
        port_min=PORTS[0],
        port_max=PORTS[1],
    )

    def build(instance: str) -> role.Role:
        one: role.Role = made(
            node_id=node.node_id,
            instance=instance,
            host_id=f"host-{node.node_id}",
            boot_id=instance,
            spec=spec,
            journal=tuple(node.journal),
        )
        return one

    return build
