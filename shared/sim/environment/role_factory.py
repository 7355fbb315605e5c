"""Builders of the product's roles for the simulated world, with their counts and settings.

Roles are imported by name: this package is below the services.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from schemas.policy import Policy, Preemption
from shared.core.runtime.chain import RecordDecoder
from shared.core.runtime.replica import Replica
from shared.core.runtime.role import Role
from shared.sim.environment.pool_model import CORE_MHZ, PORTS, node_pools
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.virtual_time import SECOND

CLUSTER_ID = "simulated"
#: Module, class and number of instances of each role that follows the log.
ROLES = (
    ("plan_applier", "PlanApplier", 2),
    ("intake", "Intake", 2),
    ("eval_broker", "EvalBroker", 2),
    ("scheduler", "Scheduler", 2),
    ("heartbeat", "HeartbeatMonitor", 2),
    ("timekeeper", "Timekeeper", 2),
    ("view", "View", 1),
)
#: Garbage is collected within seconds, so that rows are reused during the run; every job type
#: may preempt.
SHORT_RETENTION_POLICY = Policy(
    preemption=Preemption(service=True, batch=True, system=True, sysbatch=True),
    evaluation_keep_ns=3 * SECOND,
    allocation_keep_ns=3 * SECOND,
    job_keep_ns=6 * SECOND,
)
#: Small enough to split a plan of a few allocations into parts.
PART_BYTES_MAX = 250
NODES = 10
#: Far more often than in production: every replica is compared several times per world.
CHECKPOINT_EVERY = 60
#: A new leader launches nothing for so long: short, so that launches and takeovers meet.
LAUNCH_GRACE_NS = SECOND // 2
#: Units: MHz, MiB.
NODE_CPU_MHZ = 4000
NODE_MEMORY_MIB = 8192


def role_builder(module: str, name: str, decode: RecordDecoder) -> Callable[[str], Role]:
    """Return a function that makes one life of a role, which decodes records with `decode`."""
    made = getattr(import_module(f"services.{module}.role"), name)
    settings: dict[str, object] = {"replicas": partial(Replica, decode=decode)}
    if module == "plan_applier":
        settings |= {
            "cluster_id": CLUSTER_ID,
            "checkpoint_every": CHECKPOINT_EVERY,
            "policy": SHORT_RETENTION_POLICY,
        }
    elif module == "timekeeper":
        settings |= {"sources": _due_sources()}
    elif module == "scheduler":
        settings |= {"part_bytes_max": PART_BYTES_MAX}

    def build(instance: str) -> Role:
        one: Role = made(instance=instance, **settings)
        return one

    return build


def _due_sources() -> tuple[object, ...]:
    """Return the timekeeper's own sources; that of launches with a short grace."""
    launches: Any = getattr(import_module("services.timekeeper.launches"), "PeriodicLaunches")  # noqa: B009
    plain: tuple[Any, ...] = getattr(import_module("services.timekeeper.role"), "SOURCES")  # noqa: B009
    short = launches(grace_ns=LAUNCH_GRACE_NS)
    return tuple([short if type(one) is launches else one for one in plain])


def agent_builder(node: SimulatedNode) -> Callable[[str], Role]:
    """Return a function that makes one life of an agent from its node's journal."""
    made = getattr(import_module("services.agent.role"), "Agent")  # noqa: B009 - by name, see above.
    spec = NodeSpec(
        node_id=NodeId(node.node_id),
        name=node.node_id,
        cpu_mhz=NODE_CPU_MHZ,
        memory_mib=NODE_MEMORY_MIB,
        disk_mib=100_000,
        attributes={"driver.raw_exec": "1", **node.attributes},
        pools=node_pools(int(node.node_id.rpartition("-")[2])),
        core_mhz=CORE_MHZ,
        port_min=PORTS[0],
        port_max=PORTS[1],
    )

    def build(instance: str) -> Role:
        one: Role = made(
            node_id=node.node_id,
            instance=instance,
            host_id=f"host-{node.node_id}",
            boot_id=instance,
            spec=spec,
            journal=tuple(node.journal),
        )
        return one

    return build
