"""What only some operators offer: a job that asks for it is placed where it is, and a refusal names the switch."""

import json
from typing import Any

import msgspec
import pytest

from schemas.jobs import GroupSpec
from services.agent.drivers.docker.settings import DockerSettings, docker_settings
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.inputs.templates.settings import template_settings
from services.agent.settings import agent_settings
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.docker import read_docker
from shared.jobspec.drivers.exec import IsolationOptions
from shared.jobspec.drivers.switches import (
    SHIPPING_ATTRIBUTE,
    SHIPPING_SETTING,
    TEMPLATE_DENYLIST,
    needed_switches,
)
from shared.jobspec.submission import read_submission
from tests.builders import Cluster, group, join, register
from tests.unit.core.scheduling.test_placement_rules import report

#: Options, the setting that offers them, and its value.
ASKED: list[tuple[dict[str, Any], str, Any]] = [
    ({"privileged": True}, "allow_privileged", True),
    ({"devices": [{"host_path": "/dev/kvm"}]}, "allow_devices", True),
    ({"pid_mode": "host"}, "allow_host_namespaces", True),
    ({"ipc_mode": "host"}, "allow_host_namespaces", True),
    ({"uts_mode": "host"}, "allow_host_namespaces", True),
    ({"userns_mode": "host"}, "allow_host_namespaces", True),
    ({"cgroupns": "host"}, "allow_host_namespaces", True),
    ({"network_mode": "host"}, "allow_host_network", True),
    ({"volumes": ["/var/run/docker.sock:/s:ro"]}, "allow_engine_socket", True),
    ({"mount": [{"type": "bind", "source": "/run/docker.sock", "target": "/s"}]}, "allow_engine_socket", True),
    ({"volumes": ["/dev:/dev"]}, "allow_device_volumes", True),
    ({"volumes": ["/dev/net/tun:/dev/net/tun"]}, "allow_device_volumes", True),
    ({"auth": [{"server_address": "registry"}]}, "auth_file", "/x"),
    ({"logging": [{"type": "journald", "config": [{"tag": "x"}]}]}, "allowed_log_drivers", "syslog, journald"),
    ({"logging": [{"driver": "syslog"}]}, "allowed_log_drivers", "syslog"),
    ({"ulimit": [{"rtprio": "99"}]}, "allow_realtime", True),
    ({"ulimit": [{"nice": "20"}]}, "allow_realtime", True),
]  # fmt: skip


def compiled(
    driver: str, config: dict[str, Any], memory_max_mib: int = 0, **more: Any
) -> GroupSpec:
    """The group of a job with one task."""
    task = {"Name": "t", "Driver": driver, "Config": config, **more}
    task["Resources"] = {"MemoryMB": 64, "MemoryMaxMB": memory_max_mib}
    job = {"ID": "app", "Name": "app", "Type": "service"}
    job["TaskGroups"] = [{"Name": "web", "Tasks": [task]}]  # type: ignore[assignment]
    return read_submission(json.dumps({"Job": job}).encode(), "submit").groups[0]


def check(attributes: dict[str, str], wanted: GroupSpec, driver: str, setting: str) -> None:
    """Of three nodes only the one with the attributes takes the job; without it the report names the setting."""
    world = Cluster()
    drivers = {"driver.docker": "1", "driver.exec": "1"}
    for name in ("n1", "n2"):
        world.do(join(name, attributes=drivers))
    spec = msgspec.structs.replace(
        group(count=1), constraints=wanted.constraints, drivers=(driver,)
    )
    world.run(register("app", spec))
    assert world.rows() == []
    (line,) = report(world, spec).items()
    assert setting in line[0]
    assert line[1][0] == 2
    world.do(join("n3", attributes={**drivers, **attributes}))
    world.run(register("again", spec))
    (row,) = world.rows("again")
    assert world.state.fleet.specs[int(world.state.allocations.node[row])].node_id == "n3"


@pytest.mark.parametrize(("options", "name", "value"), ASKED, ids=lambda one: str(one)[:50])
def test_a_container_goes_only_where_its_operator_offers_it(
    options: dict[str, Any], name: str, value: Any
) -> None:
    """By default a node refuses by the setting's name; with the setting it offers an attribute, and gets the job."""
    setting = f"CARAVAN_DOCKER_{name.upper()}"
    found, faults = read_docker({"image": "i", **options})
    assert faults == ()
    assert setting in DockerSettings().forbids(found)
    offering = DockerSettings(**{name: value})
    assert offering.forbids(found) == ""
    check(offering.attributes(), compiled("docker", {"image": "i", **options}), "docker", setting)


