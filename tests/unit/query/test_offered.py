"""How pools and ports are shown to users and agents: free, held, excess, and holders."""

import numpy as np

from schemas.jobs import RegisterJob
from schemas.node_answers import PartLine, PortLine
from schemas.nodes import Instance, Pool
from schemas.policy import DeclarePool, Policy
from shared.core.runtime.desired_allocs import read_desired_allocs
from shared.core.state.ids import alloc_id
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import to_command
from shared.query import projections, resource_usage
from tests.builders import Cluster, join

GPU = "device.gpu"
GPUS = Pool(name=GPU, vendor="nv", instances=(Instance(id="a"), Instance(id="b"), Instance(id="c")))
CORES = Pool(name="cores", instances=(Instance(id="0"), Instance(id="1")))
JOB = """
job "app" {
  group "web" {
    network {
      port "http" {}
      port "admin" { static = 8080 }
    }
    task "t" {
      driver = "any"
      resources {
        memory = 10
        CORES
        device "gpu" { count = 1.5 }
        custom "seat" { amount = 2 }
        custom "scratch" { amount = 0.25 }
      }
    }
  }
}
"""


def job(text: str = JOB, cores: str = "cores = 1") -> RegisterJob:
    found = load_file(text.replace("CORES", cores).encode(), "a.nomad.hcl")
    assert found.errors == ()
    assert found.submission is not None
    command = to_command(found.submission, "s1")
    assert isinstance(command, RegisterJob)
    return command


def cluster() -> Cluster:
    """One node with GPUs, cores and a sum of its own; seats of the cluster; the job placed on it."""
    one = Cluster(policy=Policy())
    pools = (GPUS, CORES, Pool(name="scratch", amount=10_000))
    attributes = {"driver.any": "1"}
    one.do(join("n1", pools=pools, core_mhz=400, attributes=attributes, port_min=100, port_max=109))
    one.do(DeclarePool(request_id="r", node_id="", pool=Pool(name="seat", amount=30_000)))
    one.run(job())
    assert len(one.rows()) == 1
    return one


def test_a_node_shows_what_is_free_and_what_is_held() -> None:
    """Sums, instances with their share, and reserved cores as used CPU."""
    found = projections.node_summary(cluster().state, 0, 1)
    assert sorted(found.pools) == ["cores", GPU, "scratch"]
    gpu = found.pools[GPU]
    assert (gpu.kind, gpu.capacity, gpu.used, gpu.free, gpu.excess) == (
        *("indexed", 30_000, 15_000, 15_000),
        0,
    )
    assert [(one.id, one.vendor, one.used) for one in gpu.instances] == [
        *[("a", "nv", 10_000), ("b", "nv", 5_000)],
        ("c", "nv", 0),
    ]
    assert (found.pools["scratch"].kind, found.pools["scratch"].used) == ("sum", 2_500)
    assert found.used["cpu_mhz"] == 400
    assert found.ports_free == 9


def test_what_the_cluster_has_is_shown_with_the_rest() -> None:
    """Every pool once, over all nodes; licences with the cluster's amount."""
    lines = {one.name: one for one in resource_usage.all_pools(cluster().state)}
    assert list(lines) == ["cores", GPU, "scratch", "seat"]
    assert (lines["seat"].kind, lines["seat"].used, lines["seat"].free) == (
        *("cluster-wide", 20_000),
        10_000,
    )
    assert (lines[GPU].nodes, lines[GPU].used, lines[GPU].free) == (1, 15_000, 15_000)
    assert [one.name for one in resource_usage.all_pools(cluster().state, "s")] == [
        "scratch",
        "seat",
    ]


