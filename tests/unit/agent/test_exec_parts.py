"""Driver exec without a kernel: options, settings, limits in both versions' words, fingerprints, command lines."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.agent.drivers.driver import DriverRun, StartRefused
from services.agent.drivers.exec import java
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.exec.qemu import QemuDriver, emulator_arguments
from services.agent.drivers.exec.settings import ExecSettings, exec_settings
from services.agent.drivers.isolation import kernel, seccomp
from services.agent.drivers.isolation.cgroups import (
    CgroupLimits,
    CgroupTree,
    find_hierarchies,
    oom_kills,
)
from services.agent.drivers.isolation.enter import entered_namespaces
from services.agent.drivers.isolation.probe import IsolationSupport
from services.agent.drivers.isolation.starter_protocol import (
    ORDER_DECODER,
    EnterOrder,
    Jail,
    StartOrder,
)
from services.agent.drivers.launch_values import with_values
from services.agent.executor.data_dir import TaskDirs
from shared.core.runtime.agent_messages import TaskLaunch
from shared.errors import ConfigInvalid
from shared.jobspec.drivers import exec as exec_options
from shared.jobspec.drivers import java as java_options
from shared.jobspec.drivers import qemu as qemu_options
from shared.jobspec.drivers.exec import IsolationOptions, read_exec, read_raw_exec
from shared.jobspec.drivers.java import read_java
from shared.jobspec.drivers.options import OptionValues
from shared.jobspec.drivers.qemu import QemuOptions, read_qemu
from shared.jobspec.secret_references import SecretReference

ALL = ["pid", "ipc", "uts", "network", "user", "view", "landlock", "seccomp", "cgroups"]


@pytest.mark.parametrize(
    ("reader", "config", "path", "says"),
    [
        (read_exec, {"command": "a", "comand": "b"}, "comand", "did you mean command?"),
        (read_exec, {"args": ["x"]}, "command", "must name a program"),
        (read_exec, {"command": "a", "args": "x"}, "args", "list"),
        (read_exec, {"command": "a", "args": ["x\0"]}, "args[0]", "NUL"),
        (read_exec, {"command": "a", "work_dir": "a/../.."}, "work_dir", "must not lead out"),
        (read_exec, {"command": "a", "pid_mode": "hots"}, "pid_mode", "did you mean host?"),
        (read_exec, {"command": "a", "oom_score_adj": 5}, "oom_score_adj", "not a job's"),
        (read_raw_exec, {"command": "a", "cap_add": ["x"]}, "cap_add", "unknown option"),
        (read_raw_exec, {"command": "a", "denied_envvars": ["x"]}, "denied_envvars", "not a job's"),
        (read_java, {}, "jar_path", "either"),
        (read_java, {"jar_path": "a", "class": "b"}, "jar_path", "either"),
        (read_java, {"class": "-Xrun"}, "class", "must be a class"),
        (read_java, {"class": "A", "jvm_options": ["B"]}, "jvm_options[0]", "dash"),
        (
            read_java,
            {"class": "A", "jvm_option": ["-B"]},
            "jvm_option",
            "did you mean jvm_options?",
        ),
        (read_qemu, {}, "image_path", "must name"),
        (read_qemu, {"image_path": "a,readonly=off"}, "image_path", "comma"),
        (read_qemu, {"image_path": "../../disk"}, "image_path", "below"),
        (read_qemu, {"image_path": "a", "accelerator": "kmv"}, "accelerator", "did you mean kvm?"),
        (read_qemu, {"image_path": "a", "emulator": "/bin/sh"}, "emulator", "operator"),
        (read_qemu, {"image_path": "a", "port_map": {"x": 0}}, "port_map.x", "must be 1 to 65535"),
    ],
)
def test_a_bad_option_is_named(reader: Any, config: OptionValues, path: str, says: str) -> None:
    """Each option that is unknown, misread or never given is named by its path, with what would do."""
    _, faults = reader(config)
    assert [fault.path for fault in faults] == [path]
    assert says in faults[0].message


def test_options_with_references_pass() -> None:
    """What only the node can resolve is let pass where the job is submitted."""
    for reader, config in (
        (read_exec, {"command": "${NOMAD_TASK_DIR}/a", "pid_mode": "${meta.mode}"}),
        (read_java, {"jar_path": "${NOMAD_TASK_DIR}/a.jar", "jvm_options": ["${meta.heap}"]}),
        (read_qemu, {"image_path": "local/${NOMAD_JOB_ID}.img", "accelerator": "${meta.kind}"}),
    ):
        assert reader(config)[1] == ()  # type: ignore[operator]


def test_capabilities_are_named_as_anybody_does() -> None:
    """CAP_NET_RAW and net_raw are the same."""
    found, faults = read_exec({"command": "a", "cap_add": ["CAP_NET_RAW"], "cap_drop": ["net_raw"]})
    assert (found.cap_add, found.cap_drop, faults) == (("net_raw",), ("net_raw",), ())


@pytest.mark.parametrize(
    "given",
    [
        {"REQUIRE": "user,magic"},
        {"ALLOWED_CAPS": "sys_admin"},
        {"PATHS": "relative"},
        {"PATHS": "/"},
        {"PATHS": "/opt/../etc"},
        {"QEMU_IMAGES": "images"},
        {"CGROUP_PARENT": "../up"},
        {"PIDS_LIMIT": "0"},
        {"OPEN_FILES": "many"},
        {"SECCOMP": "perhaps"},
    ],
)
def test_a_bad_setting_stops_the_agent(given: dict[str, str]) -> None:
    """A setting that cannot be meant is named before anything runs."""
    with pytest.raises(ConfigInvalid, match="CARAVAN_EXEC_"):
        exec_settings({f"CARAVAN_EXEC_{name}": value for name, value in given.items()})


def test_only_ordinary_users_are_given() -> None:
    """Root, users of the system, unknown ones and those of the operator's list are refused; the default user is not."""
    settings = ExecSettings()
    assert not isinstance(settings.user_of(""), str)
    for name in ("root", "0", "daemon", "1", "no-such-user", "99999999999999999999"):
        assert isinstance(settings.user_of(name), str), name
    assert "DENIED_USERS" in str(ExecSettings(denied_users="x, nobody").user_of("65534"))


