"""Commands of operators: policy, roll of the log, eligibility, declared pools. Garbage collection: garbage.py."""

import re

from schemas.base import Event, NodeId
from schemas.nodes import CapacityFreed, NodeEligibilityChanged, PoolDeclared
from schemas.policy import (
    ALGORITHMS,
    CANDIDATES,
    SPREAD_TARGETS,
    AcceptLoss,
    DeclarePool,
    LogRolled,
    LossAccepted,
    OperatorRefused,
    Policy,
    PolicyChanged,
    RollLog,
    SetEligibility,
    SetPolicy,
)
from shared.core.decide.capacity_freed import freed_on_all_classes
from shared.core.decide.deciders import Deciders
from shared.core.decide.reservations import limit_reservations, release_nodes
from shared.core.decide.system_jobs import evaluate_system_jobs, node_location
from shared.core.resources.asks import CORES
from shared.core.resources.offers import CLUSTER_WIDE, invalid_pools
from shared.core.state.state import State

#: What waits may hold nodes back at the same time; more would leave none to others.
RESERVATIONS_MAX = 1_000
MISSED_MAX = 1_000
REMOTES_MAX = 100
#: MHz and MiB that keeping track of one remote task may take.
OVERHEAD_MAX = 1_000_000
#: Longest duration, and so the latest deadline from now: a hundred years. A time in ns has 64 bits.
SPAN_NS_MAX = 100 * 365 * 86_400 * 1_000_000_000
COUNT_MAX = 1_000_000_000
POOLS_MAX = 1_000
NAME_CHARS_MAX = 128
#: Of an operator's own words.
REASON_CHARS_MAX = 600
_DRIVER = re.compile(r"[A-Za-z0-9_-]{1,100}")


def refuse(request_id: str, code: str, reason: str) -> list[Event]:
    """Refuse an operator's command; clients compare the code."""
    return [OperatorRefused(request_id=request_id, code=code, reason=reason)]


def refuse_unknown_node(request_id: str, node_id: str) -> list[Event]:
    """Refuse a command about a node that is not registered."""
    return refuse(request_id, "not_found", f"there is no node {node_id!r}")


def is_late(seen_seq: int, changed_seq: int) -> bool:
    """Whether a command that its sender made at `seen_seq` is a late copy: what it is about changed since.

    A request that still waits is sent again with what its sender has seen by then, so that only copies are dropped.
    """
    return 0 < seen_seq < changed_seq


def pools_changed_seq(state: State, node_id: str) -> int:
    """Seq of the last change of what a node, or with an empty id the cluster as a whole, offers."""
    if not node_id:
        return max(state.evaluations.grown_seq.values(), default=0)
    return node_changed_seq(state, node_id)


def node_changed_seq(state: State, node_id: str) -> int:
    """Seq of the last change of a node; 0: there is none."""
    row = state.fleet.row_of.get(NodeId(node_id))
    return int(state.fleet.modify_seq[row]) if row is not None else 0


def decide_policy(state: State, command: SetPolicy) -> list[Event]:
    """Change the policy, unless it is in force already."""
    if reason := _policy_fault(command.policy):
        return refuse(command.request_id, "invalid", reason)
    table = state.policy
    if command.policy == table.policy or is_late(command.seen_seq, table.modify_seq):
        return []
    # What the new policy allows may find room.
    held = limit_reservations(state, command.policy.reservations_max)
    return [PolicyChanged(policy=command.policy), *held, freed_on_all_classes(state)]


def _policy_fault(policy: Policy) -> str:
    """Say what is wrong with a policy; empty: nothing."""
    for algorithm in (policy.algorithm, *policy.pool_algorithms.values()):
        if algorithm not in ALGORITHMS:
            return f"algorithm {algorithm[:80]!r} is not one of {', '.join(ALGORITHMS)}"
    if policy.candidates not in CANDIDATES:
        return f"candidates {policy.candidates[:80]!r} is not one of {', '.join(CANDIDATES)}"
    if policy.spread_targets not in SPREAD_TARGETS:
        said = f"spread_targets {policy.spread_targets[:80]!r}"
        return f"{said} is not one of {', '.join(SPREAD_TARGETS)}"
    if not 0 <= policy.reservations_max <= RESERVATIONS_MAX:
        return f"reservations_max is {policy.reservations_max}, it must be 0 to {RESERVATIONS_MAX}"
    if not 1 <= policy.heartbeats_missed <= MISSED_MAX:
        return f"heartbeats_missed is {policy.heartbeats_missed}, it must be 1 to {MISSED_MAX}"
    return _bounds_fault(policy) or _remotes_fault(policy)


