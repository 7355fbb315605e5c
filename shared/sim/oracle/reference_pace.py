"""The pace of updates and drains, counted again from the log: how many stop by our own act while others have no health.

A part of the reference model; it shares no code with the scheduler. A plan is judged by what its snapshot could show:
what became unhealthy or ended after that is not a fault of it. What a plan in parts replaces is judged by its last
part: one without health that a later part stops is not counted by the scheduler either.
"""

from dataclasses import dataclass, field
from typing import Any

from schemas import allocations, plans
from schemas.allocations import HEALTHS
from schemas.jobs import GroupSpec

_HEALTHY, _UNHEALTHY = HEALTHS.index("healthy"), HEALTHS.index("unhealthy")
_CHANGED, _DRAINED = "job changed", "its node is drained"


@dataclass(slots=True)
class _Stopped:
    """What a plan stopped so far."""

    rows: set[int] = field(default_factory=set)
    #: allocations by reason and group, of the reasons that have a pace.
    counts: dict[tuple[str, str], int] = field(default_factory=dict)


class ReferencePace:
    """Health of all allocations, and what each plan may stop for it."""

    def __init__(self, model: Any) -> None:
        # The reference model, which makes this: its type would be an import cycle.
        self._model = model
        #: row -> code and the seq at which it became known.
        self._health: dict[int, tuple[int, int]] = {}
        #: row -> seq at which it was placed, or entered another deployment.
        self._since: dict[int, int] = {}
        #: row -> code that it had before it was updated in place, and the seq of that.
        self._before: dict[int, tuple[int, int]] = {}
        #: by worker and number of a plan of which parts follow.
        self._begun: dict[tuple[str, int], _Stopped] = {}

    def place(self, row: int) -> None:
        """Nothing is known of an allocation that was placed."""
        self._health.pop(row, None)
        self._before.pop(row, None)
        self._since[row] = self._model.seq

    def update(self, row: int) -> None:
        """Take an allocation that entered another deployment: its health counts anew for later plans."""
        code, _ = self._health.pop(row, (0, 0))
        self._before[row] = (code, self._model.seq)
        self._since[row] = self._model.seq

    def take(self, event: allocations.AllocationsHealthChanged, seq: int) -> None:
        """Take what was said of health."""
        for row, code in zip(event.rows, event.healths, strict=True):
            self._health[row] = (code, seq)

    def check(self, job: Any, event: plans.PlanCommitted) -> None:
        """Check the stops of a plan, before they are applied. Raises InvariantBroken."""
        origin = event.origin
        stopped = self._begun.setdefault((origin.worker, origin.number), _Stopped())
        drained: set[str] = set()
        for stop in event.stops:
            stopped.rows.update(stop.rows)
            if stop.reason != _CHANGED and not (stop.reason == _DRAINED and stop.tied):
                continue
            for row in stop.rows:
                name = self._model.allocs[row].group
                stopped.counts[stop.reason, name] = stopped.counts.get((stop.reason, name), 0) + 1
                if stop.reason == _DRAINED:
                    drained.add(name)
        for name in sorted(drained):
            self._moved(job, name, stopped.counts[_DRAINED, name], origin.snapshot_seq)
        if origin.part < origin.parts - 1:
            return
        del self._begun[origin.worker, origin.number]
        for (reason, name), count in sorted(stopped.counts.items()):
            if reason == _CHANGED:
                self._updated(job, name, count, seen=origin.snapshot_seq, stopping=stopped.rows)

    def _updated(self, job: Any, name: str, count: int, *, seen: int, stopping: set[int]) -> None:
        """No more are replaced than max_parallel, less the new ones without health."""
        rollouts = self._model.rollouts
        for key in rollouts.active(job.id):
            group = rollouts.by_key[key].groups.get(name)
            if group is None or rollouts.by_key[key].version != job.version:
                continue
            rows = [
                row
                for row in self._model.wanted(job.id, name) - stopping
                if row in rollouts.members
                and rollouts.members[row].deployment == key
                and self._since.get(row, 0) <= seen
            ]
            health = [self._health.get(row, (0, 0)) for row in rows]
            unready = sum(not code for code, _ in health)
            is_bad = any(code == _UNHEALTHY and at <= seen for code, at in health)
            waits = bool(group.canaries) and not group.is_promoted
            fits = count + unready <= group.max_parallel and (waits or not is_bad)
            # A plan that was made before the hold is refused.
            fits = fits and not rollouts.by_key[key].held_by
            self._model.ledger.hold("pace_kept", fits, job.id, name, count, unready, is_bad)

    def _moved(self, job: Any, name: str, count: int, seen: int) -> None:
        """Before the deadline so many stay healthy as the group's `migrate` block wants."""
        rollouts = self._model.rollouts
        actives = [rollouts.by_key[key].groups.get(name) for key in rollouts.active(job.id)]
        spec: GroupSpec | None = job.specs.get((job.version, name))
        if any(one is not None and one.canaries for one in actives) or spec is None:
            # Canaries leave at once, and the old ones are counted by their own version.
            return
        healthy = sum(self._was_healthy(alloc, seen) for alloc in self._model.of_group(job, name))
        stays = 0 if spec.migrate is None else spec.count - spec.migrate.max_parallel
        fits = spec.migrate is not None and healthy - count >= stays
        self._model.ledger.hold("drain_keeps_pace", fits, job.id, name, count, healthy, stays)

    def _was_healthy(self, alloc: Any, seen: int) -> bool:
        """Tell whether an allocation was wanted and healthy at a seq, as far as is known."""
        if self._model.allocs.get(alloc.row) is not alloc:
            return False
        code, _ = self._health.get(alloc.row, (0, 0))
        before, updated_seq = self._before.get(alloc.row, (0, 0))
        if updated_seq > seen:
            code = before
        # Another part of the plan may have stopped it.
        is_here = alloc.is_wanted or alloc.ended_seq > seen or alloc.stopped_seq > seen
        return bool(code == _HEALTHY and is_here)
