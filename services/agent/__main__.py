"""Wiring of an agent: data directory, drivers, fingerprint, role, shell."""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import msgspec
import structlog

from schemas.envelope import ENCODER
from schemas.nodes import NodeSpec, Pool
from schemas.usage import UsageMinute
from services.agent.devices.device_plugins import (
    BuiltinPlugin,
    DevicePlugins,
    nvidia_plugin,
    without_repeats,
)
from services.agent.dns.settings import DnsSettings, DnsSockets, dns_settings, open_sockets
from services.agent.drivers.docker.container_spec import HostCpu
from services.agent.drivers.docker.settings import DockerSettings, docker_settings
from services.agent.drivers.driver import Driver, split_list
from services.agent.drivers.exec.isolated_drivers import isolated_drivers
from services.agent.drivers.exec.settings import exec_settings
from services.agent.drivers.isolation.cgroups import CgroupTree, agent_level
from services.agent.drivers.plugin.programs import plugin_drivers
from services.agent.drivers.process.driver import ProcessDriver
from services.agent.drivers.process.run_record import group_name
from services.agent.drivers.raw_exec import RawExecDriver, own_groups
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.executor.executor import TaskExecutor
from services.agent.executor.log_shipper import LogShipper
from services.agent.executor.orphans import end_orphans, known_runs
from services.agent.executor.tasks_end import end_tasks
from services.agent.fingerprint.host import (
    HostFacts,
    HostReserved,
    NodeNaming,
    core_mhz,
    node_spec,
    read_facts,
)
from services.agent.fingerprint.pools import (
    PORT_MAX,
    DevicePlugin,
    FakeGpus,
    parse_ranges,
    read_pools,
    split_cores,
)
from services.agent.fingerprint.refresh import FingerprintRefresher
from services.agent.host_volumes import HostVolumes, read_host_volumes
from services.agent.inputs.artifacts.settings import artifact_settings, bus_hosts
from services.agent.inputs.disks.handler import DiskHandler
from services.agent.inputs.disks.peers import BusPeers
from services.agent.inputs.identities.handler import IdentityHandler, task_owner
from services.agent.inputs.identities.keeper_tokens import KeeperTokens
from services.agent.inputs.input_handler import InputHandler
from services.agent.inputs.secrets.handler import SecretHandler
from services.agent.inputs.secrets.plugins import SecretPlugins
from services.agent.inputs.templates.handler import TemplateHandler, task_view
from services.agent.inputs.templates.service_directory import ServiceDirectory
from services.agent.inputs.templates.settings import TemplateSettings, template_settings
from services.agent.inputs.templates.variable_directory import VariableDirectory
from services.agent.inputs.vault.handler import VaultHandler
from services.agent.inputs.vault.settings import VaultSettings, vault_settings
from services.agent.network.group_networks import GroupNetworks
from services.agent.network.settings import BridgeSettings, bridge_settings
from services.agent.node_reconciler import AgentLimits
from services.agent.node_rpc.disk_server import DiskServer
from services.agent.node_rpc.server import NodeRpcServer
from services.agent.role import DISK_SOURCE, Agent
from services.agent.run_as import run_as
from services.agent.settings import PREFIX, AgentSettings, agent_settings
from services.agent.task_api.reads import TaskReads
from services.agent.task_api.sockets import TaskSockets
from services.agent.tasks.operator_orders import SOURCE
from services.agent.tasks.task_resources import HOST_NETWORK
from services.agent.volumes.plugins import NodePlace, VolumePlugins
from services.agent.volumes.volume_maker import VolumeMaker
from shared.bus.process.runner import BeforeEnd, SideTask, run_role
from shared.bus.process.settings import configure_logging, run_settings
from shared.bus.shell.shell import EffectHandler, Shell
from shared.bus.shell.sources import SubscribeFunction
from shared.core.runtime.input_specs import ARTIFACT
from shared.core.runtime.role import Role
from shared.errors import CaravanError, ConfigInvalid
from shared.extras import missing_extra
from shared.jobspec.drivers.switches import SHIPPING_ATTRIBUTE
from shared.protocol import subjects

_CORE_MAX = 65_535
log = structlog.get_logger()


def _naming(own: AgentSettings) -> NodeNaming:
    pairs = [pair.partition("=") for pair in split_list(own.meta)]
    return NodeNaming(
        node_id=own.node_id,
        name=own.name,
        datacenter=own.datacenter,
        node_pool=own.node_pool,
        node_class=own.node_class,
        meta={name.strip(): value.strip() for name, _, value in pairs},
    )


