"""Operators' wishes: policy and eligibility. What forgets is in garbage.py."""

import re

from schemas.base import Event, NodeId
from schemas.nodes import CapacityFreed, NodeEligibilityChanged, PoolDeclared
from schemas.policy import (
    DeclarePool,
    LogRolled,
    OperatorRefused,
    Policy,
    PolicyChanged,
    RollLog,
    SetEligibility,
    SetPolicy,
)
from shared.core.decide.everywhere import look_again, place_of
from shared.core.decide.freed import freed_everywhere
from shared.core.decide.reservations import bound, let_go
from shared.core.resources.asks import CORES
from shared.core.resources.offers import OF_THE_CLUSTER, pools_fault
from shared.core.state import State

#: fragmentation packs GPUs (docs/packing.md); where there are none it is binpack.
ALGORITHMS = ("binpack", "spread", "fragmentation")
#: What waits may hold nodes back at the same time; more would leave none to others.
RESERVATIONS_MAX = 1_000
MISSED_MAX = 1_000
REMOTES_MAX = 100
#: MHz and MiB that keeping track of one remote task may take.
OVERHEAD_MAX = 1_000_000
_DRIVER = re.compile(r"[A-Za-z0-9_-]{1,100}")
CANDIDATES = ("all", "two_choices", "log2")


def decide_policy(state: State, command: SetPolicy) -> list[Event]:
    """Change the policy, unless it is in force already."""
    if reason := _policy_fault(command.policy):
        return [OperatorRefused(request_id=command.request_id, code="invalid", reason=reason)]
    if command.policy == state.policy.policy:
        return []
    # Whatever it allows now may find room.
    held = bound(state, command.policy.reservations_max)
    return [PolicyChanged(policy=command.policy), *held, freed_everywhere(state)]


def _policy_fault(policy: Policy) -> str:
    """Say what is wrong with a policy; empty: nothing."""
    for algorithm in (policy.algorithm, *policy.pool_algorithms.values()):
        if algorithm not in ALGORITHMS:
            return f"algorithm {algorithm[:80]!r} is not one of {', '.join(ALGORITHMS)}"
    if policy.candidates not in CANDIDATES:
        return f"candidates {policy.candidates[:80]!r} is not one of {', '.join(CANDIDATES)}"
    if not 0 <= policy.reservations_max <= RESERVATIONS_MAX:
        return f"reservations_max is {policy.reservations_max}, it must be 0 to {RESERVATIONS_MAX}"
    if not 1 <= policy.heartbeats_missed <= MISSED_MAX:
        return f"heartbeats_missed is {policy.heartbeats_missed}, it must be 1 to {MISSED_MAX}"
    return _remotes_fault(policy)


def _remotes_fault(policy: Policy) -> str:
    if len(policy.remote_drivers) > REMOTES_MAX:
        return f"{len(policy.remote_drivers)} remote drivers, at most {REMOTES_MAX} are known"
    for name, driver in sorted(policy.remote_drivers.items()):
        if not _DRIVER.fullmatch(name):
            return f"{name[:80]!r} cannot be a driver's name"
        for field, value in (("cpu_mhz", driver.cpu_mhz), ("memory_mib", driver.memory_mib)):
            if not 0 <= value <= OVERHEAD_MAX:
                return f"remote_drivers.{name}.{field} is {value}, it must be 0 to {OVERHEAD_MAX}"
    return ""


def decide_roll(state: State, command: RollLog) -> list[Event]:
    """End a generation, unless it is over already. The record that says so must hold nothing else."""
    now = state.policy.generation
    return [LogRolled(generation=now + 1)] if command.generation == now else []


def decide_eligibility(state: State, command: SetEligibility) -> list[Event]:
    """Allow or forbid new allocations on a node."""
    fleet = state.fleet
    row = fleet.row_of.get(NodeId(command.node_id))
    if row is None:
        reason = f"there is no node {command.node_id!r}"
        return [OperatorRefused(request_id=command.request_id, code="not_found", reason=reason)]
    if bool(fleet.eligible[row]) == command.eligible:
        return []
    if row in fleet.drains:
        reason = f"node {command.node_id!r} is drained: end that first, it makes the node eligible"
        return [OperatorRefused(request_id=command.request_id, code="conflict", reason=reason)]
    changed = NodeEligibilityChanged(row=row, eligible=command.eligible)
    if not command.eligible:
        return [changed, *let_go(state, (row,))]
    freed = CapacityFreed(classes=(int(fleet.class_of[row]),))
    return [changed, freed, *look_again(state, (place_of(state, row),))]


def decide_declaration(state: State, command: DeclarePool) -> list[Event]:
    """Note what a node, or the cluster as a whole, offers of a pool."""
    fleet = state.fleet
    if command.node_id and NodeId(command.node_id) not in fleet.row_of:
        reason = f"there is no node {command.node_id!r}"
        return [OperatorRefused(request_id=command.request_id, code="not_found", reason=reason)]
    is_nothing = not (command.pool.amount or command.pool.instances)
    before = fleet.declared.get((command.node_id, command.pool.name))
    if before == command.pool or (is_nothing and before is None):
        return []
    if fault := _declaration_fault(state, command):
        return [OperatorRefused(request_id=command.request_id, code=fault[0], reason=fault[1])]
    classes = tuple(range(len(fleet.classes)))
    if command.node_id:
        classes = (int(fleet.class_of[fleet.row_of[NodeId(command.node_id)]]),)
    return [
        PoolDeclared(node_id=command.node_id, pool=command.pool),
        CapacityFreed(classes=classes, grown=True),
    ]


def _declaration_fault(state: State, command: DeclarePool) -> tuple[str, str] | None:
    """Say why a declaration cannot stand: code and reason; None: it can."""
    fleet, pool = state.fleet, command.pool
    if reason := pools_fault((pool,)):
        return ("invalid", reason)
    if pool.name == CORES:
        return ("invalid", "cores are what the machine has: its agent counts them")
    if command.node_id:
        row = fleet.row_of[NodeId(command.node_id)]
        kept = [one for one in fleet.declared_of(command.node_id) if one.name != pool.name]
        reason = fleet.offers.conflict(row, (*fleet.specs[row].pools, *kept, pool))
        return ("conflict", reason) if reason else None
    if pool.instances:
        return ("invalid", f"{pool.name}: what the cluster has is an amount, without instances")
    known = fleet.offers.kind(pool.name)
    if known in {"", OF_THE_CLUSTER}:
        return None
    return ("conflict", f"{pool.name} is {known} on nodes, it cannot be of the cluster, too")
