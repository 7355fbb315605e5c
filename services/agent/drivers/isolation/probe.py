"""The isolation that works here, probed in separate processes. Kernel versions are not reliable.

Decides what "works" means: not that a call exists, but that it had its effect. Printed as JSON by
`python -c "…probe.main()"`, in a process beside the agent, which has threads and must not fork.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from services.agent.drivers.isolation import cgroups, kernel, landlock, mount_view, seccomp
from services.agent.drivers.isolation.cgroups import CgroupHierarchies, CgroupLimits

_NOBODY = 65_534
_SPACES = {
    "pid": kernel.CLONE_NEWPID,
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
    "network": kernel.CLONE_NEWNET,
}


class IsolationSupport(msgspec.Struct, kw_only=True):
    """The working kinds of isolation; `why` has the reasons of the others."""

    works: list[str] = []
    landlock: int = 0
    controllers: list[str] = []
    hierarchies: CgroupHierarchies = CgroupHierarchies(dirs={})
    why: dict[str, str] = {}


def probe(parent: str) -> IsolationSupport:
    """Try everything."""
    found = IsolationSupport(landlock=landlock.version(), works=[], controllers=[], why={})
    for name, flag in _SPACES.items():
        _note(found, name, _tried(lambda flag=flag: kernel.unshare(flag)))  # type: ignore[misc]
    _note(found, "user", _tried(_change_user))
    _note(found, "view", _tried_view())
    _note(found, "landlock", _tried(_landlock))
    _note(found, "seccomp", _tried(_seccomp))
    _cgroups(found, parent)
    return found


def _note(found: IsolationSupport, name: str, why: str) -> None:
    if why:
        found.why[name] = why
    else:
        found.works.append(name)


def _tried(work: Callable[[], object]) -> str:
    """Run something in a child. Returns why it failed; empty: it did not."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as err:  # noqa: BLE001 - any error means that it does not work.
            os.write(write, str(err).encode()[:4000] or b"failed")
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said or (f"ended with {code}" if code else "")


def _change_user() -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    kernel.no_new_privileges()
    with contextlib.suppress(PermissionError):
        os.setuid(0)
        raise OSError("could regain root")


def _landlock() -> None:
    kernel.no_new_privileges()
    landlock.restrict(read=("/usr",), write=())
    with contextlib.suppress(PermissionError):
        os.listdir("/etc")
        raise OSError("has no effect on this kernel")
    os.listdir("/usr")


def _seccomp() -> None:
    kernel.no_new_privileges()
    seccomp.restrict()
    with contextlib.suppress(PermissionError):
        kernel.unshare(kernel.CLONE_NEWUTS)
        raise OSError("has no effect on this kernel")


def _tried_view() -> str:
    with tempfile.TemporaryDirectory() as top:
        for name in ("task", "shared"):
            Path(top, name).mkdir()
        why = _tried(lambda: _view(top))
        for path in Path(top, "task").iterdir():
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
    return why


def _view(top: str) -> None:
    kernel.unshare(kernel.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        mount_view.build_view(
            top=top, task=f"{top}/task", shared=f"{top}/shared", shown=(), devices=()
        )
        if os.path.exists(top) or os.path.exists("/root") or not os.path.exists("/proc/self"):
            os._exit(3)
        os.execv("/bin/sh", ["/bin/sh", "-c", "exit 7"])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 7:
        raise OSError(f"a program in a view ended with {code}")


def _cgroups(found: IsolationSupport, parent: str) -> None:
    found.hierarchies = cgroups.find_hierarchies(
        Path("/proc/self/mounts").read_text(encoding="utf-8")
    )
    groups = cgroups.CgroupTree(found.hierarchies, parent)
    name = f"probe-{os.getpid()}"
    try:
        groups.prepare()
        groups.make(name, CgroupLimits(cpu_mhz=100, memory_mib=64, processes=8))
    except OSError as err:
        found.why["cgroups"] = str(err)
        return
    child = os.fork()
    if child == 0:
        try:
            for path in groups.entries(name):
                Path(path).write_text("0", encoding="ascii")
            signal.pause()
        finally:
            os._exit(1)
    try:
        _await_member(groups, name, child)
        found.controllers = [one for one in cgroups.CONTROLLERS if one in found.hierarchies.dirs]
    except OSError as err:
        found.why["cgroups"] = str(err)
    groups.end(name)
    os.waitpid(child, 0)
    needed = {"memory", "pids", "cpu"}
    lacks = sorted(needed - {*found.controllers})
    if "cgroups" not in found.why:
        _note(found, "cgroups", f"no controller for {', '.join(lacks)}" if lacks else "")


def _await_member(groups: cgroups.CgroupTree, name: str, child: int) -> None:
    """Wait for the child to be in its group, or to have failed to."""
    while True:
        if groups.members(name) == [child]:
            return
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            raise OSError("a process could not join a cgroup")


def main(parent: str) -> None:
    """Print what was found."""
    sys.stdout.write(msgspec.json.encode(probe(parent)).decode())