def driver(tmp_path: Path, works: list[str], **settings: Any) -> ExecDriver:
    """A driver on a machine that has so much."""
    found = IsolationSupport(
        works=works, landlock=3, why={"view": "mount: not permitted", "user": "not root"}
    )
    return ExecDriver(
        home=tmp_path, kernel_boot="b", settings=ExecSettings(**settings), found=found
    )


def test_what_works_is_told(tmp_path: Path) -> None:
    """Each kind of isolation is an attribute of its own, by what was found and not by what should be."""
    found = driver(tmp_path, [one for one in ALL if one != "cgroups"]).fingerprint()
    assert found["driver.exec"] == "1"
    assert found["driver.exec.files"] == "view"
    assert found["driver.exec.namespaces"] == "ipc,network,pid,uts,view"
    assert (found["driver.exec.landlock"], found["driver.exec.cgroups"]) == ("3", "0")
    less = driver(tmp_path, ["user", "landlock"]).fingerprint()
    assert (less["driver.exec.files"], less["driver.exec.namespaces"]) == ("landlock", "")


@pytest.mark.parametrize(
    ("works", "settings", "says"),
    [
        (["view"], {}, "user isolation unavailable: not root"),
        (["user"], {}, "files isolation unavailable: mount: not permitted"),
        (
            ["user", "landlock"],
            {"require": "view"},
            "view isolation unavailable: mount: not permitted",
        ),
        (
            ["user", "view"],
            {"require": "user,files,cgroups"},
            "cgroups isolation unavailable: not found",
        ),
        (ALL, {"user": "root"}, "is a system user"),
        (ALL, {"enabled": False}, "disabled"),
    ],
)
def test_missing_isolation_turns_the_driver_off(
    tmp_path: Path, works: list[str], settings: dict[str, Any], says: str
) -> None:
    """Where what the operator demands does not work here the driver is off, with the reason as an attribute."""
    off = driver(tmp_path, works, **settings)
    assert says in off.offer.off()
    assert "driver.exec" not in off.fingerprint()
    if settings.get("enabled", True):
        assert says in off.fingerprint()["driver.exec.off"]


