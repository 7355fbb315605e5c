"""Processes of this data directory that are not in its journal, for example after a restore of an older copy.

Decides by proof whose a process is: the directory of the allocation in its environment, and whether it comes from the
keeper of a run that the journal names; its cgroup. Runs before anything is started: what the journal names is adopted,
all else is ended. Containers are swept by their driver, by labels.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from services.agent.drivers.driver import AGENT_SHUTDOWN_MARK
from services.agent.drivers.isolation.cgroups import KEEPERS_GROUP, CgroupTree
from services.agent.drivers.process.os_process import OsProcess, has_pid, is_alive, parse_stat
from services.agent.drivers.process.run_record import VOID, read_claim
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import AllocKept, JournalEntry, TaskKept
from shared.protocol.id_tokens import id_token

#: Between the signal to end and the kill.
GRACE_S = 3.0
_LOOK_AGAIN_S = 0.05
#: A claim is written within milliseconds.
_CLAIM_LOOKS = 50
_PROC = Path("/proc")
_log = structlog.get_logger()


def known_runs(home: DataDir, journal: Iterable[JournalEntry]) -> dict[str, str]:
    """Directories of the runs that the journal names, each with the token of its allocation."""
    ids: dict[int, str] = {}
    found: dict[str, str] = {}
    for entry in journal:
        if isinstance(entry, AllocKept):
            ids[entry.alloc.key] = entry.alloc.alloc_id
        elif isinstance(entry, TaskKept) and entry.key in ids:
            alloc_id = ids[entry.key]
            directory = home.places(alloc_id, entry.task).runs / str(entry.run)
            found[str(directory)] = id_token(alloc_id)
    return found


def end_orphans(
    home: DataDir,
    groups: Sequence[tuple[CgroupTree, frozenset[str]]] = (),
    *,
    keep_known: bool = True,
) -> int:
    """End what runs of this directory and is in no journal; returns how many processes and groups that were.

    `keep_known` False: end processes of the journal, too.
    `groups`: trees of cgroups, each with the names of groups that are known. Blocks for up to GRACE_S.
    """
    known = known_runs(home, home.journal.entries) if keep_known else {}
    begun = [] if keep_known else _void_starts(known_runs(home, home.journal.current()))
    found = [*_orphans(home.top, known), *begun]
    strays = [(tree, name) for tree, names in groups for name in _stray_groups(tree, names)]
    if not found and not strays:
        return 0
    _log.warning(
        "orphans.ended",
        processes=[one.pid for one, _ in found],
        allocations=sorted({what for _, what in found}),
        groups=len(strays),
        reason="they are not in the journal, which was restored from an older copy"
        if keep_known
        else "their agent stopped, or their node was removed",
    )
    processes = list(dict.fromkeys(one for one, _ in found))
    _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while any(is_alive(one) for one in processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    _signal(processes, signal.SIGKILL)
    for tree, name in strays:
        with contextlib.suppress(OSError):
            tree.end(name)
    return len(found) + len(strays)


def _void_starts(runs: dict[str, str]) -> list[tuple[OsProcess, str]]:
    """Let no run begin any more, and record that those which have not ended end with their agent, at no charge.

    Returns the tasks that have begun, each with the token of its allocation.
    """
    found = []
    for run, token in runs.items():
        directory = Path(run)
        if not directory.is_dir() or (directory / "exit").exists():
            continue
        with contextlib.suppress(FileExistsError), (directory / "proc").open("x") as claim:
            claim.write(f"{VOID}\n")
        (directory / AGENT_SHUTDOWN_MARK).touch()
        begun = read_claim(directory)
        for _ in range(_CLAIM_LOOKS):
            if begun is not None or (directory / "proc").read_text() == f"{VOID}\n":
                break
            # The claim is being written.
            time.sleep(_LOOK_AGAIN_S / 5)
            begun = read_claim(directory)
        if begun is not None:
            found += [(begun.process, token)]
    return found


def _orphans(top: Path, known: dict[str, str]) -> Iterator[tuple[OsProcess, str]]:
    """Processes of the directory's allocations that belong to no known run, each with the token of its allocation."""
    allocs = f"{top}/alloc/"
    #: pids of keeper, task and init of each known run; None: an allocation of which one may be starting.
    pids_of: dict[str, set[int] | None] = {}
    for run, token in known.items():
        claim = read_claim(Path(run))
        pids = pids_of.setdefault(token, set())
        if claim is not None and pids is not None:
            pids |= {one.pid for one in (claim.keeper, claim.process, claim.init)}
        elif claim is None and not (Path(run) / "proc").exists():
            pids_of[token] = None
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError):
            token = _alloc_of(entry, allocs)
            pids = pids_of.get(token, set())
            if token and pids is not None and not pids & _ancestors(int(entry.name)):
                yield parse_stat((entry / "stat").read_text(errors="replace"))[0], token


def _ancestors(pid: int) -> set[int]:
    """A process and its ancestors. Raises OSError if one has ended in the meantime."""
    found = set()
    while pid > 1:
        found.add(pid)
        pid = int(parse_stat((_PROC / str(pid) / "stat").read_text(errors="replace"))[1][1])
    return found


def _alloc_of(entry: Path, allocs: str) -> str:
    """Token of the allocation that a process's environment names; empty: none of this home."""
    for variable in (entry / "environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == b"NOMAD_ALLOC_DIR":
            path = os.fsdecode(value)
            return path.removeprefix(allocs).partition("/")[0] if path.startswith(allocs) else ""
    return ""


def _signal(processes: Iterable[OsProcess], number: signal.Signals) -> None:
    for one in processes:
        if has_pid(one):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, number)


def _stray_groups(tree: CgroupTree, known: frozenset[str]) -> list[str]:
    """Groups with members that no known run has."""
    names: set[str] = set()
    for top in tree.tops.values():
        with contextlib.suppress(OSError):
            names |= {one.name for one in top.iterdir() if one.is_dir()}
    return sorted(name for name in names - known if name != KEEPERS_GROUP and tree.members(name))
