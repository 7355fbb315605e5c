"""Variables of a task for its ports, devices, cores and memory."""

from typing import Any

import msgspec

from schemas.envelope import ENCODER
from schemas.nodes import Instance, NodeSpec, Pool
from services.agent.tasks.environment import task_launch
from services.agent.tasks.resolved_group import resolve_group
from services.agent.tasks.task_resources import format_cores
from shared.core.runtime.agent_messages import TaskLaunch
from tests.unit.agent.agent_story import alloc, job_json, task_json

NODE = NodeSpec(
    node_id="n1",
    name="one",
    attributes={"unique.network.ip-address": "10.0.0.7"},
    pools=(
        Pool(
            name="device.gpu",
            vendor="nvidia",
            model="t4",
            instances=tuple(Instance(id=f"GPU-{n}") for n in range(4)),
        ),
    ),
)
NETWORK = {
    "ReservedPorts": [{"Label": "admin", "Value": 8080, "To": 80}],
    "DynamicPorts": [{"Label": "http", "To": 8000}, {"Label": "rpc-in"}],
}


def launches(*tasks: dict[str, Any], group: dict[str, Any], **held: Any) -> list[TaskLaunch]:
    """What the drivers of a group's tasks are given."""
    job = job_json(*tasks)
    job["TaskGroups"][0].update(group)
    plan = resolve_group(ENCODER.encode(job), "g")
    return [task_launch(alloc(**held), plan, task, NODE) for task in plan.tasks]


def test_ports_are_told_as_nomad_does() -> None:
    """Picked ports go to the dynamic labels in order, static ones stand in the job; a task listens on `to`."""
    plain, boxed = launches(
        task_json("a"),
        task_json("b", driver="docker"),
        group={"Networks": [NETWORK]},
        ports=(20001, 20002),
    )
    assert plain.ports == {"admin": (8080, 80), "http": (20001, 8000), "rpc-in": (20002, 20002)}
    assert (plain.env["NOMAD_PORT_http"], plain.env["NOMAD_HOST_PORT_http"]) == ("8000", "20001")
    assert plain.env["NOMAD_ADDR_http"] == "10.0.0.7:20001"
    assert plain.env["NOMAD_ALLOC_ADDR_http"] == "10.0.0.7:8000"
    assert plain.env["NOMAD_ADDR_rpc_in"] == "10.0.0.7:20002"
    assert plain.env["NOMAD_IP_admin"] == "10.0.0.7"
    assert boxed.env["NOMAD_PORT_http"] == boxed.env["NOMAD_ALLOC_PORT_http"] == "8000"
    assert boxed.env["NOMAD_HOST_PORT_http"] == "20001"
    assert boxed.env["NOMAD_PORT_rpc_in"] == "20002"


def test_a_tasks_own_network_is_its_own() -> None:
    """Ports of a network in a task, as old files have it, come after the group's and are that task's alone."""
    own = {"Resources": {"Networks": [{"DynamicPorts": [{"Label": "x"}]}]}}
    first, second = launches(
        task_json("a", **own), task_json("b"), group={"Networks": [NETWORK]}, ports=(1, 2, 3)
    )
    assert first.ports["x"] == (3, 3)
    assert "x" not in second.ports


def test_ports_stand_for_themselves_in_options() -> None:
    """`${NOMAD_PORT_label}` in a driver's options is the number."""
    config = {"command": "x", "args": ["--port=${NOMAD_PORT_http}"]}
    (one,) = launches(task_json(Config=config), group={"Networks": [NETWORK]}, ports=(20001, 20002))
    assert b"--port=8000" in bytes(one.config)


def test_instances_go_to_whoever_asked() -> None:
    """Tasks have as many of the allocation's instances as they asked for, in the order of the job."""

    def gpus(count: int) -> dict[str, Any]:
        return {"Resources": {"Devices": [{"Name": "nvidia/gpu", "Count": count}]}}

    first, second, third = launches(
        task_json("a", **gpus(2)),
        task_json("b"),
        task_json("c", **gpus(1)),
        group={},
        instances={"device.gpu": ("GPU-3", "GPU-0", "GPU-1")},
    )
    assert first.devices == {"device.gpu": ("GPU-3", "GPU-0")}
    assert first.env["CUDA_VISIBLE_DEVICES"] == first.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-3,GPU-0"
    assert first.env["CARAVAN_DEVICE_GPU"] == "GPU-3,GPU-0"
    assert (second.devices, third.devices) == ({}, {"device.gpu": ("GPU-1",)})
    assert "CARAVAN_DEVICE_GPU" not in second.env


def test_cores_and_the_most_memory_are_told() -> None:
    """Cores are numbers of the kernel's, written as it does; memory_max is there where it is set."""
    asked = {"Resources": {"Cores": 3, "MemoryMB": 64, "MemoryMaxMB": 128}}
    (one,) = launches(task_json(**asked), group={}, instances={"cores": ("3", "1", "2")})
    assert one.cores == (1, 2, 3)
    assert one.env["NOMAD_CPU_CORES"] == "1-3"
    assert (one.memory_max_mib, one.env["NOMAD_MEMORY_MAX_LIMIT"]) == (128, "128")
    assert format_cores((7, 0, 1, 4)) == "0-1,4,7"


