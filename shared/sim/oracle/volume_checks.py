"""Checks of host volumes by request: a name once on a node, deleted only while nothing uses it, and so on the disks.

Reads the log alone, and shares no code with the tables.
"""

from collections.abc import Mapping, Sequence

from schemas import host_volumes, jobs
from schemas.base import Event
from schemas.plans import PlanCommitted
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.oracle.reference_model import ReferenceModel

_USES = "${attr.volume."


class _Volume:
    """What the log says of one volume."""

    def __init__(self, event: host_volumes.VolumeRequested) -> None:
        self.name = event.spec.name
        self.node_id = str(event.node_id)
        self.status = "pending"


class VolumeChecks:
    """What the volumes of all nodes must keep to."""

    def __init__(self, ledger: InvariantChecks, model: ReferenceModel) -> None:
        self._ledger = ledger
        self._model = model
        self.by_id: dict[str, _Volume] = {}
        #: names of volumes that a group uses, by job, version and group.
        self._used: dict[tuple[str, int, str], frozenset[str]] = {}

    def apply(self, events: Sequence[Event], ids: Mapping[int, str]) -> None:
        """Check the events of one record; `ids` are the nodes by row, after it. Raises InvariantBroken."""
        for event in events:
            match event:
                case jobs.JobRegistered():
                    self._registered(event)
                case host_volumes.VolumeRequested():
                    self._requested(event)
                case host_volumes.VolumeReady():
                    self._turn(event.volume_id, "ready", ("pending", "failed"))
                case host_volumes.VolumeFailed():
                    one = self.by_id[event.volume_id]
                    one.status = one.status if one.status == "deleting" else "failed"
                case host_volumes.VolumeDeleting():
                    self._turn(event.volume_id, "deleting", ("pending", "ready", "failed"))
                    self._unused(self.by_id[event.volume_id], ids)
                case host_volumes.VolumeDeleted():
                    one = self.by_id.pop(event.volume_id)
                    self._ledger.hold("volume_by_rule", one.status == "deleting", event)
                case PlanCommitted():
                    self._placed(event, ids)
                case _:
                    pass

    def unsettled(self) -> str:
        """Say which volume waits for its node; empty: none does."""
        waiting = [key for key, one in self.by_id.items() if one.status in {"pending", "deleting"}]
        return f"volumes wait for their nodes: {waiting}" if waiting else ""

    def settle(self, nodes: Sequence[SimulatedNode]) -> None:
        """Check at the end: each disk has what the log says of its node, and nothing else. Raises InvariantBroken."""
        for node in nodes:
            named = {key: one for key, one in self.by_id.items() if one.node_id == node.node_id}
            ready = {key for key, one in named.items() if one.status == "ready"}
            lacking, more = ready - node.volumes.there, node.volumes.there - named.keys()
            self._ledger.hold("volume_by_rule", not lacking, node.node_id, "lacks", lacking)
            self._ledger.hold("volume_by_rule", not more, node.node_id, "still has", more)

    def _registered(self, event: jobs.JobRegistered) -> None:
        for group in event.groups:
            names = {one.left for one in group.constraints if one.left.startswith(_USES)}
            if names:
                found = frozenset(one.removeprefix(_USES)[:-1] for one in names)
                self._used[str(event.job_id), event.version, group.name] = found

    def _requested(self, event: host_volumes.VolumeRequested) -> None:
        known = self.by_id.get(event.spec.id)
        if known is not None:
            same = (known.node_id, known.status) == (str(event.node_id), "failed")
            self._ledger.hold("volume_by_rule", same, event, "is", known.status)
        made = _Volume(event)
        others = [
            key
            for key, one in self.by_id.items()
            if (one.node_id, one.name) == (made.node_id, made.name) and key != event.spec.id
        ]
        self._ledger.hold("volume_by_rule", not others, event, "beside", others)
        self.by_id[event.spec.id] = made

    def _turn(self, volume_id: str, status: str, before: tuple[str, ...]) -> None:
        one = self.by_id[volume_id]
        self._ledger.hold("volume_by_rule", one.status in before, volume_id, one.status, status)
        one.status = status

    def _unused(self, one: _Volume, ids: Mapping[int, str]) -> None:
        """Check that no allocation which has not ended uses a volume."""
        ended = {"complete", "failed", "lost"}
        users = [
            alloc
            for alloc in self._model.allocs.values()
            if ids.get(alloc.node) == one.node_id
            and alloc.client not in ended
            and one.name in self._used.get((alloc.job_id, alloc.version, alloc.group), ())
        ]
        self._ledger.hold("volume_by_rule", not users, one.name, "is deleted under", users)

    def _placed(self, event: PlanCommitted, ids: Mapping[int, str]) -> None:
        """Check that nothing is placed on a volume that is being deleted."""
        leaving = {
            (one.node_id, one.name) for one in self.by_id.values() if one.status == "deleting"
        }
        for part in event.placements if leaving else ():
            names = self._used.get((str(event.job_id), part.version, part.group), frozenset())
            found = leaving.intersection((ids[row], name) for row in part.rows for name in names)
            self._ledger.hold("volume_by_rule", not found, event.job_id, "is placed on", found)
