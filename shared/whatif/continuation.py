"""Tasks of a recorded cluster continue in a scenario: as recorded, where the scenario does not say how long.

The rules are those of a fork (durations.py). What the scenario submits itself lasts as it says. Of the record after the
scenario's beginning only durations are used: no external event of it happens.
"""

from collections.abc import Callable

import numpy as np

from schemas.base import JobId
from shared.core.columns import Int64s, Mask, Rows
from shared.core.state.state import State
from shared.fleet.simulated_allocs import SimulatedAllocs
from shared.sim.engine.engine import SimulationEngine
from shared.whatif.durations import DurationModel, RecordedAllocs, family_of
from shared.whatif.fork import RecordedLog
from shared.whatif.report import describe_durations
from shared.whatif.timeline import Timeline


class ContinuedAllocs(RecordedAllocs):
    """Simulated allocations of a recorded cluster and of a scenario. `said`: the scenario says how long a job runs."""

    takes_task_profiles = True

    def __init__(
        self,
        seed: int,
        state: Callable[[], State],
        timeline: Timeline,
        lasting: DurationModel,
        *,
        said: Callable[[JobId], bool],
    ) -> None:
        super().__init__(seed, state, timeline, lasting)
        self._said = said

    def _begin(self, rows: Rows, now_ns: int) -> None:
        as_said = self._as_said(rows)
        if as_said.any():
            super(RecordedAllocs, self)._begin(rows[as_said], now_ns)
        if not as_said.all():
            super()._begin(rows[~as_said], now_ns)

    def _run(self, rows: Rows, at_ns: Int64s) -> None:
        as_said = self._as_said(rows)
        if as_said.any():
            super(RecordedAllocs, self)._run(rows[as_said], at_ns[as_said])
        if not as_said.all():
            super()._run(rows[~as_said], at_ns[~as_said])

    def _as_said(self, rows: Rows) -> Mask:
        table = self._state().allocations
        names = table.groups.job_ids
        refs = table.group[rows].tolist()
        return np.fromiter((self._said(names[ref]) for ref in refs), dtype=bool, count=len(rows))


class Continuation:
    """A recorded cluster as the beginning of a scenario. It takes over `recorded`."""

    def __init__(self, recorded: RecordedLog, seed: int) -> None:
        self._recorded = recorded
        self._timeline = recorded.fork_timeline.forked(recorded.fork, 0)
        begin_ns = self._timeline.begin_ns
        self._lasting = DurationModel(recorded.timeline, begin_ns, seed=seed)
        self._families = {family_of(job_id) for job_id in recorded.fork.state.jobs.by_id}

    def allocs(
        self, seed: int, state: Callable[[], State], says: Callable[[JobId], bool]
    ) -> SimulatedAllocs:
        """Return the allocations of the run. `says`: the scenario says how long a job runs."""

        def said(job_id: JobId) -> bool:
            return family_of(job_id) not in self._families or says(job_id)

        return ContinuedAllocs(seed, state, self._timeline, self._lasting, said=said)

    def follow(self, engine: SimulationEngine) -> None:
        """Follow the run from its beginning."""
        self._timeline.follow_state(engine.state)
        engine.follow(self._timeline.observe)

    def assumptions(self) -> tuple[str, ...]:
        """Describe what the run assumed of the recorded cluster, as a fork does."""
        seq, problem = self._recorded.fork.seq, self._recorded.problem
        said = [
            f"no external event of the record happens after seq {seq}: users and nodes do what the scenario says",
            *describe_durations(self._lasting.assumed),
        ]
        return (*said, f"the record ends early: {problem}") if problem else tuple(said)
