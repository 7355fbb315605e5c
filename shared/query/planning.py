"""What registering a job would do: the scheduler's own function on the state as if the job were in it.

Decides how a proposal is told to a person who plans. Must not know the bus; changes nothing: the next version stands
in a copy of the table of jobs, everything else is the view's own state.
"""

import copy
from hashlib import blake2b

import msgspec
import numpy as np

from schemas.answers import FieldChange, GroupPlan, NodePlan, PlanAnswer, UnplacedLine, VictimLine
from schemas.base import EvalKey
from schemas.jobs import RegisterJob
from shared.core.ids import alloc_id
from shared.core.looking import Looking
from shared.core.place import Assignment, MaskCache, Proposal, Snapshot, place
from shared.core.pow10 import SCALE
from shared.core.resources.held import Held
from shared.core.scores import mean_score
from shared.core.state import State
from shared.core.tables.allocations import RUN, TERMINAL
from shared.core.tables.jobs import Job
from shared.jobspec.diff import diff_jobs
from shared.jobspec.submission import Submission, command_of

#: Nodes listed; the rest is counted in the groups.
NODES_SHOWN = 1_000
_CHANGED = "job changed"


def plan_job(state: State, masks: MaskCache, submission: Submission) -> PlanAnswer:
    """Plan a valid submission against the state. `seq` and `cluster_id` are the caller's to fill."""
    command = command_of(submission, "plan")
    assert isinstance(command, RegisterJob)
    old = state.jobs.by_id.get(command.job_id)
    spec = bytes(command.spec)
    before = state.jobs.spec(old.id, old.version) if old is not None else None
    is_live = old is not None and not old.stopped
    job = _next_version(command, old)
    diff = diff_jobs(before or b"", spec)
    if old is not None and old.stopped:
        stop = FieldChange(
            kind="edited", path="Stop", old=msgspec.Raw(b"true"), new=msgspec.Raw(b"false")
        )
        diff = (stop, *diff)
    imagined = copy.copy(state)
    imagined.jobs = copy.copy(state.jobs)
    imagined.jobs.by_id = {**state.jobs.by_id, job.id: job}
    held = state.allocations.held
    assignment = Assignment(EvalKey(0), job.id, "job-register")
    proposal = place(Snapshot(imagined, held, masks), assignment, seed=0, lane=0, lanes=1)
    groups = _groups(state, job, proposal)
    return PlanAnswer(
        seq=state.seq,
        job_id=job.id,
        version=job.version,
        modify_index=old.modify_seq if old is not None else 0,
        changes=not is_live or bool(diff) or any(_does_something(one) for one in groups.values()),
        diff=diff,
        groups=groups,
        nodes=_nodes(Snapshot(imagined, _without(state, proposal), masks), job, proposal),
        victims=victim_lines(state, proposal),
        unplaced=_unplaced(job, proposal),
        warnings=submission.warnings,
    )


def _next_version(command: RegisterJob, old: Job | None) -> Job:
    """The job as it would stand in the table, were it registered now."""
    digest = blake2b(bytes(command.spec), digest_size=16).hexdigest()
    same = old is not None and old.spec_digest == digest and not old.stopped
    if same and old is not None:
        return old
    return Job(
        id=command.job_id,
        version=0 if old is None else old.version + 1,
        job_type=command.job_type,
        priority=command.priority,
        datacenters=command.datacenters,
        node_pool=command.node_pool,
        all_at_once=command.all_at_once,
        groups=command.groups,
        spec_digest=digest,
        create_seq=old.create_seq if old is not None else 0,
        modify_seq=0,
        plan_seq=0,
    )


