"""Ask shapes: the shapes of asks that the log has seen, as a packing policy remembers them.

Decides how a group is remembered: by its words, not by the models that happened to be there. Prices are made in
gpu_packing.py.
"""

from typing import Final, NamedTuple

from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.resources.asks import WHOLE

#: The devices that are packed.
GPU_POOL: Final = "device.gpu"
#: Devices of one ask at the most; a node has not many more.
SEVERAL_MAX: Final = 64
_NONE: Final = ResourceAsk(pool=GPU_POOL, amount=0)


class AskShape(NamedTuple):
    """One shape: MHz, MiB, devices and how much of each in 1/10,000, and which models will do."""

    cpu_mhz: int
    memory_mib: int
    gpus: int
    share: int
    selector: ResourceAsk


def ask_shape_of(group: GroupSpec, asks: tuple[ResourceAsk, ...]) -> AskShape | None:
    """The shape of one allocation; None: the policy has no word for it."""
    some = [ask for ask in asks if ask.pool == GPU_POOL] if asks else None
    if not some:
        return AskShape(group.cpu_mhz, group.memory_mib, 0, 0, _NONE)
    ask = some[0]
    whole, part = divmod(ask.amount, WHOLE)
    if len(some) > 1 or (whole and part) or whole > SEVERAL_MAX or not (whole or part):
        return None
    if ask.affinities or (whole > 1 and ask.grouping):
        return None
    selector = ResourceAsk(
        pool=GPU_POOL, amount=0, vendor=ask.vendor, model=ask.model, constraints=ask.constraints
    )
    return AskShape(group.cpu_mhz, group.memory_mib, max(whole, 1), part or WHOLE, selector)
