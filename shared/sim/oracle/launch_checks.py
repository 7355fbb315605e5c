"""Checks of launches: each planned second of a periodic job makes one child at most, never early and never beside one.

Reads the log alone, and shares no code with the tables.
"""

from collections.abc import Callable

from schemas import jobs, launches
from schemas.base import SECOND_NS, Event
from schemas.envelope import LogRecord
from shared.sim.oracle.invariants import InvariantChecks

#: Tells whether a job has an allocation that has not ended.
HasLive = Callable[[str], bool]


class LaunchChecks:
    """What the launches of all periodic jobs must keep to."""

    def __init__(self, ledger: InvariantChecks, has_live: HasLive) -> None:
        self._ledger = ledger
        self._has_live = has_live
        #: periodic jobs by id: whether they are stopped, and their block.
        self._stopped: dict[str, bool] = {}
        self._blocks: dict[str, jobs.PeriodicBlock] = {}
        #: planned seconds that made a child, or were skipped, by parent and its `create_seq`.
        self._planned: set[tuple[str, int, int]] = set()
        self._children: dict[str, list[str]] = {}

    def is_pattern(self, job_id: str) -> bool:
        """Tell whether a job runs nothing itself."""
        return job_id in self._blocks

    def apply(self, event: Event, record: LogRecord) -> None:
        """Check one event; those before it in its record have been applied. Raises InvariantBroken."""
        match event:
            case jobs.JobRegistered():
                self._registered(event)
            case jobs.JobStopped() if event.job_id in self._blocks:
                self._stopped[event.job_id] = True
            case launches.JobLaunched():
                self._launched(event, record)
            case launches.LaunchSkipped() if event.why != "missed":
                self._once(event, record)
            case _:
                pass

    def _registered(self, event: jobs.JobRegistered) -> None:
        self._blocks.pop(event.job_id, None)
        if event.periodic is not None:
            self._blocks[event.job_id] = event.periodic
            self._stopped[event.job_id] = event.stopped

    def _launched(self, event: launches.JobLaunched, record: LogRecord) -> None:
        hold = self._ledger.hold
        block, stopped = self._blocks.get(event.parent), self._stopped.get(event.parent)
        may = block is not None and block.enabled and not stopped
        hold("launched_by_rule", may, event, "of a job that launches nothing")
        made = [one for one in record.events if isinstance(one, jobs.JobRegistered)]
        child = [one for one in made if one.job_id == event.child_id]
        hold("launched_by_rule", len(child) == 1, event, "without its registration")
        known = self._children.setdefault(event.parent, [])
        hold("launched_by_rule", event.child_id not in known, event, "twice")
        if not event.forced:
            self._once(event, record)
            if block is not None and block.prohibit_overlap:
                beside = [one for one in known if self._has_live(one)]
                hold("launched_by_rule", not beside, event, "beside", beside)
        known.append(event.child_id)

    def _once(
        self, event: launches.JobLaunched | launches.LaunchSkipped, record: LogRecord
    ) -> None:
        hold = self._ledger.hold
        hold("launched_by_rule", event.at_ns <= record.t_ns, event, "before its time")
        planned = (event.parent, event.parent_create_seq, event.at_ns // SECOND_NS)
        hold("launched_by_rule", planned not in self._planned, event, "a second time")
        self._planned.add(planned)
