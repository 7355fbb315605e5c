"""Stateful groups, followed again from the log: order of starts and stops, and one instance of an index.

A part of the reference model; it shares no code with the scheduler. What really runs is judged by the simulated nodes.
"""

from collections.abc import Iterable
from typing import Any

from schemas import allocations, jobs, plans
from shared.sim.oracle.invariants import InvariantChecks

_ENDED = frozenset({"complete", "failed", "lost"})
_HEALTHY = 1
#: Reasons of stops that come one at a time, and of those the ones that take the highest index.
_ORDERED = frozenset({"not needed", "job stopped", "group removed", "job changed"})
_HIGHEST = _ORDERED - {"job changed"}


class StatefulChecks:
    """The stateful groups of all jobs, and the health of what runs."""

    def __init__(self, ledger: InvariantChecks, model: Any) -> None:
        self._ledger = ledger
        # The reference model, which makes this: its type would be an import cycle.
        self._model = model
        #: job, version, group.
        self._groups: set[tuple[str, int, str]] = set()
        self._health: dict[int, int] = {}

    def apply(self, event: object) -> None:
        """Check one fact, before the model has it. Raises InvariantBroken."""
        match event:
            case jobs.JobRegistered():
                names = [one.name for one in event.groups if one.stateful]
                self._groups |= {(event.job_id, event.version, name) for name in names}
            case allocations.AllocationsHealthChanged():
                self._health.update(zip(event.rows, event.healths, strict=True))
            case allocations.AllocationsCollected():
                for row in (*event.rows, *_run_rows(event.runs)):
                    self._health.pop(row, None)
            case plans.PlanCommitted() if self._groups:
                self._plan(event)
            case _:
                pass

    def _plan(self, event: plans.PlanCommitted) -> None:
        job = self._model.jobs.get(event.job_id)
        if job is None:
            return
        stopped = {row for stop in event.stops for row in stop.rows}
        lost = {row for stop in event.stops if stop.client_status for row in stop.rows}
        for row in sorted(lost):
            self._loses(self._model.allocs[row])
        for placement in event.placements:
            if (job.id, job.version, placement.group) in self._groups:
                self._starts(job, placement, stopped, lost)
        for stop in event.stops:
            if stop.reason in _ORDERED and not stop.client_status:
                for row in stop.rows:
                    self._stops(job, row, stop.reason, stopped)
        for update in event.updates:
            if update.deployment:
                for row in update.rows:
                    self._health.pop(row, None)

    def _loses(self, alloc: Any) -> None:
        """Check that what is declared lost surely runs no more."""
        if (alloc.job_id, alloc.version, alloc.group) in self._groups:
            node = self._model.nodes.get(alloc.node)
            is_gone = node is None or node.is_confirmed_dead
            self._ledger.hold("one_instance", is_gone, alloc, "is lost on a node that may run it")

    def _live(self, job_id: str, group: str) -> list[Any]:
        found = (one for one in self._model.allocs.values() if one.client not in _ENDED)
        return [one for one in found if (one.job_id, one.group) == (job_id, group)]

    def _starts(
        self, job: Any, placement: plans.GroupPlacement, stopped: set[int], lost: set[int]
    ) -> None:
        live = self._live(job.id, placement.group)
        taken = {one.index for one in live if one.row not in lost}
        ready = {
            one.index
            for one in live
            if one.desired == "run"
            and one.client == "running"
            and one.row not in stopped
            and self._health.get(one.row) == _HEALTHY
        }
        for index in _run_rows(placement.names):
            name = f"{job.id}.{placement.group}[{index}]"
            self._ledger.hold("one_instance", index not in taken, name, "is placed twice")
            taken.add(index)
            fine = not index or index - 1 in ready
            self._ledger.hold("starts_in_order", fine, name, "starts before", index - 1, "is ready")

    def _stops(self, job: Any, row: int, reason: str, stopped: set[int]) -> None:
        alloc = self._model.allocs[row]
        if (job.id, alloc.version, alloc.group) not in self._groups or alloc.client in _ENDED:
            return
        live = self._live(job.id, alloc.group)
        wanted = [one for one in live if one.desired == "run"]
        if alloc not in wanted:
            return
        others = [one for one in live if one is not alloc and one.client not in _ENDED]
        ending = [one for one in others if one.desired != "run" or one.row in stopped]
        self._ledger.hold("stops_in_order", not ending, alloc, "stops beside", ending)
        if reason in _HIGHEST:
            higher = [one for one in wanted if one.index > alloc.index]
            self._ledger.hold("stops_in_order", not higher, alloc, "stops before", higher)
            return
        fresh = [one for one in wanted if one.version == job.version]
        waits = [one for one in fresh if self._health.get(one.row) != _HEALTHY]
        self._ledger.hold("stops_in_order", not waits, alloc, "is replaced before", waits)
        is_sick = self._health.get(row) != _HEALTHY or alloc.client != "running"
        higher = [one for one in wanted if one.index > alloc.index and one not in fresh]
        self._ledger.hold("stops_in_order", is_sick or not higher, alloc, "comes before", higher)

    def runs_beside(self, key: int, running: Iterable[int]) -> list[Any]:
        """Say which of the running keys are other instances of the index of this one."""
        own = self._model.by_key.get(key)
        if own is None or (own.job_id, own.version, own.group) not in self._groups:
            return []
        name = (own.job_id, own.group, own.index)
        found = (self._model.by_key.get(other) for other in running if other != key)
        return [
            one
            for one in found
            if one is not None
            and (one.job_id, one.group, one.index) == name
            and (one.job_id, one.version, one.group) in self._groups
        ]


def _run_rows(runs: tuple[int, ...]) -> list[int]:
    return [runs[at] + n for at in range(0, len(runs), 2) for n in range(runs[at + 1])]
