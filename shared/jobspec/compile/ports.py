"""Ports of a group: which it names itself, which the cluster picks, and in what order.

The order is part of what the log says: the n-th picked port of an allocation belongs to the n-th label here, for the
scheduler and for the agent alike. Networks of the group come first, then those that old files have in their tasks.
"""

from collections.abc import Iterator

from shared.jobspec.nomad.job import TaskGroup
from shared.jobspec.nomad.placement import Network, Port


def group_networks(group: TaskGroup) -> Iterator[tuple[str, Network]]:
    """List all networks of a group, each with its path below the group."""
    for at, network in enumerate(group.networks):
        yield f"Networks[{at}]", network
    for number, task in enumerate(group.tasks):
        for at, network in enumerate(task.resources.networks):
            yield f"Tasks[{number}].Resources.Networks[{at}]", network


def has_networks(group: TaskGroup) -> bool:
    """Return whether a group has any network: most have none, and nothing more to be asked."""
    return bool(group.networks) or any([task.resources.networks for task in group.tasks])  # noqa: C419


def static_ports(group: TaskGroup) -> tuple[Port, ...]:
    """List the ports that have a number in the job, in order of writing."""
    return tuple([port for _, network in group_networks(group) for port in network.reserved_ports])


def dynamic_ports(group: TaskGroup) -> tuple[Port, ...]:
    """List the ports whose numbers the cluster picks, in the order it picks them."""
    return tuple([port for _, network in group_networks(group) for port in network.dynamic_ports])


def reserved_port_numbers(group: TaskGroup) -> tuple[int, ...]:
    """List the numbers that an allocation holds on its node, each once; a shared one is not held."""
    held = [port.static for port in static_ports(group) if not port.ignore_collision]
    return tuple(sorted(set(held)))
