"""The gap rule: whatever comes behind, a node that is held loses nothing of what its holder waits for."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.base import JobId
from tests.builders import Cluster, group, join, register

sizes = st.tuples(st.integers(300, 2_000), st.integers(300, 2_000))
asks = st.tuples(st.integers(1, 1_500), st.integers(1, 1_500))


@given(
    nodes=st.lists(sizes, min_size=1, max_size=5),
    sand=st.tuples(st.integers(50, 400), st.integers(50, 400)),
    couch=asks,
    count=st.integers(1, 3),
    others=st.lists(asks, max_size=4),
)
def test_what_comes_behind_takes_nothing_that_is_waited_for(
    nodes: list[tuple[int, int]],
    sand: tuple[int, int],
    couch: tuple[int, int],
    count: int,
    others: list[tuple[int, int]],
) -> None:
    """After any number of jobs behind it, a held node still has place for all that fit and wait, once it is emptied."""
    world = Cluster()
    for at, (cpu, memory) in enumerate(nodes):
        world.do(join(f"n{at}", cpu_mhz=cpu, memory_mib=memory))
    world.run(
        register("sand", group(count=6, cpu_mhz=sand[0], memory_mib=sand[1]), job_type="batch")
    )
    world.run(register("couch", group(count=count, cpu_mhz=couch[0], memory_mib=couch[1])))
    held = world.state.reservations.by_job.get(JobId("couch"))
    rows = [row for hold in held.holds for row in hold.rows] if held is not None else []
    for at, (cpu, memory) in enumerate(others):
        world.run(register(f"late-{at}", group(cpu_mhz=cpu, memory_mib=memory)))
    late = [row for at in range(len(others)) for row in world.rows(f"late-{at}")]
    table = world.state.allocations
    for row in rows:
        total = world.state.fleet.capacity[row][:2].tolist()
        own = sum(int(table.node[one]) == row for one in world.rows("couch"))
        fits = min(have // need for have, need in zip(total, couch, strict=True))
        waits = held.holds[0].count if held is not None else 0
        kept = min(fits, waits + own)
        taken = [0, 0]
        for one in late:
            if int(table.node[one]) == row:
                ask = table.groups.ask[table.group[one]]
                taken = [taken[0] + int(ask[0]), taken[1] + int(ask[1])]
        for dimension in (0, 1):
            assert kept * couch[dimension] + taken[dimension] <= total[dimension]