@pytest.mark.asyncio
async def test_a_driver_that_is_off_starts_nothing(tmp_path: Path) -> None:
    """A start on a node whose driver is off is refused for good, with the reason."""
    places = TaskDirs(
        shared=tmp_path, task=tmp_path, runs=tmp_path, stdout=tmp_path / "o", stderr=tmp_path / "e"
    )
    run = DriverRun(alloc_id="a", task="t", number=1, places=places)
    launch = TaskLaunch(config=msgspec.Raw(b'{"command": "true"}'))
    with pytest.raises(StartRefused, match="files isolation unavailable") as refused:
        await driver(tmp_path, ["user"]).start(run, launch)
    assert not refused.value.recoverable
    assert driver(tmp_path, ["user"]).starter.pid == 0


MOUNTS_1 = """\
cgroup {0}/cpu cgroup rw,cpu,cpuacct 0 0
cgroup {0}/memory cgroup rw,memory 0 0
cgroup {0}/pids cgroup rw,pids 0 0
cgroup {0}/cpuset cgroup rw,cpuset 0 0
cgroup2 {0}/unified cgroup2 rw 0 0
"""
MOUNTS_2 = "cgroup2 {0} cgroup2 rw 0 0\n"


class FakeFiles:
    """A cgroup file system that is plain files: what is written can be read."""

    def __init__(self, top: Path, mounts: str, controllers: str = "") -> None:
        self.top = top
        for line in mounts.format(top).splitlines():
            Path(line.split()[1]).mkdir(parents=True, exist_ok=True)
        unified = top / "unified" if "unified" in mounts else top
        unified.mkdir(exist_ok=True)
        (unified / "cgroup.controllers").write_text(controllers)
        if (top / "cpuset").exists():
            for name, value in (("cpus", "0-3"), ("mems", "0")):
                (top / "cpuset" / f"cpuset.{name}").write_text(value)
        self.groups = CgroupTree(find_hierarchies(mounts.format(top)), "caravan/x")


def written(
    monkeypatch: pytest.MonkeyPatch, fake: FakeFiles, limits: CgroupLimits
) -> dict[str, str]:
    """Make a group and tell what was written into its files."""
    said: dict[str, str] = {}

    def write(path: Path, text: str) -> None:
        said[str(path.relative_to(fake.top))] = text
        if path.parent.is_dir():
            path.write_text(text)

    monkeypatch.setattr("services.agent.drivers.isolation.cgroups._write", write)
    fake.groups.prepare()
    said.clear() if fake.top.joinpath("cpu").exists() else None
    fake.groups.make("r", limits)
    return {name.removeprefix("caravan/x/r/"): value for name, value in said.items()}


LIMITS = CgroupLimits(cpu_mhz=500, cores=(1, 3), memory_mib=64, memory_max_mib=256, processes=10)


def test_limits_in_the_words_of_version_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controllers are handed down level by level; ask, memory_max, weight, cores and processes are limits."""
    fake = FakeFiles(tmp_path, MOUNTS_2, "cpuset cpu io memory pids")
    said = written(monkeypatch, fake, LIMITS)
    assert said["memory.max"] == str(256 << 20)
    assert said["memory.low"] == str(64 << 20)
    assert (said["memory.swap.max"], said["pids.max"], said["cpuset.cpus"]) == ("0", "10", "1,3")
    assert said["cpu.weight"] == "19"
    for level in ("", "caravan/", "caravan/x/"):
        assert f"{level}cgroup.subtree_control" in said
    assert fake.groups.entries("r") == [str(tmp_path / "caravan/x/r/cgroup.procs")]
    assert fake.groups.oom_counter_path("r").endswith("memory.events")


def test_limits_in_the_words_of_version_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same limits by controller, each in its own hierarchy, and version 2's bare tree to kill by."""
    fake = FakeFiles(tmp_path, MOUNTS_1)
    said = written(monkeypatch, fake, LIMITS)
    here = "caravan/x/r"
    assert said[f"memory/{here}/memory.limit_in_bytes"] == str(256 << 20)
    assert said[f"memory/{here}/memory.soft_limit_in_bytes"] == str(64 << 20)
    assert said[f"cpu/{here}/cpu.shares"] == "500"
    assert said[f"pids/{here}/pids.max"] == "10"
    assert said[f"cpuset/{here}/cpuset.cpus"] == "1,3"
    assert said[f"cpuset/{here}/cpuset.mems"] == "0"
    assert f"{tmp_path}/unified/{here}/cgroup.procs" in fake.groups.entries("r")
    assert fake.groups.oom_counter_path("r").endswith("memory.oom_control")


