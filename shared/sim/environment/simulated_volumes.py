"""Host volumes of a simulated node: made and deleted after a while, with faults.

What is on the disk survives the agent and the power; what an agent had begun is half made, until the next life asks
for it again.
"""

from collections.abc import Callable

from shared.core.runtime.volume_messages import (
    CreateVolume,
    DeleteVolume,
    VolumeAnswer,
    VolumeCreated,
    VolumeNotMade,
    VolumeNotRemoved,
    VolumeRemoved,
)
from shared.sim.virtual_time import MS, RandomDraws, VirtualLoop


class SimulatedVolumes:
    """Of one node. `inject` gives a message to the agent, which may be dead by then; `fails` draws a fault."""

    def __init__(
        self,
        loop: VirtualLoop,
        draws: RandomDraws,
        inject: Callable[[object], None],
        fails: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._draws = draws
        self._inject = inject
        self._fails = fails
        #: ids of what is on the disk, whole or in part.
        self.there: set[str] = set()
        self._life = 0

    def create(self, effect: CreateVolume) -> None:
        """Make a volume, or find it."""
        self._loop.after(self._draws.between(MS, 900 * MS), self._created, effect, self._life)

    def delete(self, effect: DeleteVolume) -> None:
        """Delete a volume, or leave it to the node's operator."""
        self._loop.after(self._draws.between(MS, 400 * MS), self._deleted, effect, self._life)

    def forget_agent(self) -> None:
        """End what an agent had begun."""
        self._life += 1

    def _created(self, effect: CreateVolume, life: int) -> None:
        volume_id, attempt = effect.spec.id, effect.attempt
        answer: VolumeAnswer
        if life != self._life:
            # The agent was killed while its plugin ran.
            self.there.add(volume_id)
            return
        if self._fails():
            if effect.is_new:
                self.there.discard(volume_id)
            answer = VolumeNotMade(id=volume_id, attempt=attempt, reason="simulated")
        else:
            self.there.add(volume_id)
            answer = VolumeCreated(id=volume_id, attempt=attempt, path=f"/volumes/{volume_id}")
        self._inject(answer)

    def _deleted(self, effect: DeleteVolume, life: int) -> None:
        volume_id = effect.spec.id
        if life != self._life:
            return
        if self._fails():
            self._inject(VolumeNotRemoved(id=volume_id, reason="simulated"))
            return
        if not effect.keeps_data:
            self.there.discard(volume_id)
        self._inject(VolumeRemoved(id=volume_id))
