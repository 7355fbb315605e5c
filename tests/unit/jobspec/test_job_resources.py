"""What a job asks for beside cpu, memory and disk: from a job file to what is scheduled."""

import json
from typing import Any

import pytest

from schemas.jobs import Constraint, Disconnect, GroupSpec, ResourceAsk
from schemas.policy import RemoteDriver
from shared.jobspec.amounts import format_amount, to_parts
from shared.jobspec.compile.group_ask import task_instance_ranges
from shared.jobspec.files.load import load_file
from shared.jobspec.nomad.job import JOB_DECODER
from shared.jobspec.submission import read_submission
from tests.unit.jobspec.test_job_files import job

REMOTE = {"ecs": RemoteDriver(cpu_mhz=5, memory_mib=7)}


def group(inner: str, network: str = "") -> GroupSpec:
    """Compile a group of one file, which nothing is said against."""
    text = f'job "a" {{\n group "g" {{\n{network}\n{inner}\n}}\n}}'
    found = load_file(text.encode(), "a.nomad.hcl")
    assert found.errors == ()
    assert found.warnings == ()
    assert found.submission is not None
    return found.submission.groups[0]


def task(resources: str = "", more: str = "", *, name: str = "t", driver: str = "any") -> str:
    return f'task "{name}" {{\n driver = "{driver}"\n{more}\nresources {{\n{resources}\n}}\n}}\n'


def asks(inner: str) -> tuple[tuple[ResourceAsk, ...], ...]:
    return group(inner).alternatives


def ask(pool: str, amount: int = 10_000, **more: Any) -> ResourceAsk:
    return ResourceAsk(pool=pool, amount=amount, **more)


def test_a_plain_group_asks_for_no_pool() -> None:
    """Only cpu and memory: the sums of its tasks, and no alternative at all."""
    found = group(task("cpu = 200") + task("cpu = 300\nmemory = 64", name="u"))
    assert (found.cpu_mhz, found.memory_mib, found.alternatives) == (500, 364, ())
    assert (found.static_ports, found.dynamic_ports) == ((), 0)


@pytest.mark.parametrize(
    ("block", "wanted"),
    [
        ('device "gpu" {}', ask("device.gpu")),
        ('device "nvidia/gpu" { count = 2 }', ask("device.gpu", 20_000, vendor="nvidia")),
        (
            'device "nvidia/gpu/Tesla T4" { count = "0.5" }',
            ask("device.gpu", 5_000, vendor="nvidia", model="Tesla T4"),
        ),
        ('device "gpu" { count = 2.5 }', ask("device.gpu", 25_000)),
        ('device "gpu" { count = 0.0001 }', ask("device.gpu", 1)),
        ('device "gpu" { count = 0.1 + 0.2 }', ask("device.gpu", 3_000)),
        (
            'device "gpu" {\n count = 4\n grouping = "strict"\n}',
            ask("device.gpu", 40_000, grouping="strict"),
        ),
        ('custom "licence" {}', ask("licence")),
        ('custom "licence" { amount = 12.25 }', ask("licence", 122_500)),
        ("cores = 3", ask("cores", 30_000)),
        ('cores = 3\nnuma { affinity = "require" }', ask("cores", 30_000, grouping="strict")),
        ('cores = 3\nnuma { affinity = "prefer" }', ask("cores", 30_000, grouping="compact")),
    ],
)
def test_one_block_is_one_ask(block: str, wanted: ResourceAsk) -> None:
    """Devices by type, vendor and model, custom resources and cores are asks of pools, in 1/10,000."""
    assert asks(task(block)) == ((wanted,),)


def test_rules_of_a_device_go_with_its_ask() -> None:
    """Constraints and affinities of a device stand in its ask, not among those of the node."""
    found = group(
        task(
            'device "gpu" {\n constraint {\n attribute = "${device.attr.memory}"\n operator = ">="\n value = "8"\n }\n'
            ' affinity {\n attribute = "${device.model}"\n value = "t4"\n weight = -10\n }\n}'
        )
    )
    ((one,),) = found.alternatives
    assert one.constraints == (Constraint(left="${device.attr.memory}", operator=">=", right="8"),)
    assert [(a.left, a.right, a.weight) for a in one.affinities] == [("${device.model}", "t4", -10)]
    assert (found.constraints, found.affinities) == ((), ())