def test_memory_without_a_limit_needs_the_operators_word() -> None:
    """`memory_max = -1` is placed where the node offers it, for containers and for isolated processes."""
    options, _ = read_docker({"image": "i"})
    docker = DockerSettings(allow_unlimited_memory=True)
    assert "CARAVAN_DOCKER_ALLOW_UNLIMITED_MEMORY" in DockerSettings().forbids(options, -1)
    assert docker.forbids(options, -1) == DockerSettings().forbids(options, 128) == ""
    wanted = compiled("docker", {"image": "i"}, -1)
    check(docker.attributes(), wanted, "docker", "CARAVAN_DOCKER_ALLOW_UNLIMITED_MEMORY")
    assert "CARAVAN_EXEC_ALLOW_UNLIMITED_MEMORY" in ExecSettings().forbids(IsolationOptions(), -1)
    assert ExecSettings(allow_unlimited_memory=True).forbids(IsolationOptions(), -1) == ""
    wanted = compiled("exec", {"command": "x"}, -1)
    offer = {"driver.exec.allow_unlimited_memory": "1"}
    check(offer, wanted, "exec", "CARAVAN_EXEC_ALLOW_UNLIMITED_MEMORY")


def test_host_namespaces_of_exec_are_offered_too() -> None:
    """A task of exec that asks for the node's processes goes where the operator offers them."""
    wanted = compiled("exec", {"command": "x", "pid_mode": "host"})
    offer = {"driver.exec.allow_host_namespaces": "1"}
    check(offer, wanted, "exec", "CARAVAN_EXEC_ALLOW_HOST_NAMESPACES")


def test_what_asks_for_nothing_special_has_no_condition() -> None:
    """Defaults, and what only the node can resolve, make no constraint."""
    plain = {"image": "i", "privileged": False, "devices": [], "pid_mode": "private", "auth": [{}]}
    plain |= {"logging": [{"type": "json-file"}], "ulimit": [{"nofile": "9"}], "ipc_mode": "none"}
    assert compiled("docker", plain).constraints == ()
    assert compiled("docker", {"image": "i", "privileged": "${meta.p}"}).constraints == ()
    assert needed_switches("raw_exec", b'{"command": "x", "pid_mode": "host"}', -1) == ()


def test_a_template_goes_where_its_functions_are_allowed() -> None:
    """A job with executeTemplate is placed where the operator allows it, as by a switch; by default it is denied."""
    template = {
        "EmbeddedTmpl": '{{ define "a" }}x{{ end }}{{ executeTemplate "a" }}',
        "DestPath": "local/a",
    }
    wanted = compiled("exec", {"command": "x"}, Templates=[template])
    offering = template_settings({TEMPLATE_DENYLIST: "plugin,writeToFile"})
    check(offering.attributes(), wanted, "exec", TEMPLATE_DENYLIST)
    assert template_settings({}).attributes() == {}
    assert template_settings({}).denied == ("executeTemplate", "plugin", "writeToFile")
    assert template_settings({TEMPLATE_DENYLIST: "execute*"}).attributes() == {}
    plain = {**template, "EmbeddedTmpl": '{{ env "A" }}'}
    assert compiled("exec", {"command": "x"}, Templates=[plain]).constraints == ()


def test_output_is_shipped_where_the_operator_allows_it() -> None:
    """A job that ships its output is placed there alone; another one has no condition, and is not shipped."""
    wanted = compiled("exec", {"command": "x"}, LogConfig={"Ship": True})
    check({SHIPPING_ATTRIBUTE: "1"}, wanted, "exec", SHIPPING_SETTING)
    assert compiled("exec", {"command": "x"}, LogConfig={"MaxFiles": 2}).constraints == ()
    given = {"CARAVAN_AGENT_NODE_ID": "n1", "CARAVAN_AGENT_DATA_DIR": "d"}
    assert agent_settings(given).ship_logs is False
    assert agent_settings({**given, SHIPPING_SETTING: "1"}).ship_logs is True


def test_a_name_that_denies_nothing_stops_the_agent() -> None:
    """A misspelt function would be allowed unseen; names of Consul's, Vault's and Sprig's functions are taken."""
    assert template_settings({TEMPLATE_DENYLIST: "key,secret,sprig_env,sprig_*"}).denied
    with pytest.raises(ConfigInvalid, match="FUNCTION_DENYLIST: 'excuteTemplate'"):
        template_settings({TEMPLATE_DENYLIST: "plugin,excuteTemplate"})


def test_credentials_stay_out_of_the_log() -> None:
    """A user or a password in a job is refused, with the place where the operator keeps them."""
    for name in ("username", "password"):
        _, faults = read_docker({"image": "i", "auth": [{"server_address": "r", name: "x"}]})
        assert [one.path for one in faults] == [f"auth[0].{name}"]
        assert "CARAVAN_DOCKER_AUTH_FILE" in faults[0].message


def test_a_log_driver_that_is_not_known_is_refused_at_the_start() -> None:
    """A misspelt log driver in the settings is refused with the list of known ones."""
    with pytest.raises(ConfigInvalid, match="journald"):
        docker_settings({"CARAVAN_DOCKER_ALLOWED_LOG_DRIVERS": "jurnald"})