def test_no_limit_is_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """memory_max -1 lifts the limit; without cores the task keeps those of its parent."""
    fake = FakeFiles(tmp_path, MOUNTS_2, "cpuset cpu memory pids")
    said = written(monkeypatch, fake, CgroupLimits(memory_mib=64, memory_max_mib=-1))
    assert not {"memory.max", "cpu.weight", "cpuset.cpus", "pids.max"} & {*said}


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("oom_kill_disable 1\nunder_oom 0\n", 0),
        ("", 0),
    ],
)
def test_kills_for_memory_are_counted(text: str, kills: int) -> None:
    """Both versions' files tell how often the kernel killed, and nothing else in them does."""
    assert oom_kills(text) == kills


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_calls_is_well_formed(machine: str) -> None:
    """Every jump of the filter stays inside it and it ends by allowing; a wrong architecture is killed first."""
    code = seccomp.program(machine)
    steps = list(struct.iter_unpack("=HBBI", code))
    assert len(steps) < 4096
    for at, (kind, yes, no, _) in enumerate(steps):
        if kind in (0x15, 0x35):
            assert at + 1 + max(yes, no) < len(steps)
    assert steps[-1][3] == 0x7FFF0000
    assert steps[2] == (0x06, 0, 0, 0x80000000)


@pytest.mark.parametrize(
    ("call", "word", "verdict"),
    [
        (165, 0, "refused"),
        (0, 0, "allowed"),
        (56, 0x10000000, "refused"),
        (56, 0x11, "allowed"),
        (435, 0, "not there"),
        (0x40000001, 0, "refused"),
        (101, 0, "refused"),
        (257, 0, "allowed"),
    ],
)
def test_the_filter_decides(call: int, word: int, verdict: str) -> None:
    """mount, ptrace, new namespaces and foreign numbers are refused; open, read and threads are not. x86_64."""
    names = {0x7FFF0000: "allowed", 0x00050001: "refused", 0x00050026: "not there"}
    memory = {0: call, 4: 0xC000003E, 16: word}
    steps = list(struct.iter_unpack("=HBBI", seccomp.program("x86_64")))
    at = value = 0
    while True:
        kind, yes, no, number = steps[at]
        if kind == 0x06:
            break
        if kind == 0x20:
            value = memory[number]
        elif kind == 0x54:
            value &= number
        else:
            at += yes if (value == number if kind == 0x15 else value >= number) else no
        at += 1
    assert names[number] == verdict


def test_orders_travel_as_they_are() -> None:
    """What the starter reads is what the agent wrote."""
    for order in (
        StartOrder(
            directory="d", kernel_boot="b", top="t", task="t/a", shared="t/s", stdout="", stderr="",
            argv=(b"a",), env=(b"A=\xff",), work_dir=b"/", jail=Jail(uid=1, gid=2, rlimits={7: (1, 2)}),
        ),
        EnterOrder(pid=1, start_ticks=2, argv=(b"a",), env=(), work_dir=b"/", jail=Jail(plain=True)),
    ):  # fmt: skip
        assert ORDER_DECODER.decode(msgspec.json.encode(order)) == order


