"""The negotiated API version on a real engine, and on one that demands 1.44 as releases from 29 on do."""

import asyncio
from pathlib import Path

import docker
import pytest

from services.agent.drivers.docker.engine import API_MAX, API_MIN
from tests.bounds import WAIT_S, level
from tests.command_output import run_command
from tests.docker.box import a_box
from tests.docker.engine import OwnEngine
from tests.docker.version_gate import VersionGate

pytestmark = pytest.mark.asyncio


def _minor(text: str) -> int:
    return int(text.partition(".")[2])


async def test_the_newest_version_of_the_engine_is_used(engine: OwnEngine, top: Path) -> None:
    """The engine's own newest version, as far as this release knows it."""
    async with a_box(engine, top) as box:
        api = await box.driver._engine.call(lambda api: api)
        served = engine.client.version()["ApiVersion"]
        assert _minor(api.api_version) == min(_minor(served), API_MAX[1])
        assert _minor(api.api_version) >= API_MIN[1]


async def test_an_engine_that_demands_1_44(engine: OwnEngine, top: Path) -> None:
    """Start, events, logs, a command inside, statistics and the end: no request of an older version is made."""
    path = str(top / "gate.sock")
    served = engine.client.version()["ApiVersion"]
    real = engine.url.removeprefix("unix://")
    async with VersionGate(path, real, oldest=44, newest=52, real=_minor(served)) as gate:
        with pytest.raises(docker.errors.APIError, match=r"1\.41 is too old"):
            await asyncio.to_thread(_ask_as, path, "1.41")
        assert gate.refused == {41}
        url = f"unix://{path}"
        async with a_box(engine, top, url=url) as box:
            assert (await asyncio.to_thread(box.driver.fingerprint))["driver.docker"] == "1"
            handle = await box.start("echo hello; while :; do sleep 0.1; done")
            await level(lambda: "hello" in box.output())
            done = await run_command(box.driver, handle, ("echo", "inside"))
            assert (done.code, done.stdout) == (0, b"inside\n")
            assert (await box.driver.stats(handle)).memory_bytes > 0
            ending = asyncio.ensure_future(box.driver.wait(handle))
            await box.driver.stop(handle)
            assert (await asyncio.wait_for(ending, WAIT_S)).signal == 9
        assert gate.passed == {API_MAX[1]}
        assert gate.refused == {41}


def _ask_as(path: str, version: str) -> None:
    api = docker.APIClient(base_url=f"unix://{path}", version=version)
    try:
        api.info()
    finally:
        api.close()


async def test_a_newer_engine_takes_over(engine: OwnEngine, top: Path) -> None:
    """An engine is replaced by one that refuses the version used so far: the run continues."""
    path = str(top / "gate.sock")
    real = engine.url.removeprefix("unix://")
    minor = _minor(engine.client.version()["ApiVersion"])
    async with a_box(engine, top, url=f"unix://{path}") as box:
        async with VersionGate(path, real, oldest=24, newest=41, real=minor):
            handle = await box.start("sleep 300")
            ending = asyncio.ensure_future(box.driver.wait(handle))
            await asyncio.sleep(0.1)
        async with VersionGate(path, real, oldest=44, newest=44, real=minor) as gate:
            await level(lambda: 44 in gate.passed)
            assert not ending.done()
            engine.client.containers.get(handle.id).kill()
            assert (await asyncio.wait_for(ending, WAIT_S)).signal == 9
