"""What this node is, asked again every now and then: drivers that come and go, devices, pools, room on the disk.

Decides when a difference is worth a word to the cluster: what is new at once, what is gone when it is missing for the
second time, the disk when it changed by a twentieth. Must not know what follows from that. Next: `fingerprint.py`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec
import structlog

from schemas.nodes import NodeSpec, Pool
from services.agent.fingerprint import Facts
from services.agent.offers import offered
from shared.core.tasks import NodeFound
from shared.errors import CaravanError

#: How often the node is looked at.
LOOK_S = 15.0
#: What is missing so many times is gone: an engine that restarts is not.
MISSES_MAX = 2
#: Smaller changes of the disk, in parts of it, are nobody's business.
DISK_PARTS = 20
_MIB = 1 << 20
_log = structlog.get_logger()


@runtime_checkable
class Fleeting(Protocol):
    """A driver or plug-in whose fingerprint may change while the agent lives, and costs little to take."""

    is_fleeting: bool


class _Source(Protocol):
    name: str

    def fingerprint(self) -> dict[str, str]:
        """Attributes of the node."""
        ...


class Finder:
    """Asks all sources for their part of the node. `compose` puts attributes, pools and facts together."""

    def __init__(
        self,
        sources: Iterable[_Source],
        *,
        facts: Callable[[], Facts],
        pools: Callable[[], tuple[Pool, ...]],
        compose: Callable[[Facts, Mapping[str, str], tuple[Pool, ...]], NodeSpec],
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
        """Look at the node. `held_mib`: what directories of tasks take now; that is no loss of disk.

        The first look asks everybody, and raises ConfigInvalid for a file of pools that cannot be read.
        """
        first = self.spec is None
        for source in self._sources:
            if first or isinstance(source, Fleeting):
                self._ask(source)
        try:
            self._listed = self._file_pools()
        except CaravanError as err:
            if first:
                raise
            _log.warning("pools.unreadable", reason=str(err))
        facts = self._facts()
        free = facts.disk_free_bytes + held_mib * _MIB
        attributes: dict[str, str] = {}
        for found in self._attributes.values():
            attributes |= found
        pools = (*self._listed, *(pool for found in self._pools.values() for pool in found))
        facts = msgspec.structs.replace(facts, disk_free_bytes=free)
        spec = self._compose(facts, attributes, pools)
        self.spec = spec if self.spec is None else _calm(self.spec, spec)
        return self.spec

    def _ask(self, source: _Source) -> None:
        name = source.name
        try:
            attributes, pools = source.fingerprint(), offered((source,))
        except Exception as err:  # noqa: BLE001 - a driver may fail in any way; the node has one less then.
            _log.warning("node.not_told", source=name, error=repr(err))
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
        pause_s: float = LOOK_S,
    ) -> None:
        """Look for ever; tell what changed."""
        while True:
            await asyncio.sleep(pause_s)
            before = self.spec
            try:
                found = await asyncio.to_thread(self.find, held_mib())
            except Exception as err:  # noqa: BLE001 - a plug-in may fail in any way; tasks do not pay for it.
                _log.warning("node.not_found", error=repr(err))
                continue
            if found != before:
                _log.info("node.changed", what=_difference(before, found))
                tell(NodeFound(spec=found))


def _calm(before: NodeSpec, now: NodeSpec) -> NodeSpec:
    """Keep numbers that hardly changed."""
    disk_mib = now.disk_mib
    if abs(disk_mib - before.disk_mib) * DISK_PARTS <= before.disk_mib:
        disk_mib = before.disk_mib
    # A clock that the kernel only tells as it is now is no other machine.
    return msgspec.structs.replace(
        now,
        disk_mib=disk_mib,
        cpu_mhz=before.cpu_mhz,
        core_mhz=before.core_mhz,
        memory_mib=before.memory_mib,
        attributes={
            **now.attributes,
            **{key: before.attributes[key] for key in _CLOCK if key in before.attributes},
        },
    )


_CLOCK = ("cpu.frequency", "cpu.totalcompute")


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
