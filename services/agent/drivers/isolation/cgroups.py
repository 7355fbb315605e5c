"""Cgroups, version 1 and 2: limits, members and the end of a run's group.

Decides where a run's group is in each hierarchy, and its limits in the terms of that version. Must not
know drivers or tasks. On a machine with both, each controller is used where it is, and the second version's tree, which
needs no controller for that, kills. Every file is small text; `top` may be any directory, for tests.
Source: the kernel's admin-guide/cgroup-v1 and cgroup-v2.
"""

import contextlib
import errno
import hashlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from schemas.base import MIB
from services.agent.drivers.isolation.group_usage import GroupUsage, group_usage

#: In order of need; what is missing is said by the fingerprint.
CONTROLLERS = ("memory", "pids", "cpu", "cpuset", "cpuacct", "freezer")
#: Tries to empty a group whose members fork while they are killed.
_KILL_ROUNDS = 200
_UNIFIED = "unified"
#: The empty level of an agent without tasks for so long may be removed; the next task makes it again.
ABANDONED_S = 3600.0
#: The group of the processes that watch tasks.
KEEPERS_GROUP = "keepers"


class CgroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use. Zero: no limit."""

    #: its weight against others, in MHz of its ask.
    cpu_mhz: int = 0
    cores: tuple[int, ...] = ()
    memory_mib: int = 0
    #: beyond its ask while there is room; -1: without end.
    memory_max_mib: int = 0
    processes: int = 0

    @property
    def memory_hard_mib(self) -> int:
        """Where the kernel ends it; 0: nowhere."""
        if self.memory_max_mib < 0:
            return 0
        return max(self.memory_max_mib, self.memory_mib)


class CgroupHierarchies(msgspec.Struct, frozen=True, kw_only=True):
    """Directory of each controller in its hierarchy; `unified` is version 2's tree, with or without controllers."""

    dirs: dict[str, str]
    #: controllers that are version 2's.
    second: tuple[str, ...] = ()


def agent_level(parent: str, home: Path) -> str:
    """Path of one agent's level below a hierarchy: agents with other data directories have others."""
    return f"{parent}/{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"


def find_hierarchies(mounts: str, *, root: str = "") -> CgroupHierarchies:
    """Read the mount points of the hierarchies from /proc/self/mounts. `root` is put before each path, for tests."""
    dirs: dict[str, str] = {}
    second: tuple[str, ...] = ()
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        place = root + fields[1].replace("\\040", " ")
        if fields[2] == "cgroup":
            dirs |= {one: place for one in fields[3].split(",") if one in CONTROLLERS}
        elif fields[2] == "cgroup2":
            dirs[_UNIFIED] = place
            second = tuple(_text(Path(place, "cgroup.controllers")).split())
    for one in second:
        if one in CONTROLLERS:
            dirs.setdefault(one, dirs[_UNIFIED])
    return CgroupHierarchies(
        dirs=dirs, second=tuple(one for one in second if dirs.get(one) == dirs[_UNIFIED])
    )


