"""What is refused of the network of a group: each fault names its field and what is wrong with it."""

from typing import Any

import msgspec
import pytest

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.networks import check_ports
from shared.jobspec.nomad.job import TaskGroup


def faults(
    network: dict[str, Any], *tasks: dict[str, Any], more: tuple[Any, ...] = ()
) -> dict[str, str]:
    """Path below the group and text of each fault."""
    group = {"Name": "g", "Networks": [network, *more], "Tasks": list(tasks)}
    found = ErrorList()
    check_ports(found, msgspec.json.decode(msgspec.json.encode(group), type=TaskGroup), "G")
    return {one.path.removeprefix("G."): one.message for one in found.found}


def box(**config: Any) -> dict[str, Any]:
    """A container."""
    return {"Name": "b", "Driver": "docker", "Config": {"image": "x", **config}}


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        (
            {"DynamicPorts": [{"Label": "a"}, {"Label": "a"}]},
            "DynamicPorts[1].Label",
            "is named 'a'",
        ),
        (
            {"ReservedPorts": [{"Label": "a", "Value": 70_000}]},
            "ReservedPorts[0].Value",
            "1 to 65535",
        ),
        ({"DynamicPorts": [{"Label": "a", "To": -2}]}, "DynamicPorts[0].To", "-1"),
        (
            {"ReservedPorts": [{"Label": "a", "Value": 80, "IgnoreCollision": True}]},
            "ReservedPorts[0].IgnoreCollision",
            "only for mode host",
        ),
        ({"Hostname": "a b"}, "Hostname", "DNS name"),
        ({"Hostname": "-a"}, "Hostname", "DNS name"),
        ({"DNS": {"Servers": ["ns"]}}, "DNS.Servers[0]", "must be an address"),
        ({"DNS": {"Options": ["a\nnameserver 10.0.0.1"]}}, "DNS.Options[0]", "one word"),
    ],
)
def test_a_fault_of_a_network_names_its_field(fields: dict[str, Any], path: str, text: str) -> None:
    """Labels, numbers, names and servers, in mode bridge."""
    found = faults({"Mode": "bridge", **fields})
    assert list(found) == [f"Networks[0].{path}"]
    assert text in found[f"Networks[0].{path}"]


def test_a_port_may_be_shared_in_mode_host() -> None:
    """There tasks listen on the node's port themselves."""
    port = {"Label": "a", "Value": 80, "IgnoreCollision": True}
    assert not faults({"Mode": "host", "ReservedPorts": [port]})


@pytest.mark.parametrize("name", ["hostname", "dns_servers", "extra_hosts", "port_map", "sysctl"])
def test_what_the_group_decides_is_no_option_of_its_containers(name: str) -> None:
    """In mode bridge the group has names, resolver and ports; in mode host the container has them."""
    task = box(**{name: "x"})
    assert list(faults({"Mode": "bridge"}, task)) == [f"Tasks[0].Config.{name}"]
    assert not faults({"Mode": "host"}, task)


def test_a_container_with_a_network_of_its_own_publishes_nothing() -> None:
    """The ports are the group's."""
    assert list(faults({"Mode": "bridge"}, box(network_mode="none", ports=["a"]))) == [
        "Tasks[0].Config.ports"
    ]
    assert not faults({"Mode": "bridge"}, box(network_mode="none"), box(ports=["a"]))


def test_a_group_in_a_bridge_has_one_network() -> None:
    """A second block, or one in a task, is refused."""
    assert list(faults({"Mode": "bridge"}, more=({"Mode": "host"},))) == ["Networks[1]"]
    task = {"Name": "t", "Driver": "exec", "Resources": {"Networks": [{"Mode": "bridge"}]}}
    assert list(faults({"Mode": "host"}, task)) == ["Tasks[0].Resources.Networks[0].Mode"]
