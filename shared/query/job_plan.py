"""The effect of registering a job: the scheduler's own function on the state with the job added.

Changes nothing: the next version is in a copy of the job table, everything else is the view's own state.
"""

import copy
from typing import Any

import msgspec
import numpy as np

from schemas.base import EvalKey
from schemas.job_answers import (
    FieldChange,
    GroupPlan,
    NodePlan,
    PlanAnswer,
    UnplacedLine,
    VictimLine,
)
from schemas.jobs import RegisterJob
from shared.core.decide.jobs.submissions import fleet_warnings
from shared.core.resources.held import HeldResources
from shared.core.scheduling.explain.placement_probe import PlacementProbe
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.core.scheduling.place import place
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.scoring.scores import mean_score
from shared.core.state.gates import terms_text, window_terms_text
from shared.core.state.ids import alloc_id
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.core.state.tables.jobs import Job, make_job, spec_digest
from shared.jobspec.diff import diff_jobs
from shared.jobspec.submission import ParsedSubmission, to_command
from shared.query.job_wait import job_wait

#: Nodes listed; the rest is counted in the groups.
NODES_SHOWN = 1_000
_CHANGED = "job changed"


def plan_job(state: State, masks: PlacementCache, submission: ParsedSubmission) -> PlanAnswer:
    """Plan a valid submission against the state. `seq` and `cluster_id` are the caller's to fill."""
    command = to_command(submission, "plan")
    assert isinstance(command, RegisterJob)
    return plan_command(state, masks, command, warnings=submission.warnings)


def plan_command(
    state: State, masks: PlacementCache, command: RegisterJob, *, warnings: tuple[str, ...] = ()
) -> PlanAnswer:
    """Plan the command of a submission, which has these warnings."""
    old = state.jobs.by_id.get(command.job_id)
    spec = bytes(command.spec)
    before = state.jobs.spec(old.id, old.version) if old is not None else None
    is_kept = old is not None and old.stopped == command.stopped
    job = _next_version(command, old)
    diff = diff_jobs(before or b"", spec)
    if old is not None and old.stopped != command.stopped and "Stop" not in {d.path for d in diff}:
        words = [
            msgspec.Raw(b"true" if one else b"false") for one in (old.stopped, command.stopped)
        ]
        stop = FieldChange(kind="edited", path="Stop", old=words[0], new=words[1])
        diff = (stop, *diff)
    imagined = copy.copy(state)
    imagined.jobs = copy.copy(state.jobs)
    imagined.jobs.by_id = {**state.jobs.by_id, job.id: job}
    held = state.allocations.held
    assignment = Assignment(EvalKey(0), job.id, "job-register")
    proposal = place(Snapshot(imagined, held, masks), assignment, seed=0, lane=0, lanes=1)
    groups = _groups(state, job, proposal)
    unplaced = _unplaced(job, proposal)
    waited = _waiting_counts(state, old)
    touches = bool(proposal.evictions) or any(
        _touches(one, min(waited.get(name, 0), unplaced[name].n if name in unplaced else 0))
        for name, one in groups.items()
    )
    return PlanAnswer(
        seq=state.seq,
        job_id=job.id,
        version=job.version,
        modify_index=old.modify_seq if old is not None else 0,
        changes=not is_kept
        or bool(diff)
        or touches
        or any(one.in_place for one in groups.values()),
        touches_allocations=touches,
        diff=diff,
        groups=groups,
        nodes=_nodes(Snapshot(imagined, _without(state, proposal), masks), job, proposal),
        victims=victim_lines(state, proposal),
        unplaced=unplaced,
        gates=_gates(job) if touches and not job.stopped else (),
        warnings=(*warnings, *fleet_warnings(state, command)),
    )


def _next_version(command: RegisterJob, old: Job | None) -> Job:
    """The job as it would be in the table, were it registered now."""
    digest = spec_digest(bytes(command.spec))
    same = old is not None and old.spec_digest == digest and old.stopped == command.stopped
    if same and old is not None:
        return old
    version = 0 if old is None else old.version + 1
    return make_job(command, old, version=version, digest=digest, seq=0)


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
    alive = _live_counts(state, job)
    out = {}
    for name in sorted(names):
        of: dict[str, Any] = dict(counts.get(name, {}))
        touched = sum(of.get(what, 0) for what in ("destructive", "in_place", "lost", "stop"))
        out[name] = GroupPlan(
            place=max(placed[name] - of.get("destructive", 0), 0),
            ignore=max(alive.get(name, 0) - touched, 0),
            **of,
            **_pace(job, name, of.get("destructive", 0)),
        )
    return out


def _gates(job: Job) -> tuple[str, ...]:
    """Say what holds the deployment of a new version back."""
    return (*map(terms_text, job.gates), *map(window_terms_text, job.windows))


def _pace(job: Job, name: str, replaced: int) -> dict[str, Any]:
    """Say how the deployment of a group would go: its canaries, and in how many steps it replaces the old ones."""
    update = next((group.update for group in job.groups if group.name == name), None)
    if update is None or not update.max_parallel or not replaced or job.stopped:
        return {}
    canaries = update.canary
    if job.job_type == "system":
        canaries = min(-(-update.canary * replaced // 100), update.max_parallel)
    # Promoted canaries take the places of as many old ones.
    rest = max(replaced - canaries, 0)
    return {
        "canaries": canaries,
        "max_parallel": update.max_parallel,
        "steps": -(-rest // update.max_parallel),
        "min_healthy_time_ns": update.min_healthy_time_ns,
    }


def _live_counts(state: State, job: Job) -> dict[str, int]:
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
    """List the victims, by node, then row."""
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


def _waiting_counts(state: State, job: Job | None) -> dict[str, int]:
    """How many allocations of each group wait for a place already."""
    waits = {} if job is None else job_wait(state, job).groups
    return {name: one.n for name, one in waits.items()}


def _touches(group: GroupPlan, waits: int) -> bool:
    """Return whether allocations would be created or stopped; `waits`: those that continue waiting for a place."""
    return bool(group.place > waits or group.stop or group.destructive or group.lost)


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
        looking = PlacementProbe(snapshot, job, group, stops=proposal.stops)
        looking.avoid(placement.previous)
        for row, named in zip(rows, looking.scores(rows, placement.variant), strict=True):
            scores[row] = round(mean_score(list(named.values())) / SCALE, 4)
    ids = state.fleet.ids
    return tuple(NodePlan(node=ids[row], count=counts[row], score=scores[row]) for row in shown)


def _without(state: State, proposal: Proposal) -> HeldResources:
    """What is held once those that a proposal evicts are gone."""
    held = state.allocations.held
    if proposal.evictions:
        held = held.copy(state.fleet.size)
        for row in [row for one in proposal.evictions for row in one.rows]:
            held.remove(*state.allocations.held_by(row))
    return held
