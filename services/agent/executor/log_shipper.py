"""Sends the output of tasks whose job says so to the stream LOGS: at least once, over crashes of the agent and the bus.

Decides when and how much: one pass a second, and what is acknowledged is kept in `shipping.json` beside the journal
before the next one. An output is entered there before its task starts, so that no crash forgets one. Never waits for a
task, and no task waits for it: what is read are the files of its output. Lines: `shipped_output.py`.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from schemas.envelope import ENCODER
from services.agent.drivers.driver import DriverRun
from services.agent.executor.data_dir import DataDir
from services.agent.executor.journal import replace_durably
from services.agent.executor.shipped_output import Batch, KeptOutput, ShippedOutput
from shared.core.runtime.agent_messages import LogLimits, TaskNames
from shared.errors import BusUnavailable
from shared.protocol import subjects

PASS_S = 1.0
#: Messages of a pass: of one output, and in all; a message has a block of 64 KiB at most.
OUTPUT_MESSAGES, PASS_MESSAGES = 16, 64
#: How often, in passes, it is looked for outputs whose files have gone.
_CLEAN_PASSES = 60
_ACK_S = 5.0
_LAST_S = 5.0
_log = structlog.get_logger()

_Name = tuple[str, str, str]


class Sender(Protocol):
    """The part of a connection to the bus that is needed here."""

    async def request_raw(
        self, subject: str, data: bytes, *, timeout_s: float = 2.0
    ) -> tuple[bytes, bytes]:
        """Publish and wait for the answer. Raises BusUnavailable."""
        ...


class _Ack(msgspec.Struct, frozen=True):
    """JetStream's answer to a publish; the number of the message is 0 where it was refused."""

    stream: str = ""
    seq: int = 0


_ACK = msgspec.json.Decoder(_Ack)
_KEPT = msgspec.json.Decoder(list[KeptOutput])


