"""The script of a recorded log: its external events after a moment, as commands that can be issued again.

External are submissions, operator commands and nodes that join, fail and return. Plans, evaluations, reschedules and
garbage collection are the cluster's own conclusions and are decided again. Task outcomes: durations.py.
"""

from collections.abc import Callable, Iterable

import msgspec

from schemas.allocations import HEALTHS, AllocationsDisplaced, AllocationsHealthChanged
from schemas.base import DeploymentKey, Event, JobId, NodeId, RolloutKey
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
from schemas.host_volumes import (
    RemoveVolume,
    RequestVolume,
    VolumeDeleted,
    VolumeDeleting,
    VolumeRequested,
)
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
    NodeConfirmedDead,
    NodeDrainChanged,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRegistered,
    NodesStatusChanged,
    PoolDeclared,
    ReportNode,
)
from schemas.policy import (
    ConfirmDeath,
    DeclarePool,
    DrainNode,
    PolicyChanged,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from schemas.rollouts import (
    FailRollout,
    PromoteRollout,
    RegisterJobs,
    RolloutEnded,
    RolloutStarted,
)
from schemas.volumes import ClaimReleased, ReleaseClaim
from shared.core.decide.job_fields import command_of
from shared.core.state.state import State

#: A node that the heartbeat monitor declares down counts as silent from then on.
SEEN_SEQ = 2**62
#: Begins of the submission ids of registrations and stops that follow from a failure: they are decided again.
_GOES_BACK = ("revert:", "rollback:")
#: Begin of the submission id of a job of a rollout until it is folded into the command of the rollout.
_TOGETHER = "together:"


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
    #: of a command about a rollout: a job whose active one is filled in when it runs.
    rollout_of: JobId = JobId("")

    @property
    def is_open(self) -> bool:
        """Return whether what it is about is known only when it runs."""
        return self.lineage is not None or bool(self.deployment_of or self.rollout_of)


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
    joint = _of_rollouts(state, event, f"what-if-{seq}")
    if joint is not None:
        return [ScriptEntry(t_ns=t_ns, seq=seq, command=joint[0], rollout_of=joint[1])]
    verb = _of_deployments(event, f"what-if-{seq}")
    if verb is not None:
        one = state.deployments.by_key.get(verb.deployment_key)
        job_id = one.job_id if one is not None else JobId("")
        return [ScriptEntry(t_ns=t_ns, seq=seq, command=verb, deployment_of=job_id)]
    command = _of_jobs(event) or _of_nodes(state, event) or _of_operators(state, event, seq)
    command = command or _of_volumes(event, f"what-if-{seq}")
    return [] if command is None else [ScriptEntry(t_ns=t_ns, seq=seq, command=command)]


def register_command(event: JobRegistered) -> RegisterJob:
    """Return the command that registers the same job."""
    submission_id = event.submission_id
    if event.parent and not submission_id:
        # A child has no submission; here it comes like one.
        submission_id = f"launch:{event.job_id}"
    elif not submission_id:
        submission_id = f"{_TOGETHER}{event.job_id}:{event.version}"
    return command_of(
        event,
        event.job_id,
        event.spec,
        submission_id=submission_id,
        digest=event.digest,
        warnings=event.warnings,
    )


def fold_rollouts(entries: Iterable[ScriptEntry]) -> list[ScriptEntry]:
    """Put the registrations of a record's rollouts into the commands of the rollouts before them.

    A job whose text the rollout did not change has no registration, and no part in the fork's rollout.
    """
    found: list[ScriptEntry] = []
    at = -1
    for entry in entries:
        command = entry.command
        if isinstance(command, RegisterJob) and command.submission_id.startswith(_TOGETHER):
            joint = found[at].command
            assert isinstance(joint, RegisterJobs), entry
            member = msgspec.structs.replace(command, submission_id="", digest="")
            jobs = (*joint.jobs, member)
            found[at] = msgspec.structs.replace(
                found[at], command=msgspec.structs.replace(joint, jobs=jobs)
            )
            continue
        if isinstance(command, RegisterJobs):
            at = len(found)
        found.append(entry)
    return [one for one in found if not isinstance(one.command, RegisterJobs) or one.command.jobs]


def registrations(command: AnyCommand) -> tuple[RegisterJob, ...]:
    """Jobs that a command registers."""
    match command:
        case RegisterJob():
            return (command,)
        case RegisterJobs():
            return command.jobs
        case _:
            return ()


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


def _of_rollouts(
    state: State, event: Event, request: str
) -> tuple[RegisterJobs | FailRollout | PromoteRollout, JobId] | None:
    """Return the submission of a rollout, or an operator's request to one and a job of it; the rest is decided again.

    The jobs of the submission follow as registrations in the same record: `fold_rollouts`.
    """
    match event:
        case RolloutStarted():
            submitted = RegisterJobs(
                submission_id=event.submission_id,
                digest=event.digest,
                rollout=event.name,
                order=event.order,
            )
            return submitted, JobId("")
        case RolloutEnded() if event.cause == "operator":
            job_id = state.rollouts.by_key[event.key].members[0].job_id
            return FailRollout(request_id=request, rollout_key=RolloutKey(0)), job_id
        case DeploymentPromoted() if event.by == "operator":
            one = state.deployments.by_key[event.key]
            if state.rollouts.of_deployment(one.job_id, event.key) is None:
                return None
            # Of every member that waits: what comes second finds nothing to promote.
            return PromoteRollout(request_id=request, rollout_key=RolloutKey(0)), one.job_id
        case _:
            return None


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
        case JobRegistered() | JobStopped() if event.submission_id.startswith(_GOES_BACK):
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


def _of_volumes(event: Event, request: str) -> AnyCommand | None:
    match event:
        case ClaimReleased():
            return ReleaseClaim(
                request_id=request, job_id=event.job_id, group=event.group, index=event.index
            )
        case VolumeRequested():
            return RequestVolume(request_id=request, spec=event.spec, node_id=event.node_id)
        case VolumeDeleting():
            return RemoveVolume(request_id=request, volume_id=event.volume_id)
        case VolumeDeleted() if event.request_id:
            return RemoveVolume(request_id=request, volume_id=event.volume_id, force=True)
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
        case NodeConfirmedDead():
            return ConfirmDeath(request_id=request, node_id=fleet.ids[event.row])
        case NodeMetaChanged():
            before = fleet.operator_meta.get(event.node_id, {})
            change = dict.fromkeys(sorted(before), None) | event.meta
            return SetNodeMeta(request_id=request, node_id=event.node_id, change=change)
        case PoolDeclared():
            return DeclarePool(request_id=request, node_id=event.node_id, pool=event.pool)
        case _:
            return None


def submitted_jobs(entries: Iterable[ScriptEntry]) -> set[JobId]:
    """Job ids of the submissions in a script."""
    job_requests = (StopJob, EvaluateJob)
    found = {one.command.job_id for one in entries if isinstance(one.command, job_requests)}
    return found.union(job.job_id for one in entries for job in registrations(one.command))


def node_ids_of(command: AnyCommand) -> tuple[NodeId, ...]:
    """Node ids of a command; empty: none."""
    match command:
        case ReportNode() | SetNodeMeta() | SetEligibility() | DrainNode() | DeclarePool():
            return (NodeId(command.node_id),)
        case ConfirmDeath():
            return (NodeId(command.node_id),)
        case ChangeLiveness():
            return command.node_ids
        case _:
            return ()
