"""What a benchmark runs on, and whether that is enough.

Decides what a machine has (a container's bounds count, too) and how it is told that a benchmark wants more: a machine
that is too small gets an error with the part that would fit, and runs a part only when asked. Must not know what is
measured.
"""

import os
import platform
from pathlib import Path
from typing import Any

import msgspec

from services.cli.output import CliError

_CGROUP = Path("/sys/fs/cgroup")
#: Parts of a benchmark that are offered, largest first.
_PARTS = (0.5, 0.25, 0.1, 0.05, 0.02, 0.01)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Units: whole cores that this process may use, MiB in all."""

    cpu: str
    cores: float
    memory_mib: int
    system: str


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark wants at its full size; `base_mib` at any size."""

    cores: int = 2
    memory_mib: int = 1_024
    base_mib: int = 512

    def mib(self, size: float) -> int:
        """Memory at a part of the size, MiB."""
        return int(self.base_mib + max(0, self.memory_mib - self.base_mib) * size)


def look() -> Machine:
    """Look at this machine, and at the bounds of the container around this process."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_model() or platform.processor(),
        cores=min(len(os.sched_getaffinity(0)), _cgroup_cores()),
        memory_mib=int(min(pages, _cgroup_memory())) >> 20,
        system=f"{platform.system()} {platform.release()}",
    )


def told(machine: Machine) -> dict[str, Any]:
    """The machine as results hold it."""
    whole = int(machine.cores) if machine.cores == int(machine.cores) else round(machine.cores, 2)
    return {**msgspec.to_builtins(machine), "cores": whole}


def refuse_too_small(name: str, machine: Machine, needs: Needs, size: float | None) -> None:
    """Raise CliError when `size` of a benchmark does not fit; None: all of it, and nobody asked for less."""
    wanted = 1.0 if size is None else size
    lacks = []
    # Fewer cores only take longer: who asks for a part by name gets it.
    if machine.cores < needs.cores and size is None:
        lacks.append(f"{needs.cores} cores, and there are {machine.cores:g}")
    if machine.memory_mib < needs.mib(wanted):
        lacks.append(f"{needs.mib(wanted)} MiB of memory, and there are {machine.memory_mib}")
    if not lacks:
        return
    fits = [part for part in _PARTS if part < wanted and machine.memory_mib >= needs.mib(part)]
    hint = f"ask for a part: --size {fits[0]:g}" if fits else "no part of it fits"
    raise CliError("machine", f"this machine is too small: {name} wants {'; '.join(lacks)}; {hint}")


def _model() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return ""
    lines = info.read_text(encoding="utf-8").splitlines()
    return next(
        (one.partition(":")[2].strip() for one in lines if one.startswith("model name")), ""
    )


def _cgroup_cores() -> float:
    """Cores that a container's quota comes to; without one there is no bound."""
    quota, _, period = _first_line(_CGROUP / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else float("inf")


def _cgroup_memory() -> float:
    bound = _first_line(_CGROUP / "memory.max")
    return int(bound) if bound.isdigit() else float("inf")


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