def test_a_driver_knows_what_it_starts() -> None:
    """Names of job, group, task, allocation and node travel with a start."""
    (one,) = launches(task_json("a"), group={})
    names = one.names
    assert (names.job, names.group, names.task, names.alloc) == ("j", "g", "a", "j.g[0]")
    assert (names.node_id, names.node_name) == ("n1", "one")


def test_in_a_bridge_the_inside_is_told_beside_the_outside() -> None:
    """IP and ADDR are the node's, PORT is where the task listens, ALLOC_ADDR is where siblings reach it."""
    network = {**NETWORK, "Mode": "bridge", "Hostname": "web", "DNS": {"Servers": ["10.0.0.2"]}}
    job = job_json(task_json("a"), task_json("b", driver="docker", Config={"image": "x"}))
    job["TaskGroups"][0]["Networks"] = [network]
    plan = resolve_group(ENCODER.encode(job), "g")
    for task in plan.tasks:
        placed = alloc(ports=(20001, 20002))
        found = task_launch(placed, plan, task, NODE, address="172.27.64.9/20")
        assert {name: text for name, text in found.env.items() if name.endswith("_http")} == {
            "NOMAD_IP_http": "10.0.0.7",
            "NOMAD_HOST_IP_http": "10.0.0.7",
            "NOMAD_PORT_http": "8000",
            "NOMAD_ALLOC_PORT_http": "8000",
            "NOMAD_HOST_PORT_http": "20001",
            "NOMAD_ADDR_http": "10.0.0.7:20001",
            "NOMAD_HOST_ADDR_http": "10.0.0.7:20001",
            "NOMAD_ALLOC_INTERFACE_http": "eth0",
            "NOMAD_ALLOC_IP_http": "172.27.64.9",
            "NOMAD_ALLOC_ADDR_http": "172.27.64.9:8000",
        }
        assert found.env["NOMAD_ALLOC_ADDR_rpc_in"] == "172.27.64.9:20002"
        assert (found.network.address, found.network.hostname) == ("172.27.64.9", "web")


def test_what_a_group_says_of_dns_may_name_the_node() -> None:
    """References are resolved on the node; what it lacks is left out, so that the usual servers serve."""
    dns = {
        "Servers": ["${attr.unique.dns.address}", "${attr.nope}"],
        "Searches": ["service.${attr.dns.zone}"],
        "Options": ["ndots:${meta.dots}"],
    }
    attributes = {"unique.dns.address": "10.0.0.7", "dns.zone": "caravan"}
    node = msgspec.structs.replace(
        NODE, attributes={**NODE.attributes, **attributes}, meta={"dots": "2"}
    )
    job = job_json()
    job["TaskGroups"][0]["Networks"] = [{**NETWORK, "DNS": dns}]
    plan = resolve_group(ENCODER.encode(job), "g")
    found = task_launch(alloc(ports=(20001, 20002)), plan, plan.tasks[0], node).network
    assert found.dns_servers == ("10.0.0.7",)
    assert (found.dns_searches, found.dns_options) == (("service.caravan",), ("ndots:2",))


def test_a_port_in_a_network_by_name_is_at_that_address() -> None:
    """The variables of a port say where it can be reached."""
    ports = [{"Label": "in", "HostNetwork": "private"}, {"Label": "out"}]
    node = msgspec.structs.replace(
        NODE, attributes={**NODE.attributes, "host_network.private": "172.16.0.7"}
    )
    job = job_json()
    job["TaskGroups"][0]["Networks"] = [{"DynamicPorts": ports}]
    plan = resolve_group(ENCODER.encode(job), "g")
    found = task_launch(alloc(ports=(20001, 20002)), plan, plan.tasks[0], node)
    assert found.env["NOMAD_ADDR_in"] == "172.16.0.7:20001"
    assert found.env["NOMAD_ADDR_out"] == "10.0.0.7:20002"
    assert found.network.addresses == {"in": "172.16.0.7"}


def test_only_device_files_that_this_node_offers_are_opened() -> None:
    """The cluster's word opens no file of the node that its agent does not offer, and no path leads out of /dev."""
    ids = ("/dev/card0", "/dev/card1", "/dev/../etc/shadow", "plain")
    pool = Pool(
        name="device.card",
        instances=tuple(Instance(id=one) for one in ids),
        attributes={"device_paths": "/dev/cardctl, /etc/passwd"},
    )
    node = msgspec.structs.replace(NODE, pools=(pool,))
    job = job_json(task_json(Resources={"Devices": [{"Name": "card", "Count": 4}]}))
    plan = resolve_group(ENCODER.encode(job), "g")
    held = ("/dev/card0", "/dev/../etc/shadow", "plain", "/dev/sda")
    found = task_launch(alloc(instances={"device.card": held}), plan, plan.tasks[0], node)
    assert found.device_paths == ("/dev/card0", "/dev/cardctl")
    assert not task_launch(alloc(), plan, plan.tasks[0], node).device_paths
