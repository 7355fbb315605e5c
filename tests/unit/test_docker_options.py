"""Options of driver docker: read as leniently as Nomad reads them, and nothing else gets through."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.agent.drivers.docker_create import Machine, container_name, plan_of
from services.agent.drivers.docker_create import request as container_request
from services.agent.drivers.docker_mounts import Pins, Sources
from services.agent.drivers.docker_settings import PREFIX, DockerSettings, docker_settings
from services.agent.drivers.docker_state import ended_before_boot, exit_of_state
from services.agent.drivers.driver import Run, StartRefused
from services.agent.edge_home import Places
from shared.core.tasks import TaskLaunch
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.docker import NEVER, OPTIONS, read_docker
from shared.jobspec.load import load_file

PAGE = Path(__file__).parents[2] / "docs" / "drivers.md"


def faults(**options: Any) -> str:
    """What is wrong with options, in one text."""
    found = read_docker({"image": "i", **options})[1]
    return "; ".join(f"{one.path}: {one.message}" for one in found)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"port_map": [{"http": "80"}]}, "port_map", {"http": 80}),
        ({"port_map": {"http": 80}}, "port_map", {"http": 80}),
        ({"labels": [{"a": "b"}, {"c": 1}]}, "labels", {"a": "b", "c": "1"}),
        ({"ulimit": [{"nofile": "100:200", "core": 0}]}, "ulimit", {"core": (0, 0), "nofile": (100, 200)}),
        ({"tty": "true"}, "tty", True),
        ({"cap_add": ["cap_net_raw"]}, "cap_add", ("NET_RAW",)),
        ({"image_pull_timeout": "10m"}, "image_pull_timeout", 600_000_000_000),
        ({"privileged": False, "devices": []}, "image", "i"),
        ({"healthchecks": [{"disable": True}]}, "no_healthcheck", True),
    ],
)  # fmt: skip
def test_values_are_read_as_nomad_reads_them(
    options: dict[str, Any], field: str, value: object
) -> None:
    """Blocks and maps, numbers as text, and options that ask for nothing, are taken."""
    found, wrong = read_docker({"image": "i", **options})
    assert not wrong
    assert getattr(found, field) == value


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    """What nobody knows is a fault, and says what was probably meant, within blocks too."""
    assert "imagee: unknown option 'imagee' (did you mean image?)" in faults(imagee="x")
    assert "did you mean source?" in faults(mount=[{"type": "bind", "sorce": "x", "target": "/y"}])


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_given_says_why(name: str) -> None:
    """Each option that is refused has its reason, whatever it is set to."""
    assert f"{name}: {NEVER[name]}" in faults(**{name: "x"})


def test_a_job_is_refused_where_it_is_submitted() -> None:
    """A forbidden option is refused with its path before any node sees it; references are left to the node."""
    text = """job "j" { group "g" { task "t" {
      driver = "docker"
      config { image = "i:${NOMAD_META_v}" %s }
    } } }"""
    found = load_file((text % '\n privileged = true\n pid_mode = "host"').encode(), "j.hcl")
    assert [one.path.partition("Config.")[2] for one in found.errors] == ["privileged", "pid_mode"]
    assert not load_file((text % '\n pids_limit = "${meta.pids}"').encode(), "j.hcl").errors


def test_volumes_in_nomads_shorthand() -> None:
    """A relative source is the task's, `../alloc` the allocation's; flags are read, others refused."""
    found, wrong = read_docker(
        {"image": "i", "volumes": ["local/a:/a", "b:/b:ro", "../alloc/data:/d", "${A:b}/x:/x"]}
    )
    assert not wrong
    assert [(one.source, one.target, one.readonly) for one in found.mounts] == [
        ("local/a", "/a", False),
        ("./b", "/b", True),
        ("../alloc/data", "/d", False),
        ("${A:b}/x", "/x", False),
    ]
    assert "shared" in faults(volumes=["a:/b:shared"])
    assert "another mount" in faults(volumes=["a:/b", "c:/b/"])


@pytest.mark.parametrize(
    "target", ["/", "/proc", "/proc/1", "/sys", "/dev", "/alloc", "/x/../dev", "rel"]
)
def test_targets_that_hide_the_container_itself(target: str) -> None:
    """Nothing is mounted where the kernel's or the task's own places are."""
    assert faults(volumes=[f"a:{target}"])


def test_settings_of_an_operator() -> None:
    """Settings are read from the environment, and what would let a container out is refused at the start."""
    found = docker_settings({f"{PREFIX}ALLOWED_CAPS": "net_admin", f"{PREFIX}ALLOW_PULL": "0"})
    assert "NET_ADMIN" in found.caps
    assert not found.allow_pull
    for name, text in (
        ("ALLOWED_CAPS", "sys_admin"),
        ("ALLOWED_ROOTS", "srv"),
        ("PIDS_LIMIT", "0"),
    ):
        with pytest.raises(ConfigInvalid):
            docker_settings({f"{PREFIX}{name}": text})


def _run(top: Path) -> Run:
    places = Places(
        shared=top / "alloc", task=top / "main", runs=top / "runs",
        stdout=top / "alloc" / "logs" / "o", stderr=top / "alloc" / "logs" / "e",
    )  # fmt: skip
    return Run(alloc_id="a1", task="main", number=2, places=places)


def test_the_request_is_hardened_whatever_the_job_says(tmp_path: Path) -> None:
    """Every container is made without privileges, with few capabilities, bounded, and under its run's name."""
    run = _run(tmp_path)
    config = {"image": "i", "network_mode": "none", "init": True, "cap_drop": ["ALL"]}
    launch = TaskLaunch(
        config=msgspec.Raw(msgspec.json.encode(config)), memory_mib=64, cores=(1, 3)
    )
    settings = DockerSettings()
    plan = plan_of(container_name(run, "0123456789"), launch)
    body = container_request(
        plan, run, launch, settings=settings, sources=Sources(settings, tmp_path, run, Pins(tmp_path)),
        machine=Machine(core_mhz=1000, cores=4), labels={"com.caravan.node": "n"},
    )  # fmt: skip
    host = body["HostConfig"]
    assert plan.name == "main-a1-2-01234567"
    assert (host["Privileged"], host["CapDrop"], host["CapAdd"]) == (False, ["ALL"], [])
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert (host["Memory"], host["MemorySwap"], host["CpusetCpus"]) == (64 << 20, 64 << 20, "1,3")
    assert (host["RestartPolicy"]["Name"], host["AutoRemove"]) == ("no", False)


