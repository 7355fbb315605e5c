"""Options of driver docker: read as leniently as Nomad reads them, and nothing else gets through."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.agent.drivers.docker.container_spec import (
    HostCpu,
    container_name,
    container_spec,
    of_image,
    with_inputs,
)
from services.agent.drivers.docker.container_spec import create_request as container_request
from services.agent.drivers.docker.mounts import MountPins, MountSources
from services.agent.drivers.docker.run_record import container_exit, ended_before_boot
from services.agent.drivers.docker.settings import PREFIX, DockerSettings, docker_settings
from services.agent.drivers.driver import DriverRun, StartRefused
from services.agent.drivers.launch_values import with_values
from services.agent.executor.data_dir import TaskDirs
from shared.core.runtime.agent_messages import TaskLaunch
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.docker import OPTIONS, REFUSED_OPTIONS, read_docker
from shared.jobspec.drivers.options import HINTS_MAX
from shared.jobspec.files.load import load_file
from shared.jobspec.secret_references import SecretReference

PAGE = Path(__file__).parents[3] / "docs" / "drivers.md"


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
    """An unknown option is an error that suggests the nearest name, within blocks too."""
    assert "imagee: unknown option 'imagee' (did you mean image?)" in faults(imagee="x")
    assert "did you mean source?" in faults(mount=[{"type": "bind", "sorce": "x", "target": "/y"}])


def test_suggestions_are_bounded() -> None:
    """Of very many unknown options all are named, and few get a suggestion, since the search takes long."""
    strange = {f"imagee{number:03}": "x" for number in range(10 * HINTS_MAX)}
    told = [one.message for one in read_docker({"image": "i", **strange})[1]]
    assert len([one for one in told if "unknown option" in one]) == 10 * HINTS_MAX
    assert len([one for one in told if "did you mean image?" in one]) == HINTS_MAX


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_what_is_never_given_says_why(name: str) -> None:
    """Each option that is refused has its reason, whatever it is set to."""
    assert f"{name}: {REFUSED_OPTIONS[name]}" in faults(**{name: "x"})


def test_a_job_is_refused_where_it_is_submitted() -> None:
    """A forbidden option is refused with its path before any node sees it; references are left to the node."""
    text = """job "j" { group "g" { task "t" {
      driver = "docker"
      config { image = "i:${NOMAD_META_v}" %s }
    } } }"""
    found = load_file((text % '\n load = "x"\n pid_mode = "hots"').encode(), "j.hcl")
    assert [one.path.partition("Config.")[2] for one in found.errors] == ["load", "pid_mode"]
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


@pytest.mark.parametrize("mode", ["slave", "rslave", "shared", "rshared"])
def test_a_bind_of_the_node_may_share_what_is_mounted_below_it(mode: str) -> None:
    """As a block and in the shorthand; the engine refuses it where the directory is in no shared mount of the node."""
    block = {"type": "bind", "source": "/srv", "target": "/a"}
    shared = {**block, "bind_options": [{"propagation": mode}]}
    found, wrong = read_docker({"image": "i", "mount": [shared], "volumes": [f"/srv:/b:{mode}"]})
    assert not wrong
    assert sorted(one.propagation for one in found.mounts) == [mode, mode]
    private, wrong = read_docker(
        {"image": "i", "mounts": [{**block, "bind_options": {"propagation": "rprivate"}}]}
    )
    assert not wrong and private.mounts[0].propagation == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bind_options": [{"propagation": "both"}]}, "must be one of private, rprivate, slave"),
        ({"bind_options": [{"propagation": "rshared"}], "readonly": True}, "read-only mount"),
        ({"bind_options": [{"propagation": "rslave"}], "source": "./a"}, "from a full path"),
        ({"bind_options": [{"propagation": "rslave"}], "type": "volume"}, "needs a bind"),
    ],
)
def test_what_cannot_be_shared_is_refused(options: dict[str, Any], text: str) -> None:
    """An unknown mode, a read-only mount, and places of the task itself."""
    block = {"type": "bind", "source": "/srv", "target": "/a", **options}
    assert text in faults(mount=[block])
    assert "read-only mount" in faults(volumes=["/srv:/b:ro,rslave"])


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


class PlainSources(MountSources):
    """Sources of a task whose directories are not made."""

    def own(self, path: Path) -> str:
        """Give the path itself."""
        return str(path)


def _run(top: Path) -> DriverRun:
    places = TaskDirs(
        shared=top / "alloc", task=top / "main", runs=top / "runs",
        stdout=top / "alloc" / "logs" / "o", stderr=top / "alloc" / "logs" / "e",
    )  # fmt: skip
    return DriverRun(alloc_id="a1", task="main", number=2, places=places)


def test_the_request_is_hardened_whatever_the_job_says(tmp_path: Path) -> None:
    """Every container is made without privileges, with few capabilities, bounded, and under its run's name."""
    run = _run(tmp_path)
    config = {"image": "i", "network_mode": "none", "init": True, "cap_drop": ["ALL"]}
    launch = TaskLaunch(
        config=msgspec.Raw(msgspec.json.encode(config)), memory_mib=64, cores=(1, 3)
    )
    settings = DockerSettings()
    plan = container_spec(container_name(run, "0123456789"), launch)
    body = container_request(
        plan, run, launch, settings=settings, sources=PlainSources(settings, tmp_path, run, MountPins(tmp_path)),
        machine=HostCpu(core_mhz=1000, cores=4), labels={"com.caravan.node": "n"},
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
        container_spec("n", launch)


def test_labels_get_no_secrets() -> None:
    """Other options do; variables when all other references are resolved, those of the image too."""
    secret = "${secret.db.k}"
    config = {"image": f"i:{secret}", "labels": {"a": "${P}"}, "args": [secret, "${P}", "${T}"]}
    launch = with_values(
        TaskLaunch(config=msgspec.Raw(msgspec.json.encode(config)), env={"P": secret}),
        {"T": "${secret.db.k} ${P}"},
        {SecretReference("db", "k"): "v${P}"},
    )
    plan = container_spec("n", launch)
    assert plan.options.image == "i:v${P}"
    assert plan.options.args == ("v${P}", "v${P}", "${secret.db.k} ${P}")
    assert (plan.options.labels, plan.env["P"]) == ({"a": secret}, secret)


def test_a_variable_of_an_input_is_a_text() -> None:
    """Also where another variable names it: neither the image nor a secret is read into it."""
    held = "${secret.db.k} ${PATH}"
    config = {"image": "i", "labels": {"a": "${A}"}, "args": ["${A}"]}
    launch = with_values(
        TaskLaunch(
            config=msgspec.Raw(msgspec.json.encode(config)), env={"A": "<${T}>", "B": "${PATH}:/b"}
        ),
        {"T": held},
        {SecretReference("db", "k"): "v"},
    )
    plan = container_spec("n", launch)
    assert (plan.options.args, plan.options.labels) == ((f"<{held}>",), {"a": f"<{held}>"})
    env = with_inputs(of_image(plan.env, ["PATH=/image"]), launch)
    assert (env["A"], env["T"], env["B"]) == (f"<{held}>", held, "/image:/b")


def test_how_an_end_is_read() -> None:
    """A code above 128 is a signal; a kill for memory is called so, unless the container ended well."""
    assert container_exit({"ExitCode": 137, "OOMKilled": True}, frozenset()).reason.startswith(
        "OOM Killed"
    )
    assert container_exit({"ExitCode": 143}, frozenset({15})).signal == 15
    assert container_exit({"ExitCode": 0, "OOMKilled": True}, frozenset()).reason == ""
    assert ended_before_boot({"FinishedAt": "2001-01-01T00:00:00.5Z"})
    assert not ended_before_boot({"FinishedAt": "0001-01-01T00:00:00Z"})


def test_the_request_of_a_privileged_container_says_so(tmp_path: Path) -> None:
    """With the operator's switches the request has the node's rights, devices, namespaces and logs."""
    run = _run(tmp_path)
    config = {
        "image": "i", "privileged": True, "pid_mode": "host", "cgroupns": "host",
        "devices": [{"host_path": "/dev/kvm", "cgroup_permissions": "rw"}],
        "logging": [{"type": "journald", "config": [{"tag": "x"}]}],
    }  # fmt: skip
    launch = TaskLaunch(
        config=msgspec.Raw(msgspec.json.encode(config)), memory_mib=64, memory_max_mib=-1
    )
    settings = DockerSettings(
        allow_privileged=True, allow_host_namespaces=True, allow_devices=True,
        allowed_log_drivers="journald", allow_unlimited_memory=True,
    )  # fmt: skip
    body = container_request(
        container_spec("x", launch), run, launch, settings=settings,
        sources=PlainSources(settings, tmp_path, run, MountPins(tmp_path)),
        machine=HostCpu(core_mhz=1000, cores=4), labels={},
    )  # fmt: skip
    host = body["HostConfig"]
    assert host["Privileged"] is True
    assert "SecurityOpt" not in host
    assert "CapDrop" not in host
    assert (host["PidMode"], host["CgroupnsMode"], host["IpcMode"]) == ("host", "host", "private")
    device = {"PathOnHost": "/dev/kvm", "PathInContainer": "/dev/kvm", "CgroupPermissions": "rw"}
    assert host["Devices"] == [device]
    assert host["LogConfig"] == {"Type": "journald", "Config": {"tag": "x"}}
    assert "Memory" not in host


def test_the_page_names_every_option_and_setting() -> None:
    """docs/drivers.md has every option, every refused one and every setting."""
    page = PAGE.read_text(encoding="utf-8")
    rows = [f"| `{name}` | {option.meaning} |" for name, option in OPTIONS.items()]
    rows += [f"| `{name}` | {reason} |" for name, reason in REFUSED_OPTIONS.items()]
    assert [row for row in rows if row not in page] == []
    names = [f"`{PREFIX}{name.upper()}`" for name in DockerSettings.__struct_fields__]
    assert [name for name in names if name not in page] == []
