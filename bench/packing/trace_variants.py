"""Altered workloads of the trace, to test whether a policy fits this trace only.

Each name is a list of the trace and a rule: a pure function of a pod and its place in the list.
"""

from collections.abc import Callable
from typing import Final

from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk
from shared.core.splitmix import splitmix64

VariantRule = Callable[[int, GpuAsk], GpuAsk]


def _more_cpu(_: int, pod: GpuAsk) -> GpuAsk:
    return pod._replace(cpu_milli=pod.cpu_milli * 3 // 2)


def _less_cpu(_: int, pod: GpuAsk) -> GpuAsk:
    return pod._replace(cpu_milli=pod.cpu_milli // 2)


def _more_memory(_: int, pod: GpuAsk) -> GpuAsk:
    return pod._replace(memory_mib=pod.memory_mib * 2)


def _several(at: int, pod: GpuAsk) -> GpuAsk:
    """Have a third of the requests for one whole GPU request two, four or eight."""
    if pod.total_share != WHOLE or splitmix64(at) % 3:
        return pod
    return pod._replace(gpus=2 << splitmix64(at + 7) % 3)


def _fractions(at: int, pod: GpuAsk) -> GpuAsk:
    """Draw every fraction again, from 0.05 to 0.94."""
    if pod.gpus != 1 or pod.gpu_share == WHOLE:
        return pod
    return pod._replace(gpu_share=500 + splitmix64(at) % 90 * 100)


#: name -> which list it is made of, and how.
TRACE_VARIANTS: Final[dict[str, tuple[str, VariantRule]]] = {
    "more-cpu": ("default", _more_cpu),
    "less-cpu": ("gpuspec33", _less_cpu),
    "more-memory": ("default", _more_memory),
    "several": ("default", _several),
    "fractions": ("gpuspec33", _fractions),
}
