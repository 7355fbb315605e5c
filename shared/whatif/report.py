"""The answer to a what-if: proof, agreement, effects before and after, differences, migrations and assumptions."""

import msgspec

from shared.core.scheduling.explain.verify_decisions import PlanDifference
from shared.display.formats import count_noun
from shared.sim.virtual_time import SECOND
from shared.whatif.comparison import TimelineDifferences
from shared.whatif.durations import DurationSources
from shared.whatif.effects import TimelineEffects
from shared.whatif.migrations import Migration
from shared.whatif.timeline import Timeline

#: The most jobs and migrations in a report.
LISTED_MAX = 1_000


class ReplayProof(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded decisions after the fork, made again on their own snapshots."""

    checked: int
    equal: int
    other_version: int
    untold: int
    differences: tuple[PlanDifference, ...] = ()

    @property
    def divergence(self) -> int:
        """Decisions with another result."""
        return self.checked - self.equal


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How many placements of the unchanged fork equal those of the log."""

    recorded: int
    same: int
    elsewhere: int
    missing: int
    extra: int


class DeploymentOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a deployment went in one fork."""

    #: successful, failed, cancelled; running or paused: it is active at the end.
    status: str
    #: from its start, or from the fork, to its end, or that of the run.
    seconds: float
    #: the fewest allocations of the job that were healthy meanwhile, those of older versions included.
    lowest_healthy: int


class DeploymentComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment in both forks. None: it is not there; `after` is also None where no change was requested."""

    job: str
    version: int
    before: DeploymentOutcome | None
    after: DeploymentOutcome | None


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """The assumptions of a fork."""

    durations: DurationSources
    #: external events after the fork, as recorded.
    entries: int
    #: virtual seconds after the end of the record.
    beyond_s: float
    #: the run settled; false: it was cut off.
    settled: bool
    #: first record with known durations.
    history_seq: int
    #: why the record was not read to its end.
    problem: str = ""
    #: requests about allocations and deployments that do not exist in the fork.
    missed: int = 0
    #: deployments ran in the fork.
    has_deployments: bool = False
    #: jobs whose deployment at the fork begins anew, as another version.
    begun_anew: tuple[str, ...] = ()
    #: deployments had gates or windows.
    has_gates: bool = False
    #: the bound on records that cut the fork off; 0: it was not met.
    records_max: int = 0
    #: the same of the unchanged fork, where a change was requested: the two above are of the changed one.
    unchanged_settled: bool = True
    unchanged_records_max: int = 0
    texts: tuple[str, ...] = ()


class WhatIfReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `caravan what-if` prints with --json."""

    from_seq: int
    from_time: str = ""
    until_time: str = ""
    end_seq: int
    workers: int
    wishes: tuple[str, ...] = ()
    faithful: ReplayProof
    agreement: Agreement
    before: TimelineEffects
    #: None: no change was requested.
    after: TimelineEffects | None
    differences: TimelineDifferences | None
    changed: int
    #: by job and version.
    deployments: tuple[DeploymentComparison, ...] = ()
    moves: tuple[Migration, ...]
    still_waiting: dict[str, dict[str, int]]
    assumptions: Assumptions
    out: str = ""


def count_agreement(found: TimelineDifferences) -> Agreement:
    """Summarize a comparison of the record with the unchanged fork."""
    return Agreement(
        recorded=found.compared + found.only_before,
        same=found.same,
        elsewhere=found.elsewhere,
        missing=found.only_before,
        extra=found.only_after,
    )


def compare_deployments(
    before: Timeline, after: Timeline | None
) -> tuple[DeploymentComparison, ...]:
    """Compare the deployments of two closed timelines."""
    one = _outcomes(before)
    two = _outcomes(after) if after is not None else {}
    return tuple(
        DeploymentComparison(
            job=job, version=version, before=one.get((job, version)), after=two.get((job, version))
        )
        for job, version in sorted(one.keys() | two.keys())[:LISTED_MAX]
    )


def _outcomes(timeline: Timeline) -> dict[tuple[str, int], DeploymentOutcome]:
    return {
        (run.job_id, run.version): DeploymentOutcome(
            status=run.status,
            seconds=round(((run.ended_ns or timeline.t_ns) - run.began_ns) / SECOND, 3),
            lowest_healthy=run.lowest_healthy,
        )
        for run in timeline.deployments.runs.values()
    }


def describe_durations(lasts: DurationSources) -> list[str]:
    """Describe where the durations come from."""
    kinds = [
        (lasts.recorded, "last as recorded"),
        (lasts.resampled, "as finished tasks of the same group or job"),
        (lasts.for_ever, "without end (no end of their group or job is recorded)"),
        (
            lasts.outlasted,
            f"without end (they have run longer than all {_ends(lasts)} of their group or job)",
        ),
    ]
    said = [
        "tasks: " + (", ".join(f"{n} {kind}" for n, kind in kinds if n) or "none"),
        "durations were recorded on the original nodes; decisions, hops and flushes take fixed times",
    ]
    if lasts.started_as_others:
        text = "start as those of other jobs: no start of their group or job is recorded"
        said.append(f"{lasts.started_as_others} {text}")
    if lasts.never_started:
        said.append(f"{lasts.never_started} stay pending: no start is recorded")
    return said


def _ends(lasts: DurationSources) -> str:
    least, most = lasts.outlasted_least, lasts.outlasted_most
    return (
        f"{count_noun(most, 'recorded end')}"
        if least == most
        else f"{least} to {most} recorded ends"
    )


def describe_assumptions(found: Assumptions) -> tuple[str, ...]:
    """Describe the assumptions, one text each."""
    said = [
        f"{found.entries} external events happen as recorded: users and nodes do not react to the change",
        *describe_durations(found.durations),
    ]
    if found.history_seq > 1:
        said.append(f"durations are known from seq {found.history_seq}, the start of a snapshot")
    if found.problem:
        said.append(f"the record ends early: {found.problem}")
    if found.beyond_s > 0:
        said.append(f"the fork runs {found.beyond_s:.1f} s past the end of the record")
    if found.has_deployments:
        said.append("an allocation is healthy when it has run for min_healthy_time: checks pass")
    said += [
        f"the update of {job} at the fork begins anew: its later versions are one higher than in the unchanged fork"
        for job in found.begun_anew
    ]
    if found.has_gates:
        said.append(
            "a gauge has the value that was recorded last when a gate changed; windows open by the calendar"
        )
    if found.missed:
        said.append(
            f"{found.missed} requests were dropped: their allocation or deployment is not there"
        )
    if found.records_max:
        said.append(f"the fork was cut off at its bound of {found.records_max} records")
    elif not found.settled:
        said.append("the fork was cut off before it settled")
    if found.unchanged_records_max:
        most = found.unchanged_records_max
        said.append(f"the unchanged fork was cut off at its bound of {most} records")
    elif not found.unchanged_settled:
        said.append("the unchanged fork was cut off before it settled")
    return tuple(said)
