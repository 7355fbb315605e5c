"""The policies that P21 compares, behind one interface: the node and GPU instance of a request.

The two score-based policies, which know no GPUs, pick an instance: binpack the fullest with enough free, spread the
emptiest.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

import numpy as np

from bench.packing.fgd import GradientScores
from bench.packing.gpu_trace import GpuTrace
from services.cli.runtime.output import CliError
from shared.core.scheduling.packing import placement_costs
from shared.core.scheduling.packing.gpu_columns import GpuAsk, GpuChoice, GpuColumns
from shared.core.scheduling.scoring.scores import Algorithm, fit_of_free
from shared.core.state.workload import AskWorkload


class Packer(Protocol):
    """A policy at work on one fleet."""

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> GpuChoice | None:
        """Choose a place for one ask that has just arrived."""
        ...

    def placed(self, choice: GpuChoice) -> None:
        """Learn that it was placed there."""
        ...


class OnlineFragmentation:
    """Our policy, which has seen what arrived and nothing else, unless an offline packing knows all."""

    def __init__(self, trace: GpuTrace, known: Iterable[GpuAsk] = ()) -> None:
        self._models = len(trace.models)
        self._workload = AskWorkload[GpuAsk]()
        self._workload.counts.update(Counter(known))
        self._is_online = not self._workload.counts
        self._generation = self._workload.generation
        self._prices = placement_costs.make_prices(self._workload.counts, self._models)
        self._usable = np.ones(len(trace.machines), np.bool_)

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> GpuChoice | None:
        """Choose a place for one ask that has just arrived."""
        if self._is_online:
            self._workload.saw(ask)
        if self._generation != self._workload.generation:
            self._generation = self._workload.generation
            self._prices = placement_costs.make_prices(self._workload.counts, self._models)
        return placement_costs.choose(columns, ask, self._usable, self._prices)

    def placed(self, choice: GpuChoice) -> None:
        """Nothing to learn: the state is in the columns."""


class FragmentationGradient:
    """Fragmentation Gradient Descent, which knows the whole list before the first pod arrives."""

    def __init__(self, trace: GpuTrace) -> None:
        self._gradient = GradientScores(Counter(trace.pods), len(trace.models))
        self._usable = np.ones(len(trace.machines), np.bool_)

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> GpuChoice | None:
        """Choose a place for one ask that has just arrived."""
        return self._gradient.choose(columns, ask, self._usable)

    def placed(self, choice: GpuChoice) -> None:
        """Have the node's scores made again."""
        self._gradient.changed(choice.row)


class FitScorePacker:
    """Nomad's binpack or spread score of CPU and memory."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def choose(self, columns: GpuColumns, ask: GpuAsk) -> GpuChoice | None:
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
        return GpuChoice(row, instance, -int(fit[at]))

    def placed(self, choice: GpuChoice) -> None:
        """Nothing to learn: the state is in the columns."""


POLICIES: Final = ("fragmentation", "fgd", "binpack", "spread")


def packer(name: str, trace: GpuTrace) -> Packer:
    """Create a policy for one run. Raises CliError for an unknown name."""
    match name:
        case "fragmentation":
            return OnlineFragmentation(trace)
        case "fgd":
            return FragmentationGradient(trace)
        case "binpack" | "spread":
            return FitScorePacker(name)
        case _:
            raise CliError("usage", f"--policy is one of {', '.join(POLICIES)}, was {name[:80]!r}")