def test_less_than_is_held_is_an_excess() -> None:
    """A node that lost a device and a cluster that lost licences keep what runs, and say how much is too much."""
    one = cluster()
    one.shrinks = True
    left = Pool(name=GPU, vendor="nv", instances=(Instance(id="b"), Instance(id="c")))
    one.do(join("n1", number=9, pools=(left,), attributes={"driver.any": "1"}))
    one.do(DeclarePool(request_id="r", node_id="", pool=Pool(name="seat", amount=10_000)))
    gpu = resource_usage.node_pools(one.state, 0)[GPU]
    assert (gpu.capacity, gpu.used, gpu.free, gpu.excess) == (20_000, 15_000, 15_000, 10_000)
    assert [(at.id, at.present, at.used) for at in gpu.instances] == [
        *[("a", False, 10_000), ("b", True, 5_000)],
        ("c", True, 0),
    ]
    lines = {line.name: line for line in resource_usage.all_pools(one.state)}
    assert (lines["seat"].excess, lines["seat"].free) == (10_000, 0)
    assert lines["scratch"].excess == 2_500


def test_an_allocation_names_its_ports_and_its_share() -> None:
    """Ports go by the labels of the job, picked and static; parts by instance, sums and licences by amount."""
    state = cluster().state
    row = int(state.allocations.live_rows()[0])
    ports = resource_usage.alloc_ports(state, row)
    assert ports["admin"] == 8080
    assert 100 <= ports["http"] <= 109
    assert resource_usage.alloc_shares(state, row) == (
        PartLine(pool="cores", instance="0", amount=10_000),
        PartLine(pool="seat", amount=20_000),
        PartLine(pool="scratch", amount=2_500),
        PartLine(pool=GPU, instance="a", amount=10_000),
        PartLine(pool=GPU, instance="b", amount=5_000),
    )
    shown = alloc_id(int(state.allocations.key[row]))
    assert resource_usage.node_ports(state, state.allocations.live_rows()) == (
        PortLine(port=ports["http"], allocation=shown),
        PortLine(port=8080, allocation=shown, static=True),
    )


def test_a_node_is_told_what_its_allocations_hold() -> None:
    """The projection carries picked ports, instances by pool in the order of the asks, and the alternative."""
    state = cluster().state
    rows = np.asarray(state.allocations.live_rows())
    (said,) = projections.node_projections(state, np.asarray([0], dtype=np.int32), rows)
    (told,) = read_desired_allocs(said)
    assert told.instances == {"cores": ("0",), GPU: ("a", "b")}
    assert told.ports == (resource_usage.alloc_ports(state, told.row)["http"],)
    assert told.variant == 0


def test_what_ended_holds_nothing() -> None:
    """An allocation that ended has no port, no device and no licence any more."""
    one = cluster()
    one.report("n1", (one.rows()[0], "failed"))
    assert resource_usage.node_ports(one.state, one.state.allocations.live_rows()) == ()
    assert resource_usage.node_pools(one.state, 0)[GPU].used == 0
    assert projections.node_summary(one.state, 0, 0).used["cpu_mhz"] == 0
    lines = {line.name: line for line in resource_usage.all_pools(one.state)}
    assert lines["seat"].used == 0


def test_an_unhealthy_device_is_shown_with_its_reason() -> None:
    """It counts as used by what holds it, not as capacity, and is listed while nothing holds it, too."""
    one = cluster()
    one.shrinks = True
    ids = (
        Instance(id="a", unhealthy="XID 79"),
        Instance(id="b"),
        Instance(id="c", unhealthy="hot"),
    )
    pools = (Pool(name=GPU, vendor="nv", instances=ids), CORES, Pool(name="scratch", amount=10_000))
    one.do(join("n1", number=9, pools=pools, core_mhz=400, attributes={"driver.any": "1"}))
    found = projections.node_summary(one.state, 0, 1).pools[GPU]
    assert [(each.id, each.present, each.used, each.unhealthy) for each in found.instances] == [
        ("a", False, 10_000, "XID 79"),
        ("b", True, 5_000, ""),
        ("c", False, 0, "hot"),
    ]
    assert (found.capacity, found.free, found.excess) == (10_000, 5_000, 10_000)
