"""Evaluations: requests to reconsider one job, and their leases."""

from schemas.base import Command, EvalKey, Event, JobId, Wire

EVAL_STATUSES = ("pending", "blocked", "complete", "failed", "canceled")


class Blocked(Wire, frozen=True, kw_only=True):
    """What a blocked evaluation waits for: room on one of these computed classes, or a class not seen yet."""

    #: computed classes (small ints given by the fleet) whose nodes are feasible, sorted.
    classes: tuple[int, ...] = ()
    #: number of classes known when it was blocked; any later class wakes it.
    seen_classes: int = 0
    #: the snapshot on which it found no room.
    snapshot_seq: int = 0
    #: group -> (unplaced count, reasons), as JSON for people.
    waiting: dict[str, "Waiting"] = {}
    #: nodes that would have to be emptied the least for what waits; proposed to be held back for it.
    candidates: tuple["Hold", ...] = ()


class Hold(Wire, frozen=True, kw_only=True):
    """Nodes (fleet rows) held back for one group of a job."""

    group: str
    rows: tuple[int, ...]
    #: allocations of it that wait; 0: as many as fit.
    count: int = 0


class Waiting(Wire, frozen=True, kw_only=True):
    """Why `count` allocations of a group were not placed."""

    count: int
    #: docs/concepts.md says what each means.
    wait_class: str = "capacity"
    reasons: tuple[str, ...] = ()


class NewEvaluation(Wire, frozen=True, kw_only=True):
    """One evaluation to be created; its key is (seq, ordinal among all evaluations of the transaction)."""

    job_id: JobId
    priority: int = 50
    job_type: str = "service"
    #: job-register, job-deregister, node-update, alloc-failure, queued-allocs, …
    triggered_by: str = "job-register"
    #: log time before which it is not leased; 0: at once.
    wait_until_ns: int = 0
    #: set: it is blocked.
    blocked: Blocked | None = None
    previous: EvalKey = EvalKey(0)


class EvaluationsCreated(Event, frozen=True, kw_only=True, tag="evaluations.created"):
    """Evaluations came to be."""

    evaluations: tuple[NewEvaluation, ...]


class EvaluationsWoken(Event, frozen=True, kw_only=True, tag="evaluations.woken"):
    """Blocked or delayed evaluations are pending now."""

    keys: tuple[EvalKey, ...]
    reason: str = ""


class EvaluationEnded(Event, frozen=True, kw_only=True, tag="evaluation.ended"):
    """The one terminal fact of an evaluation. `status`: complete, failed or canceled."""

    key: EvalKey
    status: str
    reason: str = ""


class Reservation(Wire, frozen=True, kw_only=True):
    """Nodes reserved for the waiting part of a job: jobs behind it in the queue get only what it leaves over.

    `priority` and `since_seq` (the job's last submission) give its position in the queue.
    """

    job_id: JobId
    priority: int
    since_seq: int
    #: empty: no node is reserved for it now.
    holds: tuple[Hold, ...] = ()


class ReservationsChanged(Event, frozen=True, kw_only=True, tag="reservations.changed"):
    """Nodes are held back for these jobs now, and no longer any others for each of them."""

    reservations: tuple[Reservation, ...]


class EvaluationsCollected(Event, frozen=True, kw_only=True, tag="evaluations.collected"):
    """Ended evaluations left the state."""

    keys: tuple[EvalKey, ...]


# ---- commands (cmd.evaluation) ----


class WakeEvaluations(Command, frozen=True, kw_only=True, tag="wake_evaluations"):
    """Make these pending. Natural key: each evaluation, while it is blocked or delayed."""

    keys: tuple[EvalKey, ...]
    reason: str = ""


class EndEvaluations(Command, frozen=True, kw_only=True, tag="end_evaluations"):
    """End without a plan (canceled duplicates, delivery limit). Natural key: each evaluation, while it is not ended."""

    keys: tuple[EvalKey, ...]
    status: str
    reason: str = ""


# ---- leases (eval.<worker>) ----


class Lease(Wire, frozen=True, kw_only=True):
    """One evaluation handed to one worker."""

    key: EvalKey
    job_id: JobId
    priority: int = 50
    triggered_by: str = ""
    #: the worker's replica must have applied at least this before it decides.
    min_seq: int
    lane: int = 0
    lanes: int = 1
    seed: int = 0
    #: how often it was handed out before.
    attempt: int = 0


class Leases(Wire, frozen=True, kw_only=True):
    """At most 64 leases for one worker. `broker` only explains."""

    broker: str
    leases: tuple[Lease, ...]


class Presence(Wire, frozen=True, kw_only=True):
    """`presence.<role>.<instance>`: I am here, I have replayed up to `seq`; leases I hand back."""

    role: str
    instance: str
    seq: int = 0
    #: false: leaving, hand my leases to others.
    active: bool = True
    returned: tuple[EvalKey, ...] = ()
    #: of the eval broker: evaluations that wait for workers.
    waiting: int = 0
