"""Sends events out: follows the log for each target, delivers in order, keeps the position on disk.

Of several gateways with targets one sends, the one that holds the leadership `gateway.outgoing`; the others stand by.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from schemas.base import SECOND_NS
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.followed_log import FollowedLog
from services.gateway.edge.outgoing_targets import OutgoingTarget, TraceTarget, make_target
from services.gateway.outgoing import delivery
from services.gateway.outgoing.delivery import SentPosition
from services.gateway.outgoing.settings import (
    OTLP_NAME,
    OutgoingSettings,
    TargetAddress,
    parse_settings,
)
from services.gateway.role import Gateway
from shared.bus.connection.nats_client import BusClient
from shared.errors import BusUnavailable, ConfigInvalid, LogDropped, LogError

log = structlog.get_logger()
E = TypeVar("E", bound=TargetAddress)
#: How often it looks whether it leads, and pause after a fault that is none of the target's.
_LOOK_S, _AGAIN_S = 0.5, 5.0
#: How often a position is noted while nothing is to be sent.
_NOTE_S = 5.0
#: A longer pause of a target lets go of what waits for it, and reads it from the log again.
_HELD_NS = 60 * SECOND_NS
_GONE_STATUS = 410
_KEPT = msgspec.json.Decoder(SentPosition)


def read_settings(name: str) -> OutgoingSettings:
    """Read the operator's file; paths in it are relative to its folder. Raises ConfigInvalid."""
    path = Path(name)
    try:
        data = path.read_bytes()
    except OSError as err:
        raise ConfigInvalid(f"{name}: {err.strerror}") from err
    found = parse_settings(data, name)
    folder = path.absolute().parent
    return OutgoingSettings(
        webhook=tuple(_with_paths(one, folder) for one in found.webhook),
        otlp=None if found.otlp is None else _with_paths(found.otlp, folder),
    )


def _with_paths(one: E, folder: Path) -> E:
    paths = {
        name: str(folder / getattr(one, name))
        for name in one.__struct_fields__
        if name.endswith("_file") and getattr(one, name)
    }
    return msgspec.structs.replace(one, **paths)


