"""Wiring of an agent: settings, data directory, drivers, fingerprint, role, shell."""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import msgspec
import structlog

from schemas.nodes import NodeSpec, Pool
from services.agent.desired import Settings
from services.agent.drivers.docker import Docker
from services.agent.drivers.docker_create import Machine
from services.agent.drivers.docker_settings import DockerSettings, docker_settings
from services.agent.drivers.driver import Driver
from services.agent.drivers.exec import Exec
from services.agent.drivers.exec_settings import exec_settings
from services.agent.drivers.isolated import isolated
from services.agent.drivers.raw_exec import RawExec
from services.agent.edge import Edge
from services.agent.edge_dirs import Directories
from services.agent.edge_found import Finder
from services.agent.edge_hands import Hands
from services.agent.edge_home import Home
from services.agent.fingerprint import Facts, Naming, Reserved, core_mhz, node_spec, read_facts
from services.agent.hands import SOURCE
from services.agent.holdings import HOST_NETWORK
from services.agent.offers import (
    PORT_MAX,
    DevicePlugin,
    FakeGpus,
    numbers,
    read_pools,
    share_of,
)
from services.agent.role import Agent
from shared.bus.runner import run_role, run_settings, set_up_logging
from shared.bus.shell import Performer, Shell
from shared.core.role import Role
from shared.errors import CaravanError, ConfigInvalid

_PREFIX = "CARAVAN_AGENT_"
_CORE_MAX = 65_535
log = structlog.get_logger()


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What only an agent reads, from `CARAVAN_AGENT_*`."""

    node_id: str
    data_dir: str
    #: empty: the host's name.
    name: str = ""
    datacenter: str = "dc1"
    node_pool: str = "default"
    node_class: str = ""
    #: `key=value,key=value`.
    meta: str = ""
    #: plain processes as the agent's user, without isolation: off unless the operator wants it.
    raw_exec: bool = False
    #: on SIGTERM, end the tasks too; else they run on, and the next agent adopts them.
    end_tasks: bool = False
    #: keep `secrets/` of tasks in memory; only root can.
    secrets_memory: bool = True
    #: end an allocation that takes more disk than it asked for; else it is only said.
    disk_kill: bool = False
    #: what the node needs for itself.
    reserved_cpu_mhz: int = 0
    reserved_memory_mib: int = 0
    reserved_disk_mib: int = 0
    #: by the kernel's numbers: `0,2-3`.
    reserved_cores: str = ""
    #: first and last port that the cluster may pick, and ports that nobody gets: `22,8000-8010`.
    port_min: int = 20_000
    port_max: int = 32_000
    reserved_ports: str = ""
    #: addresses of the node that ports can be in by name: `public=203.0.113.7,private=10.0.0.7`.
    host_networks: str = ""
    #: JSON or TOML file with what else the node offers.
    pools: str = ""
    #: for tests: devices that are not there, `vendor/type/model:count`.
    fake_gpus: str = ""
    #: as one of so many agents on this machine, and which, from 0: it reports that part of what the machine has.
    shares: int = 1
    share: int = 0
    #: 0: by fingerprint.
    cpu_mhz: int = 0
    memory_mib: int = 0


def agent_settings(environ: Mapping[str, str]) -> AgentSettings:
    """Read the settings. Raises ConfigInvalid."""
    given = {
        name: environ[key]
        for name in AgentSettings.__struct_fields__
        if (key := _PREFIX + name.upper()) in environ
    }
    try:
        found = msgspec.convert(given, AgentSettings, strict=False)
    except msgspec.ValidationError as err:
        raise ConfigInvalid(f"{_PREFIX}* settings: {err}") from err
    if not 0 <= found.share < max(found.shares, 1):
        text = f"{_PREFIX}SHARE is {found.share}, it must be below {_PREFIX}SHARES ({found.shares})"
        raise ConfigInvalid(text)
    if not found.node_id or not found.data_dir:
        raise ConfigInvalid(f"{_PREFIX}NODE_ID and {_PREFIX}DATA_DIR must name something")
    return found


def _naming(own: AgentSettings) -> Naming:
    pairs = [pair.partition("=") for pair in own.meta.split(",") if pair]
    return Naming(
        node_id=own.node_id,
        name=own.name,
        datacenter=own.datacenter,
        node_pool=own.node_pool,
        node_class=own.node_class,
        meta={name.strip(): value.strip() for name, _, value in pairs},
    )


def _drivers(own: AgentSettings, home: Home) -> dict[str, Driver]:
    drivers: list[Driver] = [RawExec(kernel_boot=home.kernel_boot)] if own.raw_exec else []
    drivers += isolated(home.top, home.kernel_boot, exec_settings(os.environ))
    docker = docker_settings(os.environ)
    if docker.enabled:
        drivers.append(_docker(docker, own, home))
    return {driver.name: driver for driver in drivers}


def _docker(settings: DockerSettings, own: AgentSettings, home: Home) -> Docker:
    facts = read_facts(home.top)
    return Docker(
        settings,
        data_dir=home.top,
        node_id=own.node_id,
        home_id=home.host_id,
        kernel_boot=home.kernel_boot,
        machine=Machine(core_mhz=core_mhz(facts), cores=facts.cores),
    )


def _plugins(own: AgentSettings) -> list[DevicePlugin]:
    if not own.fake_gpus:
        return []
    log.warning("devices.fake", devices=own.fake_gpus)
    return [FakeGpus(own.fake_gpus)]


def host_networks(text: str) -> dict[str, str]:
    """Read `name=address` pairs as attributes of the node. Raises ConfigInvalid."""
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, address = pair.partition("=")
        try:
            found[HOST_NETWORK + name.strip()] = str(ip_address(address.strip()))
        except ValueError as err:
            raise ConfigInvalid(f"{_PREFIX}HOST_NETWORKS: {pair!r}: {err}") from err
    return found


def _finder(
    own: AgentSettings, home: Home, directories: Directories, drivers: Mapping[str, Driver]
) -> Finder:
    reserved = Reserved(
        cpu_mhz=own.reserved_cpu_mhz,
        memory_mib=own.reserved_memory_mib,
        disk_mib=own.reserved_disk_mib,
        cores=frozenset(numbers(own.reserved_cores, f"{_PREFIX}RESERVED_CORES", _CORE_MAX)),
    )

    def compose(facts: Facts, found: Mapping[str, str], pools: tuple[Pool, ...]) -> NodeSpec:
        found = {**found, **host_networks(own.host_networks)}
        spec = node_spec(facts, _naming(own), drivers=found, reserved=reserved, pools=pools)
        return part_of(spec, own)

    return Finder(
        (directories, *drivers.values(), *_plugins(own)),
        facts=lambda: read_facts(home.top),
        pools=lambda: read_pools(Path(own.pools)) if own.pools else (),
        compose=compose,
    )


def _agent(own: AgentSettings, home: Home, spec: NodeSpec) -> Agent:
    return Agent(
        node_id=own.node_id,
        instance=f"{own.node_id}-{home.boot_id[:8]}",
        host_id=home.host_id,
        boot_id=home.boot_id,
        spec=spec,
        journal=home.journal.entries,
        settings=Settings(disk_kill=own.disk_kill),
    )


def part_of(spec: NodeSpec, own: AgentSettings) -> NodeSpec:
    """Say what of the machine is this agent's: what the settings say, else its share."""
    shares = max(own.shares, 1)
    width = max(own.port_max - own.port_min + 1, 0)
    return msgspec.structs.replace(
        spec,
        pools=share_of(spec.pools, own.share, shares),
        port_min=own.port_min + width * own.share // shares,
        port_max=own.port_min + width * (own.share + 1) // shares - 1,
        reserved_ports=numbers(own.reserved_ports, f"{_PREFIX}RESERVED_PORTS", PORT_MAX),
        cpu_mhz=own.cpu_mhz or spec.cpu_mhz // shares,
        memory_mib=own.memory_mib or spec.memory_mib // shares,
        disk_mib=spec.disk_mib // shares,
    )


