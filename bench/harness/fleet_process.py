"""Run the fleet of a benchmark in its own process: `python -m bench.harness.fleet_process DATA_DIR URL`.

The nodes are listed in DATA_DIR/fleet.json. With DATA_DIR/profile.json they run their placements, as under `caravan
fleet`. Without it they are only registered and alive, so that placing alone is measured. A registration is sent again
until the log shows it; heartbeats go once a second for each node, spread over the second.
"""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.harness.log_observer import LogObserver, run_observer
from schemas.base import NodeId
from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import Heartbeat, NodeSpec, ReportNode
from services.agent.fleet.fleet_process import FleetSettings, run_fleet
from shared.bus.connection.nats_client import BusClient, ConnectionCallbacks, Login, connect
from shared.bus.jetstream.sender_proof import mark_of
from shared.bus.server import accounts
from shared.fleet.profile import read_profile
from shared.protocol import subjects

BOOT = "boot-1"
HOST = "host-of-"
_SLICES = 40
_RESEND_S = 0.5
_AT_ONCE = 500


def bench_node(number: int, cpu_mhz: int, memory_mib: int, **fields: Any) -> NodeSpec:
    """Node `number` of a benchmark's fleet, with driver raw_exec."""
    return NodeSpec(
        node_id=NodeId(f"n{number:05d}"),
        name=f"n{number:05d}",
        cpu_mhz=cpu_mhz,
        memory_mib=memory_mib,
        disk_mib=102_400,
        attributes={"driver.raw_exec": "1", "kernel.name": "linux"},
        **fields,
    )


def n1_standard_8(count: int, classes: int = 5) -> list[NodeSpec]:
    """The fleet of the million container challenge: 8 x 2.6 GHz, 30 GB, in classes by turns."""
    return [
        bench_node(number, 20_800, 30_720, node_class=f"class_{number % classes + 1}")
        for number in range(count)
    ]


def registration(spec: NodeSpec) -> bytes:
    """The first report of a node."""
    report = ReportNode(
        node_id=spec.node_id, host_id=f"{HOST}{spec.node_id}", boot_id=BOOT, number=1, spec=spec
    )
    return ENCODER.encode(CommandBatch(sender=f"agent-{spec.node_id}", commands=(report,)))


async def register(bus: BusClient, observer: LogObserver, nodes: Sequence[NodeSpec]) -> None:
    """Send registrations until the log shows them all."""
    while True:
        known = observer.state.fleet.row_of
        missing = [spec for spec in nodes if spec.node_id not in known]
        if not missing:
            return
        for start in range(0, len(missing), _AT_ONCE):
            for spec in missing[start : start + _AT_ONCE]:
                subject = subjects.report(spec.node_id)
                bus.send(subject, registration(spec), headers=mark_of(subject))
            await asyncio.sleep(0)
        waited = 0.0
        while waited < _RESEND_S and missing[-1].node_id not in observer.state.fleet.row_of:
            await asyncio.sleep(0.02)
            waited += 0.02


async def send_heartbeats(bus: BusClient, nodes: Sequence[NodeSpec]) -> None:
    """Send heartbeats forever."""
    beats = [
        (
            subjects.heartbeat(spec.node_id),
            ENCODER.encode(Heartbeat(node_id=spec.node_id, boot_id=BOOT)),
        )
        for spec in nodes
    ]
    slices = [beats[at::_SLICES] for at in range(_SLICES)]
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        for part in slices:
            for subject, data in part:
                bus.send(subject, data)
            due = max(due + 1 / _SLICES, loop.time())
            await asyncio.sleep(max(0.0, due - loop.time()))


def _lives(data_dir: Path, url: str, nodes: Sequence[NodeSpec], profile: Path) -> None:
    user, password = accounts.read_credentials(data_dir / "credentials.json").login(accounts.FLEET)
    settings = FleetSettings(
        login=Login(url=url, name="fleet", user=user, password=password),
        specs=nodes,
        profile=read_profile(profile.read_bytes()),
        life=secrets.token_hex(6),
    )
    print(run_fleet(settings, lambda line: print(line, flush=True)))


async def _main(data_dir: Path, url: str, nodes: Sequence[NodeSpec]) -> None:
    user, password = accounts.read_credentials(data_dir / "credentials.json").login(accounts.ADMIN)
    login = Login(url=url, name="bench", user=user, password=password)
    errors = ConnectionCallbacks(error=lambda err: print(err, file=sys.stderr))
    bus = await connect(login, errors)
    beating = asyncio.create_task(send_heartbeats(bus, nodes))
    async with run_observer(login) as observer:
        await register(bus, observer, nodes)
    await beating


if __name__ == "__main__":
    where, bus = Path(sys.argv[1]), sys.argv[2]
    specs = msgspec.json.decode((where / "fleet.json").read_bytes(), type=list[NodeSpec])
    if (where / "profile.json").exists():
        _lives(where, bus, specs, where / "profile.json")
    else:
        asyncio.run(_main(where, bus, specs))