def test_what_is_wrong_is_refused_on_the_node_too() -> None:
    """The node reads the options again, after it resolved references."""
    config = {"image": "i", "cap_add": ["${CAP}"]}
    launch = TaskLaunch(config=msgspec.Raw(msgspec.json.encode(config)), env={"CAP": "SYS_ADMIN"})
    with pytest.raises(StartRefused, match="SYS_ADMIN"):
        plan_of("n", launch)


def test_how_an_end_is_read() -> None:
    """A code above 128 is a signal; a kill for memory is called so, unless the container ended well."""
    assert exit_of_state({"ExitCode": 137, "OOMKilled": True}).reason.startswith("OOM Killed")
    assert exit_of_state({"ExitCode": 143}).signal == 15
    assert exit_of_state({"ExitCode": 0, "OOMKilled": True}).reason == ""
    assert ended_before_boot({"FinishedAt": "2001-01-01T00:00:00.5Z"})
    assert not ended_before_boot({"FinishedAt": "0001-01-01T00:00:00Z"})


def test_the_page_names_every_option_and_setting() -> None:
    """docs/drivers.md has every option, every refused one and every setting."""
    page = PAGE.read_text(encoding="utf-8")
    rows = [f"| `{name}` | {option.meaning} |" for name, option in OPTIONS.items()]
    rows += [f"| `{name}` | {reason} |" for name, reason in NEVER.items()]
    assert [row for row in rows if row not in page] == []
    names = [f"`{PREFIX}{name.upper()}`" for name in DockerSettings.__struct_fields__]
    assert [name for name in names if name not in page] == []
