"""Which evaluations a job has: an index that only readers need, so it is kept beside the state and not in it."""

from collections.abc import Iterable

from schemas.base import EvalKey, JobId
from schemas.envelope import Record
from schemas.evaluations import EvaluationEnded, EvaluationsCollected, EvaluationsCreated
from shared.core.ids import make_key
from shared.core.state import State


class Histories:
    """Keys of a job's evaluations, oldest first, as long as the state keeps them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._of_job: dict[JobId, tuple[EvalKey, ...]] = {}
        #: how many of them have not ended, and log time since when there is one; no entry: none.
        self._open: dict[JobId, tuple[int, int]] = {}

    def begin_at(self, since_ns: Iterable[tuple[JobId, int]]) -> None:
        """Make everything of a state that was restored; `since_ns`: what `all_since_ns` said of it."""
        table = self._state.evaluations
        of_job: dict[JobId, list[EvalKey]] = {}
        for key in sorted(table.by_key):
            of_job.setdefault(table.by_key[key].job_id, []).append(key)
        self._of_job = {job_id: tuple(keys) for job_id, keys in of_job.items()}
        self._open = {
            job_id: (len(table.open_of[job_id]), began_ns) for job_id, began_ns in since_ns
        }

    def all_since_ns(self) -> tuple[tuple[JobId, int], ...]:
        """By job, log time since when it has evaluations that have not ended."""
        return tuple((job_id, since_ns) for job_id, (_, since_ns) in self._open.items())

    def before(self, record: Record) -> None:
        """Forget what the record is about to collect."""
        for event in record.events:
            if type(event) is EvaluationsCollected:
                gone, by_key = set(event.keys), self._state.evaluations.by_key
                # Once a job: one that was evaluated many thousand times goes in few records.
                for job_id in dict.fromkeys([by_key[key].job_id for key in event.keys]):
                    kept = tuple(one for one in self._of_job[job_id] if one not in gone)
                    if kept:
                        self._of_job[job_id] = kept
                    else:
                        del self._of_job[job_id]

    def after(self, record: Record, seq: int) -> list[JobId]:
        """Take in what the applied record created; return the jobs it was about."""
        key = make_key(seq, 0)
        jobs: list[JobId] = []
        of_job, opened = self._of_job, self._open
        by_key = self._state.evaluations.by_key
        for event in record.events:
            if type(event) is EvaluationsCreated:
                for new in event.evaluations:
                    job_id = new.job_id
                    of_job[job_id] = (*of_job.get(job_id, ()), EvalKey(key))
                    key += 1
                    many, since_ns = opened.get(job_id) or (0, record.t_ns)
                    opened[job_id] = (many + 1, since_ns)
                    jobs.append(job_id)
            elif type(event) is EvaluationEnded:
                job_id = by_key[event.key].job_id
                many, since_ns = opened.pop(job_id)
                if many > 1:
                    opened[job_id] = (many - 1, since_ns)
                jobs.append(job_id)
        return jobs

    def of_job(self, job_id: JobId, limit: int = 0) -> list[EvalKey]:
        """Keys of a job's evaluations, newest first; `limit` 0: all."""
        keys = list(reversed(self._of_job.get(job_id, ())))
        return keys[:limit] if limit else keys

    def since_ns(self, job_id: JobId) -> int:
        """Log time since when the job has evaluations that have not ended; 0: it has none."""
        return self._open.get(job_id, (0, 0))[1]

    def has_open(self, job_id: JobId) -> bool:
        """Tell whether one of the job's evaluations has not ended."""
        return job_id in self._open