def _drivers(own: AgentSettings, home: DataDir) -> dict[str, Driver]:
    isolated = exec_settings(os.environ)
    drivers: list[Driver] = []
    if own.raw_exec:
        groups = own_groups(agent_level(isolated.cgroup_parent, home.top))
        drivers.append(RawExecDriver(kernel_boot=home.kernel_boot, groups=groups))
    drivers += isolated_drivers(home.top, home.kernel_boot, isolated)
    docker = docker_settings(os.environ)
    if docker.enabled and find_spec("docker") is None:
        log.info("driver.skipped", driver="docker", reason=missing_extra("docker"))
    elif docker.enabled:
        drivers.append(_docker(docker, own, home))
    drivers += plugin_drivers(own.driver_plugins, home, os.environ)
    return {driver.name: driver for driver in drivers}


class ClusterData:
    """What inputs of this node's tasks read of the cluster, and what DNS answers from."""

    def __init__(self, node_id: str, dns: "NodeDns") -> None:
        self.dns = dns
        #: it knows the cluster, once it has heard of it.
        self.agent: Agent | None = None
        self.services = ServiceDirectory()
        self.variables = VariableDirectory(node_id, self._cluster_id)
        self.tokens = KeeperTokens(node_id, self._cluster_id)
        self.disks = BusPeers(node_id)

    def sockets(self, home: DataDir, drivers: Mapping[str, Driver]) -> TaskSockets:
        """Make what serves the task API."""
        reads = TaskReads(self.variables, self.services)
        return TaskSockets(home.top, task_owner(drivers), reads)

    def _cluster_id(self) -> str:
        return "" if self.agent is None else self.agent.cluster_id

    async def run(self, shell: Shell) -> None:
        """Read what was asked for, and answer."""
        await asyncio.gather(
            self.services.run(lambda: shell.bus),
            self.variables.run(lambda: shell.bus),
            self.dns.run(self.services),
        )


class NodeDns:
    """Names of services in DNS, where the operator wants them. Binds while the agent may. Raises ConfigInvalid."""

    def __init__(self, own: AgentSettings, settings: DnsSettings) -> None:
        self._settings = settings
        # Of several agents on one machine, which all get the same setting, the first answers.
        is_mine = bool(settings.dns) and not own.share and not own.retire
        self._sockets: DnsSockets | None = open_sockets(*settings.place) if is_mine else None

    def attributes(self) -> dict[str, str]:
        """Node attributes."""
        return self._settings.attributes()

    async def run(self, services: ServiceDirectory) -> None:
        """Answer until cancelled."""
        if self._sockets is None:
            return
        from services.agent.dns.listener import DnsListener  # noqa: PLC0415 - extra "agent".
        from services.agent.dns.responder import Responder  # noqa: PLC0415

        said = self._settings
        log.info("dns.answers", address=said.dns, zone=said.dns_zone)
        responder = Responder(services, zone=said.dns_zone, ttl_s=said.dns_ttl)
        await DnsListener(responder, self._sockets).run()


def _input_handlers(
    home: DataDir,
    drivers: Mapping[str, Driver],
    templated: TemplateSettings,
    bus_url: str,
    *,
    data: ClusterData,
    plugins: SecretPlugins,
    vault: VaultSettings,
) -> dict[str, InputHandler]:
    artifacts = artifact_settings(os.environ)
    found = _vault(vault, data.tokens, drivers)
    known = None if found is None else found.secrets
    templates = TemplateHandler(
        home.top,
        task_view(drivers),
        templated,
        data.services,
        variables=data.variables,
        secrets=known,
    )
    identities = IdentityHandler(data.tokens, task_view(drivers), task_owner(drivers))
    secrets = SecretHandler(plugins, variables=data.variables, vault=known)
    needs_landlock = artifacts.require == "landlock"
    disks = DiskHandler(home, data.disks, needs_landlock=needs_landlock)
    made = (identities, secrets, templates, disks)
    handlers: dict[str, InputHandler] = {one.kind: one for one in made}
    if found is not None:
        handlers[found.kind] = found
    if find_spec("urllib3") is None:
        log.info("inputs.skipped", kind=ARTIFACT, reason=missing_extra("urllib3"))
        return handlers
    from services.agent.inputs.artifacts.handler import ArtifactHandler  # noqa: PLC0415 - extra "agent".

    fetches = ArtifactHandler(home.top, artifacts, refused_hosts=bus_hosts(bus_url))
    return {fetches.kind: fetches, **handlers}


