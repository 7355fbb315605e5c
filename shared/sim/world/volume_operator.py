"""An operator who creates host volumes, deletes them again, and tries again what failed.

A request is not repeated by itself: the next look makes another one.
"""

import msgspec

from shared.protocol import subjects
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.oracle.volume_checks import VolumeChecks
from shared.sim.virtual_time import MS, RandomDraws

#: Name of the volume that jobs ask for.
VOLUME = "vol-0"
_NAMES = 2
_VOLUMES_MAX = 8
_LOOK_NS = 400 * MS


class VolumeOperator:
    """Looks at the volumes now and then."""

    def __init__(
        self, context: SimulationContext, draws: RandomDraws, volumes: VolumeChecks
    ) -> None:
        self._context = context
        self._draws = draws
        self._volumes = volumes
        self._is_closing = False
        self._number = 0
        #: what was asked for, by id.
        self._specs: dict[str, dict[str, object]] = {}

    def begin(self, after_ns: int) -> None:
        """Look for the first time after a while."""
        self._context.loop.after(after_ns, self._look)

    def close(self) -> None:
        """Ask for nothing more."""
        self._is_closing = True

    def _look(self) -> None:
        if self._is_closing:
            return
        known = sorted(self._volumes.by_id)
        failed = [key for key in known if self._volumes.by_id[key].status == "failed"]
        if failed and self._draws.hit(500):
            self._create(failed[self._draws.below(len(failed))])
        elif known and (len(known) >= _VOLUMES_MAX or self._draws.hit(400)):
            # Mostly what may be in use: then it is refused.
            ready = [key for key in known if self._is_wanted(key)] if self._draws.hit(700) else []
            choice = ready or known
            self._delete(choice[self._draws.below(len(choice))])
        else:
            self._create("")
        self._context.loop.after(_LOOK_NS, self._look)

    def _is_wanted(self, volume_id: str) -> bool:
        one = self._volumes.by_id[volume_id]
        return (one.name, one.status) == (VOLUME, "ready")

    def _create(self, volume_id: str) -> None:
        if volume_id not in self._specs:
            volume_id = f"00000000-0000-0000-0000-{len(self._specs):012x}"
            name = f"vol-{self._draws.below(_NAMES)}"
            mode = {"access_mode": "single-node-writer"}
            self._specs[volume_id] = {"id": volume_id, "name": name, "capabilities": [mode]}
        self._request("create", {"spec": self._specs[volume_id]})

    def _delete(self, volume_id: str) -> None:
        self._request("delete", {"volume_id": volume_id})

    def _request(self, verb: str, body: dict[str, object]) -> None:
        self._number += 1
        data = msgspec.json.encode({**body, "request_id": f"volume-{self._number}"})
        for delay in self._context.message_faults.hop_delays():
            subject = subjects.api("volume", verb)
            self._context.loop.after(delay, self._context.bus.publish, subject, data, _ignore)


def _ignore(_answer: bytes) -> None:
    """The log shows what came of it."""
