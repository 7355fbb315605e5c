"""What a node says of itself, and the variables that its tasks see."""

import msgspec
import pytest

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from services.agent.environment import interpolate, task_launch
from services.agent.fingerprint import (
    CORE_MHZ_DEFAULT,
    Facts,
    Naming,
    Reserved,
    core_mhz,
    node_spec,
)
from services.agent.spec import group_plan
from shared.core.ids import alloc_id
from shared.errors import CommandInvalid
from tests.unit.agent_story import alloc, job_json, task_json

CPUINFO = "processor\t: 0\nmodel name\t: Some CPU\ncpu MHz\t\t: 2596.101\n\ncpu MHz\t\t: 2700.5\n"


def described(facts: Facts, **more: int) -> NodeSpec:
    naming = Naming(node_id="n1", datacenter="dc2", meta={"rack": "r1"})
    drivers = {"driver.raw_exec": "1"}
    return node_spec(facts, naming, drivers=drivers, reserved=Reserved(**more))


def test_a_machine_is_described() -> None:
    """Cores times clock, memory and free disk, less what is reserved; names as Nomad has them."""
    facts = Facts(
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


@pytest.mark.parametrize(
    ("facts", "mhz"),
    [
        (Facts(), CORE_MHZ_DEFAULT),
        (Facts(cpuinfo="cpu MHz : 0.000\n"), CORE_MHZ_DEFAULT),
        (Facts(cpuinfo="cpu MHz : 1e9\ncpu MHz : 1.2.3\n"), 1),
        (Facts(cpuinfo=CPUINFO, max_khz="3400000\n"), 3400),
        (Facts(cpuinfo=CPUINFO, max_khz="nonsense"), 2700),
    ],
)
def test_a_clock_is_never_invented_nor_zero(facts: Facts, mhz: int) -> None:
    """The highest clock that a core can have, else has; where nobody tells, a modest one."""
    assert core_mhz(facts) == mhz


def test_a_machine_that_tells_nothing_is_described() -> None:
    """Empty and damaged texts give a node with little, not an error; reserving more than there is gives none."""
    spec = described(Facts(meminfo="MemTotal: x kB", os_release="\0="), cpu_mhz=10**9)
    assert (spec.cpu_mhz, spec.memory_mib, spec.disk_mib) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("${A}-${ A }", "1-1"),
        ('${env["A"]}${env[A]}', "11"),
        ("${B}", "${A}"),
        ("${unknown} $A ${", "${unknown} $A ${"),
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
        Config={"command": "${NOMAD_JOB_ID}", "args": ["${node.datacenter}", 3]},
        Meta={"a.b": "t"},
        Resources={"CPU": 7, "MemoryMB": 8},
    )
    plan = group_plan(msgspec.json.encode(job_json(task, Meta={"a.b": "j", "c": "d"})), "g")
    launch = task_launch(alloc(), plan, plan.tasks[0], node)
    assert msgspec.json.decode(launch.config) == {"command": "j", "args": ["dc9", 3]}
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
        group_plan(text, "g")


def test_kill_timeouts_are_bounded() -> None:
    """5 s where a task says nothing, 30 s at the most, never negative."""
    tasks = [task_json("a"), task_json("b", KillTimeout=10**18), task_json("c", KillTimeout=-5)]
    plan = group_plan(msgspec.json.encode(job_json(*tasks)), "g")
    assert [task.kill_timeout_ns // 10**9 for task in plan.tasks] == [5, 30, 0]
