"""The policies that P21 compares, behind one face: which node and GPU instance an ask gets.

Decides only how the two score-based policies, which know no GPUs, pick an instance: binpack the
fullest that has room, spread the emptiest.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

import numpy as np

from bench.openb import Trace
from services.cli.output import CliError
from shared.core.fragmentation import policy
from shared.core.fragmentation.gpus import Choice, GpuAsk, GpuColumns
from shared.core.fragmentation.gradient import Gradient
from shared.core.fragmentation.workload import Workload
from shared.core.scores import Algorithm, fit_of_free


class Packer(Protocol):
    """A policy at work on one fleet."""

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> Choice | None:
        """Choose a place for one ask that has just arrived."""
        ...

    def placed(self, choice: Choice) -> None:
        """Learn that it was placed there."""
        ...


class Fragmentation:
    """Our policy, which has seen what arrived and nothing else, unless an offline packing knows all."""

    def __init__(self, trace: Trace, known: Iterable[GpuAsk] = ()) -> None:
        self._models = len(trace.models)
        self._workload = Workload[GpuAsk]()
        self._workload.counts.update(Counter(known))
        self._is_online = not self._workload.counts
        self._generation = self._workload.generation
        self._prices = policy.price(self._workload.counts, self._models)
        self._usable = np.ones(len(trace.machines), np.bool_)

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> Choice | None:
        """Choose a place for one ask that has just arrived."""
        if self._is_online:
            self._workload.saw(ask)
        if self._generation != self._workload.generation:
            self._generation = self._workload.generation
            self._prices = policy.price(self._workload.counts, self._models)
        return policy.choose(columns, ask, self._usable, self._prices)

    def placed(self, choice: Choice) -> None:
        """Nothing to learn: the columns say it."""


class Published:
    """Fragmentation Gradient Descent, which knows the whole list before the first pod arrives."""

    def __init__(self, trace: Trace) -> None:
        self._gradient = Gradient(Counter(trace.pods), len(trace.models))
        self._usable = np.ones(len(trace.machines), np.bool_)

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> Choice | None:
        """Choose a place for one ask that has just arrived."""
        return self._gradient.choose(columns, ask, self._usable)

    def placed(self, choice: Choice) -> None:
        """Have the node's scores made anew."""
        self._gradient.changed(choice.row)


class ByFit:
    """Nomad's binpack or spread score of CPU and memory."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> Choice | None:
        """Choose a place for one ask that has just arrived."""
        rows = np.flatnonzero(columns.fits(ask))
        if not len(rows):
            return None
        fit = fit_of_free(
            columns.cpu_free[rows] - ask.cpu_milli,
            columns.memory_free[rows] - ask.memory_mib,
            np.maximum(columns.cpu_capacity[rows], 1),
            np.maximum(columns.memory_capacity[rows], 1),
            algorithm=self._algorithm,
        )
        at = int(fit.argmax())
        row = int(rows[at])
        instance = -1
        if ask.gpus == 1:
            free = columns.gpu_free[row]
            room = np.flatnonzero(free >= ask.gpu_share)
            best = free[room].argmin() if self._algorithm == "binpack" else free[room].argmax()
            instance = int(room[int(best)])
        return Choice(row, instance, -int(fit[at]))

    def placed(self, choice: Choice) -> None:
        """Nothing to learn: the columns say it."""


POLICIES: Final = ("fragmentation", "fgd", "binpack", "spread")


def packer(name: str, trace: Trace) -> Packer:
    """Make a policy for one run. Raises CliError: there is none of this name."""
    match name:
        case "fragmentation":
            return Fragmentation(trace)
        case "fgd":
            return Published(trace)
        case "binpack" | "spread":
            return ByFit(name)
        case _:
            raise CliError("usage", f"--policy is one of {', '.join(POLICIES)}, was {name[:80]!r}")
