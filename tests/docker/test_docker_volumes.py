"""Host volumes in containers: there where they are mounted, and read only where that is said."""

from pathlib import Path

import pytest

from shared.core.runtime.agent_messages import VolumeBind
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