class CgroupTree:
    """All groups of one agent: below `<hierarchy>/<parent>`. Raises OSError if the kernel refuses."""

    def __init__(self, found: CgroupHierarchies, parent: str) -> None:
        self.found = found
        self.parent = parent
        #: distinct directories: controllers that are mounted together share one.
        self.tops = {place: Path(place, parent) for place in sorted(set(found.dirs.values()))}

    def prepare(self) -> None:
        """Create the agent's own level and the keepers' group, and hand the second version's controllers down to it."""
        for place, top in self.tops.items():
            top.mkdir(parents=True, exist_ok=True)
            levels = [Path(place)]
            for part in Path(self.parent).parts:
                levels.append(levels[-1] / part)
            for level in levels:
                if place == self.found.dirs.get(_UNIFIED):
                    for one in self.found.second:
                        with contextlib.suppress(OSError):
                            _write(level / "cgroup.subtree_control", f"+{one}")
                elif place == self.found.dirs.get("cpuset") and level != levels[0]:
                    self._give_cores(level)
        self.make(KEEPERS_GROUP, CgroupLimits())

    def make(self, name: str, limits: CgroupLimits) -> None:
        """Create a run's group with its limits. What an earlier life left under that name is used again."""
        if not all(top.is_dir() for top in self.tops.values()):
            self.prepare()
        for top in self.tops.values():
            (top / name).mkdir(exist_ok=True)
            if top == self._of("cpuset", "") and "cpuset" not in self.found.second:
                self._give_cores(top / name)
        for controller, file, value in self._settings(limits):
            path = self._of(controller, name)
            if path is not None:
                with _soft(controller, file):
                    _write(path / file, value)

    def _give_cores(self, path: Path) -> None:
        """A new group of version 1 has no cores and no memory node until told."""
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not _text(path / file).strip():
                _write(path / file, _text(path.parent / file).strip())

    def _settings(self, limits: CgroupLimits) -> list[tuple[str, str, str]]:
        found = []
        two = self.found.second
        hard = limits.memory_hard_mib * MIB
        if "memory" in two:
            found += [("memory", "memory.oom.group", "0"), ("memory", "memory.swap.max", "0")]
            found += [("memory", "memory.max", str(hard))] if hard else []
            found += [("memory", "memory.low", str(limits.memory_mib * MIB))]
        elif "memory" in self.found.dirs:
            found += [("memory", "memory.swappiness", "0")]
            found += [("memory", "memory.limit_in_bytes", str(hard))] if hard else []
            found += [("memory", "memory.memsw.limit_in_bytes", str(hard))] if hard else []
            found += [("memory", "memory.soft_limit_in_bytes", str(limits.memory_mib * MIB))]
        if limits.cpu_mhz:
            shares = min(max(limits.cpu_mhz, 2), 262_144)
            weight = 1 + (shares - 2) * 9_999 // 262_142
            found.append(
                ("cpu", "cpu.weight", str(weight))
                if "cpu" in two
                else ("cpu", "cpu.shares", str(shares))
            )
        if limits.processes:
            found.append(("pids", "pids.max", str(limits.processes)))
        if limits.cores and "cpuset" in self.found.dirs:
            found.append(
                ("cpuset", "cpuset.cpus", ",".join(str(core) for core in sorted(limits.cores)))
            )
        return found

    def _of(self, controller: str, name: str) -> Path | None:
        place = self.found.dirs.get(controller)
        return self.tops[place] / name if place is not None else None

    def entries(self, name: str) -> list[str]:
        """Return the files that a process writes "0" into to be a member."""
        return [str(top / name / "cgroup.procs") for top in self.tops.values()]

    def oom_counter_path(self, name: str) -> str:
        """Return the file that counts kills for lack of memory; empty: nothing counts them."""
        path = self._of("memory", name)
        if path is None:
            return ""
        return str(
            path / ("memory.events" if "memory" in self.found.second else "memory.oom_control")
        )

    def members(self, name: str) -> list[int]:
        """Processes in a run's group, of every hierarchy."""
        return members([str(top / name) for top in self.tops.values()])

    def exists(self, name: str) -> bool:
        """Return whether anything of a run's group is there."""
        return any((top / name).is_dir() for top in self.tops.values())

    def end(self, name: str) -> None:
        """Kill all members and remove the group."""
        kill_and_remove([str(top / name) for top in self.tops.values()])

    def usage(self, name: str) -> GroupUsage:
        """Return what a group uses."""
        places = {one: self.tops[place] / name for one, place in self.found.dirs.items()}
        return group_usage(places, self.found.second)

    def sweep(self) -> int:
        """Remove groups without members that an earlier life left. Returns how many."""
        names = {path.name for top in self.tops.values() if top.is_dir() for path in _subs(top)}
        empty = sorted(name for name in names - {KEEPERS_GROUP} if not self.members(name))
        for name in empty:
            self.end(name)
        return len(empty)

    def sweep_abandoned(self, older_than_s: float = ABANDONED_S) -> None:
        """Remove levels of agents that were killed and never came back, as far as nothing runs in them."""
        for top in self.tops.values():
            for level in _subs(top.parent):
                with contextlib.suppress(OSError):
                    if level != top and time.time() - level.stat().st_mtime > older_than_s:
                        for part in (level / KEEPERS_GROUP, level):
                            part.rmdir()

    def remove(self) -> None:
        """Remove the agent's own level, unless something runs in it."""
        for top in self.tops.values():
            for level in (top / KEEPERS_GROUP, top):
                with contextlib.suppress(OSError):
                    level.rmdir()


