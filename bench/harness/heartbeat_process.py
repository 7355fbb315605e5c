"""Heartbeats of a whole fleet from one process that can silence nodes: for benchmarks of node loss.

To make a heartbeat a second and node cheap, nodes have fixed slots in the second, and all heartbeats of a slot are one
write. `python -m bench.harness.heartbeat_process DATA_DIR URL` registers the nodes of DATA_DIR/beats.json, then reads
lines from its input, each a JSON array of nodes to silence, and answers each with the time after which nothing of
theirs is sent.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from bench.harness.cluster import wait_until
from bench.harness.fleet_process import BOOT, registration
from bench.harness.log_observer import LogObserver, run_observer
from schemas.envelope import ENCODER
from schemas.nodes import Heartbeat, NodeSpec
from shared.bus.connection.nats_client import BusClient, ConnectionCallbacks, Login, connect
from shared.bus.jetstream.sender_proof import mark_of
from shared.bus.server import accounts
from shared.protocol import subjects

SLICES = 100
_WINDOW = 2_000
_RESEND_S = 1.0


class SilenceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: since when the nodes are silent (time.perf_counter), and how late a slice was at worst so far."""

    at_s: float
    late_s: float


class HeartbeatProcess:
    """The process, from where it is used. Registers and beats as soon as it is started."""

    def __init__(self, data_dir: Path, url: str, nodes: Sequence[NodeSpec]) -> None:
        (data_dir / "beats.json").write_bytes(msgspec.json.encode(nodes))
        with (data_dir / "logs" / "beats.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.harness.heartbeat_process", str(data_dir), url],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def silence(self, node_ids: Sequence[str]) -> SilenceAnswer:
        """Let nodes fall silent, forever."""
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        pipe_in.write(msgspec.json.encode(list(node_ids)) + b"\n")
        pipe_in.flush()
        answer = await asyncio.to_thread(pipe_out.readline)
        return msgspec.json.decode(answer, type=SilenceAnswer)


class _Sender:
    """The schedule of heartbeats."""

    def __init__(self, bus: BusClient, nodes: Sequence[NodeSpec]) -> None:
        self._bus = bus
        self._frames: list[dict[str, bytes]] = [{} for _ in range(SLICES)]
        for number, spec in enumerate(nodes):
            beat = ENCODER.encode(Heartbeat(node_id=spec.node_id, boot_id=BOOT))
            head = b"PUB %b %d\r\n" % (subjects.heartbeat(spec.node_id).encode(), len(beat))
            self._frames[number % SLICES][spec.node_id] = head + beat + b"\r\n"
        self._slices = [b"".join(one.values()) for one in self._frames]
        self.late_s = 0.0

    def silence(self, node_ids: Sequence[str]) -> None:
        """Send nothing of these any more."""
        gone = set(node_ids)
        for at, frames in enumerate(self._frames):
            hit = gone.intersection(frames)
            for node_id in hit:
                del frames[node_id]
            if hit:
                self._slices[at] = b"".join(frames.values())

    async def run(self) -> None:
        """Send forever; a slice that is late goes out as soon as it can."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for at in range(SLICES):
                if self._bus.is_connected and self._slices[at]:
                    self._bus._write(self._slices[at])  # noqa: SLF001 - many frames in one write is what this is for.
                due += 1 / SLICES
                late = loop.time() - due
                self.late_s = max(self.late_s, late)
                if late > 1.0:
                    due = loop.time()
                await asyncio.sleep(max(0.0, -late))


async def _register(bus: BusClient, observer: LogObserver, nodes: Sequence[NodeSpec]) -> None:
    """Register some at a time, each again until the log shows it."""
    known = observer.state.fleet.row_of
    for start in range(0, len(nodes), _WINDOW):
        missing = list(nodes[start : start + _WINDOW])
        while missing:
            for spec in missing:
                subject = subjects.report(spec.node_id)
                bus.send(subject, registration(spec), headers=mark_of(subject))
            last = missing[-1].node_id
            with contextlib.suppress(TimeoutError):
                await wait_until(partial(known.__contains__, last), "they are known", _RESEND_S)
            missing = [spec for spec in missing if spec.node_id not in known]


async def _main(data_dir: Path, url: str) -> None:
    nodes = msgspec.json.decode((data_dir / "beats.json").read_bytes(), type=list[NodeSpec])
    user, password = accounts.read_credentials(data_dir / "credentials.json").login(accounts.ADMIN)
    login = Login(url=url, name="beats", user=user, password=password)
    bus = await connect(login, ConnectionCallbacks(error=lambda err: print(err, file=sys.stderr)))
    sender = _Sender(bus, nodes)
    beating = asyncio.create_task(sender.run())
    async with run_observer(login) as observer:
        await _register(bus, observer, nodes)
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        sender.silence(msgspec.json.decode(line, type=list[str]))
        answer = SilenceAnswer(at_s=time.perf_counter(), late_s=round(sender.late_s, 3))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    beating.cancel()
    await bus.end()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2]))
