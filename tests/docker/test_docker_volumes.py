"""Host volumes in containers: there where they are mounted, and read only where that is said."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from shared.core.runtime.agent_messages import VolumeBind
from tests.bounds import WAIT_S, level
from tests.docker.box import a_box
from tests.docker.engine import OwnEngine

pytestmark = pytest.mark.asyncio


async def test_a_volume_is_written_and_a_read_only_one_is_not(engine: OwnEngine, top: Path) -> None:
    """What a container writes stays on the node."""
    volume = top / "volume"
    volume.mkdir()
    binds = (
        VolumeBind(source="v", target="/data", path=str(volume)),
        VolumeBind(source="v", target="/shown", path=str(volume), read_only=True),
    )
    async with a_box(engine, top / "home") as box:
        script = "echo new > /data/new; cat /shown/new; echo x > /shown/x || echo refused"
        await box.ended(script, launch_volumes=binds)
        assert box.output() == "new\nrefused\n"
    assert (volume / "new").read_text() == "new\n"
    assert not (volume / "x").exists()


@pytest.mark.parametrize("mode", ["rslave", "rprivate"])
async def test_a_bind_shows_what_the_node_mounts_later_where_it_is_shared(
    engine: OwnEngine, top: Path, mode: str
) -> None:
    """With rslave a mount that the node makes below the source appears in a running container, else not."""
    shared = top / "shared"
    (shared / "later").mkdir(parents=True)
    mount("--bind", str(shared), str(shared))
    try:
        mount("--make-shared", str(shared))
        block = {"type": "bind", "source": str(shared), "target": "/shown"}
        block["bind_options"] = [{"propagation": mode}]
        async with a_box(engine, top / "home", allowed_roots=str(shared)) as box:
            script = (
                "touch /shown/begun; until test -e /shown/go; do sleep 0.1; done; ls /shown/later"
            )
            handle = await box.start(script, mount=[block])
            await level((shared / "begun").exists)
            mount("-t", "tmpfs", "later", str(shared / "later"))
            (shared / "later" / "file").touch()
            (shared / "go").touch()
            await asyncio.wait_for(box.driver.wait(handle), WAIT_S)
            assert box.output() == ("file\n" if mode == "rslave" else "")
    finally:
        unmount(shared)


def mount(*words: str) -> None:
    """Mount on this node."""
    subprocess.run(["mount", *words], check=True)


def unmount(top: Path) -> None:
    """Take away what is mounted there and below."""
    subprocess.run(["umount", "--recursive", str(top)], check=False)
