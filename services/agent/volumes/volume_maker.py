"""Performs what the role decided about host volumes: has a plugin make or delete one, and offers it to tasks.

A volume of an earlier life is offered at once, from the journal, so that a task that starts finds it.
"""

from collections.abc import Callable, Iterable

import structlog

from services.agent.host_volumes import HostVolume, HostVolumes
from services.agent.volumes.mkdir import VolumeRefused
from services.agent.volumes.plugins import MadeVolume, VolumePlugins
from shared.core.runtime.agent_messages import JournalEntry
from shared.core.runtime.volume_messages import (
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
    is_read_only,
)

IS_TAKEN = "the operator of the node names a volume of this name in the agent's settings"
_log = structlog.get_logger()


class VolumeMaker:
    """Of one agent. `offered`: what its tasks may mount."""

    def __init__(
        self, plugins: VolumePlugins, offered: HostVolumes, journal: Iterable[JournalEntry] = ()
    ) -> None:
        self._plugins = plugins
        self._offered = offered
        kept: dict[str, VolumeKept] = {}
        for entry in journal:
            if isinstance(entry, VolumeKept):
                kept[entry.spec.id] = entry
            elif isinstance(entry, VolumeForgotten):
                kept.pop(entry.id, None)
        for one in kept.values():
            if one.state == READY:
                offered.offer(one.spec.name, HostVolume(one.path, is_read_only(one.spec)))

    async def create(self, effect: CreateVolume, tell: Callable[[VolumeAnswer], None]) -> None:
        """Make a volume, or find it, and offer it."""
        spec = effect.spec
        try:
            made = await self._make(effect)
        except Exception as err:  # noqa: BLE001 - a plugin may fail in any way; its volume alone pays.
            reason = str(err) if isinstance(err, VolumeRefused) else repr(err)
            _log.warning("volume.failed", volume=spec.id, name=spec.name, reason=reason)
            self._offered.withdraw(spec.name, "")
            tell(VolumeNotMade(id=spec.id, attempt=effect.attempt, reason=reason))
            return
        _log.info("volume.made", volume=spec.id, name=spec.name, path=made.path)
        tell(
            VolumeCreated(
                id=spec.id,
                attempt=effect.attempt,
                path=made.path,
                capacity_bytes=made.capacity_bytes,
            )
        )

    async def _make(self, effect: CreateVolume) -> MadeVolume:
        spec = effect.spec
        made = await self._plugins.create(spec, is_new=effect.is_new)
        if self._offered.offer(spec.name, HostVolume(made.path, is_read_only(spec))):
            return made
        if effect.is_new:
            await self._plugins.delete(spec, made.path)
        raise VolumeRefused(IS_TAKEN)

    async def delete(self, effect: DeleteVolume, tell: Callable[[VolumeAnswer], None]) -> None:
        """Offer a volume no more, and delete it."""
        spec = effect.spec
        self._offered.withdraw(spec.name, effect.path)
        try:
            if not effect.keeps_data:
                await self._plugins.delete(spec, effect.path)
        except Exception as err:  # noqa: BLE001 - as above.
            reason = str(err) if isinstance(err, VolumeRefused) else repr(err)
            _log.warning("volume.not_deleted", volume=spec.id, name=spec.name, reason=reason)
            tell(VolumeNotRemoved(id=spec.id, reason=reason))
            return
        _log.info("volume.deleted", volume=spec.id, name=spec.name)
        tell(VolumeRemoved(id=spec.id))
