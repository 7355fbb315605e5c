"""Checks of remote tasks: one of a slot, none ended while its job wants it, none left when its job is gone.

Reads the log and the runtime alone, and shares no code with the tables.
"""

from collections.abc import Iterable, Sequence

from schemas import jobs, remotes
from schemas.envelope import LogRecord
from shared.core.runtime import agent_messages
from shared.core.runtime.remote_messages import RemoteRun, slot_name
from shared.sim.environment.remote_runtime import RemoteRuntime
from shared.sim.environment.role_factory import CLUSTER_ID
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.oracle.lifecycle_checks import BESIDE
from shared.sim.oracle.reference_model import ReferenceModel


class RemoteChecks:
    """What runs elsewhere, against what the log says of it."""

    def __init__(self, ledger: InvariantChecks, model: ReferenceModel) -> None:
        self._ledger = ledger
        self._model = model
        self._runtime: RemoteRuntime | None = None
        #: by generation: its newest report.
        self._slots: dict[int, remotes.RemoteSlot] = {}
        #: job -> group -> digest and count; empty: it is stopped.
        self._jobs: dict[str, dict[str, tuple[str, int]]] = {}

    def watch(self, runtime: RemoteRuntime) -> None:
        """Check every start and every end by order from now on."""
        self._runtime = runtime
        runtime.on_start = self._starts
        runtime.on_kill = runtime.on_call = self._obeys

    def apply(self, record: LogRecord) -> None:
        """Check one record. Raises InvariantBroken."""
        for event in record.events:
            match event:
                case jobs.JobRegistered():
                    groups = {one.name: (one.digest, one.count) for one in event.groups}
                    self._jobs[event.job_id] = groups
                case jobs.JobStopped():
                    self._jobs[event.job_id] = {}
                case jobs.JobsCollected():
                    for job_id in event.job_ids:
                        self._jobs.pop(job_id, None)
                case remotes.RemotesReported():
                    self._slots |= {one.generation: one for one in event.slots}
                case remotes.RemoteMoved():
                    if event.status == "ended":
                        self._slots.pop(event.generation, None)
                case _:
                    pass
        for event in record.events:
            if isinstance(event, remotes.RemoteMoved) and event.status == "ending":
                self._ledger.hold("remote_kept", self._may_end(event), event, self._slots)

    def _may_end(self, event: remotes.RemoteMoved) -> bool:
        slot = self._slots[event.generation]
        if not self._is_wanted(slot):
            return True
        alloc = self._model.by_key.get(slot.tracker)
        # What failed before it ran is not worth to be taken over; nor is what others took the place of.
        others = [
            one
            for one in self._model.allocs.values()
            if (one.job_id, one.group, one.index) == (slot.job_id, slot.group, slot.index)
            and one.is_wanted
            and one.key != slot.tracker
        ]
        is_over = alloc is None or alloc.client in {"failed", "complete"}
        return is_over or bool(others)

    def _is_wanted(self, slot: remotes.RemoteSlot) -> bool:
        digest, count = self._jobs.get(slot.job_id, {}).get(slot.group, ("", 0))
        return digest == slot.digest and slot.index < count

    # ---- the runtime ----

    def _starts(self, remote: RemoteRun) -> None:
        assert self._runtime is not None
        twins = [one for one in self._runtime.alive() if one.slot == remote.slot]
        self._ledger.hold("remote_once", not twins, remote, "beside", twins)
        known = self._known_attempt(remote)
        self._ledger.hold("remote_known", known >= remote.attempt, remote, "the log has", known)

    def _known_attempt(self, remote: RemoteRun) -> int:
        slot = self._slots.get(remote.generation)
        found = [
            task.attempt
            for name, task in (slot.tasks if slot is not None else {}).items()
            if slot_name(CLUSTER_ID, remote.generation, name) == remote.slot
        ]
        return max(found, default=0)

    def _obeys(self, remote: RemoteRun) -> None:
        """Check that what is obeyed there is not of one whom another tracker has replaced."""
        assert self._runtime is not None
        highest = self._runtime.epochs[remote.slot]
        self._ledger.hold("remote_kept", remote.epoch >= highest, remote, "below", highest)

    def stepped(
        self,
        node: SimulatedNode,
        effects: Sequence[object],
        *,
        wanted: frozenset[int],
        ends: frozenset[int],
    ) -> None:
        """Check that a tracker which must stop ends what runs elsewhere only where that is ordered."""
        if node.remotes is None:
            return
        for effect in effects:
            if not isinstance(effect, agent_messages.KillTask | agent_messages.SignalTask):
                continue
            if node.remotes.tracks((effect.key, effect.task, effect.run)):
                may = effect.key in wanted or effect.key in ends
                self._ledger.hold("remote_kept", may, node.node_id, "ends", effect)

    def may_end(self, node: SimulatedNode, key: int) -> bool:
        """Say whether a tracker may end an allocation that is wanted: a task of its group has failed."""
        runs = {name: run for name, run in node.runs.items() if name[0] == key}
        is_remote = any(task == BESIDE for _, task, _ in runs)
        return is_remote and any(run.is_started and not run.is_alive for run in runs.values())

    # ---- the end ----

    def unsettled(self) -> str:
        """Describe what runs elsewhere without a slot that is wanted; empty: nothing."""
        if self._runtime is None:
            return ""
        for remote in self._runtime.alive():
            slot = self._slots.get(remote.generation)
            if slot is None or not self._is_wanted(slot):
                return f"{remote} runs, its slot is {slot}"
        return self._doubled(self._runtime.alive())

    def _doubled(self, alive: Iterable[RemoteRun]) -> str:
        places: dict[tuple[str, str, int], RemoteRun] = {}
        for remote in alive:
            slot = self._slots[remote.generation]
            place = (str(slot.job_id), slot.group, slot.index)
            if places.get(place, remote).generation != remote.generation:
                return f"{remote} runs beside {places[place]}"
            places[place] = remote
        if places:
            self._ledger.hold("no_remote_left", holds=True)
        return ""