def holding_tree(mounts: str, own: str, parent: str) -> CgroupTree | None:
    """Find where this process may make groups that only hold processes together: no limits, no controllers.

    `mounts`, `own`: /proc/self/mounts and /proc/self/cgroup. Root makes them at the top, another user in the group that
    was delegated to it. None: the kernel gives none.
    """
    found = find_hierarchies(mounts)
    paths = [line.split(":", 2)[1:] for line in own.splitlines() if line.count(":") >= 2]
    mine = {name: path for names, path in paths for name in names.split(",")}
    places = []
    if (top := found.dirs.get(_UNIFIED)) is not None:
        places = [(_UNIFIED, top), (_UNIFIED, f"{top}{mine.get('', '/')}".rstrip("/"))]
    if (top := found.dirs.get("freezer")) is not None and "freezer" not in found.second:
        places.append(("freezer", top))
    for name, place in places:
        tree = CgroupTree(CgroupHierarchies(dirs={name: place}), parent)
        with contextlib.suppress(OSError):
            tree.prepare()
            if os.access(Path(place, parent, KEEPERS_GROUP, "cgroup.procs"), os.W_OK):
                return tree
    return None


def join(entry: str, pid: int) -> None:
    """Make a process a member of the group; 0: this one. Raises OSError."""
    _write(Path(entry), str(pid))


def oom_kills(text: str) -> int:
    """Read how often the kernel killed for lack of memory, in either version's words."""
    return _field(text, "oom_kill")


def members(directories: list[str]) -> list[int]:
    """Processes that are in any of these groups."""
    found: set[int] = set()
    for directory in directories:
        found |= {int(word) for word in _text(Path(directory, "cgroup.procs")).split()}
    return sorted(found)


def kill_and_remove(directories: list[str]) -> None:
    """Kill all members of a run's groups, wait until they are gone, and remove the groups."""
    for directory in directories:
        with contextlib.suppress(OSError):
            _write(Path(directory, "cgroup.kill"), "1")
    for _ in range(_KILL_ROUNDS):
        left = members(directories)
        if not left:
            break
        _freeze(directories, "FROZEN")
        for pid in members(directories):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _freeze(directories, "THAWED")
        _wait_for(left)
    for directory in directories:
        _remove(directory)


def _freeze(directories: list[str], state: str) -> None:
    """Stop members from forking away from the kill: version 1's freezer; version 2 has cgroup.kill."""
    for directory in directories:
        path = Path(directory, "freezer.state")
        with contextlib.suppress(OSError):
            if path.exists():
                _write(path, state)


def _wait_for(pids: list[int]) -> None:
    """Wait briefly for each killed process; one that is stuck in the kernel delays only a moment."""
    for pid in pids:
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            try:
                select.select([fd], [], [], 0.05)
            finally:
                os.close(fd)


def _remove(directory: str) -> None:
    for _ in range(50):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError as err:
            # A task may make groups of its own below, where it may at all.
            for sub in _subs(Path(directory)):
                _remove(str(sub))
            if err.errno != errno.EBUSY:
                return
            # The last member is gone from the list a moment before it is gone from the group.
            time.sleep(0.005)
        else:
            return


def _subs(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir())
    except OSError:
        return []


@contextlib.contextmanager
def _soft(controller: str, file: str) -> Iterator[None]:
    """Kernels may be built without swap accounting and the like: only the limits that protect others must hold."""
    must = ("memory.limit_in_bytes", "memory.max", "pids.max", "cpuset.cpus", "cpuset.mems")
    try:
        yield
    except OSError as err:
        if file in must:
            raise OSError(err.errno, f"{controller} cgroup: {file}: {err.strerror}") from err


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0
