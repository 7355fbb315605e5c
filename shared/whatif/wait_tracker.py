"""Waits of a timeline: which allocations wait, for which reason, from when to when.

An allocation waits as the queue says of its job (job_wait.py), by that class; or because no worker has decided yet, or
decides again what was woken (`queued`).
"""

from collections.abc import Callable
from copy import copy

import msgspec

from schemas.base import EvalKey, JobId
from schemas.evaluations import EvaluationsCreated
from shared.core.state.state import State
from shared.query.job_wait import BLOCKED, job_wait
from shared.whatif.undecided_waits import QUEUED, UndecidedWaits

#: Of a job that is parked or to be decided: which of both it is, changes with the job ahead of it.
_UNDECIDED = "undecided"


class WaitInterval(msgspec.Struct, frozen=True):
    """`count` allocations of a group waited for one reason. `group`: in `NameTable`; `to_ns` 0: still waiting.

    `is_undecided`: its time is counted by class in `WaitTracker.undecided`; what still waits has the class of the end.
    """

    group: int
    wait_class: str
    count: int
    from_ns: int
    to_ns: int = 0
    is_undecided: bool = False


class _Held(msgspec.Struct, frozen=True):
    count: int
    wait_class: str
    from_ns: int
    #: since when the group waits, with any count and class.
    since_ns: int


class WaitTracker:
    """Follows the evaluations of a state."""

    def __init__(self, state: State, number: Callable[[str, str], int]) -> None:
        self._state = state
        self._number = number
        self.ended: list[WaitInterval] = []
        self._open: dict[JobId, dict[str, _Held]] = {}
        self._touched: dict[JobId, None] = {}
        self._asked: dict[EvalKey, int] = {}
        self._ordinal_seq = 0
        self._ordinal = 0
        self.undecided = UndecidedWaits(state)
        table = state.evaluations
        for key in table.open:
            self._asked[key] = state.t_ns
            self._touched[table.by_key[key].job_id] = None
        self.settle(state.t_ns)

    def forked(self, state: State, t_ns: int) -> "WaitTracker":
        """Return a tracker that continues at log time `t_ns` with another state at the same seq."""
        found = copy(self)
        # Open waits continue: only the part after the fork is counted. A checkpoint changes nothing
        # in the state, but advances log time.
        still = {
            job_id: {
                name: msgspec.structs.replace(one, from_ns=t_ns) for name, one in groups.items()
            }
            for job_id, groups in self._open.items()
        }
        vars(found).update(
            _state=state,
            ended=[],
            _touched=dict.fromkeys(still),
            _asked=dict(self._asked),
            _open=still,
            undecided=UndecidedWaits(state),
        )
        found.settle(t_ns)
        return found

    def follow_state(self, state: State) -> None:
        """Read another state from now on."""
        self._state = state
        self.undecided.follow_state(state)

    def created(self, event: EvaluationsCreated, seq: int, t_ns: int) -> None:
        """Set the request time of evaluations: a follow-up inherits it."""
        if self._ordinal_seq != seq:
            self._ordinal_seq, self._ordinal = seq, 0
        for new in event.evaluations:
            key = EvalKey(self._state.policy.incarnations.key(seq, self._ordinal))
            self._ordinal += 1
            self._asked[key] = self._asked.get(new.previous, max(t_ns, new.wait_until_ns))
            self._touched[new.job_id] = None

    def looked_at(self, key: EvalKey) -> None:
        """An evaluation changed."""
        found = self._state.evaluations.by_key.get(key)
        if found is not None:
            self._touched[found.job_id] = None

    def touched(self, job_id: JobId) -> None:
        """A job changed."""
        self._touched[job_id] = None

    def asked_ns(self, key: EvalKey, t_ns: int) -> int:
        """Request time of an evaluation or of the first one it follows."""
        return self._asked.get(key, t_ns)

    def since(self, job_id: JobId, group: str, t_ns: int) -> int:
        """Since when a group waits; `t_ns` if it does not."""
        held = self._open.get(job_id, {}).get(group)
        return held.since_ns if held is not None else t_ns

    def settle(self, t_ns: int) -> None:
        """Update all changed jobs, at the end of a transaction."""
        for job_id in self._touched:
            is_undecided = self.undecided.move(job_id, t_ns)
            self._compare(job_id, self._wanted(job_id, is_undecided=is_undecided), t_ns)
        self._touched.clear()
        self.undecided.settle()

    def close(self, t_ns: int) -> None:
        """End: list open waits with end 0."""
        self.undecided.close(t_ns)
        for job_id, groups in sorted(self._open.items()):
            for name, held in sorted(groups.items()):
                is_undecided = held.wait_class == _UNDECIDED
                self.ended.append(
                    WaitInterval(
                        self._number(job_id, name),
                        self.undecided.class_of(job_id) if is_undecided else held.wait_class,
                        held.count,
                        held.from_ns,
                        is_undecided=is_undecided,
                    )
                )
        self._open = {}

    def detach(self) -> None:
        """Drop the state."""
        vars(self).update(_state=None, _asked={})
        self.undecided.detach()

    def _wanted(self, job_id: JobId, *, is_undecided: bool) -> dict[str, tuple[int, str]]:
        """Open waits of a job: count and class by group."""
        job, table = self._state.jobs.by_id.get(job_id), self._state.evaluations
        if job is None:
            return {}
        if is_undecided:
            return {one.name: (one.count, _UNDECIDED) for one in job.groups if one.count}
        if job_id in table.blocked_of and (wait := job_wait(self._state, job)).kind == BLOCKED:
            return {name: (one.n, one.wait_class) for name, one in wait.groups.items()}
        if not table.open_of.get(job_id):
            return {}
        known = self._open.get(job_id)
        if known:
            # To be decided again: how many wait is known of the decision before.
            return {name: (one.count, QUEUED) for name, one in known.items()}
        if job.stopped or len(self._state.allocations.rows_of(job_id)):
            return {}
        return {one.name: (one.count, QUEUED) for one in job.groups if one.count}

    def _compare(self, job_id: JobId, wanted: dict[str, tuple[int, str]], t_ns: int) -> None:
        known = self._open.get(job_id)
        if known is None and not wanted:
            return
        known = known or {}
        now: dict[str, _Held] = {}
        for name, (count, wait_class) in wanted.items():
            old = known.get(name)
            if old is not None and (old.count, old.wait_class) == (count, wait_class):
                now[name] = old
                continue
            since = old.since_ns if old is not None else t_ns
            now[name] = _Held(count, wait_class, t_ns, since)
        for name, old in known.items():
            if now.get(name) is not old and t_ns > old.from_ns:
                number = self._number(job_id, name)
                is_undecided = old.wait_class == _UNDECIDED
                self.ended.append(
                    WaitInterval(
                        *(number, old.wait_class, old.count, old.from_ns, t_ns),
                        is_undecided=is_undecided,
                    )
                )
        if now:
            self._open[job_id] = now
        else:
            self._open.pop(job_id, None)
