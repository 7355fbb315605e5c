"""The machine that a benchmark runs on (limits of a container included), and whether it is large enough.

A machine that is too small is refused with the size that would fit.
"""

import os
import platform
import shutil
from pathlib import Path
from typing import Any

import msgspec

from services.cli.runtime.output import CliError
from shared.display.formats import format_mib

_CGROUP = Path("/sys/fs/cgroup")
#: Sizes that are suggested, largest first.
_PARTS = (0.5, 0.25, 0.1, 0.05, 0.02, 0.01)


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Units: cores that this process may use, MiB of memory."""

    cpu: str
    cores: float
    memory_mib: int
    system: str


class HostRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark requires at its full size; `base_mib` at any size."""

    cores: int = 2
    memory_mib: int = 1_024
    base_mib: int = 512
    #: programs that must be installed.
    programs: tuple[str, ...] = ()

    def mib(self, size: float) -> int:
        """Memory at a fraction of the size, MiB."""
        return int(self.base_mib + max(0, self.memory_mib - self.base_mib) * size)


def inspect_host() -> HostInfo:
    """Read the resources of this machine and the limits of its container."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HostInfo(
        cpu=_model() or platform.processor(),
        cores=min(len(os.sched_getaffinity(0)), _cgroup_cores()),
        memory_mib=int(min(pages, _cgroup_memory())) >> 20,
        system=f"{platform.system()} {platform.release()}",
    )


def host_as_result(machine: HostInfo) -> dict[str, Any]:
    """The machine as results contain it."""
    whole = int(machine.cores) if machine.cores == int(machine.cores) else round(machine.cores, 2)
    return {**msgspec.to_builtins(machine), "cores": whole}


def check_requirements(
    name: str, machine: HostInfo, needs: HostRequirements, size: float | None
) -> None:
    """Raise CliError when `size` of a benchmark does not fit; None: the full size, by default."""
    wanted = 1.0 if size is None else size
    missing = [program for program in needs.programs if shutil.which(program) is None]
    if missing:
        text = f"{name} requires {', '.join(missing)}"
        raise CliError("machine", f"{text}: not installed, or not in PATH")
    lacks = []
    # Fewer cores only take longer, which an explicit --size accepts.
    if machine.cores < needs.cores and size is None:
        lacks.append(f"{needs.cores} cores, has {machine.cores:g}")
    if machine.memory_mib < needs.mib(wanted):
        lacks.append(
            f"{format_mib(needs.mib(wanted))} of memory, has {format_mib(machine.memory_mib)}"
        )
    if not lacks:
        return
    fits = [part for part in _PARTS if part < wanted and machine.memory_mib >= needs.mib(part)]
    hint = f"try --size {fits[0]:g}" if fits else "no smaller size fits"
    raise CliError(
        "machine", f"this machine is too small: {name} requires {'; '.join(lacks)}; {hint}"
    )


def _model() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return ""
    lines = info.read_text(encoding="utf-8").splitlines()
    return next(
        (one.partition(":")[2].strip() for one in lines if one.startswith("model name")), ""
    )


def _cgroup_cores() -> float:
    """Cores of a container's quota; infinite without one."""
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
