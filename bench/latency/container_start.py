"""The time of a container's start through the agent, against the engine alone doing the same.

`python -m bench.latency.container_start [--starts 40]` prints one line of JSON; it needs root and dockerd, and
starts an engine of its own. By turns: a projection is handed to a real agent and the running container awaited; and
the engine creates and starts a container of the same image, with the same limits, network, capabilities and mounts.
The figure to reach: at most 15 % more at the median. Other load counts: `load_before` is printed.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import docker

from bench.latency.task_start import READY_S, TimedNode
from services.agent.drivers.docker.container_spec import HostCpu
from services.agent.drivers.docker.driver import DockerDriver
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.driver import Driver
from services.agent.executor.data_dir import DataDir
from tests.docker.engine import IMAGE, OwnEngine
from tests.integration.agent_node import job, projection

#: The first few load programs: they do not count.
WARM = 3


def _task() -> dict[str, Any]:
    config = {"image": IMAGE, "command": "/bin/sleep", "args": ["3600"]}
    resources = {"CPU": 20, "MemoryMB": 16}
    return {"Name": "main", "Driver": "docker", "Config": config, "Resources": resources}


class ContainerAgentBench:
    """An agent with the driver, on an engine of its own."""

    def __init__(self, engine: OwnEngine) -> None:
        self.engine = engine
        self.top = Path(tempfile.mkdtemp(prefix="caravan-starts-"))
        self.top.chmod(0o755)
        self.drivers: list[Driver] = []
        self.node = TimedNode(self.top, job(_task()), more=self._make_drivers)
        self.node.turn()

    def _make_drivers(self, home: DataDir) -> list[Driver]:
        self.drivers = [
            DockerDriver(
                DockerSettings(host=self.engine.url),
                data_dir=home.top,
                node_id="n1",
                home_id=home.host_id,
                kernel_boot=home.kernel_boot,
                machine=HostCpu(core_mhz=2000, cores=2),
            )
        ]
        return self.drivers

    async def ours_ms(self, number: int) -> float:
        """From a projection with one allocation more to its container running."""
        began = time.perf_counter()
        self.node.hear(projection(10 + number, *range(1, number + 1)))
        await self.node.until(lambda: self.node.status(number) == "running", READY_S)
        return (self.node.began[number] - began) * 1000

    def bare_ms(self, api: Any, like: dict[str, Any]) -> float:
        """The engine makes and starts what it has made for us once more."""
        host = like["HostConfig"]
        config = {
            **{name: like["Config"][name] for name in ("Image", "Cmd", "Env", "Labels")},
            "HostConfig": host,
        }
        config["Labels"] = {}
        began = time.perf_counter()
        made = api.create_container_from_config(config)
        api.start(made["Id"])
        took = (time.perf_counter() - began) * 1000
        api.remove_container(made["Id"], force=True)
        return took

    async def end(self) -> None:
        """End all containers and let go of everything."""
        await self.node.end_tasks()
        await self.node.close()
        for driver in self.drivers:
            driver.close()  # type: ignore[attr-defined]


async def measure(engine: OwnEngine, count: int) -> dict[str, float]:
    """Take turns; returns medians and least, in ms."""
    boxes = ContainerAgentBench(engine)
    api = docker.APIClient(base_url=engine.url, timeout=60)
    ours: list[float] = []
    bare: list[float] = []
    try:
        for number in range(1, count + WARM + 1):
            ours.append(await boxes.ours_ms(number))
            (like,) = api.containers(limit=1)
            shown = api.inspect_container(like["Id"])
            bare.append(await asyncio.to_thread(boxes.bare_ms, api, shown))
    finally:
        await boxes.end()
        api.close()
    ours, bare = ours[WARM:], bare[WARM:]
    more = median(ours) / median(bare) - 1
    return {
        "ours_p50_ms": round(median(ours), 1),
        "bare_p50_ms": round(median(bare), 1),
        "ours_min_ms": round(min(ours), 1),
        "bare_min_ms": round(min(bare), 1),
        "more_pct": round(more * 100, 1),
    }


def main() -> int:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency.container_start")
    parser.add_argument("--starts", type=int, default=40)
    arguments = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    engine = OwnEngine()
    try:
        engine.import_image()
        found = asyncio.run(measure(engine, arguments.starts))
    finally:
        engine.end()
    checks = {"within_15_pct": found["more_pct"] <= 15}
    sys.stdout.write(json.dumps({"docker": found, "checks": checks, "load_before": load}) + "\n")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
