"""Plans that would take too long end early, and another one continues."""

from schemas.jobs import Affinity, ResourceAsk
from schemas.nodes import Instance, Pool
from shared.core.scheduling.proposal import PLAN_CONTINUES
from shared.core.scheduling.selection.greedy_coupled import STEPS_MAX
from tests.builders import Cluster, group, join, register


def rounds(cluster: Cluster) -> list[int]:
    """Schedule until nothing continues; say how many are there after each plan."""
    found: list[int] = []
    goes_on = True
    while goes_on:
        follow_ups = cluster.propose("app").follow_ups
        assert {one.triggered_by for one in follow_ups} <= {PLAN_CONTINUES}
        goes_on = bool(follow_ups)
        cluster.schedule("app")
        found.append(len(cluster.rows("app")))
    return found


def test_ports_are_counted_as_work() -> None:
    """Of allocations with a hundred ports each, one plan places as many as it has steps for."""
    cluster = Cluster()
    for nth in range(8):
        cluster.do(join(f"n{nth}", cpu_mhz=100_000, memory_mib=1_000_000))
    ask = group("web", count=500, cpu_mhz=10, memory_mib=10, dynamic_ports=100)
    cluster.do(register("app", ask))
    first, *_, last = rounds(cluster)
    assert first < STEPS_MAX // 100 and last == 500


def test_devices_given_one_by_one_are_counted_as_work() -> None:
    """On one node, too, a count that is placed one by one ends after its steps, however many would fit."""
    cluster = Cluster()
    card = Pool(name="device.gpu", model="a", instances=(Instance(id="c0"),))
    cluster.do(join("n1", cpu_mhz=100_000, memory_mib=1_000_000, pools=(card,)))
    wish = Affinity(left="${device.model}", right="a", weight=50)
    ask = ResourceAsk(pool="device.gpu", amount=1, affinities=(wish,))
    web = group("web", count=2_000, cpu_mhz=10, memory_mib=10, alternatives=((ask,),))
    cluster.do(register("app", web))
    first, *_, last = rounds(cluster)
    assert first < 1_000 and last == 2_000