def _vault(
    settings: VaultSettings, tokens: KeeperTokens, drivers: Mapping[str, Driver]
) -> VaultHandler | None:
    """Make what knows Vault; None: the operator named none. Raises ConfigInvalid."""
    if not settings.addr:
        return None
    if find_spec("urllib3") is None:
        raise ConfigInvalid(missing_extra("urllib3"))
    from services.agent.inputs.vault.client import VaultClient  # noqa: PLC0415 - extra "agent".

    return VaultHandler(VaultClient(settings), tokens, task_owner(drivers))


def _networks(
    settings: BridgeSettings, home: DataDir, drivers: Mapping[str, Driver]
) -> GroupNetworks:
    pause = getattr(drivers.get("docker"), "pause", None)
    return GroupNetworks(top=home.top, host_id=home.host_id, settings=settings, pause=pause)


def _retire(home: DataDir, drivers: Mapping[str, Driver], networks: GroupNetworks) -> int:
    """End everything that runs of this directory; returns the exit code."""
    count = _end_rest(home, drivers)
    networks.remove_all()
    for driver in drivers.values():
        if (sweep := getattr(driver, "sweep_all", None)) is not None:
            count += sweep()
    log.info("tasks.ended", count=count)
    return 0


def _end_rest(home: DataDir, drivers: Mapping[str, Driver]) -> int:
    """End what still runs: a signal that comes early finds tasks that are not adopted yet. Returns how many."""
    trees = [(tree, frozenset[str]()) for tree, _ in _groups(drivers, home)]
    return end_orphans(home, trees, keep_known=False)


def _groups(
    drivers: Mapping[str, Driver], home: DataDir
) -> list[tuple[CgroupTree, frozenset[str]]]:
    """Trees of cgroups of the drivers that have one, with the groups of the runs in the journal."""
    trees = {
        id(one.groups): one.groups
        for one in drivers.values()
        if isinstance(one, ProcessDriver) and one.groups is not None
    }
    runs = known_runs(home, home.journal.entries)
    names = frozenset(group_name(Path(one)) for one in runs)
    return [(tree, names) for tree in trees.values()]


def _docker(settings: DockerSettings, own: AgentSettings, home: DataDir) -> Driver:
    from services.agent.drivers.docker.driver import DockerDriver  # noqa: PLC0415 - extra "agent".

    facts = read_facts(home.top)
    return DockerDriver(
        settings,
        data_dir=home.top,
        node_id=own.node_id,
        home_id=home.host_id,
        kernel_boot=home.kernel_boot,
        machine=HostCpu(core_mhz=core_mhz(facts), cores=facts.cores),
    )


def _plugins(own: AgentSettings) -> list[DevicePlugin]:
    if not own.fake_gpus:
        return []
    log.warning("devices.fake", devices=own.fake_gpus)
    return [FakeGpus(own.fake_gpus)]


def _device_plugins(own: AgentSettings) -> DevicePlugins:
    """Of several agents on one machine the first offers its devices. Raises ConfigInvalid."""
    if own.share:
        return DevicePlugins()
    builtin: list[BuiltinPlugin] = [nvidia_plugin()] if own.nvidia else []
    return DevicePlugins(own.device_plugins, builtin)


def volume_plugins(own: AgentSettings, home: DataDir) -> VolumePlugins:
    """Return what makes volumes by request. Raises ConfigInvalid."""
    place = NodePlace(
        data_dir=str(home.top),
        volumes_dir=own.host_volumes_dir,
        node_id=own.node_id,
        node_pool=own.node_pool,
    )
    return VolumePlugins(own.host_volume_plugins, place)


def host_networks(text: str) -> dict[str, str]:
    """Read `name=address` pairs as attributes of the node. Raises ConfigInvalid."""
    found: dict[str, str] = {}
    for pair in split_list(text):
        name, _, address = pair.partition("=")
        try:
            found[HOST_NETWORK + name.strip()] = str(ip_address(address.strip()))
        except ValueError as err:
            raise ConfigInvalid(f"{PREFIX}HOST_NETWORKS: {pair!r}: {err}") from err
    return found


