"""The evaluations and the last submission of each job: an index that only queries need, kept beside the state."""

from collections.abc import Iterable, Mapping

from schemas.base import EvalKey, JobId
from schemas.envelope import LogRecord
from schemas.evaluations import EvaluationEnded, EvaluationsCollected, EvaluationsCreated
from schemas.jobs import JobEvaluated, JobRegistered, JobsCollected, JobStopped
from shared.core.state.state import State
from shared.core.state.tables.evaluations import Evaluation
from shared.core.state.tables.jobs import Job
from shared.query.blocked_shapes import BlockedShapes, jobs_of


class EvaluationIndex:
    """Keys of a job's evaluations, oldest first, as long as the state keeps them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._of_job: dict[JobId, tuple[EvalKey, ...]] = {}
        #: how many of them have not ended, and log time since when there is one; no entry: none.
        self._open: dict[JobId, tuple[int, int]] = {}
        #: seq of a job's last accepted submission.
        self._submitted: dict[JobId, int] = {}
        #: jobs of the evaluations that the record being applied ends or collects.
        self._leaving: dict[EvalKey, JobId] = {}
        #: who is first among those that wait for the same.
        self.shapes = BlockedShapes(state)

    def begin_at(self, since_ns: Iterable[tuple[JobId, int]]) -> None:
        """Make everything of a state that was restored; `since_ns`: what `all_since_ns` said of it."""
        self.shapes.begin_at(self._state)
        table = self._state.evaluations
        of_job: dict[JobId, list[EvalKey]] = {}
        for key in sorted(table.by_key):
            of_job.setdefault(table.by_key[key].job_id, []).append(key)
        self._of_job = {job_id: tuple(keys) for job_id, keys in of_job.items()}
        self._open = {
            job_id: (len(table.open_of[job_id]), began_ns) for job_id, began_ns in since_ns
        }
        self._submitted = {
            one.job_id: one.seq
            for one in self._state.jobs.submissions.values()
            if one.status == "accepted" and one.job_id in self._state.jobs.by_id
        }

    def open_since_ns(self) -> tuple[tuple[JobId, int], ...]:
        """By job, log time since when it has evaluations that have not ended."""
        return tuple((job_id, since_ns) for job_id, (_, since_ns) in self._open.items())

    def before(self, record: LogRecord) -> None:
        """Note the jobs of the evaluations that the record ends or collects, while the state still has them."""
        by_key = self._state.evaluations.by_key
        self._leaving.clear()
        for event in record.events:
            if type(event) is EvaluationEnded:
                self._note_leaving((event.key,), by_key)
            elif type(event) is EvaluationsCollected:
                self._note_leaving(event.keys, by_key)

    def _note_leaving(self, keys: Iterable[EvalKey], by_key: Mapping[EvalKey, Evaluation]) -> None:
        for key in keys:
            found = by_key.get(key)
            # Absent: it is created by the same record.
            if found is not None:
                self._leaving[key] = found.job_id

    def after(self, record: LogRecord, seq: int) -> list[JobId]:
        """Take in what the applied record created; return the jobs it was about."""
        key = self._state.policy.incarnations.key(seq, 0)
        jobs: list[JobId] = []
        follows = self.shapes.is_followed
        of_job, opened, job_of = self._of_job, self._open, self._leaving
        for event in record.events:
            if type(event) is EvaluationsCreated:
                for new in event.evaluations:
                    job_id = new.job_id
                    of_job[job_id] = (*of_job.get(job_id, ()), EvalKey(key))
                    job_of[EvalKey(key)] = job_id
                    key += 1
                    many, since_ns = opened.get(job_id) or (0, record.t_ns)
                    opened[job_id] = (many + 1, since_ns)
                    jobs.append(job_id)
            elif isinstance(event, JobRegistered | JobStopped | JobEvaluated):
                self._submitted[event.job_id] = seq
            elif type(event) is EvaluationEnded:
                job_id = job_of[event.key]
                many, since_ns = opened.pop(job_id)
                if many > 1:
                    opened[job_id] = (many - 1, since_ns)
                jobs.append(job_id)
            elif type(event) is EvaluationsCollected:
                self._forget(event.keys)
            elif type(event) is JobsCollected:
                for job_id in event.job_ids:
                    self._submitted.pop(job_id, None)
            if follows:
                for job_id in jobs_of(self._state, event):
                    self.shapes.move(job_id)
        return jobs

    def _forget(self, keys: tuple[EvalKey, ...]) -> None:
        gone = set(keys)
        # Once a job: a job with many thousand evaluations is collected in few records.
        for job_id in dict.fromkeys([self._leaving[key] for key in keys]):
            kept = tuple(one for one in self._of_job[job_id] if one not in gone)
            if kept:
                self._of_job[job_id] = kept
            else:
                del self._of_job[job_id]

    def of_job(self, job_id: JobId, limit: int = 0) -> list[EvalKey]:
        """Keys of a job's evaluations, newest first; `limit` 0: all."""
        keys = list(reversed(self._of_job.get(job_id, ())))
        return keys[:limit] if limit else keys

    def newest(self, job_id: JobId) -> Evaluation | None:
        """The newest evaluation of a job; None: none is kept."""
        keys = self._of_job.get(job_id)
        return self._state.evaluations.by_key[keys[-1]] if keys else None

    def submitted_seq(self, job: Job) -> int:
        """Seq of the last submission of a job; once that is no longer stored, of the last that changed it."""
        seq = self._submitted.get(job.id, 0)
        first = next(iter(self._state.jobs.submissions.values()), None)
        return seq if first is not None and seq >= first.seq else job.modify_seq

    def since_ns(self, job_id: JobId) -> int:
        """Log time since when the job has evaluations that have not ended; 0: it has none."""
        return self._open.get(job_id, (0, 0))[1]

    def has_open(self, job_id: JobId) -> bool:
        """Return whether one of the job's evaluations has not ended."""
        return job_id in self._open
