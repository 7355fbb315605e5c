"""Launches of periodic jobs, as deadlines: the next instant of each job's cron specs.

Instants are computed here, with the time zone data of this machine, and named in the command; the plan applier computes
none. What passed while nothing was launched is made up for by one launch, under the newest of the planned instants.
"""

from collections.abc import Iterable

from schemas.base import Event, JobId
from schemas.jobs import JobRegistered, JobsCollected, JobStopped
from schemas.launches import JobLaunched, LaunchDue, LaunchSkipped
from services.timekeeper.due_heap import GRACE_NS, DueKey, DueTime
from shared.core.state.state import State
from shared.core.state.tables.launches import PeriodicParent
from shared.cron.instants import missed_launches, next_launch
from shared.cron.spec import CronInvalid

#: Missed instants are counted up to here, so that a job of every second costs no time after a long pause.
MISSED_MAX = 10_000


class PeriodicLaunches:
    """The source of the role. Its keys are ids of periodic jobs."""

    tables = frozenset({"launches"})
    events: frozenset[type[Event]] = frozenset(
        {JobRegistered, JobStopped, JobsCollected, JobLaunched, LaunchSkipped}
    )
    is_told_again = True
    is_log_time = False
    needs_lease = False

    def __init__(self, *, grace_ns: int = GRACE_NS) -> None:
        self._grace_ns = grace_ns

    def keys(self, state: State) -> Iterable[DueKey]:
        """Return every periodic job, by id."""
        return sorted(state.launches.by_parent)

    def changed(self, state: State, event: Event) -> Iterable[DueKey]:
        """Return the periodic jobs that an event is about."""
        del state
        match event:
            case JobRegistered() | JobStopped():
                return (event.job_id,)
            case JobsCollected():
                return event.job_ids
            case JobLaunched() | LaunchSkipped():
                return (event.parent,)
            case _:
                return ()

    def due_ns(self, state: State, key: DueKey, at: DueTime) -> int:
        """Return the next instant of a job that is launching; 0: there is none."""
        del at
        parent = _parent(state, key)
        if parent is None:
            return 0
        block = parent.periodic
        try:
            return next_launch(block.crons, block.time_zone, parent.handled_ns)
        except CronInvalid:
            # This machine lacks the time zone; another one may have it.
            return 0

    def grace_ns(self, state: State, key: DueKey) -> int:
        """Return 0 unless it matters whether a child still runs."""
        parent = _parent(state, key)
        return self._grace_ns if parent is not None and parent.periodic.prohibit_overlap else 0

    def command(self, state: State, key: DueKey, at: DueTime) -> LaunchDue | None:
        """Name the newest instant that has passed, and how many were missed before it; None: none has."""
        parent = _parent(state, key)
        if parent is None:
            return None
        block, after_ns = parent.periodic, parent.handled_ns
        try:
            at_ns, missed = missed_launches(
                block.crons,
                block.time_zone,
                after_ns=after_ns,
                until_ns=at.wall_ns,
                most=MISSED_MAX,
            )
        except CronInvalid:
            return None
        if not at_ns:
            return None
        return LaunchDue(
            parent=JobId(str(key)),
            modify_seq=parent.modify_seq,
            after_ns=after_ns,
            at_ns=at_ns,
            missed=missed,
        )


def _parent(state: State, key: DueKey) -> PeriodicParent | None:
    """Return a job whose instants count; None: there is none of this id."""
    found = state.launches.by_parent.get(JobId(str(key)))
    return found if found is not None and found.is_launching else None