class Subscription:
    """One target: its position, and the task that sends to it."""

    def __init__(
        self, role: Gateway, bus: Callable[[], BusClient], target: OutgoingTarget, folder: Path
    ) -> None:
        self.target = target
        self.state: SentPosition | None = None
        self._role = role
        self._bus = bus
        self._path = folder / f"{target.name}.json"
        #: the last request was answered, so that the next part was certainly not sent.
        self._is_certain = False

    async def run(self, replays: asyncio.Semaphore) -> None:
        """Send until it is cancelled. `replays`: how many targets read the past at a time."""
        await _until(lambda: self._role.is_caught_up)
        while self.state is None or not self.state.disabled:
            try:
                pause_s = await self._run_once(replays)
            except HttpFault as err:
                pause_s = _AGAIN_S
                if err.status == _GONE_STATUS:
                    self._disable(err.text)
                else:
                    self._wait(err.text)
            except (BusUnavailable, LogDropped, LogError) as err:
                pause_s = _AGAIN_S
                self._wait(str(err))
            except Exception as err:
                # A fault of ours in one target ends neither the others nor the gateway.
                log.exception("outgoing.failed", target=self.target.name)
                pause_s = _AGAIN_S
                self._wait(f"{type(err).__name__}: {err}")
            await asyncio.sleep(pause_s)

    def _wait(self, reason: str) -> None:
        """Show why nothing is sent, where the reason is not the target's."""
        log.warning("outgoing.waits", target=self.target.name, reason=reason)
        if self.state is not None:
            self.state = msgspec.structs.replace(self.state, error=reason[:300])

    async def _run_once(self, replays: asyncio.Semaphore) -> float:
        """Send while this gateway leads; returns the pause before the next try. Raises as FollowedLog, OSError."""
        if self.state is None:
            # Also where another gateway sends: if that one ends, this one continues from here.
            self._load()
        if not self._role.is_acting:
            await _until(lambda: self._role.is_acting)
            # The folder may be shared with the one that sent until now.
            self._load()
        return await self._follow(replays)

    @property
    def _now(self) -> SentPosition:
        assert self.state is not None
        return self.state

    async def _follow(self, replays: asyncio.Semaphore) -> float:
        """Send from the position on; returns the pause before the next try. Raises as FollowedLog."""
        state = self._now
        self._is_certain = False
        maker = self.target.maker(state.cluster_id)
        followed = FollowedLog(self._role, self._bus(), maker, first=state.seq + 1, replays=replays)
        await followed.begin()
        async with aclosing(followed.lines()) as lines:
            async for seq, line in lines:
                for ordinal, part in self.target.parts(line) if line else ():
                    if seq == self._now.seq + 1 and ordinal < self._now.ordinal:
                        continue
                    if not await self._deliver(part):
                        return self._pause_s
                    self._keep(delivery.position(self._now, seq - 1, ordinal + 1))
                if seq > self._now.seq:
                    self._keep(delivery.position(self._now, seq))
                if not self._role.is_acting:
                    break
        return 0.0

    async def _deliver(self, part: bytes) -> bool:
        """Send until the target accepts. False: disabled, not leading, or the pause became long."""
        while self._role.is_acting:
            answer = await self.target.send(part, is_first=self._is_certain)
            self._is_certain = answer.is_accepted
            self._keep(delivery.after(self._now, answer, time.time_ns()))
            if answer.is_accepted:
                self._role.counts["deliveries"] += 1
                return True
            self._role.counts["deliveries_failed"] += 1
            state = self._now
            log.warning(
                "outgoing.not_accepted",
                target=self.target.name,
                reason=state.error,
                failures=state.failures,
            )
            if state.disabled:
                self._disable(state.disabled)
                return False
            if delivery.pause_ns(state.failures) > _HELD_NS:
                return False
            await asyncio.sleep(self._pause_s)
        return False

    @property
    def _pause_s(self) -> float:
        return max(self._now.next_try_ns - time.time_ns(), 0) / SECOND_NS

    def _disable(self, reason: str) -> None:
        self._keep(msgspec.structs.replace(self._now, disabled=reason))
        log.error("outgoing.disabled", target=self.target.name, reason=reason)

    def _load(self) -> None:
        """Read from the disk where it continues; a target that was disabled is enabled."""
        kept: SentPosition | None = None
        try:
            kept = _KEPT.decode(self._path.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as err:
            reason = str(err)
            log.warning("outgoing.position_unreadable", target=self.target.name, reason=reason)
        found = delivery.resumed(
            kept,
            cluster_id=self._role.replica.chain.cluster_id,
            last_seq=self._role.seq,
            from_seq=self.target.from_seq,
        )
        if kept is None or kept.cluster_id != found.cluster_id or kept.seq > found.seq:
            log.warning("outgoing.begins", target=self.target.name, seq=found.seq)
        self._keep(found)

    def _keep(self, state: SentPosition) -> None:
        """Write the position: what was sent and is not in it is sent again."""
        self.state = state
        part = self._path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(state))
        part.replace(self._path)


async def _until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(_LOOK_S)


class Outgoing:
    """All targets of a gateway."""

    def __init__(self, settings: OutgoingSettings, state_dir: str) -> None:
        self._targets: list[OutgoingTarget] = [make_target(one) for one in settings.webhook]
        if settings.otlp is not None:
            self._targets.append(TraceTarget(settings.otlp, OTLP_NAME))
        self._folder = Path(state_dir) / "outgoing"
        self.subscriptions: list[Subscription] = []

    @classmethod
    def of(cls, file: str, state_dir: str) -> "Outgoing | None":
        """The targets of a file; None without one. Raises ConfigInvalid."""
        if not file:
            return None
        if not state_dir:
            raise ConfigInvalid("CARAVAN_GATEWAY_STATE_DIR must be set: positions are kept there")
        made = cls(read_settings(file), state_dir)
        for target in made._targets:
            target.check()
        try:
            made._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as err:
            raise ConfigInvalid(f"{made._folder}: {err.strerror}") from err
        return made

    async def run(self, role: Gateway, bus: Callable[[], BusClient]) -> None:
        """Send to all targets until it is cancelled."""
        self.subscriptions = [Subscription(role, bus, one, self._folder) for one in self._targets]
        replays = asyncio.Semaphore(2)
        async with asyncio.TaskGroup() as group:
            for one in self.subscriptions:
                group.create_task(one.run(replays))
            while True:
                self._measure(role)
                await asyncio.sleep(_LOOK_S)

    def _measure(self, role: Gateway) -> None:
        states = [one.state for one in self.subscriptions if one.state is not None]
        open_ones = [one for one in states if not one.disabled]
        role.outgoing.disabled = len(states) - len(open_ones)
        behind = [role.seq - one.seq for one in open_ones] if role.is_acting else []
        role.outgoing.lag_records = max(behind, default=0)
