"""Metrics of this process under their customary names (`process_*`), read from /proc where there is one."""

import resource
import time
from pathlib import Path

_STARTED_S = time.time()


def process_metrics() -> dict[str, float]:
    """Return processor time, memory, file descriptors and start time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "process_start_time_seconds": _STARTED_S,
        "process_max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
        found["process_open_fds"] = float(sum(1 for _ in Path("/proc/self/fd").iterdir()))
    except OSError:
        return found
    size = resource.getpagesize()
    found["process_virtual_memory_bytes"] = float(int(pages[0]) * size)
    found["process_resident_memory_bytes"] = float(int(pages[1]) * size)
    return found
