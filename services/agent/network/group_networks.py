"""Makes, watches and removes the networks of this node's groups.

Performs `PrepareNetwork` and the end of allocations, one at a time for each allocation. A look every 15 s puts back
what others removed (a reload of a firewall drops rules) and removes what is left of allocations that have ended; a
namespace that is lost is only told: its tasks must end first. Read `places.py` and `node_bridge.py` first.
"""

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterable
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from services.agent.executor.ports_in_use import find_port_in_use
from services.agent.network import namespaces
from services.agent.network.name_files import host_texts, hosts_file, resolv_conf
from services.agent.network.node_bridge import NodeBridge, disconnect
from services.agent.network.places import NetworkPlaces, link_name
from services.agent.network.ruleset import GroupRules
from services.agent.network.settings import PREFIX, BridgeSettings
from shared.core.runtime.network_messages import (
    NetworkFailed,
    NetworkLost,
    NetworkReady,
    PrepareNetwork,
)
from shared.errors import CaravanError, ConfigInvalid
from shared.jobspec.network_modes import (
    BRIDGE_ATTRIBUTE,
    BRIDGE_OFF_ATTRIBUTE,
    BRIDGE_SUBNET_ATTRIBUTE,
    NFT,
)
from shared.machine_lock import take_machine_lock
from shared.protocol.id_tokens import id_token

LOOK_S = 15.0
PREPARE_TIMEOUT_S = 60.0
NetworkAnswer = NetworkReady | NetworkFailed | NetworkLost
_log = structlog.get_logger()


class PauseKeeper(Protocol):
    """A container engine that keeps a namespace which its containers join."""

    async def hold(self, alloc_id: str, hostname: str) -> int:
        """Start the container that has the namespace, unless it runs. Returns its pid. Raises CaravanError."""
        ...

    async def holder(self, alloc_id: str) -> int:
        """Return the pid of that container; 0: it does not run, -1: the engine does not answer."""
        ...

    async def let_go(self, alloc_id: str) -> None:
        """Remove that container. Raises CaravanError."""
        ...


class _Group(msgspec.Struct):
    """A network that is there. `pidfd`: of the container that has the namespace; -1: none has."""

    order: PrepareNetwork
    identity: int
    pidfd: int = -1
    is_lost: bool = False