def _bounds_fault(policy: Policy) -> str:
    """Name a number of a policy that is out of range, or does not fit in a snapshot."""
    for field in (
        "submission_keep_ns",
        "evaluation_keep_ns",
        "allocation_keep_ns",
        "job_keep_ns",
        "node_keep_ns",
    ):
        value: int = getattr(policy, field)
        if not 0 <= value <= SPAN_NS_MAX:
            return f"{field} is {value}, it must be 0 to {SPAN_NS_MAX} (100 years)"
    for field in ("terminal_keep_max", "delivery_limit"):
        value = getattr(policy, field)
        if not 0 <= value <= COUNT_MAX:
            return f"{field} is {value}, it must be 0 to {COUNT_MAX}"
    if len(policy.pool_algorithms) > POOLS_MAX:
        return f"{len(policy.pool_algorithms)} pool algorithms, at most {POOLS_MAX} are known"
    for name in sorted(policy.pool_algorithms):
        if len(name) > NAME_CHARS_MAX:
            return f"pool_algorithms: a name of {len(name)} characters, at most {NAME_CHARS_MAX}"
    return ""


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


def decide_loss(state: State, command: AcceptLoss) -> list[Event]:
    """Record an accepted loss. Whether something is lost, the streams know and not the state."""
    if not 1 < command.first_seq <= state.seq + 1:
        reason = f"first_seq is {command.first_seq}, it must be 2 to {state.seq + 1}"
        return refuse(command.request_id, "invalid", reason)
    return [LossAccepted(first_seq=command.first_seq, reason=command.reason[:REASON_CHARS_MAX])]


def decide_eligibility(state: State, command: SetEligibility) -> list[Event]:
    """Allow or forbid new allocations on a node."""
    fleet = state.fleet
    row = fleet.row_of.get(NodeId(command.node_id))
    if row is None:
        return refuse_unknown_node(command.request_id, command.node_id)
    is_so = bool(fleet.eligible[row]) == command.eligible
    if is_so or is_late(command.seen_seq, int(fleet.modify_seq[row])):
        return []
    if row in fleet.drains:
        reason = f"node {command.node_id!r} is drained: end that first, it makes the node eligible"
        return refuse(command.request_id, "conflict", reason)
    changed = NodeEligibilityChanged(row=row, eligible=command.eligible)
    if not command.eligible:
        return [changed, *release_nodes(state, (row,))]
    freed = CapacityFreed(classes=(int(fleet.class_of[row]),))
    return [changed, freed, *evaluate_system_jobs(state, (node_location(state, row),))]


def decide_declaration(state: State, command: DeclarePool) -> list[Event]:
    """Note what a node, or the cluster as a whole, offers of a pool."""
    fleet = state.fleet
    if command.node_id and NodeId(command.node_id) not in fleet.row_of:
        return refuse_unknown_node(command.request_id, command.node_id)
    is_nothing = not (command.pool.amount or command.pool.instances)
    before = fleet.declared.get((command.node_id, command.pool.name))
    if before == command.pool or (is_nothing and before is None):
        return []
    if is_late(command.seen_seq, pools_changed_seq(state, command.node_id)):
        return []
    if fault := _declaration_fault(state, command):
        return refuse(command.request_id, *fault)
    classes = tuple(range(len(fleet.classes)))
    if command.node_id:
        classes = (int(fleet.class_of[fleet.row_of[NodeId(command.node_id)]]),)
    return [
        PoolDeclared(node_id=command.node_id, pool=command.pool),
        CapacityFreed(classes=classes, grown=True),
    ]


def _declaration_fault(state: State, command: DeclarePool) -> tuple[str, str] | None:
    """Return why a declaration is refused: code and reason; None: it is accepted."""
    fleet, pool = state.fleet, command.pool
    if reason := invalid_pools((pool,)):
        return ("invalid", reason)
    if pool.name == CORES:
        return ("invalid", "cores cannot be declared: the agent counts those of its machine")
    if command.node_id:
        row = fleet.row_of[NodeId(command.node_id)]
        kept = [one for one in fleet.declared_of(command.node_id) if one.name != pool.name]
        reason = fleet.offers.conflict(row, (*fleet.specs[row].pools, *kept, pool))
        return ("conflict", reason) if reason else None
    if pool.instances:
        return (
            "invalid",
            f"{pool.name}: a resource of the cluster is an amount, without instances",
        )
    known = fleet.offers.kind(pool.name)
    if known in {"", CLUSTER_WIDE}:
        return None
    return (
        "conflict",
        f"{pool.name} is {known} on nodes and cannot be a resource of the cluster, too",
    )


DECIDERS: Deciders = {
    SetPolicy: decide_policy,
    SetEligibility: decide_eligibility,
    DeclarePool: decide_declaration,
    RollLog: decide_roll,
    AcceptLoss: decide_loss,
}
