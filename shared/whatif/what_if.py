"""One what-if from beginning to end: the proof, the unchanged fork, the changed fork, and the report.

Both forks end at the same moment. The caller decides how two computations run at once (`Both`).
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from shared.core.scheduling.explain.verify_decisions import DecisionCheck
from shared.errors import CommandInvalid
from shared.sim.virtual_time import SECOND
from shared.whatif import report
from shared.whatif.changes import RequestedChanges, apply_changes
from shared.whatif.comparison import TimelineDifferences, compare_timelines
from shared.whatif.effects import measure_effects, still_waiting
from shared.whatif.fork import ForkRun, Progress, RecordedLog, run_fork
from shared.whatif.migrations import find_migrations

A = TypeVar("A")
B = TypeVar("B")
#: The most differing decisions in a report.
_DIFFERENCES_MAX = 20


class RunBoth(Protocol):
    """Runs two computations, in turn or at once; the first may run in another process."""

    def __call__(self, one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
        """Return both results."""
        ...


class RunProgress(Protocol):
    """Is called often while a what-if runs."""

    def __call__(self, phase: str, done: int, total: int, unit: str) -> None:
        """Take how much of the current phase is done. Phases that run in another process call there."""
        ...


def in_turn(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """Run both in turn."""
    return one(), other()


class WhatIfQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The request."""

    changes: RequestedChanges
    #: 0: as many as in the record.
    workers: int = 0
    until_ns: int
    #: continue until the cluster settles.
    settle: bool = True
    #: draw all durations, even recorded ones.
    resample: bool = False
    #: keep the log of the last fork.
    keep: bool = False


class WhatIfAnswer(msgspec.Struct, frozen=True):
    """The result. `after` None: no change was requested."""

    before: ForkRun
    after: ForkRun | None
    proof: DecisionCheck

    @property
    def last(self) -> ForkRun:
        """The requested fork."""
        return self.after or self.before


def run_what_if(
    recorded: RecordedLog,
    question: WhatIfQuestion,
    *,
    both: RunBoth = in_turn,
    progress: RunProgress | None = None,
) -> WhatIfAnswer:
    """Run the forks and verify the record. Raises CommandInvalid for impossible changes, LogError."""
    entries = apply_changes(recorded.fork.state, recorded.entries, question.changes)
    requests_ns = max((one.t_ns for one in question.changes.verbs), default=0)
    if requests_ns > question.until_ns and not question.settle:
        text = "a request to a deployment comes after the end of the run"
        raise CommandInvalid("invalid", text, "deployment")
    until_ns = max(question.until_ns, requests_ns)
    is_changed = not question.changes.is_empty or question.workers not in (0, recorded.workers)

    def shown(phase: str, unit: str, divisor: int = 1) -> Progress | None:
        tell = progress
        if tell is None:
            return None
        return lambda done, total: tell(phase, done // divisor, total // divisor, unit)

    def played(*, otherwise: bool) -> ForkRun:
        phase = "running the changed fork" if otherwise else "running the unchanged fork"
        return run_fork(
            recorded,
            entries if otherwise else recorded.entries,
            workers=(otherwise and question.workers) or recorded.workers,
            until_ns=until_ns,
            settle=question.settle,
            resample=question.resample,
            keep=question.keep and otherwise is is_changed,
            progress=shown(phase, "s of virtual time", SECOND),
        )

    def before() -> ForkRun:
        return played(otherwise=False).slim()

    def rest() -> tuple[DecisionCheck, ForkRun | None]:
        proof = recorded.proof(shown("verifying recorded decisions", "records"))
        return proof, played(otherwise=True) if is_changed else None

    unchanged, (proof, after) = both(before, rest)
    end_ns = max(unchanged.timeline.t_ns, after.timeline.t_ns if after is not None else 0)
    unchanged.timeline.close(end_ns)
    if after is not None:
        after.timeline.close(end_ns)
    return WhatIfAnswer(unchanged, after, proof)


def build_what_if_report(
    recorded: RecordedLog, question: WhatIfQuestion, found: WhatIfAnswer
) -> report.WhatIfReport:
    """Compute and compare the figures. The caller fills in times and requested changes."""
    before, after, last = found.before, found.after, found.last
    differences: TimelineDifferences | None = None
    if after is not None:
        differences = compare_timelines(before.timeline, after.timeline)
    proof = found.proof
    leaving = question.changes.leaving
    return report.WhatIfReport(
        from_seq=recorded.fork.seq,
        end_seq=recorded.timeline.replica.seq,
        workers=question.workers or recorded.workers,
        faithful=report.ReplayProof(
            checked=proof.checked,
            equal=proof.equal,
            other_version=proof.other_version,
            untold=proof.untold,
            differences=tuple(proof.differences[:_DIFFERENCES_MAX]),
        ),
        agreement=report.count_agreement(
            compare_timelines(recorded.behind(before.timeline.t_ns), before.timeline)
        ),
        before=measure_effects(before.timeline),
        after=measure_effects(after.timeline) if after is not None else None,
        differences=differences,
        changed=differences.changed if differences is not None else 0,
        deployments=report.compare_deployments(
            before.timeline, after.timeline if after is not None else None
        ),
        moves=find_migrations(last.timeline, leaving)[: report.LISTED_MAX] if leaving else (),
        still_waiting=still_waiting(last.timeline),
        assumptions=_assumptions(recorded, question, found),
    )


def _assumptions(
    recorded: RecordedLog, question: WhatIfQuestion, answer: WhatIfAnswer
) -> report.Assumptions:
    last, is_compared = answer.last, answer.after is not None
    beyond_ns = max(last.timeline.t_ns - recorded.timeline.t_ns, 0)
    found = report.Assumptions(
        durations=last.assumed,
        entries=sum(1 for one in recorded.entries if one.t_ns <= last.timeline.t_ns),
        beyond_s=round(beyond_ns / SECOND, 3),
        settled=last.settled or not question.settle,
        history_seq=recorded.base.seq + 1,
        problem=recorded.problem,
        missed=last.missed,
        has_deployments=bool(last.timeline.deployments.runs),
        begun_anew=tuple(
            job_id
            for job_id in sorted(question.changes.updates)
            if recorded.fork.state.deployments.active_of(job_id) is not None
        ),
        has_gates=recorded.has_gates,
        records_max=last.records_max,
        unchanged_settled=not (is_compared and question.settle) or answer.before.settled,
        unchanged_records_max=answer.before.records_max if is_compared else 0,
    )
    return msgspec.structs.replace(found, texts=report.describe_assumptions(found))
