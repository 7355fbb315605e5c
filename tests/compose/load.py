"""The clients of the compose tests, as processes that see the published ports.

`python -m tests.compose.load VERB URL ...`: `submit URL COUNT RATE` submits jobs until its stdin ends, asks for a
verdict on each, again under the same id until there is one, and ends when the log holds every placement; `placed URL`
reads the log; `leader URL CREDENTIALS` names the server that leads it, and each stream's replicas. The last line of
stdout is one JSON object.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.harness.fleet_process import n1_standard_8
from schemas.plans import PlanCommitted
from shared.bus.connection.nats_client import Login, connect
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.core.runtime.replica import Replica
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bounds import WAIT_S

GROUP = "group"
DATACENTER = "fleet"
#: So long may the cluster stand still before we say that something is lost.
_STILL_S = WAIT_S


def job(number: int, count: int) -> dict[str, Any]:
    """A job for the fleet, which places it and runs nothing."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "sleep", "args": ["3600"]},
        "Resources": {"CPU": 20, "MemoryMB": 15},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {"Name": GROUP, "Count": count, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    return {"ID": f"load-{number:04d}", "Datacenters": [DATACENTER], "TaskGroups": [group]}


async def submit(url: str, count: int, rate: int) -> dict[str, Any]:
    """Submit at a steady rate whatever happens, until stdin ends; every job gets a verdict in the end."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    verdicts: list[asyncio.Task[str]] = []
    async with Client(url) as client:
        began = time.monotonic()
        while not ended.is_set():
            verdicts.append(asyncio.create_task(_verdict(client, len(verdicts), count)))
            due = began + len(verdicts) / rate
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), max(0.0, due - time.monotonic()))
        found = Counter(await asyncio.gather(*verdicts))
        submitted_s = time.monotonic() - began
        placed = await _until_placed(client, len(verdicts) * count)
    return {
        "jobs": len(verdicts),
        "verdicts": dict(found),
        "submitted_s": round(submitted_s, 2),
        "placed": placed,
    }


async def _verdict(client: Client, number: int, count: int) -> str:
    """Ask until there is one."""
    body = {"Job": job(number, count), "SubmissionID": f"load-{number:04d}"}
    while True:
        try:
            verdict = await client.request("api.jobs.submit", body, timeout_s=6.0)
        except BusUnavailable:
            await asyncio.sleep(0.3)
            continue
        if verdict.get("status") != "pending":
            return str(verdict.get("status"))


async def _until_placed(client: Client, wanted: int) -> int:
    last, moved = -1, time.monotonic()
    while time.monotonic() - moved < _STILL_S:
        found = sum((await _read(client))["jobs"].values())
        if found >= wanted:
            return int(found)
        if found != last:
            last, moved = found, time.monotonic()
        await asyncio.sleep(1.0)
    return last


async def placed(url: str) -> dict[str, Any]:
    """Say what the log placed: for each job, and in each second."""
    async with Client(url) as client:
        return await _read(client)


async def _read(client: Client) -> dict[str, Any]:
    replica, per_job, per_second = Replica(), Counter[str](), Counter[int]()
    workers: set[str] = set()
    try:
        async for record in client.read_log():
            decoded = replica.apply(record)
            for event in decoded.events if decoded is not None else ():
                if isinstance(event, PlanCommitted) and event.placements:
                    n = sum(sum(one.counts) for one in event.placements)
                    per_job[event.job_id] += n
                    per_second[decoded.t_ns // 10**9] += n if decoded is not None else 0
                    workers.add(event.origin.worker)
    except BusUnavailable:
        pass  # The bus changes its leader: the next look tells.
    return {"jobs": per_job, "seconds": per_second, "workers": len(workers)}


async def leader(url: str, credentials: str) -> dict[str, Any]:
    """Ask which server leads the log, which lag behind, and how many hold each stream.

    A stream that is electing its leader does not answer: asked again for the duration of a few elections.
    """
    for _ in range(5):
        try:
            return await _leader(url, credentials)
        except BusUnavailable as err:
            print(f"asked again: {err}", file=sys.stderr)
    return await _leader(url, credentials)


async def _leader(url: str, credentials: str) -> dict[str, Any]:
    user, password = accounts.read_credentials(Path(credentials)).login(accounts.ADMIN)
    bare = ",".join("nats://" + one.rpartition("@")[2] for one in url.split(","))
    bus = await connect(Login(url=bare, user=user, password=password))
    try:
        answer = await bus.ask(subjects.js_stream_info(subjects.log_stream(1)), b"")
        every = (*streams.ENSURED, streams.JOBS, streams.log_config())
        infos = [await streams.info(bus, one.name) for one in every]
    finally:
        await bus.end()
    found: dict[str, Any] = json.loads(answer)["cluster"]
    replicas = {
        one.config.name: one.config.num_replicas
        for one in infos
        if one is not None and one.config is not None
    }
    behind = [one["name"] for one in found.get("replicas", ()) if not one.get("current")]
    return {"leader": found["leader"], "behind": behind, "replicas": replicas}


def fleet(nodes: int) -> list[Any]:
    """Nodes of the load's own datacenter."""
    import msgspec

    return [msgspec.structs.replace(one, datacenter=DATACENTER) for one in n1_standard_8(nodes)]


def main(words: list[str]) -> None:
    """Do what the first word says."""
    verb, url, *rest = words
    if verb == "submit":
        told = asyncio.run(submit(url, *(int(one) for one in rest)))
    elif verb == "placed":
        told = asyncio.run(placed(url))
    else:
        told = asyncio.run(leader(url, *rest))
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
