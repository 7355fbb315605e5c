"""Host volumes in isolated tasks: there where they are mounted, read only where that is said, and no way out."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.agent.drivers.driver import StartRefused
from services.agent.drivers.isolation import kernel
from shared.core.runtime.agent_messages import VolumeBind
from tests.bounds import level
from tests.integration.exec_node import NEEDED, Cell, a_cell, need

pytestmark = pytest.mark.asyncio
_MS_SHARED = 1 << 20


@pytest_asyncio.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    """A driver on this machine."""
    need(*NEEDED)
    async with a_cell(tmp_path) as made:
        yield made


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A directory of the node that everyone may write to."""
    found = tmp_path / "volume"
    found.mkdir()
    found.chmod(0o777)
    (found / "kept").write_text("kept\n")
    return found


async def test_a_volume_is_read_and_written(cell: Cell, volume: Path) -> None:
    """What a task writes stays on the node."""
    bind = VolumeBind(source="v", target="/srv/data", path=str(volume))
    _, said = await cell.run("cat /srv/data/kept; echo new > /srv/data/new", volumes=(bind,))
    assert said == "kept\n"
    assert (volume / "new").read_text() == "new\n"


async def test_a_read_only_volume_is_not_written(cell: Cell, volume: Path) -> None:
    """Neither to new files nor to old ones."""
    bind = VolumeBind(source="v", target="/data", path=str(volume), read_only=True)
    script = "cat /data/kept; (echo x > /data/new) 2>&1; (echo x > /data/kept) 2>&1"
    _, said = await cell.run(script, volumes=(bind,))
    assert said.startswith("kept\n")
    assert said.count("Read-only file system") == 2
    assert not (volume / "new").exists()


async def test_a_link_of_the_task_in_the_way_is_not_followed(cell: Cell, volume: Path) -> None:
    """A place of the mount that an earlier run made a link fails the start; nothing is mounted behind it."""
    run = cell.place()
    await cell.run("ln -s /usr /way", run)
    bind = VolumeBind(source="v", target="/way/data", path=str(volume))
    with pytest.raises(StartRefused):
        await cell.start("true", cell.place(), volumes=(bind,))


async def test_what_the_node_mounts_later_appears_where_it_is_said(
    cell: Cell, volume: Path
) -> None:
    """With host-to-task; beside it, a private mount of the same volume stays as it was."""
    kernel.mount("tmpfs", str(volume), "tmpfs", data="mode=777")
    try:
        kernel.mount("", str(volume), flags=_MS_SHARED)
        (volume / "late").mkdir()
        binds = (
            VolumeBind(source="v", target="/got", path=str(volume), propagation="host-to-task"),
            VolumeBind(source="v", target="/own", path=str(volume)),
        )
        script = (
            "touch /got/up; until [ -e /got/late/it ]; do :; done; ls /own/late; cat /got/late/it"
        )
        task = asyncio.ensure_future(cell.run(script, volumes=binds))
        await level((volume / "up").exists, "the task runs")
        kernel.mount("tmpfs", str(volume / "late"), "tmpfs")
        (volume / "late" / "it").write_text("seen\n")
        _, said = await task
        assert said == "seen\n"
    finally:
        kernel.unmount(str(volume / "late"))
        kernel.unmount(str(volume))


async def test_what_exec_cannot_do_for_a_mount_is_refused(cell: Cell, volume: Path) -> None:
    """For good: the job's spec came past the checks of a submission."""
    for more in ({"propagation": "bidirectional"}, {"label": "z"}):
        bind = VolumeBind(source="v", target="/data", path=str(volume), **more)
        with pytest.raises(StartRefused) as raised:
            await cell.start("true", volumes=(bind,))
        assert raised.value.recoverable is False
