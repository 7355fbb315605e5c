"""Operators' wishes: policy and eligibility. What forgets is in garbage.py."""

from schemas.base import Event, NodeId
from schemas.nodes import CapacityFreed, NodeEligibilityChanged, PoolDeclared
from schemas.policy import (
    DeclarePool,
    OperatorRefused,
    Policy,
    PolicyChanged,
    SetEligibility,
    SetPolicy,
)
from shared.core.state import State

#: fragmentation packs GPUs (docs/packing.md); where there are none it is binpack.
ALGORITHMS = ("binpack", "spread", "fragmentation")
CANDIDATES = ("all", "two_choices", "log2")


def decide_policy(state: State, command: SetPolicy) -> list[Event]:
    """Change the policy, unless it is in force already."""
    if reason := _policy_fault(command.policy):
        return [OperatorRefused(request_id=command.request_id, code="invalid", reason=reason)]
    if command.policy == state.policy.policy:
        return []
    return [PolicyChanged(policy=command.policy)]


def _policy_fault(policy: Policy) -> str:
    """Say what is wrong with a policy; empty: nothing."""
    for algorithm in (policy.algorithm, *policy.pool_algorithms.values()):
        if algorithm not in ALGORITHMS:
            return f"algorithm {algorithm[:80]!r} is not one of {', '.join(ALGORITHMS)}"
    if policy.candidates not in CANDIDATES:
        return f"candidates {policy.candidates[:80]!r} is not one of {', '.join(CANDIDATES)}"
    return ""


def decide_eligibility(state: State, command: SetEligibility) -> list[Event]:
    """Allow or forbid new allocations on a node."""
    fleet = state.fleet
    row = fleet.row_of.get(NodeId(command.node_id))
    if row is None:
        reason = f"there is no node {command.node_id!r}"
        return [OperatorRefused(request_id=command.request_id, code="not_found", reason=reason)]
    if bool(fleet.eligible[row]) == command.eligible:
        return []
    changed = NodeEligibilityChanged(row=row, eligible=command.eligible)
    if not command.eligible:
        return [changed]
    return [changed, CapacityFreed(classes=(int(fleet.class_of[row]),))]


def decide_declaration(state: State, command: DeclarePool) -> list[Event]:
    """Note what a node, or the cluster as a whole, offers of a pool."""
    fleet = state.fleet
    if command.node_id and NodeId(command.node_id) not in fleet.row_of:
        reason = f"there is no node {command.node_id!r}"
        return [OperatorRefused(request_id=command.request_id, code="not_found", reason=reason)]
    if fleet.declared.get((command.node_id, command.pool.name)) == command.pool:
        return []
    return [PoolDeclared(node_id=command.node_id, pool=command.pool)]
