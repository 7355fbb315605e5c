"""Consequences: applies facts one by one, and with each what follows from it in the same transaction.

Code that applies what `decide` returns does it here, so that no fact of a deployment is left out. What follows from a
fact is decided on the state that holds it, before the next one is applied; where facts follow one from the other, the
decision is a generator, whose next fact is decided once the one before is applied.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from schemas.allocations import AllocationsHealthChanged, AllocationsReported
from schemas.base import Event
from schemas.deployments import (
    DeploymentEnded,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentStarted,
)
from schemas.gates import DeploymentGated, GateChanged, WindowChanged
from schemas.jobs import JobRegistered, JobStopped
from schemas.nodes import NodeDrainChanged, NodeRegistered, NodesStatusChanged
from schemas.plans import PlanCommitted
from schemas.remotes import RemotesReported
from schemas.rollouts import RolloutEnded
from shared.core.decide.deployments.gates import begin_gates, follow_gates
from shared.core.decide.deployments.progress import (
    deploy_version,
    follow_health,
    follow_plan,
    go_on,
    stop_deployment,
)
from shared.core.decide.deployments.rollouts import (
    cancel_rollout,
    follow_deployment_end,
    follow_rollout_end,
)
from shared.core.decide.nodes.drains import finished_drains
from shared.core.decide.remotes import (
    settle_slots,
    slots_of_nodes,
    slots_of_plan,
    slots_of_reports,
)
from shared.core.decide.stateful_turns import (
    turns_of_health,
    turns_of_nodes,
    turns_of_plan,
    turns_of_reports,
)
from shared.core.state.state import State

#: What follows from a fact, by its type.
_FOLLOWERS: dict[type[Event], Callable[[State, Any, int], Iterable[Event]]] = {
    JobRegistered: lambda state, event, _: [
        *deploy_version(state, event),
        *cancel_rollout(state, event.job_id),
        *settle_slots(state, (event.job_id,)),
    ],
    JobStopped: lambda state, event, _: [
        *stop_deployment(state, event),
        *cancel_rollout(state, event.job_id),
        *settle_slots(state, (event.job_id,)),
    ],
    DeploymentStarted: begin_gates,
    DeploymentGated: lambda state, event, now_ns: follow_gates(state, event.key, now_ns),
    GateChanged: lambda state, event, now_ns: follow_gates(state, event.key, now_ns),
    WindowChanged: lambda state, event, now_ns: follow_gates(state, event.key, now_ns),
    DeploymentResumed: lambda state, event, now_ns: go_on(state, event.key, now_ns),
    DeploymentReleased: lambda state, event, now_ns: go_on(state, event.key, now_ns),
    DeploymentEnded: follow_deployment_end,
    RolloutEnded: follow_rollout_end,
    PlanCommitted: lambda state, event, _: [
        *follow_plan(state, event),
        *finished_drains(state),
        *turns_of_plan(state, event),
        *slots_of_plan(state, event),
    ],
    AllocationsHealthChanged: lambda state, event, now_ns: chain(
        follow_health(state, event, now_ns), turns_of_health(state, event)
    ),
    # Nothing may be left on a draining node.
    AllocationsReported: lambda state, event, _: [
        *finished_drains(state),
        *turns_of_reports(state, event),
        *slots_of_reports(state, event),
    ],
    NodesStatusChanged: lambda state, event, _: [
        *turns_of_nodes(state, event.rows if event.status == "ready" else ()),
        *slots_of_nodes(state),
    ],
    NodeRegistered: lambda state, event, _: [
        *turns_of_nodes(state, (state.fleet.row_of[event.spec.node_id],)),
        *slots_of_nodes(state),
    ],
    RemotesReported: lambda state, event, _: settle_slots(
        state, [one.job_id for one in event.slots]
    ),
    NodeDrainChanged: lambda state, _event, _now_ns: finished_drains(state),
}


def apply_facts(state: State, events: Iterable[Event], now_ns: int) -> list[Event]:
    """Apply facts and what follows from them; return all of them in the order in which they were applied."""
    applied: list[Event] = []
    now_ns = max(now_ns, state.t_ns)
    for event in events:
        state.evolve(event, state.seq)
        applied.append(event)
        follow = _FOLLOWERS.get(type(event))
        # Mostly nothing follows, and a list says so; a generator is asked.
        if follow is not None and (more := follow(state, event, now_ns)):
            applied += apply_facts(state, more, now_ns)
    return applied