def _finder(
    own: AgentSettings,
    home: DataDir,
    parts: tuple[AllocDirs, GroupNetworks],
    drivers: Mapping[str, Driver],
    *,
    offers: Sequence[
        HostVolumes | VolumePlugins | SecretPlugins | TemplateSettings | NodeDns | VaultSettings
    ],
    devices: DevicePlugins,
) -> FingerprintRefresher:
    reserved = HostReserved(
        cpu_mhz=own.reserved_cpu_mhz,
        memory_mib=own.reserved_memory_mib,
        disk_mib=own.reserved_disk_mib,
        cores=frozenset(parse_ranges(own.reserved_cores, f"{PREFIX}RESERVED_CORES", _CORE_MAX)),
    )

    def compose(facts: HostFacts, found: Mapping[str, str], pools: tuple[Pool, ...]) -> NodeSpec:
        found = {**found, **host_networks(own.host_networks)}
        if own.ship_logs:
            found[SHIPPING_ATTRIBUTE] = "1"
        for one in offers:
            found |= one.attributes()
            pools += one.pools() if isinstance(one, HostVolumes) else ()
        pools = without_repeats(pools)
        spec = node_spec(facts, _naming(own), drivers=found, reserved=reserved, pools=pools)
        return agent_share(spec, own)

    finder = FingerprintRefresher(
        (*parts, *drivers.values(), *_plugins(own), devices),
        facts=lambda: read_facts(home.top),
        pools=lambda: read_pools(Path(own.pools)) if own.pools else (),
        compose=compose,
    )
    devices.offered = lambda: finder.spec.pools if finder.spec is not None else ()
    return finder


def _agent(own: AgentSettings, home: DataDir, spec: NodeSpec) -> Agent:
    return Agent(
        node_id=own.node_id,
        instance=f"{own.node_id}-{home.boot_id[:8]}",
        host_id=home.host_id,
        boot_id=home.boot_id,
        spec=spec,
        journal=home.journal.entries,
        settings=AgentLimits(disk_kill=own.disk_kill),
        kernel_boot=home.kernel_boot,
    )


def _given(own: AgentSettings, home: DataDir, spec: NodeSpec) -> dict[str, object]:
    """Say what the role is made from, for its tape (`bench/report/tape_replay.py` makes it again)."""
    return {
        "node_id": own.node_id,
        "host_id": home.host_id,
        "boot_id": home.boot_id,
        "spec": spec,
        "journal": list(home.journal.entries),
        "disk_kill": own.disk_kill,
        "kernel_boot": home.kernel_boot,
    }


def port_range(own: AgentSettings) -> tuple[int, int]:
    """Return the first and last port that the cluster may pick of this agent's node."""
    shares = max(own.shares, 1)
    width = max(own.port_max - own.port_min + 1, 0)
    last = own.port_min + width * (own.share + 1) // shares - 1
    return own.port_min + width * own.share // shares, last


def agent_share(spec: NodeSpec, own: AgentSettings) -> NodeSpec:
    """Say what of the machine is this agent's: what the settings say, else its share."""
    shares = max(own.shares, 1)
    port_min, port_max = port_range(own)
    return msgspec.structs.replace(
        spec,
        pools=split_cores(spec.pools, own.share, shares),
        port_min=port_min,
        port_max=port_max,
        reserved_ports=parse_ranges(own.reserved_ports, f"{PREFIX}RESERVED_PORTS", PORT_MAX),
        cpu_mhz=own.cpu_mhz or spec.cpu_mhz // shares,
        memory_mib=own.memory_mib or spec.memory_mib // shares,
        disk_mib=spec.disk_mib // shares,
    )


