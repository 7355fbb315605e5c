"""Host volumes that are created by request: what the agent's role asks of its node, what the node answers, the journal.

What a performer promises:
- Every `CreateVolume` is answered once by VolumeCreated or VolumeNotMade, every `DeleteVolume` by VolumeRemoved or
  VolumeNotRemoved. Both may be asked again: a volume that is there already stays as it is, one that is gone is gone.
- After VolumeNotMade of a volume that is new nothing of it is left, as far as its plugin can tell.
- After a failed write to the journal both are answered by their failure, and nothing is done.
- From VolumeCreated on tasks can mount it, until its `DeleteVolume` begins.
"""

import msgspec

from schemas.base import Wire
from schemas.host_volumes import VolumeSpec
from schemas.nodes import Pool
from shared.core.resources.asks import WHOLE

#: Name of the attribute and of the pool of a volume.
_VOLUME = "volume."
_READER = "single-node-reader-only"

#: What `VolumeKept.state` may be.
MAKING, READY, FAILED, DELETING = "making", "ready", "failed", "deleting"


class VolumeKept(Wire, frozen=True, kw_only=True, tag_field="kind", tag="volume"):
    """Where a volume stands; the last one of an id counts. On disk before anything is made or deleted."""

    spec: VolumeSpec
    attempt: int = 1
    #: making, ready, failed or deleting.
    state: str = MAKING
    #: of one that was made.
    path: str = ""
    capacity_bytes: int = 0
    reason: str = ""


class VolumeForgotten(Wire, frozen=True, kw_only=True, tag_field="kind", tag="volume_forgotten"):
    """Nothing of this volume is kept any more."""

    id: str


class CreateVolume(msgspec.Struct, frozen=True, kw_only=True):
    """Make a volume, or find it again. `is_new`: it was never ready; a failure leaves nothing of it."""

    spec: VolumeSpec
    attempt: int
    is_new: bool


class DeleteVolume(msgspec.Struct, frozen=True, kw_only=True):
    """Delete a volume with what is in it. `path`: where it was made; empty: not known.

    `keeps_data`: no task can mount it any more, and it stays where it is.
    """

    spec: VolumeSpec
    path: str = ""
    keeps_data: bool = False


class VolumeCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A volume is there."""

    id: str
    attempt: int
    path: str
    capacity_bytes: int = 0


class VolumeNotMade(msgspec.Struct, frozen=True, kw_only=True):
    """A volume cannot be made, or is there no more."""

    id: str
    attempt: int
    reason: str


class VolumeRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of a volume is left."""

    id: str


class VolumeNotRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A volume cannot be deleted now."""

    id: str
    reason: str


VolumeEntry = VolumeKept | VolumeForgotten
VolumeEffect = CreateVolume | DeleteVolume
#: What a node answers.
VolumeAnswer = VolumeCreated | VolumeNotMade | VolumeRemoved | VolumeNotRemoved


def is_read_only(spec: VolumeSpec) -> bool:
    """Say whether a volume may only be read: no capability of it lets anyone write."""
    return all(one.access_mode == _READER for one in spec.capabilities)


def volume_attribute(spec: VolumeSpec) -> tuple[str, str]:
    """Attribute by which a node offers a volume: its name, and rw or ro."""
    return _VOLUME + spec.name, "ro" if is_read_only(spec) else "rw"


def volume_pool(spec: VolumeSpec) -> Pool:
    """What writers of a volume hold: one unit, whole or in parts."""
    return Pool(name=_VOLUME + spec.name, amount=WHOLE)
