"""The terminal of a command in a container: its size is set as soon as it can be, and never too late."""

from typing import Any, cast

import docker
import pytest

from services.agent.drivers.docker import exec_session
from services.agent.drivers.docker.engine import DockerEngine, EngineRefused
from services.agent.drivers.docker.exec_session import DockerSession


class Engine:
    """An engine that refuses some resizes of a command, which ends after some looks."""

    def __init__(self, refusals: int, ends_after: int) -> None:
        self.refusals = refusals
        self.ends_after = ends_after
        self.resized: list[tuple[int, int]] = []
        self.asked = 0

    async def call(self, work: Any, _id: str, *size: int) -> dict[str, Any]:
        """Do as the engine does."""
        if work is docker.APIClient.exec_resize:
            self.asked += 1
            if self.asked <= self.refusals:
                raise EngineRefused(409, "cannot resize a stopped container")
            self.resized.append((size[0], size[1]))
            return {}
        self.ends_after -= 1
        is_over = self.ends_after < 0
        return {"Running": False, "ExitCode": 0 if is_over else None}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("refusals", "ends_after", "resized"),
    [(0, 9, [(30, 100)]), (3, 9, [(30, 100)]), (10**6, 0, []), (10**6, 4, [])],
)
async def test_a_late_resize_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
    refusals: int,
    ends_after: int,
    resized: list[tuple[int, int]],
) -> None:
    """A command that has not begun gets its size later, one that has ended none; neither is an error."""
    monkeypatch.setattr(exec_session, "_RESIZE_PAUSE_S", 0.0)
    engine = Engine(refusals, ends_after)
    session = DockerSession(cast("DockerEngine", engine), "c", tty=True)
    await session.resize(30, 100)
    assert engine.resized == resized