class GroupNetworks:
    """The networks of one agent. `top`: its data directory; `tell` takes answers."""

    name = "network"

    def __init__(
        self,
        *,
        top: Path,
        host_id: str,
        settings: BridgeSettings,
        pause: PauseKeeper | None = None,
    ) -> None:
        self.tell: Callable[[NetworkAnswer], None] = lambda _: None
        self._top = top
        self._host_id = host_id
        self._bridge = NodeBridge(settings)
        self._pause = pause
        self._lock: socket.socket | None = None
        #: why there are no networks here.
        self._off = ""
        #: by shown id: allocations that have, or are about to have, a network; and what is there.
        self._known: set[str] = set()
        self._groups: dict[str, _Group] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._rules = asyncio.Lock()
        #: what is not of a known allocation is left over.
        self._may_sweep = False
        #: tokens of allocations whose network could not be removed.
        self._leaked: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._looker: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    # ---- the node ----

    def fingerprint(self) -> dict[str, str]:
        """Node attributes: what makes networks here, or why none is made."""
        self._off = self._why_off()
        if self._off:
            return {BRIDGE_OFF_ATTRIBUTE: self._off}
        subnet = self._bridge.settings.subnet
        return {BRIDGE_ATTRIBUTE: NFT, BRIDGE_SUBNET_ATTRIBUTE: subnet}

    def _why_off(self) -> str:
        settings = self._bridge.settings
        if not settings.enabled:
            return f"disabled ({PREFIX}ENABLED)"
        if os.geteuid() != 0:
            return "the agent does not run as root"
        if self._lock is None:
            taken = (
                f"bridge {settings.name} is another agent's; set {PREFIX}NAME and {PREFIX}SUBNET"
            )
            try:
                self._lock = take_machine_lock(f"bridge-{settings.name}", taken)
            except ConfigInvalid as err:
                return str(err)
        return self._bridge.probe(self._top)

    def remove_all(self) -> int:
        """Remove all networks of this data directory, before anything runs. Returns how many there were."""
        tokens = self._tokens()
        if self._why_off() and not tokens:
            return 0
        for token in tokens:
            self._remove_files(token)
        # The bridge may be, or have become, another agent's of this machine: its links are not ours to remove.
        if self._lock is not None and not self._bridge.links():
            self._bridge.remove()
        return len(tokens)

    # ---- effects ----

    def prepare(self, effect: PrepareNetwork) -> None:
        """Make or take over a network, and answer."""
        self._known.add(effect.alloc_id)
        self._spawn(self._prepare(effect))

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove what is left of allocations that are not among these."""
        self._may_sweep = True
        wanted = {id_token(one) for one in kept}
        self._leaked |= {one for one in self._tokens() if one not in wanted}
        if self._leaked:
            self._begin_looks()
            self._woken.set()

    async def end(self, alloc_id: str) -> None:
        """Remove the network of an allocation that is over; what cannot be removed is tried again by the next look."""
        if alloc_id not in self._known and not self._places(alloc_id).directory.exists():
            return
        self._known.discard(alloc_id)
        async with self._lock_of(alloc_id):
            if alloc_id in self._known:
                return
            group = self._groups.pop(alloc_id, None)
            if group is not None:
                self._unwatch(group)
            self._leaked.add(id_token(alloc_id))
            await self._remove(id_token(alloc_id))
            await self._let_go(alloc_id, group)
        self._locks.pop(alloc_id, None)

    async def close(self) -> None:
        """Stop watching; networks stay."""
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        for group in self._groups.values():
            self._unwatch(group)
        if self._lock is not None:
            self._lock.close()

    # ---- one network ----

    async def _prepare(self, order: PrepareNetwork) -> None:
        async with self._lock_of(order.alloc_id):
            try:
                async with asyncio.timeout(PREPARE_TIMEOUT_S):
                    self.tell(await self._made(order))
            except TimeoutError:
                text = f"not made within {PREPARE_TIMEOUT_S:.0f} s"
                self.tell(NetworkFailed(key=order.key, reason=text))
            except (OSError, CaravanError) as err:
                reason = str(err.strerror or err) if isinstance(err, OSError) else str(err)
                _log.warning("network.failed", allocation=order.alloc_id, reason=reason)
                self.tell(NetworkFailed(key=order.key, reason=reason))

    async def _made(self, order: PrepareNetwork) -> NetworkAnswer:
        if order.alloc_id not in self._known:
            return NetworkFailed(key=order.key, reason="the allocation has ended")
        if self._off:
            return NetworkFailed(key=order.key, reason=self._off)
        self._begin_looks()
        places = self._places(order.alloc_id)
        if not order.adopt and not places.directory.exists():
            # Before any rule leads the port away from who has it.
            ports = {one.label: (one.host, one.inside) for one in order.ports}
            if taken := await asyncio.to_thread(find_port_in_use, ports, ()):
                return NetworkFailed(key=order.key, reason=taken)
        pid = await self._holder(order)
        if order.adopt and (lost := _loss(places, pid)):
            return NetworkLost(key=order.key, reason=lost)
        await asyncio.to_thread(self._build, order, pid)
        before = self._groups.pop(order.alloc_id, None)
        if before is not None:
            self._unwatch(before)
        group = _Group(order=order, identity=namespaces.identity(places.namespace))
        self._groups[order.alloc_id] = group
        self._watch(group, pid)
        await self._write_rules()
        _log.info("network.ready", allocation=order.alloc_id, address=order.address)
        return NetworkReady(key=order.key)

    async def _holder(self, order: PrepareNetwork) -> int:
        """Find or start the container that has the namespace. Returns its pid; 0: there is none, -1: not known."""
        if not order.has_containers:
            return -1
        if self._pause is None:
            raise CaravanError("driver docker is not available on this node")
        if order.adopt:
            return await self._pause.holder(order.alloc_id)
        places, pid = self._places(order.alloc_id), await self._pause.holder(order.alloc_id)
        if pid > 0 and not _loss(places, pid):
            return pid
        await self._pause.let_go(order.alloc_id)
        return await self._pause.hold(order.alloc_id, order.hostname)

    def _build(self, order: PrepareNetwork, pid: int) -> None:
        """Make what is missing of a network, in a thread."""
        places = self._places(order.alloc_id)
        places.directory.mkdir(parents=True, exist_ok=True, mode=0o711)
        settings = self._bridge.settings
        places.resolv_conf.write_text(resolv_conf(order, host_texts(), settings.dns_servers))
        places.hosts.write_text(hosts_file(order))
        if pid > 0 and _loss(places, pid):
            namespaces.keep(Path(f"/proc/{pid}/ns/net"), places.namespace)
        elif not namespaces.is_kept(places.namespace):
            namespaces.make(places.namespace)
        self._bridge.ensure([str(IPv4Interface(order.address).network)])
        link = self._link(order.alloc_id)
        self._bridge.connect(link, places.namespace, order.address)

    async def _let_go(self, alloc_id: str, group: _Group | None) -> None:
        """Remove the container that has the namespace, if there may be one; what is left the engine's driver sweeps."""
        if self._pause is None or (group is not None and not group.order.has_containers):
            return
        try:
            await self._pause.let_go(alloc_id)
        except CaravanError as err:
            if group is not None:
                _log.warning("network.leaked", allocation=alloc_id, reason=str(err))

    async def _remove(self, token: str) -> None:
        try:
            if not self._off:
                await self._write_rules()
            await asyncio.to_thread(self._remove_files, token)
        except (OSError, CaravanError) as err:
            _log.warning("network.leaked", allocation=token, reason=str(err))
        else:
            self._leaked.discard(token)

    def _remove_files(self, token: str) -> None:
        directory = self._top / "netns" / token
        disconnect(link_name(self._host_id, token))
        namespaces.release(directory / "net")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)

    # ---- looks ----

    def _begin_looks(self) -> None:
        if self._looker is None:
            self._looker = self._spawn(self._look_often())

    async def _look_often(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self.look()
            except (OSError, CaravanError) as err:
                _log.warning("network.look_failed", reason=str(err))

    async def look(self) -> None:
        """Put back what is missing, tell what is lost, remove what is left over."""
        for token in sorted(self._leaked):
            await self._remove(token)
        if not self._groups:
            return
        links = await asyncio.to_thread(self._bridge.links)
        for alloc_id in list(self._groups):
            async with self._lock_of(alloc_id):
                group = self._groups.get(alloc_id)
                if group is not None and not group.is_lost:
                    try:
                        await self._look_at(group, links)
                    except (OSError, CaravanError) as err:
                        # Those after it, and the rules of all, are looked at all the same.
                        _log.warning("network.look_failed", allocation=alloc_id, reason=str(err))
        subnets = {str(IPv4Interface(one.order.address).network) for one in self._groups.values()}
        await asyncio.to_thread(self._bridge.ensure, sorted(subnets))
        await asyncio.to_thread(self._bridge.part_links, links)
        if not await asyncio.to_thread(self._bridge.has_rules):
            _log.warning(
                "network.rules_lost", reason="the table of rules was changed; it is written again"
            )
            await self._write_rules()
        if self._may_sweep:
            await self._drop_strangers()

    async def _look_at(self, group: _Group, links: frozenset[str]) -> None:
        order = group.order
        pid = -1
        if order.has_containers and self._pause is not None:
            pid = await self._pause.holder(order.alloc_id)
        places = self._places(order.alloc_id)
        lost = _loss(places, pid)
        if not lost and namespaces.identity(places.namespace) != group.identity:
            lost = "another namespace is in its place"
        if lost:
            _log.warning("network.lost", allocation=order.alloc_id, reason=lost)
            group.is_lost = True
            self._unwatch(group)
            self.tell(NetworkLost(key=order.key, reason=lost))
        elif self._link(order.alloc_id) not in links:
            _log.warning("network.link_lost", allocation=order.alloc_id)
            await asyncio.to_thread(self._build, order, -1)

    async def _drop_strangers(self) -> None:
        """Remove links on the bridge that no allocation has."""
        own = set(map(self._link, self._known))
        for link in sorted(await asyncio.to_thread(self._bridge.links) - own):
            _log.warning("network.leaked", link=link)
            await asyncio.to_thread(disconnect, link)

    def _watch(self, group: _Group, pid: int) -> None:
        """Look at once when the container that has the namespace ends."""
        if pid <= 0:
            return
        try:
            group.pidfd = os.pidfd_open(pid)
        except OSError:
            self._woken.set()
            return
        asyncio.get_running_loop().add_reader(group.pidfd, self._holder_ended, group)

    def _holder_ended(self, group: _Group) -> None:
        self._unwatch(group)
        self._woken.set()

    @staticmethod
    def _unwatch(group: _Group) -> None:
        if group.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(group.pidfd)
            os.close(group.pidfd)
            group.pidfd = -1

    # ---- inside ----

    async def _write_rules(self) -> None:
        async with self._rules:
            rules = [
                GroupRules(address=one.order.address, ports=one.order.ports)
                for one in self._groups.values()
            ]
            await asyncio.to_thread(self._bridge.write_rules, rules)

    def _places(self, alloc_id: str) -> NetworkPlaces:
        return NetworkPlaces(self._top, alloc_id)

    def _link(self, alloc_id: str) -> str:
        return link_name(self._host_id, id_token(alloc_id))

    def _lock_of(self, alloc_id: str) -> asyncio.Lock:
        return self._locks.setdefault(alloc_id, asyncio.Lock())

    def _tokens(self) -> list[str]:
        try:
            found = [one.name for one in (self._top / "netns").iterdir()]
        except OSError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="network")
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task


def _loss(places: NetworkPlaces, pid: int) -> str:
    """Say why a namespace is not the group's any more; empty: it is. `pid`: as of `PauseKeeper.holder`."""
    if not namespaces.is_kept(places.namespace):
        return "its namespace is gone"
    if pid == 0:
        return "the container that has its namespace ended"
    own = namespaces.identity(places.namespace)
    if pid > 0 and namespaces.identity(Path(f"/proc/{pid}/ns/net")) != own:
        return "the container that has its namespace is another one"
    return ""