class LogShipper:
    """One per agent whose operator allows it. `bus_of`: the present connection; None: there is none."""

    def __init__(self, home: DataDir, node_id: str) -> None:
        self._home = home
        self._node_id = node_id
        self._file: Path = home.top / "shipping.json"
        self._outputs: dict[_Name, ShippedOutput] = {}
        self._passes = 0
        self._problem = ""
        #: what is kept is not on disk yet.
        self._is_unsaved = False
        #: of the file, and of a pass: each has one writer.
        self._saving, self._passing = asyncio.Lock(), asyncio.Lock()
        #: allocations and tasks that run.
        self.live: Callable[[], Collection[tuple[str, str]]] = tuple
        for one in self._read():
            self._add(one)

    # ---- what the executor says ----

    async def begin(
        self, run: DriverRun, limits: LogLimits, names: TaskNames | None = None
    ) -> None:
        """Ship the output of a run that is about to start, or that was found; an entry is on disk when this returns."""
        if not limits.ship or limits.disabled:
            return
        is_new = False
        for stream in ("stdout", "stderr"):
            kept = KeptOutput(alloc_id=run.alloc_id, task=run.task, stream=stream)
            if names is not None:
                kept = msgspec.structs.replace(kept, job_id=names.job, group=names.group)
            if kept.name not in self._outputs:
                self._add(kept)
                is_new = True
        self.wake(run)
        if is_new:
            await self._save()

    def wake(self, run: DriverRun) -> None:
        """Look at the output of a run again: it starts, or has ended."""
        for stream in ("stdout", "stderr"):
            if (one := self._outputs.get((run.alloc_id, run.task, stream))) is not None:
                one.is_done = False

    # ---- the passes ----

    async def run(self, bus_of: Callable[[], Sender | None]) -> None:
        """Ship until cancelled."""
        while True:
            await asyncio.sleep(PASS_S)
            bus = bus_of()
            if bus is not None:
                await self.ship(bus)

    async def ship_last(self, bus: Sender | None) -> None:
        """Ship the last lines of tasks that were ended with the agent, for a few seconds; the next sends the rest."""
        if bus is None:
            return
        try:
            async with asyncio.timeout(_LAST_S):
                while not self._problem and any(not one.is_done for one in self._outputs.values()):
                    await self.ship(bus)
        except TimeoutError:
            _log.warning("logs.not_shipped", reason=f"not sent within {_LAST_S:.0f} s")

    async def ship(self, bus: Sender) -> None:
        """Make one pass over what has something to send."""
        async with self._passing:
            self._passes += 1
            if self._is_unsaved and not await self._save():
                return
            if self._passes % _CLEAN_PASSES == 0:
                await asyncio.to_thread(self._forget_gone)
            live, left = frozenset(self.live()), PASS_MESSAGES
            before = self._state()
            try:
                for one in self._in_turn(live):
                    if left <= 0:
                        break
                    is_live = one.kept.name[:2] in live
                    left -= await self._ship_one(
                        bus, one, min(left, OUTPUT_MESSAGES), is_live=is_live
                    )
                self._say("")
            except BusUnavailable as err:
                self._say(str(err))
            finally:
                for name in [name for name, one in self._outputs.items() if one.is_gone]:
                    del self._outputs[name]
                if self._state() != before:
                    await self._save()

    async def _ship_one(self, bus: Sender, one: ShippedOutput, most: int, *, is_live: bool) -> int:
        """Send what is next of one output; returns how many messages that were. Raises BusUnavailable."""
        try:
            if await asyncio.to_thread(one.give_up):
                _log.warning("logs.lost", **_about(one.kept), bytes=one.kept.lost)
                # What is lost is counted once, whatever happens: readers compare offsets.
                if not await self._save():
                    return 0
            now_s = time.monotonic()
            found = await asyncio.to_thread(one.batches, most, is_live=is_live, now_s=now_s)
        except FileNotFoundError:
            one.is_gone = not is_live
            return 0
        except OSError as err:
            # A file that the task put in the place of its output: its own matter.
            if one.problem != str(err):
                one.problem = str(err)
                _log.warning("logs.unreadable", **_about(one.kept), error=one.problem)
            one.is_done = True
            return 0
        try:
            for batch in found:
                await self._send(bus, batch)
                one.acknowledge(batch)
        finally:
            if found and one.kept != found[-1].after:
                one.again()
        one.is_done = not found and not is_live
        return len(found)

    async def _send(self, bus: Sender, batch: Batch) -> None:
        """Publish a message and wait until LOGS has it. Raises BusUnavailable."""
        message = batch.message
        subject = subjects.shipped_logs(self._node_id, message.alloc_id, message.task)
        _, body = await bus.request_raw(subject, ENCODER.encode(message), timeout_s=_ACK_S)
        try:
            ack = _ACK.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as err:
            raise BusUnavailable(f"no acknowledgement on {subject}: {err}") from err
        if not ack.seq:
            raise BusUnavailable(f"{subject} was refused: {body[:200].decode(errors='replace')}")

    def _in_turn(self, live: Collection[tuple[str, str]]) -> list[ShippedOutput]:
        """Outputs that may have something; another one is first each time."""
        found = [one for name, one in self._outputs.items() if name[:2] in live or not one.is_done]
        first = self._passes % len(found) if found else 0
        return found[first:] + found[:first]

    def _say(self, problem: str) -> None:
        if problem and not self._problem:
            _log.warning("logs.not_shipped", reason=problem)
        elif self._problem and not problem:
            _log.info("logs.shipped_again")
        self._problem = problem

    # ---- what is kept ----

    def _add(self, kept: KeptOutput) -> None:
        places = self._home.places(kept.alloc_id, kept.task)
        path = places.stdout if kept.stream == "stdout" else places.stderr
        self._outputs[kept.name] = ShippedOutput(
            kept, node_id=self._node_id, top=self._home.top, path=path
        )

    def _state(self) -> list[KeptOutput]:
        return [one.kept for one in self._outputs.values()]

    async def _save(self) -> bool:
        """Write the file; False: it is as it was."""
        async with self._saving:
            body = msgspec.json.encode(self._state()) + b"\n"
            self._is_unsaved = True
            try:
                await asyncio.to_thread(replace_durably, self._file, body)
            except OSError as err:
                _log.warning("logs.position_not_kept", error=str(err))
                return False
            self._is_unsaved = False
        return True

    def _read(self) -> list[KeptOutput]:
        try:
            return _KEPT.decode(self._file.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as err:
            # Sent again from the beginning, as far as their tasks still run.
            _log.warning("logs.position_unreadable", file=str(self._file), error=str(err))
            return []

    def _forget_gone(self) -> None:
        """Mark outputs whose allocation was removed."""
        for one in list(self._outputs.values()):
            places = self._home.places(one.kept.alloc_id, one.kept.task)
            one.is_gone = one.is_done and not places.shared.exists()


def _about(kept: KeptOutput) -> dict[str, str]:
    return {"alloc": kept.alloc_id, "task": kept.task, "stream": kept.stream}