def _allow_many_files() -> None:
    """Each live run takes a descriptor; tasks themselves keep the limit that the agent was given."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _begin(home: DataDir) -> None:
    _allow_many_files()
    if home.journal.torn_bytes:
        log.warning("journal.torn", dropped_bytes=home.journal.torn_bytes)


def _beside(
    node_id: str,
    finder: FingerprintRefresher,
    data: ClusterData,
    executors: Sequence[TaskExecutor],
    *,
    shipper: LogShipper | None,
) -> SideTask:
    async def beside(shell: Shell) -> None:
        data.tokens.bus = data.disks.bus = lambda: shell.bus

        def publish(minute: UsageMinute) -> None:
            # Without an answer: a minute that is lost is a gap.
            if shell.bus is not None:
                shell.bus.send(subjects.usage(node_id), ENCODER.encode(minute))

        executors[0].usage.publish_minutes(node_id, publish)
        await asyncio.gather(
            finder.watch(
                lambda one: shell.inject([one]), lambda: sum(executors[0].disk_mib().values())
            ),
            data.run(shell),
            *([] if shipper is None else [shipper.run(lambda: shell.bus)]),
        )

    return beside


def _leave(
    own: AgentSettings,
    agent: Agent,
    executors: Sequence[TaskExecutor],
    shipper: LogShipper | None,
) -> BeforeEnd:
    async def leave(shell: Shell, again: asyncio.Event) -> None:
        await end_tasks(
            inject=lambda one: shell.inject([one]),
            awaited=agent.awaited,
            ended=executors[0].tasks_ended,
            again=again,
            limit_s=own.end_tasks_limit_s,
        )
        await executors[0].settle()
        if shipper is not None:
            await shipper.ship_last(shell.bus)

    return leave


def _close(drivers: Mapping[str, Driver], devices: DevicePlugins, *, ends: DataDir | None) -> None:
    """Free what drivers hold. `ends`: whose tasks end with the agent."""
    if ends is not None:
        _end_rest(ends, drivers)
    for driver in drivers.values():
        if (close := getattr(driver, "close", None)) is not None:
            close()
    devices.close()


def _carriers(
    own: AgentSettings,
    home: DataDir,
    directories: AllocDirs,
    *,
    agent: Agent,
    executors: Sequence[TaskExecutor],
) -> dict[str, SubscribeFunction]:
    """Return what answers requests of operators and of other nodes, by source."""
    hands = NodeRpcServer(
        node_id=own.node_id,
        home=home,
        directories=directories,
        executor=lambda: executors[0],
        role=agent,
    )
    disks = DiskServer(node_id=own.node_id, home=home, executor=lambda: executors[0])
    return {SOURCE: hands.carry, DISK_SOURCE: disks.carry}


def _performers(
    make: Callable[..., TaskExecutor], executors: list[TaskExecutor]
) -> Callable[[Shell], Mapping[type, EffectHandler]]:
    """Return what makes the executor of a shell, and keeps it in `executors`."""

    def performers_of(shell: Shell) -> Mapping[type, EffectHandler]:
        executors.append(make(inject=lambda one: shell.inject([one])))
        return executors[-1].performers()

    return performers_of


def main() -> int:
    """Run an agent until a signal; returns the exit code."""
    try:
        settings = run_settings()
        own = agent_settings(os.environ)
        configure_logging(settings.log_level)
        volumes = read_host_volumes(own.host_volumes, own.data_dir)
        dns = NodeDns(own, dns_settings(os.environ))
        settings = run_as(own.run_as, settings)
        home = DataDir(Path(own.data_dir), own.node_id)
        drivers = _drivers(own, home)
        networks = _networks(bridge_settings(os.environ, port_range(own)), home, drivers)
        if own.retire:
            return _retire(home, drivers, networks)
        end_orphans(home, _groups(drivers, home))
        directories = AllocDirs(home.top, memory=own.secrets_memory)
        templated, data = template_settings(os.environ), ClusterData(own.node_id, dns)
        plugins, vault = SecretPlugins(own.secret_plugins), vault_settings(os.environ)
        handlers = _input_handlers(
            home, drivers, templated, settings.nats_url, data=data, plugins=plugins, vault=vault
        )
        maker = VolumeMaker(makers := volume_plugins(own, home), volumes, home.journal.entries)
        offers, devices = (volumes, makers, templated, plugins, dns, vault), _device_plugins(own)
        finder = _finder(
            own, home, (directories, networks), drivers, offers=offers, devices=devices
        )
        spec = finder.find()
        shipper = LogShipper(home, own.node_id) if own.ship_logs else None
        data.agent, given = (agent := _agent(own, home, spec)), _given(own, home, spec)
    except CaravanError as err:
        log.critical("service.stopped", reason=str(err), error=type(err).__name__)
        return 1
    _begin(home)
    executors: list[TaskExecutor] = []
    make = partial(
        TaskExecutor,
        home=home,
        drivers=drivers,
        directories=directories,
        handlers=handlers,
        volumes=volumes,
        networks=networks,
        devices=devices,
        sockets=data.sockets(home, drivers),
        shipper=shipper,
        maker=maker,
    )
    code = run_role(
        cast("Role", agent),
        settings,
        node_id=own.node_id,
        performers_of=_performers(make, executors),
        side_task=_beside(own.node_id, finder, data, executors, shipper=shipper),
        before_end=_leave(own, agent, executors, shipper) if own.end_tasks else None,
        carriers=_carriers(own, home, directories, agent=agent, executors=executors),
        given=given,
        metrics=lambda: executors[0].usage.metrics() if executors else {},
    )
    _close(drivers, devices, ends=home if code == 0 and own.end_tasks else None)
    return code


if __name__ == "__main__":
    sys.exit(main())
