"""Who waits for what, from when to when, and since when somebody asked for what is placed now.

Decides what counts as waiting: a job's allocations that its blocked evaluation could not place, by the class that this
one names; and those of a job that was submitted and not looked at yet (`queued`). Must not know who placed what.
"""

from collections.abc import Callable
from copy import copy

import msgspec

from schemas.base import EvalKey, JobId
from schemas.evaluations import EvaluationsCreated
from shared.core.ids import make_key
from shared.core.state import State

#: Submitted, and no worker has decided yet.
QUEUED = "queued"


class Wait(msgspec.Struct, frozen=True):
    """So many allocations of a group waited for one reason. `group`: number of `Names`; `to_ns` 0: they still do."""

    group: int
    wait_class: str
    count: int
    from_ns: int
    to_ns: int = 0


class _Held(msgspec.Struct, frozen=True):
    count: int
    wait_class: str
    from_ns: int
    #: since when anything of the group waits, whatever the count and the class were.
    since_ns: int


class Waits:
    """Follows the evaluations of a state."""

    def __init__(self, state: State, number: Callable[[str, str], int]) -> None:
        self._state = state
        self._number = number
        self.ended: list[Wait] = []
        self._open: dict[JobId, dict[str, _Held]] = {}
        self._touched: dict[JobId, None] = {}
        self._asked: dict[EvalKey, int] = {}
        self._ordinal_seq = 0
        self._ordinal = 0
        table = state.evaluations
        for key in table.open:
            self._asked[key] = state.t_ns
            self._touched[table.by_key[key].job_id] = None
        self.settle(state.t_ns)

    def forked(self, state: State, t_ns: int) -> "Waits":
        """Go on from here, where log time is `t_ns`, with another state that stands where ours does."""
        found = copy(self)
        # What waits already waits on: only the part behind the fork is counted. A checkpoint, which changes nothing
        # of the state, moves log time on.
        still = {
            job_id: {
                name: msgspec.structs.replace(one, from_ns=t_ns) for name, one in groups.items()
            }
            for job_id, groups in self._open.items()
        }
        vars(found).update(
            _state=state, ended=[], _touched={}, _asked=dict(self._asked), _open=still
        )
        return found

    def attend(self, state: State) -> None:
        """From now on somebody else keeps the state."""
        self._state = state

    def created(self, event: EvaluationsCreated, seq: int, t_ns: int) -> None:
        """Note since when evaluations ask: those that follow another, since that one."""
        if self._ordinal_seq != seq:
            self._ordinal_seq, self._ordinal = seq, 0
        for new in event.evaluations:
            key = EvalKey(make_key(seq, self._ordinal))
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
        """Since when an evaluation, or the one it goes on from, asks."""
        return self._asked.get(key, t_ns)

    def since(self, job_id: JobId, group: str, t_ns: int) -> int:
        """Since when a group waits; `t_ns`: it does not."""
        held = self._open.get(job_id, {}).get(group)
        return held.since_ns if held is not None else t_ns

    def settle(self, t_ns: int) -> None:
        """Look again at all jobs that changed: at the end of a transaction."""
        for job_id in self._touched:
            self._compare(job_id, self._wanted(job_id), t_ns)
        self._touched.clear()

    def close(self) -> None:
        """End: what waits still is listed with 0 as its end."""
        for job_id, groups in sorted(self._open.items()):
            for name, held in sorted(groups.items()):
                number = self._number(job_id, name)
                self.ended.append(Wait(number, held.wait_class, held.count, held.from_ns))
        self._open = {}

    def detach(self) -> None:
        """Let go of the state."""
        vars(self).update(_state=None, _asked={})

    def _wanted(self, job_id: JobId) -> dict[str, tuple[int, str]]:
        """What of a job waits now: count and class by group."""
        table = self._state.evaluations
        key = table.blocked_of.get(job_id)
        blocked = table.by_key[key].blocked if key is not None else None
        if blocked is not None:
            return {name: (one.count, one.wait_class) for name, one in blocked.waiting.items()}
        pending = table.open_of.get(job_id)
        if not pending:
            return {}
        known = self._open.get(job_id)
        if known:
            # Woken, and not decided yet.
            return {name: (one.count, one.wait_class) for name, one in known.items()}
        job = self._state.jobs.by_id.get(job_id)
        if job is None or job.stopped or len(self._state.allocations.rows_of(job_id)):
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
                self.ended.append(Wait(number, old.wait_class, old.count, old.from_ns, t_ns))
        if now:
            self._open[job_id] = now
        else:
            self._open.pop(job_id, None)