def test_alternatives_keep_their_order() -> None:
    """Two lists of first_available make all pairs, the first list turning slowest; rules of the block hold in each."""
    found = asks(
        task(
            'device "nvidia/gpu" {\n constraint {\n attribute = "${device.attr.x}"\n value = "1"\n }\n'
            ' first_available { count = 1 }\n first_available {\n name = "amd/gpu"\n count = 2\n }\n}\n'
            'device "fpga" {\n first_available { count = 3 }\n first_available { count = 4 }\n}'
        )
    )
    told = [
        [(one.vendor, one.amount // 10_000, len(one.constraints)) for one in way] for way in found
    ]
    assert told == [
        [("nvidia", 1, 1), ("", 3, 0)],
        [("nvidia", 1, 1), ("", 4, 0)],
        [("amd", 2, 1), ("", 3, 0)],
        [("amd", 2, 1), ("", 4, 0)],
    ]


def test_cores_are_no_share_of_the_cpu() -> None:
    """A task with cores asks for no MHz; cores of all tasks are one ask."""
    found = group(task("cores = 2") + task("cores = 1", name="u") + task("cpu = 150", name="v"))
    assert found.cpu_mhz == 150
    assert found.alternatives == ((ask("cores", 30_000),),)


def test_what_lives_at_different_times_is_not_added() -> None:
    """The most at one time counts: prestart tasks, main ones beside sidecars, poststop tasks; cores always add up."""

    def hook(name: str, *, sidecar: bool = False) -> str:
        return f'lifecycle {{\n hook = "{name}"\n sidecar = {str(sidecar).lower()}\n}}'

    device = 'device "gpu" {{ count = {} }}\ncustom "lic" {{ amount = {} }}\nmemory = {}'
    tasks = "".join(
        (
            task(device.format(3, 0.5, 100) + "\ncores = 1", hook("prestart"), name="before"),
            task("memory = 20\ncpu = 40", hook("prestart", sidecar=True), name="beside"),
            task(device.format(1, 0.25, 200), name="main"),
            task(device.format(1, 0.25, 50), hook("poststart"), name="after start"),
            task("memory = 500\ncores = 1", hook("poststop"), name="after"),
        )
    )
    text = f'job "a" {{\n group "g" {{\n{tasks}\n}}\n}}'
    loaded = load_file(text.encode(), "a.nomad.hcl")
    assert loaded.submission is not None
    (found,) = loaded.submission.groups
    assert (found.cpu_mhz, found.memory_mib) == (240, 500)
    assert found.alternatives == (
        (
            ask("cores", 20_000),
            ask("lic", 5_000),
            ask("device.gpu", 30_000),
            ask("lic", 2_500),
            ask("device.gpu"),
        ),
    )


def spans(inner: str) -> list[dict[str, dict[str, tuple[tuple[int, int], ...]]]]:
    """By alternative: task -> pool -> first instance and how many."""
    (found,) = JOB_DECODER.decode(
        json.dumps(job(f'job "a" {{\n group "g" {{\n{inner}\n}}\n}}'))
    ).groups
    names = [one.name for one in found.tasks]
    return [dict(zip(names, way, strict=True)) for way in task_instance_ranges(found)]


def test_instances_go_to_tasks_in_the_order_of_the_asks() -> None:
    """Each task has as many as it asked for, of the kind it asked for, wherever another's stand between."""
    (found,) = spans(
        task('device "gpu" { count = 0.5 }\ncores = 1', name="a")
        + task('device "nv/gpu" { count = 2 }\ncores = 2', name="b")
        + task('device "gpu" { count = 1.5 }\ncustom "x" {}', name="c")
    )
    assert found == {
        "a": {"cores": ((0, 1),), "device.gpu": ((0, 1),)},
        "b": {"cores": ((1, 2),), "device.gpu": ((1, 2),)},
        "c": {"device.gpu": ((3, 2),), "x": ((0, 1),)},
    }


def test_a_sidecar_keeps_its_instances_and_others_take_turns() -> None:
    """What a prestart task had goes to a main one; a sidecar, there before and beside, has its own all the time."""
    hook = 'lifecycle {{\n hook = "prestart"\n sidecar = {}\n}}'
    device = 'device "gpu" {{ count = {} }}'
    (found,) = spans(
        task(device.format(3), hook.format("false"), name="before")
        + task(device.format(1), hook.format("true"), name="beside")
        + task(device.format(2), name="main")
    )
    assert found == {
        "before": {"device.gpu": ((1, 3),)},
        "beside": {"device.gpu": ((0, 1),)},
        "main": {"device.gpu": ((1, 2),)},
    }


def test_each_alternative_says_who_has_what() -> None:
    """Two of one kind, else four: the span follows the alternative."""
    ways = spans(
        task('device "gpu" {\n first_available { count = 2 }\n first_available { count = 4 }\n}')
    )
    assert [way["t"]["device.gpu"] for way in ways] == [((0, 2),), ((0, 4),)]


def test_ports_are_held_by_the_allocation() -> None:
    """Numbers of the job, each once, and how many the cluster picks; a shared number is not held."""
    network = """network {
      port "http" { to = 80 }
      port "admin" { static = 8080 }
      port "metrics" {}
      port "shared" {
        static = 9000
        ignore_collision = true
      }
    }"""
    old = task('network {\n port "old" {}\n port "older" { static = 70 }\n}')
    text = f'job "a" {{\n group "g" {{\n{network}\n{old}\n}}\n}}'
    loaded = load_file(text.encode(), "a.nomad.hcl")
    assert loaded.submission is not None
    (found,) = loaded.submission.groups
    assert (found.static_ports, found.dynamic_ports) == ((70, 8080), 3)


def test_nomads_json_says_the_same() -> None:
    """Nomad's own spelling of devices, cores and ports compiles to the same asks as a job file."""
    given = {
        "ID": "a",
        "TaskGroups": [
            {
                "Name": "g",
                "Networks": [
                    {
                        "ReservedPorts": [{"Label": "x", "Value": 22}],
                        "DynamicPorts": [{"Label": "y", "Value": 0, "To": -1}],
                    }
                ],
                "Tasks": [
                    {
                        "Name": "t",
                        "Driver": "any",
                        "Resources": {
                            "CPU": 0,
                            "Cores": 2,
                            "MemoryMB": 100,
                            "MemoryMaxMB": 200,
                            "Devices": [{"Name": "nvidia/gpu", "Count": 2}],
                            "Custom": [{"Name": "lic", "Amount": 0.5}],
                        },
                    }
                ],
            }
        ],
    }
    (found,) = read_submission(json.dumps({"Job": given}).encode(), "submit").groups
    assert (found.cpu_mhz, found.memory_mib) == (0, 100)
    assert (found.static_ports, found.dynamic_ports) == ((22,), 1)
    gpu = ask("device.gpu", 20_000, vendor="nvidia")
    assert found.alternatives == ((ask("cores", 20_000), ask("lic", 5_000), gpu),)


def test_a_task_of_a_remote_driver_takes_of_its_pools() -> None:
    """It takes MHz and MiB of the driver's own pools, of its node only what keeping track costs."""
    text = 'job "a" {\n group "g" {\n' + task("cpu = 400\nmemory = 600", driver="ecs")
    text += task("cpu = 30\nmemory = 40", name="u") + "}\n}"
    loaded = load_file(text.encode(), "a.nomad.hcl")
    (here,) = read_submission(loaded.body, "submit").groups
    (there,) = read_submission(loaded.body, "submit", REMOTE).groups
    assert (here.cpu_mhz, here.memory_mib, here.alternatives) == (430, 640, ())
    assert (there.cpu_mhz, there.memory_mib) == (35, 47)
    assert there.alternatives == ((ask("ecs.cpu", 4_000_000), ask("ecs.memory", 6_000_000)),)
    assert here.drivers == there.drivers == ("any", "ecs")
    assert here.digest != there.digest


@pytest.mark.parametrize(
    ("inner", "same"),
    [
        ('device "gpu" { count = 2 }', False),
        ('custom "x" {}', False),
        ("cores = 1", False),
        ("memory = 300", True),
    ],
)
def test_what_is_asked_for_decides_whether_it_restarts(inner: str, *, same: bool) -> None:
    """Another ask of a pool is another digest."""
    assert (group(task("memory = 300")).digest == group(task(inner)).digest) is same


def test_ports_force_a_restart_and_disconnect_does_not() -> None:
    """Ports belong to the running process; what happens when its node falls silent does not."""
    before = group(task())
    assert before.digest != group(task(), 'network {\n port "x" {}\n}').digest
    after = group(
        task(),
        'disconnect {\n lost_after = "10m"\n replace = false\n reconcile = "keep_original"\n}',
    )
    assert after.digest == before.digest
    assert after.disconnect == Disconnect(
        lost_after_ns=600_000_000_000, replace=False, reconcile="keep_original"
    )


def test_old_files_say_disconnect_otherwise() -> None:
    """max_client_disconnect is how long a silent allocation is unknown."""
    found = group(task(), 'max_client_disconnect = "1m"\nprevent_reschedule_on_lost = true')
    assert found.disconnect == Disconnect(lost_after_ns=60_000_000_000, replace=False)


@pytest.mark.parametrize(
    ("parts", "text"), [(25_000, "2.5"), (10_000, "1"), (1, "0.0001"), (0, "0"), (-5_000, "-0.5")]
)
def test_amounts_are_shown_as_they_were_written(parts: int, text: str) -> None:
    """1/10,000 and decimals are the same amount."""
    assert format_amount(parts) == text
    assert to_parts(float(text)) == parts


YAML = """
job:
  a:
    group:
      g:
        network:
          - port: {http: {to: 80}, admin: {static: 8080}}
        task:
          t:
            driver: any
            resources:
              cores: 2
              device:
                nv/gpu: {count: 0.5}
                fpga:
                  first_available:
                    - {count: 2}
                    - {name: x/fpga, count: 4}
              custom: {seat: {amount: 1.5}}
"""
TOML = """
[job.a.group.g]
network = [{ port = { http = { to = 80 }, admin = { static = 8080 } } }]

[job.a.group.g.task.t]
driver = "any"

[job.a.group.g.task.t.resources]
cores = 2
custom = { seat = { amount = 1.5 } }

[job.a.group.g.task.t.resources.device."nv/gpu"]
count = 0.5

[[job.a.group.g.task.t.resources.device.fpga.first_available]]
count = 2

[[job.a.group.g.task.t.resources.device.fpga.first_available]]
name = "x/fpga"
count = 4
"""
PLAIN = """{"job": {"a": {"group": {"g": {
  "network": [{"port": {"http": {"to": 80}, "admin": {"static": 8080}}}],
  "task": {"t": {"driver": "any", "resources": {
    "cores": 2,
    "device": {"nv/gpu": {"count": 0.5},
               "fpga": {"first_available": [{"count": 2}, {"name": "x/fpga", "count": 4}]}},
    "custom": {"seat": {"amount": 1.5}}
  }}}
}}}}}"""


@pytest.mark.parametrize(
    ("text", "name"),
    [(YAML, "a.yaml"), (TOML, "a.toml"), (PLAIN, "a.json")],
    ids=["yaml", "toml", "json"],
)
def test_every_format_asks_alike(text: str, name: str) -> None:
    """YAML, TOML and HCL's JSON form have the same blocks: labels are keys, several blocks a list."""
    found = load_file(text.encode(), name)
    assert found.errors == ()
    assert found.warnings == ()
    assert found.submission is not None
    (one,) = found.submission.groups
    assert (one.static_ports, one.dynamic_ports) == ((8080,), 1)
    first = (ask("cores", 20_000), ask("seat", 15_000), ask("device.gpu", 5_000, vendor="nv"))
    assert one.alternatives == (
        (*first, ask("device.fpga", 20_000)),
        (*first, ask("device.fpga", 40_000, vendor="x")),
    )


def test_a_network_by_name_is_a_node_that_has_it() -> None:
    """A port in a network of its own, and a group in mode bridge, only go where such a network is."""
    ports = 'port "a" { host_network = "public" }\nport "b" { host_network = "default" }'
    found = group(task(), network=f'network {{\nmode = "bridge"\n{ports}\n}}')
    wanted = [Constraint(left="${attr.host_network.public}", operator="is_set")]
    wanted += [Constraint(left="${attr.network.bridge}", operator="=", right="nft")]
    assert list(found.constraints) == wanted
