"""What shall be otherwise in a fork: wishes, checked against the state at the fork, and what they make of its script.

Decides what each wish means: a removed node falls silent for good at the fork and is never heard of again; a drained
one is emptied at once, or by its deadline; a job's priority counts from the fork on, in later submissions of it, too.
Must not know who runs the script. Next: `fork.py`.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import orjson

from schemas.base import JobId, NodeId
from schemas.jobs import RegisterJob
from schemas.nodes import ChangeLiveness, NodeSpec, ReportNode
from schemas.operator import PolicyValue
from schemas.policy import DrainNode, OperatorRefused, Policy, SetPolicy
from shared.core.decide.operator import decide_policy
from shared.core.state import State
from shared.errors import CommandInvalid
from shared.query.wishes import changed_policy
from shared.whatif.script import Entry, jobs_of, node_ids_of

PRIORITY_MAX = 100
_SEEN_SEQ = 2**62


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that shall be otherwise. Empty: nothing is."""

    policy: dict[str, PolicyValue] = {}
    add_nodes: tuple[NodeSpec, ...] = ()
    remove_nodes: tuple[NodeId, ...] = ()
    #: node -> log time from which what runs there is stopped.
    drain: dict[NodeId, int] = {}
    priorities: dict[JobId, int] = {}

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing shall be otherwise."""
        return self == Wishes()

    @property
    def leaving(self) -> frozenset[NodeId]:
        """Nodes that are taken away or emptied."""
        return frozenset((*self.remove_nodes, *self.drain))


def changed(state: State, entries: Iterable[Entry], wishes: Wishes) -> list[Entry]:
    """The script with the wishes in it. `state`: at the fork. Raises CommandInvalid for what cannot be."""
    entries = list(entries)
    at_once = [*_policy(state, wishes), *_nodes(state, wishes), *_jobs(state, entries, wishes)]
    now = [Entry(t_ns=state.t_ns, command=command) for command in at_once]
    later = [one for one in entries if not _is_of(one, wishes.remove_nodes)]
    return [*now, *_with_priorities(later, wishes.priorities)]


def copies(state: State, node_id: NodeId, count: int) -> tuple[NodeSpec, ...]:
    """More nodes like one that there is. Raises CommandInvalid."""
    spec = state.fleet.specs[_row(state, node_id)]
    # What operators declared of it is as good as what its agent says.
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


def _policy(state: State, wishes: Wishes) -> Iterator[SetPolicy]:
    if not wishes.policy:
        return
    policy: Policy = changed_policy(state.policy.policy, wishes.policy)
    command = SetPolicy(request_id="what-if-policy", policy=policy)
    for event in decide_policy(state, command):
        if isinstance(event, OperatorRefused):
            raise CommandInvalid(event.code, event.reason, "policy")
    yield command


def _nodes(state: State, wishes: Wishes) -> Iterator[ReportNode | ChangeLiveness | DrainNode]:
    for spec in wishes.add_nodes:
        if spec.node_id in state.fleet.row_of:
            raise CommandInvalid("conflict", f"there is a node {spec.node_id!r} already")
        yield ReportNode(
            node_id=spec.node_id,
            host_id=f"host-{spec.node_id}",
            boot_id="what-if",
            number=1,
            spec=spec,
        )
    for node_id in wishes.remove_nodes:
        _row(state, node_id)
    if wishes.remove_nodes:
        yield ChangeLiveness(
            node_ids=wishes.remove_nodes,
            status="down",
            reason="taken away",
            seen_seq=_SEEN_SEQ,
        )
    for node_id, deadline_ns in sorted(wishes.drain.items()):
        _row(state, node_id)
        yield DrainNode(
            request_id=f"what-if-drain-{node_id}",
            node_id=node_id,
            draining=True,
            deadline_ns=deadline_ns,
        )


def _jobs(state: State, entries: list[Entry], wishes: Wishes) -> Iterator[RegisterJob]:
    known = jobs_of(entries)
    for job_id, priority in sorted(wishes.priorities.items()):
        if not 1 <= priority <= PRIORITY_MAX:
            text = f"priority of {job_id}: 1 to {PRIORITY_MAX}, was {priority}"
            raise CommandInvalid("invalid", text, "priority")
        job = state.jobs.by_id.get(job_id)
        if job is None and job_id not in known:
            raise CommandInvalid(
                "not_found", f"there is no job {job_id!r} at seq {state.seq}, nor later"
            )
        if job is None or job.stopped:
            continue
        spec = state.jobs.spec(job_id, job.version)
        assert spec is not None, job_id
        yield RegisterJob(
            submission_id=f"what-if-priority-{job_id}",
            digest="what-if",
            job_id=job_id,
            job_type=job.job_type,
            priority=priority,
            datacenters=job.datacenters,
            node_pool=job.node_pool,
            all_at_once=job.all_at_once,
            groups=job.groups,
            spec=_with_priority(spec, priority),
        )


def _with_priority(spec: bytes, priority: int) -> msgspec.Raw:
    text = orjson.loads(spec)
    text["Priority"] = priority
    return msgspec.Raw(orjson.dumps(text, option=orjson.OPT_SORT_KEYS))


def _with_priorities(entries: list[Entry], priorities: Mapping[JobId, int]) -> list[Entry]:
    if not priorities:
        return entries
    found = []
    for one in entries:
        command = one.command
        if isinstance(command, RegisterJob) and command.job_id in priorities:
            priority = priorities[command.job_id]
            spec = _with_priority(bytes(command.spec), priority)
            command = msgspec.structs.replace(command, priority=priority, spec=spec)
            one = msgspec.structs.replace(one, command=command)  # noqa: PLW2901
        found.append(one)
    return found


def _is_of(entry: Entry, nodes: tuple[NodeId, ...]) -> bool:
    """Tell whether an entry is about nodes that are not there any more, and about no other."""
    named = node_ids_of(entry.command)
    return bool(named) and set(named) <= set(nodes)
