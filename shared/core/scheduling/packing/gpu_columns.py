"""GPU columns of a fleet, one ask, and what a placement takes.

They come from a benchmark's file or from the fleet's device resources.

A GPU is `WHOLE` ten-thousandths. A fraction of a GPU lies on one instance; several are whole, on empty
instances.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np

from shared.core.columns import Int64s, Mask

WHOLE: Final = 10_000


class GpuAsk(NamedTuple):
    """What one allocation needs. It is its own shape: equal asks are the same shape.

    Invariant: `gpus` is 0 (then `gpu_share` is 0), or 1 with 0 < `gpu_share` <= WHOLE, or more with
    `gpu_share` WHOLE.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int
    #: of each GPU.
    gpu_share: int
    #: bit m is set: model m is accepted. Ignored without GPUs.
    models: int

    @property
    def total_share(self) -> int:
        """GPU asked for, in 1 / WHOLE of one."""
        return self.gpus * self.gpu_share


class GpuColumns(msgspec.Struct, frozen=True, eq=False):
    """Free and whole room of N nodes, of which none has more than G GPUs.

    Shapes: (N,) each, but `gpu_free` (N, G): free of each instance, in 1 / WHOLE, 0 where a node has
    no such instance.
    """

    cpu_capacity: Int64s
    cpu_free: Int64s
    memory_capacity: Int64s
    memory_free: Int64s
    gpu_free: Int64s
    #: code of the one GPU model of the node; any code where it has no GPU.
    model: Int64s

    def fits(self, ask: GpuAsk) -> Mask:
        """Name the nodes with room for `ask` right now. Shape: (N,)."""
        mask = (self.cpu_free >= ask.cpu_milli) & (self.memory_free >= ask.memory_mib)
        if ask.gpus:
            mask &= (ask.models >> self.model) & 1 == 1
            room = self.gpu_free >= ask.gpu_share
            mask &= room.any(axis=1) if ask.gpus == 1 else room.sum(axis=1) >= ask.gpus
        return mask

    def only(self, rows: Int64s) -> "GpuColumns":
        """Return the columns of some rows, copied. Shapes: (R,)."""
        return GpuColumns(
            self.cpu_capacity[rows],
            self.cpu_free[rows],
            self.memory_capacity[rows],
            self.memory_free[rows],
            self.gpu_free[rows],
            self.model[rows],
        )

    def take(self, ask: GpuAsk, row: int, instance: int) -> tuple[int, ...]:
        """Place `ask` on a node and return the instances it got; it must fit.

        `instance` is where a fraction goes; several whole ones take the first empty instances.
        """
        taken: tuple[int, ...] = ()
        if ask.gpus == 1:
            taken = (instance,)
        elif ask.gpus:
            empty = np.flatnonzero(self.gpu_free[row] == WHOLE)[: ask.gpus]
            taken = tuple(int(one) for one in empty)
        assert len(taken) == ask.gpus
        self.cpu_free[row] -= ask.cpu_milli
        self.memory_free[row] -= ask.memory_mib
        for one in taken:
            self.gpu_free[row, one] -= ask.gpu_share
        return taken


class GpuChoice(NamedTuple):
    """A chosen place. `instance` is -1 unless the ask takes one GPU or a part of one."""

    row: int
    instance: int
    #: the policy's cost, lower is better; comparable only for the same ask at the same time.
    cost: int