def _allow_many_files() -> None:
    """Each live run takes a descriptor; tasks themselves keep the limit that the agent was given."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Run an agent until a signal; returns the exit code."""
    try:
        settings = run_settings()
        own = agent_settings(os.environ)
        set_up_logging(settings.log_level)
        home = Home(Path(own.data_dir), own.node_id)
        drivers = _drivers(own, home)
        directories = Directories(home.top, memory=own.secrets_memory)
        finder = _finder(own, home, directories, drivers)
        agent = _agent(own, home, finder.find())
    except CaravanError as err:
        log.critical("service.stopped", reason=str(err), error=type(err).__name__)
        return 1
    _allow_many_files()
    if home.journal.torn_bytes:
        log.warning("journal.torn", dropped_bytes=home.journal.torn_bytes)
    edges: list[Edge] = []
    hands = Hands(node_id=own.node_id, home=home, directories=directories, edge=lambda: edges[0])

    def performers_of(shell: Shell) -> Mapping[type, Performer]:
        edge = Edge(
            home=home,
            drivers=drivers,
            inject=lambda one: shell.inject([one]),
            directories=directories,
        )
        edges.append(edge)
        return edge.performers()

    async def watch(shell: Shell) -> None:
        await finder.watch(
            lambda one: shell.inject([one]), lambda: sum(edges[0].disk_mib().values())
        )

    code = run_role(
        cast("Role", agent),
        settings,
        node_id=own.node_id,
        performers_of=performers_of,
        beside=watch,
        carriers={SOURCE: hands.carry},
    )
    if code == 0 and own.end_tasks:
        for edge in edges:
            log.info("tasks.ended", count=asyncio.run(edge.end_tasks()))
    for driver in drivers.values():
        if isinstance(driver, Docker | Exec | RawExec):
            driver.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
