"""Options that a node offers only if its operator enables it: what a task requests, and the attribute that offers it.

Decides which switch an option needs. The compiler makes a constraint of each, so that a job is placed only where it is
offered; the driver on the node asks again (services/agent/drivers/). A value that only the node can resolve (`${…}`)
makes no constraint: the node decides alone. Next: `registry.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from shared.jobspec.drivers.docker import LOG_DRIVER_DEFAULT, DockerOptions, read_docker
from shared.jobspec.drivers.registry import driver_traits
from shared.jobspec.nomad.tasks import LogConfig, Secret, TemplateBlock, Vault

DOCKER_PREFIX, EXEC_PREFIX = "CARAVAN_DOCKER_", "CARAVAN_EXEC_"
TEMPLATE_DENYLIST = "CARAVAN_AGENT_TEMPLATE_FUNCTION_DENYLIST"
#: Of the functions that Nomad denies by default the one that exists here, so that an operator can allow it.
EXECUTE_TEMPLATE, EXECUTE_ATTRIBUTE = "executeTemplate", "template.execute_template"
DENIED_BY_DEFAULT = (EXECUTE_TEMPLATE, "plugin", "writeToFile")
SECRET_PLUGINS = "CARAVAN_AGENT_SECRET_PLUGINS"
#: A node that knows a server of Vault, and the setting that names it.
VAULT_ATTRIBUTE, VAULT_SETTING = "vault.accessible", "CARAVAN_AGENT_VAULT_ADDR"
#: A node that may send output of tasks to the bus, and the setting that allows it.
SHIPPING_ATTRIBUTE, SHIPPING_SETTING = "logs.ship", "CARAVAN_AGENT_SHIP_LOGS"
#: Providers of secrets that need no program.
BUILT_IN_PROVIDERS = frozenset(("nomad", "vault"))
_UNLIMITED = -1


class NodeSwitch(NamedTuple):
    """What a task requests (`option`), the node's attribute that offers it, and the setting that makes the offer."""

    option: str
    attribute: str
    setting: str


def _docker_switch(option: str, name: str) -> NodeSwitch:
    return NodeSwitch(option, f"driver.docker.{name}", DOCKER_PREFIX + name.upper())


def docker_switches(options: DockerOptions, memory_max_mib: int = 0) -> tuple[NodeSwitch, ...]:
    """List the switches that a container needs. Unit: MiB, -1 is unlimited."""
    return tuple(_docker_switches(options, memory_max_mib))


def _docker_switches(options: DockerOptions, memory_max_mib: int) -> Iterator[NodeSwitch]:
    if options.privileged:
        yield _docker_switch("privileged", "allow_privileged")
    if options.devices:
        yield _docker_switch("devices", "allow_devices")
    for name in options.host_namespaces:
        yield _docker_switch(f"{name} host", "allow_host_namespaces")
    if options.network_mode == "host":
        yield NodeSwitch(
            "network_mode host", "driver.docker.host_network", f"{DOCKER_PREFIX}ALLOW_HOST_NETWORK"
        )
    for mount in options.mounts:
        if mount.is_engine_socket:
            yield _docker_switch(f"{mount.path}: the engine's socket", "allow_engine_socket")
        elif mount.is_device:
            yield _docker_switch(f"{mount.path}: a path in /dev", "allow_device_volumes")
    if options.node_auth:
        yield NodeSwitch("auth", "driver.docker.auth_file", f"{DOCKER_PREFIX}AUTH_FILE")
    if (kind := options.log_driver) != LOG_DRIVER_DEFAULT:
        attribute = f"driver.docker.log_driver.{kind}"
        yield NodeSwitch(f"logging {kind}", attribute, f"{DOCKER_PREFIX}ALLOWED_LOG_DRIVERS")
    if {"rtprio", "nice"} & set(options.ulimit):
        yield _docker_switch("ulimit rtprio or nice", "allow_realtime")
    if memory_max_mib == _UNLIMITED:
        yield _docker_switch("memory_max -1", "allow_unlimited_memory")


def _exec_switches(config: Mapping[str, Any], memory_max_mib: int) -> Iterator[NodeSwitch]:
    for name in ("pid_mode", "ipc_mode"):
        if config.get(name) == "host":
            attribute = "driver.exec.allow_host_namespaces"
            yield NodeSwitch(f"{name} host", attribute, f"{EXEC_PREFIX}ALLOW_HOST_NAMESPACES")
    if memory_max_mib == _UNLIMITED:
        attribute = "driver.exec.allow_unlimited_memory"
        yield NodeSwitch("memory_max -1", attribute, f"{EXEC_PREFIX}ALLOW_UNLIMITED_MEMORY")


def template_switches(blocks: Iterable[TemplateBlock]) -> tuple[NodeSwitch, ...]:
    """List the switches that templates need. What a file holds is known to the node alone."""
    if not any(EXECUTE_TEMPLATE in one.data for one in blocks):
        return ()
    return (NodeSwitch(EXECUTE_TEMPLATE, EXECUTE_ATTRIBUTE, TEMPLATE_DENYLIST),)


def provider_attribute(name: str) -> str:
    """Name the attribute of a node that has this program for secrets."""
    return f"plugins.secrets.{name}"


def secret_switches(blocks: Iterable[Secret]) -> tuple[NodeSwitch, ...]:
    """List the programs that secrets need."""
    names = sorted({one.provider for one in blocks if not one.has_references} - BUILT_IN_PROVIDERS)
    return tuple(NodeSwitch(name, provider_attribute(name), SECRET_PLUGINS) for name in names)


def vault_switches(block: Vault | None) -> tuple[NodeSwitch, ...]:
    """List the switches that a task with a vault block needs."""
    return () if block is None else (NodeSwitch("vault", VAULT_ATTRIBUTE, VAULT_SETTING),)


def log_switches(block: LogConfig) -> tuple[NodeSwitch, ...]:
    """List the switches that the output of a task needs."""
    if not block.ship:
        return ()
    return (NodeSwitch("logs ship", SHIPPING_ATTRIBUTE, SHIPPING_SETTING),)


def needed_switches(
    driver: str, config: bytes | msgspec.Raw, memory_max_mib: int = 0
) -> tuple[NodeSwitch, ...]:
    """List the switches that a task with valid options needs. `config`: an object in JSON; unit: MiB."""
    if driver == "docker":
        options, _ = read_docker(msgspec.json.decode(config))
        return docker_switches(options, memory_max_mib)
    if driver_traits(driver).is_isolated:
        return tuple(_exec_switches(msgspec.json.decode(config), memory_max_mib))
    return ()
