"""The script of a recorded log: what came from outside behind a moment, as commands that can be given again.

Decides which facts are somebody's wish or the world's doing (submissions, operators, nodes that come, go and return)
and which are the cluster's own conclusions (plans, evaluations, reschedules, garbage), which are concluded anew.
What tasks did is no command: `course.py`. Must not know who runs it. Next: `course.py`.
"""

from collections.abc import Callable, Iterable

import msgspec

from schemas.allocations import AllocationsDisplaced
from schemas.base import Event, JobId, NodeId
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
from shared.core.state import State

#: A node that the heartbeat monitor calls down was not heard since, whatever the log shows later.
_SEEN_SEQ = 2**62
_SHARED = tuple(
    field.name
    for field in msgspec.structs.fields(JobRegistered)
    if field.name in RegisterJob.__struct_fields__
)


class Lineage(msgspec.Struct, frozen=True):
    """An allocation by its place in history: the n-th (`attempt`, from 0) that was placed under one name."""

    job_id: str
    group: str
    index: int
    attempt: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that comes from outside."""

    t_ns: int
    #: where the log tells it; 0: asked for, not recorded.
    seq: int = 0
    command: AnyCommand
    #: of StopAllocation: whose key is to be put in when the time comes.
    lineage: Lineage | None = None


#: Finds the lineage of an allocation's row in the state before the event.
LineageOf = Callable[[int], Lineage]


def entries_of(
    state: State, event: Event, *, t_ns: int, seq: int, lineage_of: LineageOf
) -> list[Entry]:
    """What of an event came from outside, as commands. `state`: before the event."""
    if isinstance(event, AllocationsDisplaced):
        request = f"what-if-{seq}"
        return [
            Entry(
                t_ns=t_ns,
                seq=seq,
                command=StopAllocation(request_id=request, alloc_key=0),
                lineage=lineage_of(row),
            )
            for row in event.rows
        ]
    command = _of_jobs(event) or _of_nodes(state, event) or _of_operators(state, event, seq)
    return [] if command is None else [Entry(t_ns=t_ns, seq=seq, command=command)]


def registration(event: JobRegistered) -> RegisterJob:
    """The command that registers the same again."""
    return RegisterJob(**{name: getattr(event, name) for name in _SHARED})


def _of_jobs(event: Event) -> AnyCommand | None:
    match event:
        case JobRegistered():
            return registration(event)
        case JobStopped():
            return StopJob(
                submission_id=event.submission_id,
                digest=event.digest,
                job_id=event.job_id,
                purge=event.purge,
            )
        case JobEvaluated():
            return EvaluateJob(
                submission_id=event.submission_id, digest=event.digest, job_id=event.job_id
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
            # Whether it is down or only disconnected is concluded again.
            status = "ready" if event.status == "ready" else "down"
            ids = tuple(state.fleet.ids[row] for row in event.rows)
            return ChangeLiveness(
                node_ids=ids, status=status, reason=event.reason, seen_seq=_SEEN_SEQ
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
            )
        case NodeMetaChanged():
            before = fleet.operator_meta.get(event.node_id, {})
            change = dict.fromkeys(sorted(before), None) | event.meta
            return SetNodeMeta(request_id=request, node_id=event.node_id, change=change)
        case PoolDeclared():
            return DeclarePool(request_id=request, node_id=event.node_id, pool=event.pool)
        case _:
            return None


def jobs_of(entries: Iterable[Entry]) -> set[JobId]:
    """Jobs that submissions in a script name."""
    wishes = (RegisterJob, StopJob, EvaluateJob)
    return {one.command.job_id for one in entries if isinstance(one.command, wishes)}


def node_ids_of(command: AnyCommand) -> tuple[NodeId, ...]:
    """Nodes that a command of the world or of an operator is about; empty: none."""
    match command:
        case ReportNode() | SetNodeMeta() | SetEligibility() | DrainNode() | DeclarePool():
            return (NodeId(command.node_id),)
        case ChangeLiveness():
            return command.node_ids
        case _:
            return ()
