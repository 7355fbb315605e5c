"""What a node says of itself, and the variables that its tasks see."""

from pathlib import Path

import msgspec
import pytest

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from services.agent.fingerprint.host import (
    CORE_MHZ_DEFAULT,
    HostFacts,
    HostReserved,
    NodeNaming,
    core_mhz,
    node_spec,
    read_facts,
)
from services.agent.tasks.environment import interpolate, task_launch
from services.agent.tasks.resolved_group import resolve_group
from shared.core.state.ids import alloc_id
from shared.errors import CommandInvalid
from tests.unit.agent.agent_story import alloc, job_json, task_json

CPUINFO = "processor\t: 0\nmodel name\t: Some CPU\ncpu MHz\t\t: 2596.101\n\ncpu MHz\t\t: 2700.5\n"


def described(facts: HostFacts, **more: int) -> NodeSpec:
    naming = NodeNaming(node_id="n1", datacenter="dc2", meta={"rack": "r1"})
    drivers = {"driver.raw_exec": "1"}
    return node_spec(facts, naming, drivers=drivers, reserved=HostReserved(**more))


def test_a_machine_is_described() -> None:
    """Cores times clock, memory and free disk, less what is reserved; names as Nomad has them."""
    facts = HostFacts(
        cpuinfo=CPUINFO,
        meminfo="MemTotal:       2097152 kB\nMemFree: 1 kB\n",
        os_release='NAME="X"\nID=debian\nVERSION_ID="12"\n',
        cores=4,
        disk_free_bytes=10 << 30,
        hostname="host",
        kernel="Linux",
    )
    spec = described(facts, cpu_mhz=800, memory_mib=48, disk_mib=240)
    assert (spec.cpu_mhz, spec.memory_mib, spec.disk_mib) == (10_000, 2000, 10_000)
    assert (spec.name, spec.datacenter, spec.meta) == ("host", "dc2", {"rack": "r1"})
    wanted = {
        "kernel.name": "linux",
        "cpu.numcores": "4",
        "os.name": "debian",
        "os.version": "12",
        "unique.hostname": "host",
        "driver.raw_exec": "1",
    }
    assert wanted.items() <= spec.attributes.items()
    assert list(spec.attributes) == sorted(spec.attributes)


def test_attributes_have_the_names_and_values_of_nomad() -> None:
    """Go's name of the machine, the point release, parts of the memory, signals, storage; the kernel's name stays."""
    facts = HostFacts(
        cpuinfo="cpu MHz : 1000\n",
        meminfo="MemTotal:       2097153 kB\n",
        os_release="ID=debian\nVERSION_ID=12\n",
        debian_version="12.11\n",
        cores=6,
        core_groups={0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 6: 1},
        disk_free_bytes=7,
        disk_bytes=70,
        disk_volume="/dev/sda1",
        machine="x86_64",
        cgroups_version=2,
    )
    spec = described(facts, cpu_mhz=500)
    wanted = {
        "arch": "x86_64",
        "cpu.arch": "amd64",
        "cpu.reservablecores": "6",
        "cpu.totalcompute": "6000",
        "cpu.usablecompute": "5500",
        "kernel.arch": "x86_64",
        "memory.totalbytes": str(2097153 * 1024),
        "nomad.version": "2.0.5",
        "numa.node.count": "2",
        "numa.node0.cores": "0-2",
        "numa.node1.cores": "3-4,6",
        "os.cgroups.version": "2",
        "os.version": "12.11",
        "unique.storage.bytesfree": "7",
        "unique.storage.bytestotal": "70",
        "unique.storage.volume": "/dev/sda1",
    }
    assert {name: spec.attributes.get(name) for name in wanted} == wanted
    assert "SIGTERM" in spec.attributes["os.signals"].split(",")


def test_this_machine_has_every_attribute(tmp_path: Path) -> None:
    """What is read from a real kernel is not empty."""
    spec = described(read_facts(tmp_path))
    names = ("cpu.arch", "kernel.arch", "numa.node.count", "numa.node0.cores", "os.signals")
    storage = ("unique.storage.bytesfree", "unique.storage.bytestotal")
    assert all(spec.attributes[name] for name in (*names, *storage))
    assert spec.attributes["cpu.arch"] not in ("x86_64", "aarch64")


