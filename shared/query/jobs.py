"""Answers about jobs, their versions and the verdicts on submissions: `query.jobs` and its neighbours."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from schemas.answers import QueryAnswer, SubmissionAnswer
from schemas.base import NodeId
from schemas.job_answers import (
    JobAnswer,
    JobLine,
    JobsAnswer,
    JobVersionAnswer,
    JobVersionsAnswer,
)
from schemas.job_versions import VersionLine
from schemas.projections import Query, Rollout
from shared.core.runtime.replica import Replica
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job
from shared.errors import CommandInvalid
from shared.jobspec.checks.job_description import job_description
from shared.jobspec.submission import accepted_unbuilt
from shared.query import projections
from shared.query.evaluation_index import EvaluationIndex
from shared.query.evaluation_summary import eval_summary
from shared.query.job_progress import SettlingClock
from shared.query.job_wait import job_wait
from shared.query.launches import children_of, job_ids, origin_of, pattern_of, periodic_shown
from shared.query.lookup import find_job
from shared.query.pages import answer_position, page_of, page_rows
from shared.query.wait_queue import job_waits

#: Evaluations shown with a job.
EVALUATIONS_SHOWN = 20


class JobAnswers:
    """Queries about jobs. Raises CommandInvalid (invalid, not_found) for an invalid one."""

    def __init__(self, replica: Replica, histories: EvaluationIndex, clock: SettlingClock) -> None:
        self._replica = replica
        self._histories = histories
        self._clock = clock

    @property
    def by_noun(self) -> dict[str, Callable[[Query], QueryAnswer]]:
        """What answers each query. Made when it is asked for: a cycle would keep the state in memory."""
        return {
            "jobs": self._jobs,
            "job": self._job,
            "job_version": self._job_version,
            "job_versions": self._job_versions,
            "submission": self._submission,
        }

    @property
    def _state(self) -> State:
        return self._replica.state

    def _find(self, job_id: str) -> Job:
        return find_job(self._state, job_id)

    def _line(self, job: Job) -> JobLine:
        groups = projections.group_counts(self._state, job)
        has_open = self._histories.has_open(job.id)
        return JobLine(
            id=job.id,
            job_type=job.job_type,
            status=projections.job_status(job, groups, has_open=has_open),
            stopped=job.stopped,
            version=job.version,
            priority=job.priority,
            node_pool=job.node_pool,
            datacenters=job.datacenters,
            create_index=job.create_seq,
            modify_index=job.modify_seq,
            groups=groups,
            parent=job.parent,
            pattern=pattern_of(job),
        )

    def _jobs(self, query: Query) -> JobsAnswer:
        ids = job_ids(self._state, query)
        if not query.status:
            page = self.lines(page_of(ids, query))
            return JobsAnswer(**answer_position(self._replica), jobs=page, total=len(ids))
        lines = [
            line for line in map(self._line, map(self._find, ids)) if line.status == query.status
        ]
        page = self._with_rollouts(page_of(lines, query))
        return JobsAnswer(**answer_position(self._replica), jobs=page, total=len(lines))

    def lines(self, ids: Iterable[str]) -> tuple[JobLine, ...]:
        """These jobs in one line each, with the status of the rollout. Raises CommandInvalid for an unknown one."""
        return self._with_rollouts([self._line(self._find(one)) for one in ids])

    def _with_rollouts(self, lines: Sequence[JobLine]) -> tuple[JobLine, ...]:
        """Add the status of the rollout, only to the lines that are shown."""
        found = ((one, self._find(one.id)) for one in lines)
        return tuple(
            msgspec.structs.replace(one, rollout_status=self._rollout(job).status)
            for one, job in found
        )

    def _rollout(self, job: Job) -> Rollout:
        return projections.progress_of_job(self._state, job, self._histories, self._clock)

    def _job(self, query: Query) -> JobAnswer:
        job = self._find(query.id or query.job_id)
        rollout = self._rollout(job)
        line = msgspec.structs.replace(self._line(job), rollout_status=rollout.status)
        rows = self._state.allocations.rows_of(job.id)
        shown = page_rows(projections.display_order(self._state, rows), query)
        children = children_of(self._state, job.id)
        spec = self._state.jobs.spec(job.id, job.version) or b"{}"
        return JobAnswer(
            **answer_position(self._replica),
            job=line,
            groups=line.groups,
            placed=projections.placed_counts(self._state, job),
            allocations=projections.alloc_summaries(self._state, shown),
            allocations_total=len(rows),
            waiting=job_waits(job_wait(self._state, job, self._histories.shapes)),
            evaluations=tuple(
                eval_summary(
                    self._state, self._state.evaluations.by_key[key], self._histories.shapes
                )
                for key in self._histories.of_job(job.id, EVALUATIONS_SHOWN)
            ),
            rollout=rollout,
            unbuilt=accepted_unbuilt(spec),
            ui=job_description(spec),
            periodic=periodic_shown(self._state, job),
            parameterized=job.parameterized,
            children=self._with_rollouts(
                [self._line(self._find(one)) for one in page_of(children, query)]
            ),
            children_total=len(children),
        )

    def version_for(self, node_id: str, query: Query) -> JobVersionAnswer:
        """Answer a node: about a job that has an allocation there, in any state; else `not_found`."""
        table, row = self._state.allocations, self._state.fleet.row_of.get(NodeId(node_id))
        job = self._find(query.id)
        if row is None or not (table.node[table.rows_of(job.id)] == row).any():
            raise CommandInvalid("not_found", f"job {job.id!r} has no allocation on {node_id!r}")
        return self._job_version(query)

    def _job_version(self, query: Query) -> JobVersionAnswer:
        job = self._find(query.id or query.job_id)
        version = job.version if query.version < 0 else query.version
        spec = self._state.jobs.spec(job.id, version)
        if spec is None:
            raise CommandInvalid("not_found", f"job {job.id!r} has no stored version {version}")
        raw = msgspec.Raw(spec)
        found = JobVersionAnswer(
            **answer_position(self._replica), job_id=job.id, version=version, spec=raw
        )
        return origin_of(self._state, job.id, found)

    def _job_versions(self, query: Query) -> JobVersionsAnswer:
        job = self._find(query.id or query.job_id)
        kept = self._state.jobs.versions[job.id][::-1]
        page = tuple(
            VersionLine(
                version=one.version,
                seq=one.seq,
                spec=msgspec.Raw(one.spec),
                stable=one.is_stable,
                tag=one.tag,
                tag_description=one.tag_description,
            )
            for one in page_of(kept, query)
        )
        return JobVersionsAnswer(
            **answer_position(self._replica), job_id=job.id, versions=page, total=len(kept)
        )

    def _submission(self, query: Query) -> SubmissionAnswer:
        verdict = projections.verdict(self._state, query.id)
        if verdict is None:
            raise CommandInvalid(
                "not_found", f"submission {query.id!r} is unknown or no longer stored"
            )
        return SubmissionAnswer(**answer_position(self._replica), verdict=verdict)
