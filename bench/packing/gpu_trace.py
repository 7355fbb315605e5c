"""The trace of a production GPU cluster, read from its files: the fleet, and pods drawn from a variant's list.

The files (openb of Alibaba's cluster-trace-gpu-v2023, for research) are not part of this tree: they are read from the
given folder.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from bench.packing.trace_variants import TRACE_VARIANTS
from services.cli.runtime.output import CliError
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk, GpuColumns
from shared.core.splitmix import splitmix64

NODES: Final = "openb_node_list_gpu_node.csv"
#: Any list of the trace, by name.
_POD_LIST: Final = "openb_pod_list_{}.csv"
_NODE_COLUMNS: Final = ("cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class TraceMachine(msgspec.Struct, frozen=True):
    """One row of the node list."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    #: code of the model, by name in order.
    model: int


class GpuTrace(msgspec.Struct, frozen=True):
    """A fleet in file order, and a variant's pods in file order."""

    machines: tuple[TraceMachine, ...]
    models: tuple[str, ...]
    pods: tuple[GpuAsk, ...]

    @property
    def capacity_share(self) -> int:
        """GPU of the whole fleet, in 1 / WHOLE of one."""
        return WHOLE * sum(one.gpus for one in self.machines)

    def columns(self) -> GpuColumns:
        """Create the empty fleet."""
        cpu = np.array([one.cpu_milli for one in self.machines], np.int64)
        memory = np.array([one.memory_mib for one in self.machines], np.int64)
        widest = max(one.gpus for one in self.machines)
        instances = np.array([one.gpus for one in self.machines])[:, None] > np.arange(widest)
        return GpuColumns(
            cpu_capacity=cpu,
            cpu_free=cpu.copy(),
            memory_capacity=memory,
            memory_free=memory.copy(),
            gpu_free=instances.astype(np.int64) * WHOLE,
            model=np.array([one.model for one in self.machines], np.int64),
        )

    def draw(self, seed: int) -> Iterator[GpuAsk]:
        """Draw pods from the list forever, with replacement; the same seed draws the same."""
        start = splitmix64(seed)
        at = 0
        while True:
            yield self.pods[splitmix64(start + at) % len(self.pods)]
            at += 1


def read(folder: str, variant: str, size: float) -> GpuTrace:
    """Read a variant; `size` below 1 takes that part of the nodes, evenly over the list.

    Raises CliError: no folder or variant given, a file is missing, a column is missing or holds no
    number.
    """
    if not folder:
        raise CliError("usage", f"--data DIR is needed: the folder that holds {NODES}")
    name, rule = TRACE_VARIANTS.get(variant, (variant, None))
    listed_in = Path(folder) / _POD_LIST.format(name)
    if not re.fullmatch(r"[\w-]+", name) or not listed_in.exists():
        known = ", ".join((*_pod_lists(Path(folder)), *TRACE_VARIANTS))
        raise CliError("usage", f"--variant is one of {known}, was {variant[:80]!r}")
    rows = _rows(Path(folder) / NODES, _NODE_COLUMNS)
    models = tuple(sorted({row["model"] for row in rows}))
    machines = [
        TraceMachine(
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["gpu"]),
            models.index(row["model"]),
        )
        for row in rows
    ]
    kept = max(int(len(machines) * min(size, 1.0)), 1)
    picked = tuple(machines[at * len(machines) // kept] for at in range(kept))
    listed = _rows(listed_in, _POD_COLUMNS)
    pods = tuple(_pod(row, models) for row in listed)
    if rule is not None:
        pods = tuple(rule(at, pod) for at, pod in enumerate(pods))
    if not any(pod.gpus for pod in pods) or not any(one.gpus for one in picked):
        raise CliError("data", f"neither pods nor nodes of {folder} may be without any GPU")
    return GpuTrace(picked, models, pods)


def _pod_lists(folder: Path) -> list[str]:
    """Names of the lists of pods in a folder, sorted."""
    head, _, tail = _POD_LIST.partition("{}")
    found = sorted(folder.glob(_POD_LIST.format("*")))
    return [path.name.removeprefix(head).removesuffix(tail) for path in found]


def _pod(row: dict[str, str], models: tuple[str, ...]) -> GpuAsk:
    """Read one pod. No `gpu_spec`, or an empty one, takes any model; names that the fleet does not have take none."""
    wanted = row.get("gpu_spec") or ""
    every = (1 << len(models)) - 1
    named = {name for name in wanted.split("|") if name in models}
    bits = sum(1 << models.index(name) for name in sorted(named)) if wanted else every
    gpus = int(row["num_gpu"])
    share = int(row["gpu_milli"]) * WHOLE // 1_000 if gpus else 0
    if (
        gpus < 0
        or not 0 <= share <= WHOLE
        or (gpus == 1 and not share)
        or (gpus > 1 and share != WHOLE)
    ):
        raise CliError("data", f"a pod of {gpus} GPUs of {share / WHOLE:g} is invalid")
    return GpuAsk(
        int(row["cpu_milli"]), int(row["memory_mib"]), gpus, share, bits if gpus else every
    )


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as err:
        raise CliError("data", f"cannot read the trace: {err.strerror}", file=str(path)) from err
    if not rows:
        raise CliError("data", "the file has no rows", file=str(path))
    for line, row in enumerate(rows, start=2):
        for column in columns:
            value = row.get(column)
            if value is None or (column != "model" and not value.isdecimal()):
                text = f"column {column} is missing or no whole number"
                raise CliError("data", text, file=str(path), line=line)
    return rows
