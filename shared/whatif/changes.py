"""The changes of a what-if: checked against the state at the fork, and applied to its script.

A removed node falls silent at the fork and never returns. A drained node is emptied at once, or by its deadline. A
job's priority, and the pace of its updates, also apply to its later submissions; an active deployment begins anew.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import orjson

from schemas.base import DeploymentKey, JobId, NodeId
from schemas.deployments import FailDeployment, PauseDeployment, PromoteDeployment
from schemas.envelope import AnyCommand
from schemas.jobs import RegisterJob
from schemas.nodes import ChangeLiveness, NodeSpec, ReportNode
from schemas.operator import PolicyValue
from schemas.policy import DrainNode, OperatorRefused, Policy, RemoteDriver, SetPolicy
from schemas.rollouts import RegisterJobs
from shared.core.decide.job_fields import command_of
from shared.core.decide.operator import decide_policy
from shared.core.state.state import State
from shared.errors import CommandInvalid
from shared.query.policy_changes import apply_policy_change
from shared.whatif.pace import PaceValue, with_pace
from shared.whatif.script import (
    SEEN_SEQ,
    ScriptEntry,
    node_ids_of,
    registrations,
    submitted_jobs,
)

PRIORITY_MAX = 100
#: Requests to deployments.
VERBS = ("promote", "fail", "pause", "resume")


class DeploymentVerb(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the deployment of a job that is active at that time."""

    job_id: JobId
    #: one of VERBS.
    verb: str
    t_ns: int


class RequestedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """All requested changes. Empty: none."""

    policy: dict[str, PolicyValue] = {}
    add_nodes: tuple[NodeSpec, ...] = ()
    remove_nodes: tuple[NodeId, ...] = ()
    #: node -> log time at which its allocations are stopped.
    drain: dict[NodeId, int] = {}
    priorities: dict[JobId, int] = {}
    #: fields of the `update` block, by job.
    updates: dict[JobId, dict[str, PaceValue]] = {}
    #: jobs that are registered at the fork.
    jobs: tuple[RegisterJob, ...] = ()
    #: requests to deployments, at log times from the fork on.
    verbs: tuple[DeploymentVerb, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether no change is requested."""
        return self == RequestedChanges()

    @property
    def leaving(self) -> frozenset[NodeId]:
        """Nodes that are removed or drained."""
        return frozenset((*self.remove_nodes, *self.drain))


def apply_changes(
    state: State, entries: Iterable[ScriptEntry], changes: RequestedChanges
) -> list[ScriptEntry]:
    """Return the script with the changes applied to `state` at the fork. Raises CommandInvalid."""
    entries = list(entries)
    at_once = [
        *_policy(state, changes),
        *_nodes(state, changes),
        *changes.jobs,
        *_jobs(state, entries, changes),
    ]
    now = [ScriptEntry(t_ns=state.t_ns, command=command) for command in at_once]
    later = [one for one in entries if not _is_of(one, changes.remove_nodes)]
    known = submitted_jobs(entries)
    changed = [_changed(one, changes, state.policy.policy.remote_drivers) for one in later]
    return [*now, *changed, *(_verb_entry(state, one, known) for one in changes.verbs)]


def clone_nodes(state: State, node_id: NodeId, count: int) -> tuple[NodeSpec, ...]:
    """Return copies of an existing node. Raises CommandInvalid."""
    spec = state.fleet.specs[_row(state, node_id)]
    # Meta set by an operator counts like the agent's own.
    declared = state.fleet.declared_of(node_id)
    said = {one.name for one in declared}
    pools = (*(one for one in spec.pools if one.name not in said), *declared)
    spec = msgspec.structs.replace(spec, pools=pools)
    names = [NodeId(f"{node_id}-like-{number}") for number in range(1, count + 1)]
    return tuple(msgspec.structs.replace(spec, node_id=name, name=name) for name in names)


def _row(state: State, node_id: str) -> int:
    row = state.fleet.row_of.get(NodeId(node_id))
    if row is None:
        raise CommandInvalid("not_found", f"there is no node {node_id!r} at seq {state.seq}")
    return row


def _policy(state: State, changes: RequestedChanges) -> Iterator[SetPolicy]:
    if not changes.policy:
        return
    policy: Policy = apply_policy_change(state.policy.policy, changes.policy)
    command = SetPolicy(request_id="what-if-policy", policy=policy)
    for event in decide_policy(state, command):
        if isinstance(event, OperatorRefused):
            raise CommandInvalid(event.code, event.reason, "policy")
    yield command


def _nodes(
    state: State, changes: RequestedChanges
) -> Iterator[ReportNode | ChangeLiveness | DrainNode]:
    for spec in changes.add_nodes:
        if spec.node_id in state.fleet.row_of:
            raise CommandInvalid("conflict", f"node {spec.node_id!r} exists already")
        yield ReportNode(
            node_id=spec.node_id,
            host_id=f"host-{spec.node_id}",
            boot_id="what-if",
            number=1,
            spec=spec,
        )
    for node_id in changes.remove_nodes:
        _row(state, node_id)
    if changes.remove_nodes:
        yield ChangeLiveness(
            node_ids=changes.remove_nodes,
            status="down",
            reason="taken away",
            seen_seq=SEEN_SEQ,
        )
    for node_id, deadline_ns in sorted(changes.drain.items()):
        _row(state, node_id)
        yield DrainNode(
            request_id=f"what-if-drain-{node_id}",
            node_id=node_id,
            draining=True,
            deadline_ns=deadline_ns,
        )


def _jobs(
    state: State, entries: list[ScriptEntry], changes: RequestedChanges
) -> Iterator[RegisterJob]:
    known = submitted_jobs(entries)
    for job_id, priority in sorted(changes.priorities.items()):
        if not 1 <= priority <= PRIORITY_MAX:
            text = f"priority of {job_id}: 1 to {PRIORITY_MAX}, was {priority}"
            raise CommandInvalid("invalid", text, "priority")
    for job_id in sorted(changes.priorities.keys() | changes.updates.keys()):
        job = state.jobs.by_id.get(job_id)
        if job is None and job_id not in known:
            raise _no_job(state, job_id)
        is_updating = state.deployments.active_of(job_id) is not None
        if job_id in changes.updates and not is_updating and not _is_registered(entries, job_id):
            text = f"job {job_id!r} is not updated at seq {state.seq} or later: fork before its update (--from)"
            raise CommandInvalid("invalid", text, "update")
        if job is None or job.stopped or not (job_id in changes.priorities or is_updating):
            continue
        spec = state.jobs.spec(job_id, job.version)
        assert spec is not None, job_id
        now = command_of(job, job_id, spec, submission_id=f"what-if-{job_id}", digest="what-if")
        yield _with_changes(now, changes, state.policy.policy.remote_drivers)


def _no_job(state: State, job_id: JobId) -> CommandInvalid:
    return CommandInvalid("not_found", f"there is no job {job_id!r} at seq {state.seq} or later")


def _is_registered(entries: list[ScriptEntry], job_id: JobId) -> bool:
    return any(job.job_id == job_id for one in entries for job in registrations(one.command))


def _verb_entry(state: State, verb: DeploymentVerb, known: set[JobId]) -> ScriptEntry:
    if verb.job_id not in state.jobs.by_id and verb.job_id not in known:
        raise _no_job(state, verb.job_id)
    request, unknown = f"what-if-{verb.verb}-{verb.job_id}-{verb.t_ns}", DeploymentKey(0)
    command: PromoteDeployment | FailDeployment | PauseDeployment
    match verb.verb:
        case "promote":
            command = PromoteDeployment(request_id=request, deployment_key=unknown)
        case "fail":
            command = FailDeployment(request_id=request, deployment_key=unknown)
        case _:
            is_pause = verb.verb == "pause"
            command = PauseDeployment(request_id=request, deployment_key=unknown, pause=is_pause)
    return ScriptEntry(t_ns=verb.t_ns, command=command, deployment_of=verb.job_id)


def _with_priority(spec: bytes, priority: int) -> msgspec.Raw:
    text = orjson.loads(spec)
    text["Priority"] = priority
    return msgspec.Raw(orjson.dumps(text, option=orjson.OPT_SORT_KEYS))


def _changed(
    entry: ScriptEntry, changes: RequestedChanges, remotes: Mapping[str, RemoteDriver]
) -> ScriptEntry:
    """Return an entry, with the changes of the jobs that it registers."""
    match entry.command:
        case RegisterJob() as one:
            changed: AnyCommand = _with_changes(one, changes, remotes)
        case RegisterJobs() as joint:
            jobs = tuple([_with_changes(one, changes, remotes) for one in joint.jobs])
            changed = msgspec.structs.replace(joint, jobs=jobs)
        case _:
            return entry
    return msgspec.structs.replace(entry, command=changed)


def _with_changes(
    command: RegisterJob, changes: RequestedChanges, remotes: Mapping[str, RemoteDriver]
) -> RegisterJob:
    priority = changes.priorities.get(command.job_id)
    if priority is not None:
        spec = _with_priority(bytes(command.spec), priority)
        command = msgspec.structs.replace(command, priority=priority, spec=spec)
    pace = changes.updates.get(command.job_id)
    return command if pace is None else with_pace(command, pace, remotes)


def _is_of(entry: ScriptEntry, nodes: tuple[NodeId, ...]) -> bool:
    """Return whether an entry names removed nodes only."""
    named = node_ids_of(entry.command)
    return bool(named) and set(named) <= set(nodes)
