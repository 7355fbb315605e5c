"""Requests of the exec driver to its starter: start a run, or enter one. Plain data, JSON in a memory file.

Everything that depends on the operator or the node was decided before; nothing here is checked again.
"""

import os
from collections.abc import Iterable, Mapping

import msgspec

from services.agent.drivers.isolation.cgroups import CgroupHierarchies, CgroupLimits

#: The word that comes with an order's descriptors; for an isolated start it is the namespaces as a number.
ENTER, MOVE, PLAIN = b"enter", b"shelter", b"plain"


class Jail(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is kept apart; kept beside it, so that a later life can enter it too."""

    uid: int = 0
    gid: int = 0
    #: not kept apart at all: a task of raw_exec, entered.
    plain: bool = False
    groups: tuple[int, ...] = ()
    #: capabilities by number that the task holds; it has no others.
    capabilities: tuple[int, ...] = ()
    no_new_privileges: bool = True
    #: resource.RLIMIT_* number -> soft and hard.
    rlimits: dict[int, tuple[int, int]] = {}
    #: kernel.CLONE_NEW* of pid, ipc, uts, network.
    namespaces: int = 0
    #: the task's directory becomes its root, with the node's programs in it; else it sees the node's files.
    view: bool = True
    #: paths of the node that are shown, read only; without a view: that may be read.
    shown: tuple[str, ...] = ()
    #: host volumes: path of the node, place in the view, whether it is read only.
    volumes: tuple[tuple[str, str, bool], ...] = ()
    #: places of those in which later mounts of the node appear.
    receiving: tuple[str, ...] = ()
    #: with landlock: what may be read and executed, and what may be written; both empty: no rules.
    landlock_read: tuple[str, ...] = ()
    landlock_write: tuple[str, ...] = ()
    seccomp: bool = True
    #: files that take a member's "0".
    cgroup_entries: tuple[str, ...] = ()
    hostname: str = ""
    #: file that keeps the network namespace of the group, which the run enters; empty: it enters none.
    network: str = ""
    #: files of the node that are shown below /etc in the view, by name there.
    etc: dict[str, str] = {}


class RunCgroup(msgspec.Struct, frozen=True, kw_only=True):
    """The run's cgroups."""

    found: CgroupHierarchies
    parent: str
    name: str
    limits: CgroupLimits


class StartOrder(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a run; descriptor: the pipe that tells. Lines: `alive`, or `error <0|1> <reason>`, 1: worth a retry."""

    #: the run's own directory, for proc and exit.
    directory: str
    kernel_boot: str
    #: the task's directory; below `top`, which no task can write.
    top: str
    task: str
    #: the allocation's shared directory.
    shared: str
    #: empty: thrown away.
    stdout: str
    stderr: str
    #: paths of devices shown in the view.
    devices: tuple[str, ...] = ()
    argv: tuple[bytes, ...]
    #: `NAME=value`, exactly as the kernel hands them over.
    env: tuple[bytes, ...]
    #: in the view: from its root; else from the task's directory.
    work_dir: bytes
    jail: Jail
    groups: RunCgroup | None = None


class EnterOrder(msgspec.Struct, frozen=True, kw_only=True, tag="enter"):
    """Run a command inside a run. Descriptors: a pipe for `exit <code>` or `error …`, one that ends it, 0 to 2.

    With `tty` they are a socket, over which the master of a terminal comes that was opened inside.
    """

    pid: int
    start_ticks: int
    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]
    work_dir: bytes
    jail: Jail
    #: the command gets a terminal of its own.
    tty: bool = False


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True, tag="shelter"):
    """Move the starter, and so all keepers to come, where no limit and no service manager meets them."""

    entries: tuple[str, ...]


def encode_arguments(argv: Iterable[str]) -> tuple[bytes, ...]:
    """Arguments as the kernel takes them; JSON text could not hold bytes that are not UTF-8."""
    return tuple(os.fsencode(one) for one in argv)


def encode_environment(env: Mapping[str, str]) -> tuple[bytes, ...]:
    """Variables as the kernel takes them."""
    return tuple(os.fsencode(f"{name}={value}") for name, value in env.items())


StarterOrder = StartOrder | EnterOrder | MoveOrder
ORDER_DECODER = msgspec.json.Decoder(StartOrder | EnterOrder | MoveOrder)
