"""Follows the orders for host volumes of this node: has them made and deleted, offers them, and says what became of it.

Decides when what is done; the plugins are the node's (`services/agent/volumes/`). Each step is in the journal before
anything is made or deleted, so that a later life takes it up: what it finds half made it requests again, by id.
"""

from collections.abc import Mapping, Sequence

import msgspec

from schemas.host_volumes import (
    VOLUME_DELETED,
    VOLUME_FAILED,
    VOLUME_READY,
    VolumeOrder,
    VolumeStatus,
)
from schemas.nodes import NodeSpec
from services.agent.tasks.runtime_state import AllocRuntime
from services.agent.tasks.supervisor import AgentStep
from services.agent.volume_reports import VolumeReports
from shared.core.runtime.messages import SetTimer
from shared.core.runtime.volume_messages import (
    DELETING,
    FAILED,
    READY,
    CreateVolume,
    DeleteVolume,
    VolumeAnswer,
    VolumeCreated,
    VolumeForgotten,
    VolumeKept,
    VolumeNotMade,
    VolumeNotRemoved,
    VolumeRemoved,
    volume_attribute,
    volume_pool,
)

#: A volume that could not be deleted is tried again after this.
RETRY_NS = 30_000_000_000
TIMER = "volumes"


class VolumeMonitor:
    """The volumes of this node that were created by request."""

    def __init__(self, reports: VolumeReports, allocs: Mapping[int, AllocRuntime]) -> None:
        self._reports = reports
        self._allocs = allocs
        self._kept: dict[str, VolumeKept] = {}
        #: the newest orders by id; None: none were heard in this life.
        self._orders: dict[str, VolumeOrder] | None = None
        #: volumes whose effect is not answered yet.
        self._busy: set[str] = set()
        #: those to be deleted once nothing uses them here, and those that could not be, until the timer.
        self._leaving: set[str] = set()
        self._failed: set[str] = set()
        #: deleted, and kept until the log says so, too.
        self._gone: set[str] = set()

    def restore(self, entry: VolumeKept | VolumeForgotten) -> None:
        """Take up what the journal holds."""
        if isinstance(entry, VolumeKept):
            self._kept[entry.spec.id] = entry
        else:
            self._kept.pop(entry.id, None)

    def wake(self, turn: AgentStep) -> None:
        """Find again what was made, and continue with what was not finished."""
        for volume_id in sorted(self._kept):
            one = self._kept[volume_id]
            if one.state == DELETING:
                self._leaving.add(volume_id)
            elif one.state == FAILED and not one.path:
                self._tell(one)
            else:
                self._create(one, turn)

    def follow(self, orders: Sequence[VolumeOrder], turn: AgentStep) -> bool:
        """Do what the cluster says of volumes; return whether the node offers others now."""
        wanted = {one.spec.id: one for one in orders}
        if wanted == self._orders:
            return False
        before = self._names()
        self._orders = wanted
        for volume_id in sorted(wanted):
            self._obey(wanted[volume_id], turn)
        for volume_id in sorted(self._kept.keys() - wanted.keys() - self._busy):
            self._leave(volume_id, turn)
        return self._names() != before

    def sync(self, turn: AgentStep) -> None:
        """Delete what nothing uses here any more."""
        for volume_id in sorted(self._leaving):
            one = self._kept[volume_id]
            if volume_id in self._busy or self._is_used(one.spec.name):
                continue
            self._leaving.discard(volume_id)
            self._busy.add(volume_id)
            turn.act(DeleteVolume(spec=one.spec, path=one.path))

    def retry(self) -> None:
        """Try again to delete what could not be deleted."""
        self._leaving |= self._failed
        self._failed = set()

    def retell(self) -> None:
        """Say again how each volume is: the log may have forgotten it."""
        for one in self._kept.values():
            if one.spec.id not in self._busy:
                self._tell(one)

    def take(self, event: VolumeAnswer, turn: AgentStep) -> bool:
        """Take what the node says of a volume; return whether the node offers others now."""
        one = self._kept.get(event.id)
        self._busy.discard(event.id)
        if one is None:
            return False
        before = self._names()
        if self._orders is not None and event.id not in self._orders:
            self._leave(event.id, turn)
            return self._names() != before
        match event:
            case VolumeCreated() | VolumeNotMade():
                if one.state != DELETING and event.attempt == one.attempt:
                    self._made(one, event, turn)
            case VolumeRemoved():
                self._gone.add(event.id)
                self._tell(one)
            case VolumeNotRemoved():
                self._failed.add(event.id)
                turn.act(SetTimer(TIMER, turn.now_ns + RETRY_NS))
                self._say(one, VOLUME_FAILED, event.reason)
        return self._names() != before

    def added_to(self, node: NodeSpec) -> NodeSpec:
        """The node with the volumes that it offers; one that the operator of the node names comes first."""
        specs = [self._kept[volume_id].spec for volume_id in self._offered()]
        pairs = dict(volume_attribute(one) for one in specs)
        if not pairs:
            return node
        taken = {one.name for one in node.pools}
        pools = [volume_pool(one) for one in specs if pairs[volume_attribute(one)[0]] == "rw"]
        return msgspec.structs.replace(
            node,
            attributes=dict(sorted({**pairs, **node.attributes}.items())),
            pools=(*node.pools, *(one for one in pools if one.name not in taken)),
        )

    # ---- inside ----

    def _obey(self, order: VolumeOrder, turn: AgentStep) -> None:
        volume_id = order.spec.id
        one = self._kept.get(volume_id)
        if order.delete:
            if one is None or one.state != DELETING:
                made = VolumeKept(spec=order.spec) if one is None else one
                self._keep(
                    msgspec.structs.replace(made, state=DELETING, attempt=order.attempt), turn
                )
                self._leaving.add(volume_id)
            elif volume_id in self._gone:
                self._tell(one)
        elif one is None or (one.attempt < order.attempt and one.state != DELETING):
            made = VolumeKept(spec=order.spec, attempt=order.attempt, path=one.path if one else "")
            self._keep(made, turn)
            self._create(made, turn)

    def _create(self, one: VolumeKept, turn: AgentStep) -> None:
        self._busy.add(one.spec.id)
        is_new = not one.path
        turn.act(CreateVolume(spec=one.spec, attempt=one.attempt, is_new=is_new))

    def _made(self, one: VolumeKept, event: VolumeCreated | VolumeNotMade, turn: AgentStep) -> None:
        if isinstance(event, VolumeCreated):
            now = msgspec.structs.replace(
                one, state=READY, path=event.path, capacity_bytes=event.capacity_bytes, reason=""
            )
        else:
            now = msgspec.structs.replace(one, state=FAILED, reason=event.reason)
        if now != one:
            self._keep(now, turn)
        self._tell(now)

    def _keep(self, one: VolumeKept, turn: AgentStep) -> None:
        self._kept[one.spec.id] = one
        turn.keep(one, sync=True)

    def _leave(self, volume_id: str, turn: AgentStep) -> None:
        """Forget a volume that the log does not have: it saw the deletion, or an operator had it forgotten.

        That is no order to delete: what is there stays.
        """
        one = self._kept.pop(volume_id)
        for names in (self._gone, self._leaving, self._failed):
            names.discard(volume_id)
        self._reports.drop(volume_id)
        turn.keep(VolumeForgotten(id=volume_id))
        if one.state != DELETING:
            turn.act(DeleteVolume(spec=one.spec, path=one.path, keeps_data=True))

    def _tell(self, one: VolumeKept) -> None:
        if one.state == READY:
            self._say(one, VOLUME_READY)
        elif one.state == FAILED:
            self._say(one, VOLUME_FAILED, one.reason)
        elif one.spec.id in self._gone:
            self._say(one, VOLUME_DELETED)

    def _say(self, one: VolumeKept, status: str, reason: str = "") -> None:
        is_ready = status == VOLUME_READY
        self._reports.put(
            VolumeStatus(
                id=one.spec.id,
                attempt=one.attempt,
                status=status,
                reason=reason,
                capacity_bytes=one.capacity_bytes if is_ready else 0,
                path=one.path if is_ready else "",
            )
        )

    def _offered(self) -> list[str]:
        """Ids of the volumes that tasks may use: they are ready, and the cluster knows them."""
        orders = self._orders
        return [
            volume_id
            for volume_id, one in sorted(self._kept.items())
            if one.state == READY and (orders is None or volume_id in orders)
        ]

    def _names(self) -> list[tuple[str, str]]:
        return [volume_attribute(self._kept[one].spec) for one in self._offered()]

    def _is_used(self, name: str) -> bool:
        """Say whether an allocation that has not ended mounts the volume of a name here."""
        return any(
            name in _volume_names(alloc) for alloc in self._allocs.values() if not alloc.is_dead()
        )


def _volume_names(alloc: AllocRuntime) -> set[str]:
    index = alloc.desired.index
    return {
        f"{one.source}[{index}]" if one.per_alloc else one.source
        for task in alloc.tasks.values()
        for one in task.plan.volumes
    }