@pytest.mark.parametrize(
    ("facts", "mhz"),
    [
        (HostFacts(), CORE_MHZ_DEFAULT),
        (HostFacts(cpuinfo="cpu MHz : 0.000\n"), CORE_MHZ_DEFAULT),
        (HostFacts(cpuinfo="cpu MHz : 1e9\ncpu MHz : 1.2.3\n"), 1),
        (HostFacts(cpuinfo=CPUINFO, max_khz="3400000\n"), 3400),
        (HostFacts(cpuinfo=CPUINFO, max_khz="nonsense"), 2700),
    ],
)
def test_a_clock_is_never_invented_nor_zero(facts: HostFacts, mhz: int) -> None:
    """The highest clock that a core can have, else has; where the kernel reports none, the default."""
    assert core_mhz(facts) == mhz


def test_a_machine_that_tells_nothing_is_described() -> None:
    """Empty and damaged texts give a node with little, not an error; reserving more than there is gives none."""
    spec = described(HostFacts(meminfo="MemTotal: x kB", os_release="\0="), cpu_mhz=10**9)
    assert (spec.cpu_mhz, spec.memory_mib, spec.disk_mib) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("${A}-${ A }", "1-1"),
        ('${env["A"]}${env[A]}', "11"),
        ("${B}", "${A}"),
        ("${unknown} $A ${", "${unknown} $A ${"),
        ("<${meta.nope}${attr.nope}${node.nope}>", "<>"),
    ],
)
def test_references_are_resolved_once(text: str, becomes: str) -> None:
    """A known reference is replaced, once; an unknown one stays as it is."""
    assert interpolate(text, {"A": "1", "B": "${A}"}) == becomes


def test_a_launch_holds_what_the_job_says() -> None:
    """Driver options and environment are resolved for this node and allocation; the job's own variables win."""
    node = NodeSpec(node_id=NodeId("n1"), datacenter="dc9", attributes={"os.name": "x"})
    task = task_json(
        Env={"NOMAD_DC": "mine", "OS": "${attr.os.name}"},
        Config={"command": "${NOMAD_JOB_ID}", "args": ["${node.datacenter}", 3, "${node.region}"]},
        Meta={"a.b": "t"},
        Resources={"CPU": 7, "MemoryMB": 8},
    )
    plan = resolve_group(msgspec.json.encode(job_json(task, Meta={"a.b": "j", "c": "d"})), "g")
    launch = task_launch(alloc(), plan, plan.tasks[0], node)
    assert msgspec.json.decode(launch.config) == {"command": "j", "args": ["dc9", 3, "global"]}
    assert (launch.cpu_mhz, launch.memory_mib) == (7, 8)
    wanted = {
        "NOMAD_ALLOC_ID": alloc_id(7),
        "NOMAD_ALLOC_NAME": "j.g[0]",
        "NOMAD_GROUP_NAME": "g",
        "NOMAD_TASK_NAME": "main",
        "NOMAD_DC": "mine",
        "OS": "x",
        "NOMAD_META_a_b": "t",
        "NOMAD_META_C": "d",
    }
    assert wanted.items() <= launch.env.items()


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"TaskGroups":[{"Name":"g","Tasks":7}]}'])
def test_a_text_that_is_no_job_is_refused(text: bytes) -> None:
    """What cannot be read as a job with our group is refused with a reason, never half understood."""
    with pytest.raises(CommandInvalid):
        resolve_group(text, "g")


def test_kill_timeouts_are_bounded() -> None:
    """5 s where a task says nothing, what intake accepted otherwise, never negative."""
    tasks = [task_json("a"), task_json("b", KillTimeout=10**18), task_json("c", KillTimeout=-5)]
    plan = resolve_group(msgspec.json.encode(job_json(*tasks)), "g")
    assert [task.kill_timeout_ns // 10**9 for task in plan.tasks] == [5, 10**9, 0]
