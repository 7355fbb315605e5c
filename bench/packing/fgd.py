"""Plain Fragmentation Gradient Descent: the published policy that ours is measured against.

Picks the node and instance whose expected fragmentation drops most. A benchmark gives it all shapes and their
popularity beforehand, which no running system knows.

The fragmentation of a node for a shape is the free GPU that the shape cannot use there: all of it
where CPU, memory, GPUs or model do not suffice, else what is free on instances too full for it. The
expectation over shapes by popularity is the node's fragmentation. Shapes without GPUs change every
node by the same and are left out. Ties go to the lower row, then to the lower instance. Source:
Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023), section 4; here exact, without their rounding of scores to whole
percents.

Shapes with equal GPU demand are one class; how many of a class a node's model, CPU and memory
suffice for is looked up in a table, so that the cost of a score does not grow with the number of
shapes.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from shared.core.columns import Int64s, Mask
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk, GpuChoice, GpuColumns

_NEVER: Final = 1 << 62


class GradientScores:
    """The workload's shapes, and by shape the scores of all nodes that have not changed since they were made.

    Give it every row that a placement changed (`changed`); `fragmentation` is the same number from
    scratch.
    """

    def __init__(self, shapes: Mapping[GpuAsk, int], models: int) -> None:
        """`shapes`: how popular each is; `models`: how many model codes there are."""
        asked = {shape: count for shape, count in shapes.items() if shape.gpus and count}
        self._total = sum(asked.values())
        self._classes = sorted({(shape.gpus, shape.gpu_share) for shape in asked})
        self._cpu = np.array(sorted({shape.cpu_milli for shape in asked}), np.int64)
        self._memory = np.array(sorted({shape.memory_mib for shape in asked}), np.int64)
        self._suffices = self._table(asked, models)
        self._usable_one, self._several = self._usable()
        self._scores: dict[GpuAsk, tuple[Int64s, Int64s]] = {}
        self._seen: dict[GpuAsk, int] = {}
        self._changes: list[int] = []

    def changed(self, row: int) -> None:
        """Note that a node's free room is another."""
        self._changes.append(row)

    def choose(self, columns: GpuColumns, ask: GpuAsk, usable: Mask) -> GpuChoice | None:
        """Choose node and instance among the `usable` (N,) nodes; None: it fits none of them."""
        if ask not in self._scores:
            size = len(columns.model)
            self._scores[ask] = (np.full(size, _NEVER, np.int64), np.zeros(size, np.int64))
            stale = np.arange(size)
        else:
            stale = np.array(sorted(set(self._changes[self._seen[ask] :])), np.int64)
        self._seen[ask] = len(self._changes)
        rises, instances = self._scores[ask]
        if len(stale):
            rises[stale], instances[stale] = self._rises(columns, ask, stale)
        allowed = rises if usable.all() else np.where(usable, rises, _NEVER)
        row = int(allowed.argmin())
        if allowed[row] == _NEVER:
            return None
        return GpuChoice(row, int(instances[row]), int(allowed[row]))

    def fragmentation(self, columns: GpuColumns, rows: Int64s) -> Int64s:
        """Return the expected fragmentation of `rows`, in 1 / WHOLE of a GPU times the sum of all popularities."""
        gpu_free = columns.gpu_free[rows]
        weights = self._weights(columns, columns.cpu_free[rows], columns.memory_free[rows], rows)
        usable = self._of_instances(weights, gpu_free).sum(axis=1)
        usable += self._of_several(weights, gpu_free)
        fragmented: Int64s = gpu_free.sum(axis=1) * self._total - usable
        return fragmented

    def _rises(self, columns: GpuColumns, ask: GpuAsk, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return by how much fragmentation rises when `rows` take the ask, at best, and on which instance."""
        rises = np.full(len(rows), _NEVER, np.int64)
        instances = np.full(len(rows), -1, np.int64)
        fits = columns.fits(ask)[rows]
        if not fits.any():
            return rises, instances
        kept = rows[fits]
        gpu_free = columns.gpu_free[kept]
        cpu = columns.cpu_free[kept] - ask.cpu_milli
        memory = columns.memory_free[kept] - ask.memory_mib
        weights = self._weights(columns, cpu, memory, kept)
        if ask.gpus == 1:
            after, best = self._after_one(weights, gpu_free, ask.gpu_share)
            instances[fits] = best
        else:
            if ask.gpus:
                empty = gpu_free == WHOLE
                gpu_free = np.where(empty & (empty.cumsum(axis=1) <= ask.gpus), 0, gpu_free)
            after = self._of_instances(weights, gpu_free).sum(axis=1)
            after += self._of_several(weights, gpu_free)
        # The free GPU falls by the same everywhere, but an absolute number explains more.
        left = columns.gpu_free[kept].sum(axis=1) - ask.total_share
        rises[fits] = left * self._total - after - self.fragmentation(columns, kept)
        return rises, instances

    def _after_one(self, weights: Int64s, gpu_free: Int64s, milli: int) -> tuple[Int64s, Int64s]:
        """Return the most GPU left usable by any choice of one instance, and which it is."""
        left = gpu_free - milli
        before = self._of_instances(weights, gpu_free)
        gain = self._of_instances(weights, np.maximum(left, 0)) - before
        if self._several:
            # An empty instance counts for shapes of several GPUs; all empty ones count the same.
            touched = gpu_free == WHOLE
            emptied = gpu_free.copy()
            emptied[np.arange(len(gpu_free)), touched.argmax(axis=1)] = 0
            lost = self._of_several(weights, emptied) - self._of_several(weights, gpu_free)
            gain += np.where(touched, lost[:, None], 0)
        gain[left < 0] = -_NEVER
        best = gain.argmax(axis=1)
        total = before.sum(axis=1) + self._of_several(weights, gpu_free)
        return total + gain[np.arange(len(gain)), best], best

    def _weights(self, columns: GpuColumns, cpu: Int64s, memory: Int64s, rows: Int64s) -> Int64s:
        """Return how popular the shapes of each class are that a node suffices for. Shape: (rows, classes)."""
        cpu_rank = np.searchsorted(self._cpu, cpu, side="right")
        memory_rank = np.searchsorted(self._memory, memory, side="right")
        return self._suffices[columns.model[rows], cpu_rank, memory_rank]

    def _of_instances(self, weights: Int64s, gpu_free: Int64s) -> Int64s:
        """Return what classes of one GPU can use of each instance. Shape: (rows, G)."""
        usable: Int64s = np.einsum("rgc,rc->rg", self._usable_one[gpu_free], weights)
        return usable

    def _of_several(self, weights: Int64s, gpu_free: Int64s) -> Int64s:
        """Return what classes of several whole GPUs can use of the node. Shape: (rows,)."""
        empty = (gpu_free == WHOLE).sum(axis=1)
        usable = np.zeros(len(gpu_free), np.int64)
        for at, gpus in self._several:
            usable += weights[:, at] * np.where(empty >= gpus, empty * WHOLE, 0)
        return usable

    def _usable(self) -> tuple[Int64s, list[tuple[int, int]]]:
        """Create the table of what a class can use of an instance (WHOLE + 1, classes), and the classes of several."""
        free = np.arange(WHOLE + 1, dtype=np.int64)
        table = np.zeros((WHOLE + 1, len(self._classes)), np.int64)
        several = []
        for at, (gpus, milli) in enumerate(self._classes):
            if gpus == 1:
                table[:, at] = np.where(free >= milli, free, 0)
            else:
                several.append((at, gpus))
        return table, several

    def _table(self, asked: Mapping[GpuAsk, int], models: int) -> Int64s:
        """Sum popularity below every pair of ranks. Shape: (models, CPU ranks, memory ranks, classes)."""
        shape = (models, len(self._cpu) + 1, len(self._memory) + 1, len(self._classes))
        table = np.zeros(shape, np.int64)
        for one, count in asked.items():
            at = self._classes.index((one.gpus, one.gpu_share))
            cpu = int(np.searchsorted(self._cpu, one.cpu_milli)) + 1
            memory = int(np.searchsorted(self._memory, one.memory_mib)) + 1
            for model in range(models):
                if one.models >> model & 1:
                    table[model, cpu, memory, at] += count
        return table.cumsum(axis=1).cumsum(axis=2)
