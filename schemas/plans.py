"""Plans: what a scheduler proposes and what the applier made of it. Columnar: node rows and how many each takes."""

import msgspec

from schemas.base import Command, DeploymentKey, EvalKey, Event, JobId, Wire
from schemas.evaluations import NewEvaluation


class GroupPlacement(Wire, frozen=True, kw_only=True):
    """Allocations of one task group. Shapes: rows, counts (P,); names as runs; previous: empty or (sum(counts),).

    The n-th allocation, counted through the rows in order, has the n-th name index and, where it replaces another,
    the n-th previous key (0: none).
    """

    group: str
    #: job version whose spec it runs.
    version: int
    #: fleet rows, in the order of placement; a row may appear again.
    rows: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    #: name indexes as runs: start, length, start, length, …
    names: tuple[int, ...] = ()
    #: keys of the allocations that these replace.
    previous: tuple[int, ...] = ()
    #: how often the chain was rescheduled before; empty: never.
    reschedules: tuple[int, ...] = ()
    #: which of the group's `alternatives` they take.
    variant: int = 0
    #: ports that the cluster picked, `dynamic_ports` of each allocation in turn.
    ports: tuple[int, ...] = ()
    #: for each allocation in turn, for each ask of the variant: slots of its node, a part of one last, -1 for a sum of
    #: the node, -2 for one of the cluster. Empty: every ask is of a sum of the node.
    instances: tuple[int, ...] = ()
    #: the deployment that they are placed for; 0: none.
    deployment: DeploymentKey = DeploymentKey(0)
    #: all of them are canaries.
    canaries: bool = False


class Evictions(Wire, frozen=True, kw_only=True):
    """Allocations (rows) of another job that make room. They hold nothing from now on."""

    job_id: JobId
    rows: tuple[int, ...]


class Stops(Wire, frozen=True, kw_only=True):
    """Allocations (rows) to stop. `client_status` is set at once where no agent can report it (lost)."""

    rows: tuple[int, ...]
    reason: str = ""
    client_status: str = ""
    #: each only where the allocation that replaces it is placed, which names it as its previous one.
    tied: bool = False
    #: nothing replaces them in this version of their job.
    final: bool = False
    #: others replace them, now or as soon as there is room: until one names them as its previous, or a later stop
    #: does not say so any more, they are the predecessors of what is missing, and the room of those that ended of
    #: their stop is kept. Of one that ended, said once more: its room is given up, it stays a predecessor.
    to_replace: bool = False


class InPlace(Wire, frozen=True, kw_only=True):
    """Allocations (rows) that continue under another version without a restart."""

    rows: tuple[int, ...]
    group: str
    version: int
    #: the deployment that they are updated for, in which their health counts anew; 0: none.
    deployment: DeploymentKey = DeploymentKey(0)


class GroupSize(Wire, frozen=True, kw_only=True):
    """How many allocations of a group a deployment has to bring up, as a scheduler found."""

    group: str
    desired_total: int
    desired_canaries: int = 0


class Origin(Wire, frozen=True, kw_only=True):
    """Under what a plan was made: enough to make it again."""

    worker: str
    #: gapless per worker, over all its plans, refused ones included.
    number: int
    part: int = 0
    parts: int = 1
    snapshot_seq: int
    policy: str = ""
    seed: int = 0
    lane: int = 0
    lanes: int = 1
    core: str = ""


class PlanCommitted(Event, frozen=True, kw_only=True, tag="plan.committed"):
    """A plan, or what of it fitted, became desired state."""

    key: EvalKey
    job_id: JobId
    origin: Origin
    placements: tuple[GroupPlacement, ...] = ()
    stops: tuple[Stops, ...] = ()
    updates: tuple[InPlace, ...] = ()
    evictions: tuple[Evictions, ...] = ()
    #: evictions that were asked for and not done: the victim had ended, or its resources were no longer needed.
    spared: tuple[Evictions, ...] = ()
    #: placements that did not fit the latest state and were cut; the evaluation stays pending.
    cut: tuple[GroupPlacement, ...] = ()
    #: all that was asked for, where the applier gave other slots or ports than the worker had chosen.
    asked: tuple[GroupPlacement, ...] = ()
    #: the decision record, as JSON that no hot reader decodes.
    decision: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class PlanRefused(Event, frozen=True, kw_only=True, tag="plan.refused"):
    """A plan was refused whole: `stale`, `evaluation_ended`, `unknown_row`, `capacity` (all_at_once) or others."""

    key: EvalKey
    job_id: JobId
    origin: Origin
    code: str
    reason: str
    #: what it asked for, without names: enough to re-derive the worker's overlay.
    placements: tuple[GroupPlacement, ...] = ()
    evictions: tuple[Evictions, ...] = ()


# ---- command (cmd.plan) ----


class SubmitPlan(Command, frozen=True, kw_only=True, tag="submit_plan"):
    """Commit a plan. Natural key: (worker, number, part), and the evaluation with the job fence.

    `end` (complete, failed, or empty while parts follow) ends the evaluation in the same transaction.
    """

    key: EvalKey
    job_id: JobId
    origin: Origin
    all_at_once: bool = False
    placements: tuple[GroupPlacement, ...] = ()
    stops: tuple[Stops, ...] = ()
    updates: tuple[InPlace, ...] = ()
    evictions: tuple[Evictions, ...] = ()
    end: str = ""
    end_reason: str = ""
    #: of the job's active deployment, where a group is of another size than the deployment says.
    sizes: tuple[GroupSize, ...] = ()
    #: evaluations to create with it: the blocked rest, the delayed retry.
    follow_ups: tuple[NewEvaluation, ...] = ()
    decision: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
