"""Order of those that waited for room, judged by the log: of those woken in one record, each is decided in its turn.

A plan places something of an evaluation only after a plan, or the end, of every evaluation that was woken with it and
is ahead of it in the queue: by priority, then by the last submission of its job.
"""

from schemas import evaluations, jobs, plans
from schemas.base import EvalKey, JobId
from shared.core.state.state import State
from shared.sim.oracle.invariants import InvariantChecks

#: Those woken at their time did not wait for room.
_TIMED = "its time has come"
#: Minus priority, last submission, job.
_Place = tuple[int, int, JobId]
#: Undecided evaluations that were woken in one record.
_Woken = dict[EvalKey, _Place]


class OrderChecks:
    """Follows wake-ups until all of their evaluations are decided."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self._ledger = ledger
        self._woken_with: dict[EvalKey, _Woken] = {}

    def check(self, events: tuple[object, ...], state: State) -> None:
        """Check the plans of a transaction; `state` includes it. Raises InvariantBroken."""
        for event in events:
            match event:
                case plans.PlanCommitted():
                    self._planned(event)
                case plans.PlanRefused() | evaluations.EvaluationEnded():
                    self._decide(event.key)
                case evaluations.EvaluationsCreated():
                    for one in event.evaluations:
                        self._leave(one.job_id)
                case jobs.JobRegistered() | jobs.JobStopped():
                    self._leave(event.job_id)
                case _:
                    pass
        for event in events:
            if isinstance(event, evaluations.EvaluationsWoken) and event.reason != _TIMED:
                self._wake(event.keys, state)

    def _wake(self, keys: tuple[EvalKey, ...], state: State) -> None:
        woken: _Woken = {}
        for key in keys:
            evaluation = state.evaluations.by_key[key]
            job = state.jobs.by_id.get(evaluation.job_id)
            # One evaluation of a job is leased at a time: another one of it may be ahead.
            is_alone = state.evaluations.open_of.get(evaluation.job_id) == (key,)
            if job is not None and is_alone and evaluation.status == "pending":
                woken[key] = (-evaluation.priority, job.modify_seq, job.id)
                self._woken_with[key] = woken

    def _planned(self, event: plans.PlanCommitted) -> None:
        woken, place = self._woken_with.get(event.key), self._decide(event.key)
        if woken is None or place is None or not event.placements:
            return
        ahead = sorted(one for one in woken.values() if one < place)
        self._ledger.hold("queue_order_kept", not ahead, ahead, "before", place, event)

    def _decide(self, key: EvalKey) -> _Place | None:
        woken = self._woken_with.pop(key, None)
        return None if woken is None else woken.pop(key)

    def _leave(self, job_id: JobId) -> None:
        """Forget the evaluations of a job that may have to wait for something else now."""
        for key, woken in list(self._woken_with.items()):
            if woken[key][2] == job_id:
                self._decide(key)
