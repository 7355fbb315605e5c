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
        self._of_job: dict[JobId, dict[EvalKey, None]] = {}
        #: how many of them have not ended; no entry: none.
        self._open: dict[JobId, int] = {}
        #: log time since when there is one.
        self._since_ns: dict[JobId, int] = {}

    def begin_at(self, since_ns: Iterable[tuple[JobId, int]]) -> None:
        """Make everything of a state that was restored; `since_ns`: what `all_since_ns` said of it."""
        table = self._state.evaluations
        for key in sorted(table.by_key):
            self._of_job.setdefault(table.by_key[key].job_id, {})[key] = None
        self._open = {job_id: len(keys) for job_id, keys in table.open_of.items()}
        self._since_ns = dict(since_ns)

    def all_since_ns(self) -> tuple[tuple[JobId, int], ...]:
        """By job, log time since when it has evaluations that have not ended."""
        return tuple(self._since_ns.items())

    def before(self, record: Record) -> None:
        """Forget what the record is about to collect."""
        for event in record.events:
            if isinstance(event, EvaluationsCollected):
                for key in event.keys:
                    job_id = self._state.evaluations.by_key[key].job_id
                    keys = self._of_job[job_id]
                    del keys[key]
                    if not keys:
                        del self._of_job[job_id]

    def after(self, record: Record, seq: int) -> list[JobId]:
        """Take in what the applied record created; return the jobs it was about."""
        ordinal = 0
        jobs = []
        for event in record.events:
            if isinstance(event, EvaluationsCreated):
                for new in event.evaluations:
                    key = EvalKey(make_key(seq, ordinal))
                    ordinal += 1
                    self._of_job.setdefault(new.job_id, {})[key] = None
                    self._open[new.job_id] = self._open.get(new.job_id, 0) + 1
                    self._since_ns.setdefault(new.job_id, record.t_ns)
                    jobs.append(new.job_id)
            elif isinstance(event, EvaluationEnded):
                job_id = self._state.evaluations.by_key[event.key].job_id
                self._open[job_id] -= 1
                if not self._open[job_id]:
                    del self._open[job_id]
                    del self._since_ns[job_id]
                jobs.append(job_id)
        return jobs

    def of_job(self, job_id: JobId, limit: int = 0) -> list[EvalKey]:
        """Keys of a job's evaluations, newest first; `limit` 0: all."""
        keys = list(reversed(self._of_job.get(job_id, {})))
        return keys[:limit] if limit else keys

    def since_ns(self, job_id: JobId) -> int:
        """Log time since when the job has evaluations that have not ended; 0: it has none."""
        return self._since_ns.get(job_id, 0)

    def has_open(self, job_id: JobId) -> bool:
        """Tell whether one of the job's evaluations has not ended."""
        return job_id in self._open
