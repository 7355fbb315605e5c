"""What the processes of a cgroup use, as the kernel counts it, versions 1 and 2.

Decides which file says what. A controller that is not there leaves zeros. Source: the kernel's admin-guide/cgroup-v1
(memory, cpuacct, blkio) and cgroup-v2.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

_USEC_NS = 1_000
#: Controllers whose files are read.
READ = ("memory", "pids", "cpu", "cpuacct", "blkio", "io")


class GroupUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the group was made, and the present use. Zero: none, or not counted here."""

    cpu_ns: int = 0
    #: without what is only a cache of files.
    memory_bytes: int = 0
    #: the most that was ever charged, caches included.
    memory_peak_bytes: int = 0
    #: waited although it could run, because of a limit.
    throttled_ns: int = 0
    oom_kills: int = 0
    pids: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


def group_usage(places: Mapping[str, Path], second: tuple[str, ...]) -> GroupUsage:
    """Read a group. `places`: controller -> directory of the group; `second`: controllers of version 2."""
    memory, cpu = places.get("memory"), places.get("cpu")
    used = peak = cache = kills = 0
    if memory is not None and "memory" in second:
        used, peak = _number(memory / "memory.current"), _number(memory / "memory.peak")
        cache = _fields(memory / "memory.stat").get("inactive_file", 0)
        kills = _fields(memory / "memory.events").get("oom_kill", 0)
    elif memory is not None:
        used = _number(memory / "memory.usage_in_bytes")
        peak = _number(memory / "memory.max_usage_in_bytes")
        cache = _fields(memory / "memory.stat").get("total_inactive_file", 0)
        kills = _fields(memory / "memory.oom_control").get("oom_kill", 0)
    stat = _fields(cpu / "cpu.stat") if cpu is not None else {}
    throttled_ns = stat.get("throttled_usec", 0) * _USEC_NS or stat.get("throttled_time", 0)
    cpu_ns = stat.get("usage_usec", 0) * _USEC_NS
    if (counted := places.get("cpuacct")) is not None and "cpuacct" not in second:
        cpu_ns = _number(counted / "cpuacct.usage")
    read_bytes, written_bytes = _transfers(places, second)
    pids = places.get("pids")
    return GroupUsage(
        cpu_ns=cpu_ns,
        memory_bytes=max(used - cache, 0),
        memory_peak_bytes=peak,
        throttled_ns=throttled_ns,
        oom_kills=kills,
        pids=_number(pids / "pids.current") if pids is not None else 0,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )


def places_of_process(pid: int, mounts: str, root: str = "") -> dict[str, Path]:
    """Find the groups that a process is in: controller -> directory. `mounts`: /proc/self/mounts. Raises OSError."""
    own: dict[str, str] = {}
    for line in Path(f"{root}/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)
    found: dict[str, Path] = {}
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        top = root + fields[1].replace("\\040", " ")
        if fields[2] == "cgroup":
            for name in fields[3].split(","):
                if name in READ and name in own:
                    found[name] = Path(top + own[name])
        elif fields[2] == "cgroup2" and "" in own:
            place = Path(top + own[""])
            for name in _text(place / "cgroup.controllers").split():
                if name in READ:
                    found.setdefault(name, place)
    return found


def second_version(places: Mapping[str, Path]) -> tuple[str, ...]:
    """Tell which of the groups of `places_of_process` are of version 2."""
    return tuple(one for one, place in places.items() if (place / "cgroup.controllers").exists())


def _transfers(places: Mapping[str, Path], second: tuple[str, ...]) -> tuple[int, int]:
    """Bytes read from and written to devices."""
    read = written = 0
    if (place := places.get("io")) is not None and "io" in second:
        for word in _text(place / "io.stat").split():
            name, _, number = word.partition("=")
            read += int(number) if name == "rbytes" else 0
            written += int(number) if name == "wbytes" else 0
    elif (place := places.get("blkio")) is not None:
        for line in _text(place / "blkio.throttle.io_service_bytes").splitlines():
            words = line.split()
            read += int(words[2]) if len(words) == 3 and words[1] == "Read" else 0
            written += int(words[2]) if len(words) == 3 and words[1] == "Write" else 0
    return read, written


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0


def _fields(path: Path) -> dict[str, int]:
    """Numbers of a file with one name and one number a line."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {one[0]: int(one[1]) for one in pairs if len(one) == 2 and one[1].isdigit()}


def _text(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
