"""Preemption against a scalar brute force: on small fleets every node and every set of victims is tried."""

from itertools import combinations
from unittest.mock import patch

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import JobId
from shared.core.scheduling.model import Assignment, Snapshot
from shared.core.scheduling.place import place
from shared.core.scheduling.preemption import search
from shared.core.scheduling.preemption.search import PRIORITY_GAP_MIN
from shared.core.scheduling.preemption.victim_sets import VictimCandidate, cheapest_set, cost_of
from shared.core.state.ids import Incarnations
from tests.builders import Cluster, group, join, register
from tests.examples import examples
from tests.unit.core.scheduling.test_preemption import ALL

#: Nodes reserved for waiting jobs are another rule.
POLICY = msgspec.structs.replace(ALL, reservations_max=0)
PRIORITIES = (20, 25, 30, 41, 50)


@st.composite
def fleets(draw: st.DrawFn) -> Cluster:
    """At most four nodes with up to six allocations each, of jobs of all priorities; some share a job."""
    world = Cluster(policy=POLICY)
    nodes = draw(st.integers(1, 4))
    for nth in range(nodes):
        world.do(join(f"n{nth}", cpu_mhz=draw(st.integers(4, 10)) * 100))
    for nth in range(draw(st.integers(1, 5 * nodes))):
        what = group(
            count=draw(st.integers(1, 3)),
            cpu_mhz=draw(st.integers(1, 5)) * 100,
            memory_mib=draw(st.integers(1, 4)) * 100,
        )
        command = register(f"j{nth}", what, priority=draw(st.sampled_from(PRIORITIES)))
        # Nothing is evicted while the fleet fills.
        world.do(command)
        plan = world.plan(f"j{nth}", worker=f"w-{nth}")
        if not plan.evictions:
            world.do(plan)
    return world


def brute(world: Cluster, priority: int, ask: np.ndarray) -> tuple[int, ...] | None:
    """The cheapest (highest, sum, work, node) over all nodes and sets; () where it fits without; None: nowhere."""
    state = world.state
    table, fleet = state.allocations, state.fleet
    free = fleet.capacity[: fleet.size] - table.used(fleet.size)
    if (free >= ask).all(axis=1).any():
        return ()
    costs = []
    for node in range(fleet.size):
        rows = [
            row
            for row in table.live_rows().tolist()
            if table.node[row] == node
            and table.is_wanted(np.array([row]))[0]
            and table.groups.priority[table.group[row]] <= priority - PRIORITY_GAP_MIN
        ]
        for size in range(1, len(rows) + 1):
            for some in combinations(rows, size):
                freed = sum(table.groups.ask[table.group[row]] for row in some)
                if (free[node] + freed >= ask).all():
                    of = [int(table.groups.priority[table.group[row]]) for row in some]
                    work = sum(state.seq - Incarnations().seq(int(table.key[row])) for row in some)
                    costs.append((max(of), sum(of), work, node))
    return min(costs, default=None)


@examples(150)
@given(world=fleets(), priority=st.sampled_from((30, 39, 40, 60)), data=st.data())
def test_the_cheapest_victims_of_all_nodes_go(
    world: Cluster, priority: int, data: st.DataObject
) -> None:
    """The chosen node and its victims cost what the best of all sets costs; no allocation is evicted without need."""
    cpu, memory = data.draw(st.integers(1, 10)) * 100, data.draw(st.integers(1, 10)) * 100
    world.do(register("new", group(cpu_mhz=cpu, memory_mib=memory), priority=priority))
    expected = brute(world, priority, np.array((cpu, memory, 0)))
    state = world.state
    snapshot = Snapshot(state, state.allocations.held, world.masks)
    assignment = Assignment(world.pending("new"), JobId("new"))
    # Of very many candidates nodes are chosen first: here all of them, so nothing may change.
    with patch.object(search, "_SHORTLIST_ABOVE", data.draw(st.sampled_from((0, 50_000)))):
        proposal = place(snapshot, assignment, seed=0, lane=0, lanes=1)
    rows = [row for one in proposal.evictions for row in one.rows]
    placed = [node for one in proposal.placements for node in one.rows]
    if not expected:
        assert not rows and len(placed) == (expected is not None)
        return
    table = state.allocations
    of = [int(table.groups.priority[table.group[row]]) for row in rows]
    work = sum(state.seq - Incarnations().seq(int(table.key[row])) for row in rows)
    assert (max(of), sum(of), work, placed[0]) == expected
    assert {int(table.node[row]) for row in rows} == set(placed)
    # What was proposed is committed as it is: the applier finds no superfluous victim.
    committed = world.do(world.plan("new"))[0]
    assert committed.evictions == proposal.evictions and not committed.spared and not committed.cut


@examples(100)
@given(world=fleets(), count=st.integers(2, 6), units=st.integers(1, 6))
def test_counts_share_what_their_victims_leave(world: Cluster, count: int, units: int) -> None:
    """Of several, what fits is placed; all victims are needed, and no other allocation could be placed."""
    ask = group(count=count, cpu_mhz=units * 100, memory_mib=100)
    world.do(register("new", ask, priority=60))
    state, before = world.state, world.state.allocations.used(world.state.fleet.size).copy()
    committed = world.do(world.plan("new"))[0]
    table, fleet = state.allocations, state.fleet
    gone = np.array([row for one in committed.evictions for row in one.rows], dtype=np.int32)
    assert not committed.cut
    for row in gone.tolist():
        # Not one victim could have stayed where it was.
        node, back = int(table.node[row]), table.groups.ask[table.group[row]]
        after = table.used(fleet.size)[node]
        assert (after + back > fleet.capacity[node]).any()
        assert table.groups.priority[table.group[row]] <= 50
    placed = sum(sum(one.counts) for one in committed.placements)
    if placed < count:
        rows = table.live_rows()
        rows = rows[table.is_wanted(rows) & (table.groups.priority[table.group[rows]] <= 50)]
        free = fleet.capacity[: fleet.size] - table.used(fleet.size)
        np.add.at(free, table.node[rows], table.groups.ask[table.group[rows]])
        assert not (free >= np.array((units * 100, 100, 0))).all(axis=1).any()
    assert (table.used(fleet.size) <= np.maximum(before, fleet.capacity[: fleet.size])).all()


@examples(300)
@given(
    need=st.lists(st.integers(0, 12), min_size=2, max_size=2),
    raw=st.lists(
        st.tuples(
            st.sampled_from((10, 20, 30)),
            st.integers(0, 5),
            st.tuples(st.integers(0, 5), st.integers(0, 5)),
            st.integers(0, 2),
        ),
        max_size=9,
    ),
    ports=st.sets(st.integers(1, 2), max_size=2),
)
def test_the_set_of_one_node_is_the_cheapest(
    need: list[int], raw: list[tuple[int, int, tuple[int, int], int]], ports: set[int]
) -> None:
    """Branch and bound finds what trying every set finds, with asks that no amount shows (ports) too."""
    items = [
        VictimCandidate(row, priority, work, release, port)
        for row, (priority, work, release, port) in enumerate(sorted(raw))
    ]

    def enough(picked: object) -> bool:
        return ports <= {items[i].kind for i in picked}  # type: ignore[attr-defined]

    found, steps = cheapest_set(need, items, enough if ports else None, 100_000)
    assert steps < 100_000
    costs = [
        cost_of(items, some)
        for size in range(1, len(items) + 1)
        for some in combinations(range(len(items)), size)
        if all(sum(items[i].release[d] for i in some) >= need[d] for d in range(2)) and enough(some)
    ]
    assert (cost_of(items, found) if found else None) == min(costs, default=None)
