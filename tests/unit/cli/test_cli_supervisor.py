"""The supervisor of `caravan up` on a full disk keeps supervising, and writes its record when the disk has room."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.cli.local.cluster import LocalCluster, LocalClusterSettings

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Child:
    """A process that ended: each look says so, or fails as its start on a full disk does."""

    def __init__(self, name: str, *, has_room: bool) -> None:
        self.name = self.role = name
        self._has_room = has_room
        self.looks = 0

    def look(self, now_s: float) -> str:
        del now_s
        self.looks += 1
        if not self._has_room:
            raise FULL
        return "restarted, pid 7" if self.looks == 1 else ""


class _Server:
    """A bus that ended, whose start writes a file first."""

    pid = 0
    starts = 0

    def start(self) -> None:
        self.starts += 1
        raise FULL


def _cluster(folder: Path, notes: list[str], turns: int) -> LocalCluster:
    """A cluster whose supervisor takes so many turns, in the thread that calls it."""
    cluster = LocalCluster(LocalClusterSettings(data_dir=folder), notes.append)
    left = iter(range(turns))
    cluster._ending = cast("Any", SimpleNamespace(wait=lambda _: next(left, None) is None))
    return cluster


def test_the_supervisor_outlives_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a start nor the record of the cluster that cannot be written ends it; the record follows with room."""
    notes: list[str] = []
    written: list[int] = []
    cluster = _cluster(tmp_path, notes, turns=5)
    cluster.children = cast(
        "Any", [_Child("view", has_room=False), _Child("intake", has_room=True)]
    )

    def write() -> None:
        written.append(cluster.children[1].looks)  # type: ignore[attr-defined]
        if len(written) < 4:
            raise FULL

    monkeypatch.setattr(cluster, "_write_state", write)
    cluster._watch()
    assert [child.looks for child in cluster.children] == [5, 5]  # type: ignore[attr-defined]
    assert cluster.restarts == 1
    assert written == [1, 2, 3, 4, 5]
    told = [one for one in notes if "supervisor" in one]
    assert told == ["supervisor: [Errno 28] No space left on device; it tries again"]


def test_a_bus_that_cannot_be_started_keeps_no_other_process_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start fails on the full disk and is tried again later; processes are looked at meanwhile."""
    notes: list[str] = []
    cluster = _cluster(tmp_path, notes, turns=3)
    cluster.children = cast("Any", [_Child("intake", has_room=True)])
    server = _Server()
    cluster._server = cast("Any", server)
    monkeypatch.setattr(cluster, "_write_state", lambda: None)
    cluster._watch()
    assert cluster.children[0].looks == 3  # type: ignore[attr-defined]
    assert server.starts >= 1
    assert "bus: start failed: [Errno 28] No space left on device" in notes
