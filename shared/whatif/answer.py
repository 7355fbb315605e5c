"""One what-if from beginning to end: the proof, the unchanged fork, the other one, and the report on them.

Decides in which order things are done and that both forks end at the same moment. How two computations are run at once
is given (`Both`); words of the command line are not known. Next: `report.py`.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from shared.core.redecide import Redecided
from shared.whatif import report, wishes
from shared.whatif.compare import Differences, compare
from shared.whatif.effects import NS, effects, still_waiting
from shared.whatif.fork import Played, Recorded, play
from shared.whatif.moves import moves

A = TypeVar("A")
B = TypeVar("B")
#: Recorded decisions that come out otherwise, shown at the most.
_DIFFERENCES_MAX = 20


class Both(Protocol):
    """Does two things, in turn or at once; the first may be done in another process."""

    def __call__(self, one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
        """Return what both give."""
        ...


def in_turn(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """Do one, then the other."""
    return one(), other()


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked."""

    wishes: wishes.Wishes
    #: 0: as many as decided in the record.
    workers: int = 0
    until_ns: int
    #: go on from there until nothing happens any more.
    settle: bool = True
    #: draw all durations, even those that the record has.
    resample: bool = False
    #: keep what the last fork writes.
    keep: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What was found. `after` None: nothing was to be otherwise."""

    before: Played
    after: Played | None
    proof: Redecided

    @property
    def last(self) -> Played:
        """The fork that was asked for."""
        return self.after or self.before


def answered(
    recorded: Recorded,
    question: Question,
    *,
    both: Both = in_turn,
    progress: Callable[[str], None] = lambda _text: None,
) -> Answer:
    """Play the forks and prove the record. Raises CommandInvalid for wishes that cannot be, LogError."""
    entries = wishes.changed(recorded.fork.state, recorded.entries, question.wishes)
    is_changed = not question.wishes.is_empty or question.workers not in (0, recorded.workers)

    def played(*, otherwise: bool) -> Played:
        return play(
            recorded,
            entries if otherwise else recorded.entries,
            workers=(otherwise and question.workers) or recorded.workers,
            until_ns=question.until_ns,
            settle=question.settle,
            resample=question.resample,
            keep=question.keep and otherwise is is_changed,
        )

    def before() -> Played:
        progress("the fork with nothing changed")
        return played(otherwise=False).slim()

    def rest() -> tuple[Redecided, Played | None]:
        progress("deciding again what was recorded")
        proof = recorded.proof()
        if not is_changed:
            return proof, None
        progress("the fork that is asked about")
        return proof, played(otherwise=True)

    unchanged, (proof, after) = both(before, rest)
    end_ns = max(unchanged.course.t_ns, after.course.t_ns if after is not None else 0)
    unchanged.course.close(end_ns)
    if after is not None:
        after.course.close(end_ns)
    return Answer(unchanged, after, proof)


def reported(recorded: Recorded, question: Question, found: Answer) -> report.Report:
    """Count and compare. Times are written by whoever prints the report, and what was wished for."""
    before, after, last = found.before, found.after, found.last
    differences: Differences | None = None
    if after is not None:
        differences = compare(before.course, after.course)
    proof = found.proof
    leaving = question.wishes.leaving
    return report.Report(
        from_seq=recorded.fork.seq,
        end_seq=recorded.course.replica.seq,
        workers=question.workers or recorded.workers,
        faithful=report.Faithful(
            checked=proof.checked,
            equal=proof.equal,
            other_version=proof.other_version,
            untold=proof.untold,
            differences=tuple(proof.differences[:_DIFFERENCES_MAX]),
        ),
        agreement=report.agreement(compare(recorded.behind(before.course.t_ns), before.course)),
        before=effects(before.course),
        after=effects(after.course) if after is not None else None,
        differences=differences,
        changed=differences.changed if differences is not None else 0,
        moves=moves(last.course, leaving)[: report.LISTED_MAX] if leaving else (),
        still_waiting=still_waiting(last.course),
        assumptions=_assumptions(recorded, question, last),
    )


def _assumptions(recorded: Recorded, question: Question, last: Played) -> report.Assumptions:
    beyond_ns = max(last.course.t_ns - recorded.course.t_ns, 0)
    found = report.Assumptions(
        durations=last.assumed,
        entries=sum(1 for one in recorded.entries if one.t_ns <= last.course.t_ns),
        beyond_s=round(beyond_ns / NS, 3),
        settled=last.settled or not question.settle,
        history_seq=recorded.base.seq + 1,
        problem=recorded.problem,
    )
    return msgspec.structs.replace(found, texts=report.texts_of(found))