def test_the_emulators_words(tmp_path: Path) -> None:
    """Ports are forwarded in both protocols, an image of the operator's is never written, memory has a floor."""
    places = TaskDirs(
        shared=tmp_path, task=tmp_path, runs=tmp_path, stdout=tmp_path, stderr=tmp_path
    )
    run = DriverRun(alloc_id="a", task="t,x", number=1, places=places)
    launch = TaskLaunch(memory_mib=64, ports={"web": (2000, 0)})
    options = QemuOptions(image_path="/srv/a.img", accelerator="kvm", port_map={"web": 80})
    words = emulator_arguments(run, launch, options, ours=False)
    assert "user,id=user.0,hostfwd=udp::2000-:80,hostfwd=tcp::2000-:80" in words
    assert "file=/srv/a.img,if=ide,snapshot=on" in words
    assert words[words.index("-m") + 1] == "128M" and words[words.index("-name") + 1] == "t_x"
    with pytest.raises(StartRefused, match="no port 'db'"):
        emulator_arguments(run, launch, QemuOptions(image_path="a", port_map={"db": 1}), ours=True)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"image_path": "a", "args": ["-nodefaults", "${secret.v.k}"]}, "QEMU_ARGS"),
        ({"image_path": "a", "args": ["-nodefaults", "${FILLED}"]}, "QEMU_ARGS"),
        ({"image_path": "${secret.v.image}"}, "QEMU_IMAGES"),
        ({"image_path": "${secret.v.more}"}, "comma"),
    ],
)
def test_what_the_emulator_is_given_is_what_is_checked(
    config: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of secrets and of templates are words as those of the job are."""
    driver = QemuDriver.__new__(QemuDriver)
    driver.settings = ExecSettings(qemu_args="-nodefaults")
    monkeypatch.setattr(QemuDriver, "emulator", "/bin/qemu")
    values = {"k": "-drive", "image": "/etc/shadow", "more": "a,file.driver=nbd"}
    launch = with_values(
        TaskLaunch(config=msgspec.Raw(msgspec.json.encode(config))),
        {"FILLED": "-drive"},
        {SecretReference("v", key): text for key, text in values.items()},
    )
    run = DriverRun(alloc_id="a", task="t", number=1, places=None)  # type: ignore[arg-type]
    with pytest.raises(StartRefused, match=says):
        asyncio.run(driver.start(run, launch))


@pytest.mark.parametrize("has_release", [True, False])
def test_a_virtual_machine_is_described(tmp_path: Path, has_release: bool) -> None:  # noqa: FBT001
    """The version of Java is read beside it, or asked for where nothing is written there."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho 'openjdk version \"21.0.2\" x\nRuntime (build 1)\nVM (build 2)' >&2\n"
    )
    program.chmod(0o755)
    if has_release:
        text = 'IMPLEMENTOR="Us"\nJAVA_RUNTIME_VERSION="17.0.1+2"\nJAVA_VERSION="17.0.1"\n'
        (tmp_path / "release").write_text(text)
    found = java._from_release(program) or java._from_version_output(str(program))
    assert found["driver.java.version"] == ("17.0.1" if has_release else "21.0.2")
    assert found["driver.java.runtime"] == ("Us 17.0.1+2" if has_release else "Runtime (build 1)")


def test_modes_of_the_node_are_the_operators(tmp_path: Path) -> None:
    """What opens the node to a task is refused by default, and given where a setting says so."""
    closed, opened = (
        ExecSettings(),
        ExecSettings(allow_host_namespaces=True, allowed_caps="net_raw"),
    )
    for asked in (
        IsolationOptions(pid_mode="host"),
        IsolationOptions(ipc_mode="host"),
        IsolationOptions(cap_add=("net_raw",)),
    ):
        assert "CARAVAN_EXEC_ALLOW" in closed.forbids(asked)
        assert opened.forbids(asked) == ""


def test_a_command_enters_no_namespace_of_a_plain_task() -> None:
    """Only root may enter a namespace, even its own: an agent of another user runs commands all the same."""
    assert entered_namespaces(Jail(plain=True)) == 0
    apart = Jail(namespaces=kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
    assert entered_namespaces(apart) == apart.namespaces | kernel.CLONE_NEWNS


def test_the_page_names_everything(tmp_path: Path) -> None:
    """docs/drivers.md has every option of exec, java, qemu and raw_exec, every setting, and every attribute."""
    page = (Path(__file__).parents[3] / "docs" / "drivers.md").read_text(encoding="utf-8")
    known = {**exec_options.OPTIONS, **java_options.OPTIONS, **qemu_options.OPTIONS}
    assert [name for name in known if f"`{name}`" not in page] == []
    settings = [f"`CARAVAN_EXEC_{name.upper()}`" for name in ExecSettings.__struct_fields__]
    assert [name for name in settings if name not in page] == []
    attributes = [*driver(tmp_path, ALL[:-1]).fingerprint(), "driver.exec.off"]
    assert [name for name in attributes if f"`{name}`" not in page] == []
