"""What of its allocation's ports, devices and cores belongs to one task, and how its environment tells.

Decides the share of each task: ports of the group are common to all, instances go to tasks as `spans_of` lays them
out, which the
scheduler's asks come from, too. Must not know how the cluster picked them. Next: `environment.py`.
"""

import re
from collections.abc import Iterable, Mapping

from schemas.nodes import NodeSpec
from services.agent.tasks.resolved_group import ResolvedGroup, ResolvedTask
from shared.core.runtime.agent_messages import TaskNetwork
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.jobspec.drivers.registry import driver_traits

CORES = "cores"
DEVICE = "device."
IP_ATTRIBUTE = "unique.network.ip-address"
#: Of a node: address in one of its networks by name.
HOST_NETWORK = "host_network."
#: Of a pool: device files that go with every instance.
PATHS_ATTRIBUTE = "device_paths"
#: Of a group in mode bridge, in its network namespace.
INTERFACE = "eth0"
_DEVICE_FILE = re.compile(r"/dev/[A-Za-z0-9_./:-]*[A-Za-z0-9_:-]")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")
_NUMBER = re.compile(r"(\d+)$")


def env_name(text: str) -> str:
    """Make a part of a variable's name of any text."""
    return _NOT_A_NAME.sub("_", text)


def task_ports(
    alloc: DesiredAlloc, plan: ResolvedGroup, task: ResolvedTask
) -> dict[str, tuple[int, int]]:
    """Say which ports a task has: label -> (on the node, in its own network)."""
    if not plan.ports:
        return {}
    picked = iter(alloc.ports)
    found: dict[str, tuple[int, int]] = {}
    for port in plan.ports:
        number = port.number or next(picked, 0)
        if number and port.task in {"", task.name}:
            found[port.label] = (number, port.to if port.to > 0 else number)
    return found


def shared_labels(plan: ResolvedGroup) -> frozenset[str]:
    """Labels of ports that others may hold, too."""
    return frozenset(port.label for port in plan.ports if port.shared)


def task_instances(alloc: DesiredAlloc, task: ResolvedTask) -> dict[str, tuple[str, ...]]:
    """Say which of the allocation's instances are a task's: pool -> ids, for every pool that it asks for."""
    if not alloc.instances:
        return {}
    spans = task.spans[alloc.variant] if alloc.variant < len(task.spans) else {}
    found = {
        pool: tuple(
            one
            for first, count in parts
            for one in alloc.instances.get(pool, ())[first : first + count]
        )
        for pool, parts in sorted(spans.items())
    }
    return {pool: ids for pool, ids in found.items() if ids}


def task_cores(alloc: DesiredAlloc, task: ResolvedTask) -> tuple[int, ...]:
    """Say which cores are a task's, by the kernel's numbers."""
    numbers = map(_NUMBER.search, task_instances(alloc, task).get(CORES, ()))
    return tuple(sorted(int(found.group(1)) for found in numbers if found))


def task_devices(alloc: DesiredAlloc, task: ResolvedTask) -> dict[str, tuple[str, ...]]:
    """Say which devices and instances of custom resources are a task's: pool -> ids."""
    return {pool: ids for pool, ids in task_instances(alloc, task).items() if pool != CORES}


def task_device_paths(alloc: DesiredAlloc, task: ResolvedTask, node: NodeSpec) -> tuple[str, ...]:
    """Say which device files are a task's: instances that are called so, and what their pool says of all of them.

    Only what this node itself offers counts: the cluster's word opens no file here.
    """
    found: set[str] = set()
    for pool, ids in task_devices(alloc, task).items():
        for offer in node.pools:
            own = [one.id for one in offer.instances if offer.name == pool and one.id in ids]
            if own:
                also = offer.attributes.get(PATHS_ATTRIBUTE, "").split(",")
                found |= {one.strip() for one in (*own, *also)}
    return tuple(sorted(one for one in found if _DEVICE_FILE.fullmatch(one) and "/../" not in one))


def port_addresses(plan: ResolvedGroup, node: NodeSpec) -> dict[str, str]:
    """Say where ports of a network by name are: label -> address of the node."""
    return {
        port.label: node.attributes.get(HOST_NETWORK + port.host_network, "")
        for port in plan.ports
        if port.host_network and HOST_NETWORK + port.host_network in node.attributes
    }


def group_network(plan: ResolvedGroup, node: NodeSpec, address: str = "") -> TaskNetwork:
    """Say what the group says of its network. `address`: of the group in its namespace, in mode bridge."""
    said = plan.network
    return TaskNetwork(
        mode=said.mode,
        hostname=said.hostname,
        dns_servers=said.dns_servers,
        dns_searches=said.dns_searches,
        dns_options=said.dns_options,
        addresses=port_addresses(plan, node),
        address=address.partition("/")[0],
    )


def port_variables(
    ports: dict[str, tuple[int, int]],
    driver: str,
    node: NodeSpec,
    addresses: Mapping[str, str],
    *,
    own: str = "",
) -> dict[str, str]:
    """Tell ports as Nomad does: NOMAD_PORT_<label> is where the task listens, its `to` in any network.

    `own`: address of the group in its network namespace, with or without the length of its prefix.
    """
    inside = own.partition("/")[0]
    usual = node.attributes.get(IP_ATTRIBUTE) or "127.0.0.1"
    is_mapped = driver_traits(driver).maps_ports
    out: dict[str, str] = {}
    for label in sorted(ports):
        host, to = ports[label]
        address = addresses.get(label) or usual
        at = env_name(label)
        out |= {
            f"NOMAD_PORT_{at}": str(to),
            f"NOMAD_ALLOC_PORT_{at}": str(to),
            f"NOMAD_HOST_PORT_{at}": str(host),
            f"NOMAD_IP_{at}": address,
            f"NOMAD_HOST_IP_{at}": address,
            f"NOMAD_ADDR_{at}": f"{address}:{host}",
            f"NOMAD_HOST_ADDR_{at}": f"{address}:{host}",
        }
        if inside:
            out |= {
                f"NOMAD_ALLOC_INTERFACE_{at}": INTERFACE,
                f"NOMAD_ALLOC_IP_{at}": inside,
                f"NOMAD_ALLOC_ADDR_{at}": f"{inside}:{to}",
            }
        elif not is_mapped:
            out |= {f"NOMAD_ALLOC_IP_{at}": address, f"NOMAD_ALLOC_ADDR_{at}": f"{address}:{to}"}
    return out


def device_variables(devices: dict[str, tuple[str, ...]], node: NodeSpec) -> dict[str, str]:
    """Tell instances: CARAVAN_DEVICE_<TYPE>, CARAVAN_RESOURCE_<NAME>, and what CUDA and its containers look at."""
    out: dict[str, str] = {}
    nvidia: list[str] = []
    for pool, ids in devices.items():
        is_device = pool.startswith(DEVICE)
        name = env_name(pool.removeprefix(DEVICE)).upper()
        out[f"CARAVAN_{'DEVICE' if is_device else 'RESOURCE'}_{name}"] = ",".join(ids)
        theirs = {
            one.id
            for offer in node.pools
            if offer.name == pool and offer.vendor == "nvidia"
            for one in offer.instances
        }
        nvidia += [one for one in ids if one in theirs]
    if nvidia:
        out |= dict.fromkeys(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), ",".join(nvidia))
    return out


def format_cores(cores: Iterable[int]) -> str:
    """Write cores as the kernel does: `0-3,5`."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)
