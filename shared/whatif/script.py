"""The script of a recorded log: its external events after a moment, as commands that can be issued again.

External are submissions, operator commands and nodes that join, fail and return. Plans, evaluations, reschedules and
garbage collection are the cluster's own conclusions and are decided again. Task outcomes: durations.py.
"""

from collections.abc import Callable, Iterable

import msgspec

from schemas.allocations import HEALTHS, AllocationsDisplaced, AllocationsHealthChanged
from schemas.base import DeploymentKey, Event, JobId, NodeId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
    SetAllocationHealth,
)
from schemas.envelope import AnyCommand
from schemas.jobs import (
    EvaluateJob,
    JobEvaluated,
    JobRegistered,
    JobStopped,
    RegisterJob,
    StopJob,
)
from schemas.nodes import (
    ChangeLiveness,
    NodeDrainChanged,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRegistered,
    NodesStatusChanged,
    PoolDeclared,
    ReportNode,
)
from schemas.policy import (
    DeclarePool,
    DrainNode,
    PolicyChanged,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from shared.core.decide.job_fields import command_of
from shared.core.state.state import State

#: A node that the heartbeat monitor declares down counts as silent from then on.
SEEN_SEQ = 2**62


class Lineage(msgspec.Struct, frozen=True):
    """An allocation across timelines: the n-th (`attempt`, from 0) placed under one name."""

    job_id: str
    group: str
    index: int
    attempt: int


class ScriptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One external event."""

    t_ns: int
    #: seq of the recorded event; 0: a requested change.
    seq: int = 0
    command: AnyCommand
    #: of a command about an allocation: whose key is filled in when it runs.
    lineage: Lineage | None = None
    #: of a command about a deployment: the job whose active one is filled in when it runs.
    deployment_of: JobId = JobId("")

    @property
    def is_open(self) -> bool:
        """Return whether what it is about is known only when it runs."""
        return self.lineage is not None or bool(self.deployment_of)


#: Returns the lineage of a row in the state before the event.
LineageOf = Callable[[int], Lineage]


def script_entries(
    state: State, event: Event, *, t_ns: int, seq: int, lineage_of: LineageOf
) -> list[ScriptEntry]:
    """Return the external part of an event, as commands. `state`: before the event."""
    if isinstance(event, AllocationsDisplaced):
        request = f"what-if-{seq}"
        return [
            ScriptEntry(
                t_ns=t_ns,
                seq=seq,
                command=StopAllocation(request_id=request, alloc_key=0),
                lineage=lineage_of(row),
            )
            for row in event.rows
        ]
    if isinstance(event, AllocationsHealthChanged):
        return _health_entries(state, event, t_ns=t_ns, seq=seq, lineage_of=lineage_of)
    verb = _of_deployments(event, f"what-if-{seq}")
    if verb is not None:
        one = state.deployments.by_key.get(verb.deployment_key)
        job_id = one.job_id if one is not None else JobId("")
        return [ScriptEntry(t_ns=t_ns, seq=seq, command=verb, deployment_of=job_id)]
    command = _of_jobs(event) or _of_nodes(state, event) or _of_operators(state, event, seq)
    return [] if command is None else [ScriptEntry(t_ns=t_ns, seq=seq, command=command)]


def register_command(event: JobRegistered) -> RegisterJob:
    """Return the command that registers the same job."""
    submission_id = event.submission_id
    if event.parent and not submission_id:
        # A child has no submission; here it comes like one.
        submission_id = f"launch:{event.job_id}"
    elif not submission_id:
        # A job of a rollout: in a fork each continues, or goes back, alone.
        submission_id = f"together:{event.job_id}:{event.version}"
    return command_of(
        event,
        event.job_id,
        event.spec,
        submission_id=submission_id,
        digest=event.digest,
        warnings=event.warnings,
    )


def _health_entries(
    state: State,
    event: AllocationsHealthChanged,
    *,
    t_ns: int,
    seq: int,
    lineage_of: LineageOf,
) -> list[ScriptEntry]:
    """Return what an operator said of health; what agents say is found out again."""
    if event.source != "operator":
        return []
    table, healthy = state.allocations, HEALTHS.index("healthy")
    return [
        ScriptEntry(
            t_ns=t_ns,
            seq=seq,
            command=SetAllocationHealth(
                request_id=f"what-if-{seq}-{row}",
                deployment_key=DeploymentKey(0),
                healthy=(0,) if health == healthy else (),
                unhealthy=() if health == healthy else (0,),
            ),
            lineage=lineage_of(row),
            deployment_of=table.groups.job_ids[int(table.group[row])],
        )
        for row, health in zip(event.rows, event.healths, strict=True)
    ]


def _of_deployments(
    event: Event, request: str
) -> PromoteDeployment | FailDeployment | PauseDeployment | None:
    """Return an operator's request; promotions and failures by themselves are decided again."""
    match event:
        case DeploymentPromoted() if event.by == "operator":
            return PromoteDeployment(
                request_id=request, deployment_key=event.key, groups=event.groups
            )
        case DeploymentPaused() | DeploymentResumed():
            is_pause = isinstance(event, DeploymentPaused)
            return PauseDeployment(request_id=request, deployment_key=event.key, pause=is_pause)
        case DeploymentReleased(for_good=True):
            return PauseDeployment(
                request_id=request, deployment_key=event.key, pause=False, ignore_gate=True
            )
        case DeploymentEnded() if event.cause == "operator":
            return FailDeployment(request_id=request, deployment_key=event.key)
        case _:
            return None


def _of_jobs(event: Event) -> AnyCommand | None:
    match event:
        case JobRegistered() if _is_automatic_revert(event):
            # Decided again.
            return None
        case JobRegistered():
            return register_command(event)
        case JobStopped():
            return StopJob(
                submission_id=event.submission_id,
                digest=event.digest,
                job_id=event.job_id,
                purge=event.purge,
            )
        case JobEvaluated():
            return EvaluateJob(
                submission_id=event.submission_id,
                digest=event.digest,
                job_id=event.job_id,
                force_reschedule=event.force_reschedule,
            )
        case _:
            return None


def _of_nodes(state: State, event: Event) -> AnyCommand | None:
    match event:
        case NodeRegistered():
            return ReportNode(
                node_id=event.spec.node_id,
                host_id=event.host_id,
                boot_id=event.boot_id,
                number=event.number,
                spec=event.spec,
            )
        case NodesStatusChanged():
            # Down or disconnected is decided again.
            status = "ready" if event.status == "ready" else "down"
            ids = tuple(state.fleet.ids[row] for row in event.rows)
            return ChangeLiveness(
                node_ids=ids, status=status, reason=event.reason, seen_seq=SEEN_SEQ
            )
        case _:
            return None


def _of_operators(state: State, event: Event, seq: int) -> AnyCommand | None:
    fleet = state.fleet
    request = f"what-if-{seq}"
    match event:
        case PolicyChanged():
            return SetPolicy(request_id=request, policy=event.policy)
        case NodeEligibilityChanged():
            node_id = fleet.ids[event.row]
            return SetEligibility(request_id=request, node_id=node_id, eligible=event.eligible)
        case NodeDrainChanged():
            return DrainNode(
                request_id=request,
                node_id=fleet.ids[event.row],
                draining=event.draining,
                deadline_ns=event.deadline_ns,
                ignore_system=event.ignore_system,
                keep_ineligible=event.keep_ineligible,
                message=event.message,
            )
        case NodeMetaChanged():
            before = fleet.operator_meta.get(event.node_id, {})
            change = dict.fromkeys(sorted(before), None) | event.meta
            return SetNodeMeta(request_id=request, node_id=event.node_id, change=change)
        case PoolDeclared():
            return DeclarePool(request_id=request, node_id=event.node_id, pool=event.pool)
        case _:
            return None


def _is_automatic_revert(event: JobRegistered) -> bool:
    return event.reverted_from >= 0 and event.submission_id.startswith("revert:")


def submitted_jobs(entries: Iterable[ScriptEntry]) -> set[JobId]:
    """Job ids of the submissions in a script."""
    job_requests = (RegisterJob, StopJob, EvaluateJob)
    return {one.command.job_id for one in entries if isinstance(one.command, job_requests)}


def node_ids_of(command: AnyCommand) -> tuple[NodeId, ...]:
    """Node ids of a command; empty: none."""
    match command:
        case ReportNode() | SetNodeMeta() | SetEligibility() | DrainNode() | DeclarePool():
            return (NodeId(command.node_id),)
        case ChangeLiveness():
            return command.node_ids
        case _:
            return ()
