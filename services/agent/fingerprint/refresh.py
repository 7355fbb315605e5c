"""Periodic fingerprint of the node: drivers that come and go, devices, pools, free disk.

Decides when a difference is reported to the cluster: additions at once, removals when they are missing for the
second time, disk space when it changed by a twentieth. Next: `host.py`.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec
import structlog

from schemas.base import MIB
from schemas.nodes import NodeSpec, Pool
from services.agent.fingerprint.host import HostFacts
from services.agent.fingerprint.pools import collect_pools
from shared.core.runtime.agent_messages import NodeFound
from shared.errors import CaravanError

#: How often the node is looked at.
REFRESH_S = 15.0
#: Missing so many times in a row counts as removed; an engine that restarts does not.
MISSES_MAX = 2
#: Smaller changes of the disk, as a fraction of it, are not reported.
DISK_CHANGE_DIVISOR = 20
_log = structlog.get_logger()


@runtime_checkable
class DynamicFingerprint(Protocol):
    """A driver or plug-in with a cheap fingerprint that may change while the agent runs."""

    has_dynamic_fingerprint: bool


class _Source(Protocol):
    name: str

    def fingerprint(self) -> dict[str, str]:
        """Attributes of the node."""
        ...


class FingerprintRefresher:
    """Asks all sources for their part of the node. `compose` puts attributes, pools and facts together."""

    def __init__(
        self,
        sources: Iterable[_Source],
        *,
        facts: Callable[[], HostFacts],
        pools: Callable[[], tuple[Pool, ...]],
        compose: Callable[[HostFacts, Mapping[str, str], tuple[Pool, ...]], NodeSpec],
    ) -> None:
        self._sources = tuple(sources)
        self._facts = facts
        self._file_pools = pools
        self._compose = compose
        self._attributes: dict[str, dict[str, str]] = {}
        self._pools: dict[str, tuple[Pool, ...]] = {}
        self._listed: tuple[Pool, ...] = ()
        self._misses: dict[str, int] = {}
        self.spec: NodeSpec | None = None

    def find(self, held_mib: int = 0) -> NodeSpec:
        """Take the fingerprint. `held_mib`: disk used by task directories, which still counts as available.

        The first call asks every source, and raises ConfigInvalid for a file of pools that cannot be read.
        """
        first = self.spec is None
        for source in self._sources:
            if first or isinstance(source, DynamicFingerprint):
                self._ask(source)
        try:
            self._listed = self._file_pools()
        except CaravanError as err:
            if first:
                raise
            _log.warning("pools.unreadable", reason=str(err))
        facts = self._facts()
        free = facts.disk_free_bytes + held_mib * MIB
        attributes: dict[str, str] = {}
        for found in self._attributes.values():
            attributes |= found
        pools = (*self._listed, *(pool for found in self._pools.values() for pool in found))
        facts = msgspec.structs.replace(facts, disk_free_bytes=free)
        spec = self._compose(facts, attributes, pools)
        self.spec = spec if self.spec is None else _ignore_small_changes(self.spec, spec)
        return self.spec

    def _ask(self, source: _Source) -> None:
        name = source.name
        try:
            attributes, pools = source.fingerprint(), collect_pools((source,))
        except Exception as err:  # noqa: BLE001 - a driver may fail in any way; the node has one less then.
            _log.warning("fingerprint.failed", source=name, error=repr(err))
            attributes, pools = {}, ()
        if not attributes and not pools and self._misses.get(name, MISSES_MAX) < MISSES_MAX - 1:
            self._misses[name] += 1
            return
        self._misses[name] = 0 if attributes or pools else MISSES_MAX
        if not attributes:
            # What it was stays to be read, and constraints on it hold for what runs; what counts is that it is away.
            attributes = {**self._attributes.get(name, {})}
            attributes.pop(f"driver.{name}", None)
        self._attributes[name], self._pools[name] = attributes, pools

    async def watch(
        self,
        tell: Callable[[NodeFound], None],
        held_mib: Callable[[], int],
        pause_s: float = REFRESH_S,
    ) -> None:
        """Refresh until cancelled; report changes."""
        while True:
            await asyncio.sleep(pause_s)
            before = self.spec
            try:
                found = await asyncio.to_thread(self.find, held_mib())
            except Exception as err:  # noqa: BLE001 - a plug-in may fail in any way; tasks do not pay for it.
                _log.warning("fingerprint.failed", error=repr(err))
                continue
            if found != before:
                _log.info("node.changed", what=_difference(before, found))
                _log_drivers(before, found)
                tell(NodeFound(spec=found))


def _ignore_small_changes(before: NodeSpec, now: NodeSpec) -> NodeSpec:
    """Keep numbers that hardly changed."""
    disk_mib = now.disk_mib
    if abs(disk_mib - before.disk_mib) * DISK_CHANGE_DIVISOR <= before.disk_mib:
        disk_mib = before.disk_mib
    kept = (*_CLOCK, *_DISK) if disk_mib == before.disk_mib else _CLOCK
    # Some kernels report only the current clock rate: a different rate is the same machine.
    return msgspec.structs.replace(
        now,
        disk_mib=disk_mib,
        cpu_mhz=before.cpu_mhz,
        core_mhz=before.core_mhz,
        memory_mib=before.memory_mib,
        attributes={
            **now.attributes,
            **{key: before.attributes[key] for key in kept if key in before.attributes},
        },
    )


def _log_drivers(before: NodeSpec | None, now: NodeSpec) -> None:
    """Log each driver that became usable or unusable."""
    was, known = (
        {name for name in (spec.attributes if spec else ()) if _DRIVER.fullmatch(name)}
        for spec in (before, now)
    )
    for name in sorted(was ^ known):
        word = "driver.found" if name in known else "driver.lost"
        _log.info(word, driver=name.removeprefix("driver."), node=now.node_id)


_DRIVER = re.compile(r"driver\.[^.]+")
_CLOCK = ("cpu.frequency", "cpu.totalcompute", "cpu.usablecompute")
_DISK = ("unique.storage.bytesfree",)


def _difference(before: NodeSpec | None, now: NodeSpec) -> list[str]:
    if before is None:
        return ["everything"]
    found = [
        name
        for name in sorted(before.attributes.keys() | now.attributes.keys())
        if before.attributes.get(name) != now.attributes.get(name)
    ]
    if before.pools != now.pools:
        found.append("pools")
    if before.disk_mib != now.disk_mib:
        found.append(f"disk {before.disk_mib} -> {now.disk_mib} MiB")
    return found