def _groups(state: State, job: Job, proposal: Proposal) -> dict[str, GroupPlan]:
    """Count, by group, what the proposal does; groups that leave the job are there, too."""
    table = state.allocations
    names = dict.fromkeys(group.name for group in job.groups)
    counts: dict[str, dict[str, int]] = {}

    def add(rows: tuple[int, ...], what: str) -> None:
        for row in rows:
            name = table.groups.names[int(table.group[row])]
            names.setdefault(name)
            of = counts.setdefault(name, {})
            of[what] = of.get(what, 0) + 1

    for stop in proposal.stops:
        lost = stop.client_status == "lost"
        add(stop.rows, "lost" if lost else "destructive" if stop.reason == _CHANGED else "stop")
    for update in proposal.updates:
        add(update.rows, "in_place")
    placed = dict.fromkeys(names, 0)
    for placement in proposal.placements:
        placed[placement.group] += sum(placement.counts)
    for evaluation in proposal.follow_ups:
        for name, one in (evaluation.blocked.waiting if evaluation.blocked else {}).items():
            placed[name] += one.count
    alive = _alive(state, job)
    out = {}
    for name in sorted(names):
        of = counts.get(name, {})
        touched = sum(of.get(what, 0) for what in ("destructive", "in_place", "lost", "stop"))
        out[name] = GroupPlan(
            place=max(placed[name] - of.get("destructive", 0), 0),
            ignore=max(alive.get(name, 0) - touched, 0),
            **of,
        )
    return out


def _alive(state: State, job: Job) -> dict[str, int]:
    """Count the job's allocations that are to run and did not end, by group."""
    table = state.allocations
    rows = table.rows_of(job.id)
    rows = rows[(table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]]
    refs, counts = np.unique(table.group[rows], return_counts=True)
    out: dict[str, int] = {}
    for ref, count in zip(refs.tolist(), counts.tolist(), strict=True):
        name = table.groups.names[ref]
        out[name] = out.get(name, 0) + count
    return out


def _unplaced(job: Job, proposal: Proposal) -> dict[str, UnplacedLine]:
    """What would wait, by group; all of it where the job cannot be decided at all."""
    if proposal.end == "failed":
        reason = (proposal.end_reason,)
        return {
            group.name: UnplacedLine(n=group.count, wait_class="misconfigured", reasons=reason)
            for group in job.groups
        }
    return {
        name: UnplacedLine(n=one.count, wait_class=one.wait_class, reasons=one.reasons)
        for evaluation in proposal.follow_ups
        if evaluation.blocked is not None
        for name, one in sorted(evaluation.blocked.waiting.items())
    }


def victim_lines(state: State, proposal: Proposal) -> tuple[VictimLine, ...]:
    """Name who would be evicted, by node, then row."""
    table, ids = state.allocations, state.fleet.ids
    rows = [row for one in proposal.evictions for row in one.rows]
    lines = []
    for row in sorted(rows, key=lambda row: (int(table.node[row]), row)):
        ref = int(table.group[row])
        lines.append(
            VictimLine(
                alloc=alloc_id(int(table.key[row])),
                job=table.groups.job_ids[ref],
                group=table.groups.names[ref],
                priority=int(table.groups.priority[ref]),
                node=ids[int(table.node[row])],
            )
        )
    return tuple(lines)


def _does_something(group: GroupPlan) -> bool:
    return bool(group.place or group.stop or group.destructive or group.in_place or group.lost)


def _nodes(snapshot: Snapshot, job: Job, proposal: Proposal) -> tuple[NodePlan, ...]:
    """Where allocations would go, most first; the score is that of the first one there, before any other is placed."""
    state, counts = snapshot.state, dict[int, int]()
    for placement in proposal.placements:
        for row, count in zip(placement.rows, placement.counts, strict=True):
            counts[row] = counts.get(row, 0) + count
    shown = sorted(counts, key=lambda row: (-counts[row], row))[:NODES_SHOWN]
    unscored = set(shown)
    scores: dict[int, float] = {}
    for placement in proposal.placements:
        rows = [row for row in placement.rows if row in unscored]
        unscored.difference_update(rows)
        group = next(one for one in job.groups if one.name == placement.group)
        looking = Looking(snapshot, job, group, stops=proposal.stops)
        looking.avoid(placement.previous)
        for row, named in zip(rows, looking.scores(rows, placement.variant), strict=True):
            scores[row] = round(mean_score(list(named.values())) / SCALE, 4)
    ids = state.fleet.ids
    return tuple(NodePlan(node=ids[row], count=counts[row], score=scores[row]) for row in shown)


def _without(state: State, proposal: Proposal) -> Held:
    """What is held once those that a proposal evicts are gone."""
    held = state.allocations.held
    if proposal.evictions:
        held = held.copy(state.fleet.size)
        for row in [row for one in proposal.evictions for row in one.rows]:
            held.remove(*state.allocations.held_by(row))
    return held
