"""Preemption on random fleets of devices, cores, ports, sums and licences, against trying every node by hand."""

import msgspec
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from schemas.jobs import GroupSpec
from schemas.nodes import Pool
from schemas.plans import PlanCommitted
from schemas.policy import DeclarePool
from shared.core.resources.asks import CORES, WHOLE, ExtraAsks, extra_asks_of
from shared.core.resources.assign import ResourceAssigner
from shared.core.scheduling.preemption.search import PRIORITY_GAP_MIN
from shared.core.scheduling.selection.candidates import ask_columns
from tests.builders import Cluster, join, register
from tests.examples import examples
from tests.property.test_resources import UNIT, groups, nodes
from tests.unit.core.scheduling.test_preemption import ALL

pytestmark = pytest.mark.property


@st.composite
def crowded(draw: st.DrawFn) -> Cluster:
    """Draw a cluster that jobs of several priorities fill."""
    cluster = Cluster(policy=msgspec.structs.replace(ALL, reservations_max=0))
    for nth, offers in enumerate(draw(st.lists(nodes(), min_size=1, max_size=4))):
        cluster.do(join(f"n{nth}", **offers))
    cluster.do(DeclarePool(request_id="r", node_id="", pool=Pool(name="seats", amount=7 * UNIT)))
    for nth in range(draw(st.integers(3, 8))):
        # Later ones are never more important: they evict no allocation.
        spec = msgspec.structs.replace(draw(groups()), count=draw(st.integers(5, 30)))
        cluster.run(register(f"old{nth}", spec, priority=50 - 5 * nth))
    return cluster


def fits(cluster: Cluster, spec: GroupSpec, node: int, gone: list[int]) -> bool:
    """Try one allocation on a node without these rows, by every alternative."""
    state = cluster.state
    fleet, table = state.fleet, state.allocations
    held = table.held.copy(fleet.size)
    for row in gone:
        held.remove(*table.held_by(row))
    extras = extra_asks_of(spec) or ExtraAsks()
    for variant, asks in enumerate(extras.alternatives):
        cores = sum(ask.amount for ask in asks if ask.pool == CORES) // WHOLE
        mhz = fleet.specs[node].core_mhz
        if cores and not mhz:
            continue
        takes = ask_columns(spec) + np.array((cores * mhz, 0, 0))
        used = held.used[node] + fleet.core_correction(held)[node]
        enough = (used + takes <= fleet.capacity[node]).all()
        if (
            enough
            and ResourceAssigner(fleet.offers, held).assign(node, extras, variant) is not None
        ):
            return True
    return False


@examples(120, gate=40)
@given(crowded(), groups(), st.sampled_from((40, 60, 60, 60)))
def test_whoever_goes_is_needed_and_nothing_waits_that_could_be_placed(
    cluster: Cluster, spec: GroupSpec, priority: int
) -> None:
    """What the worker proposes the applier finds sound and necessary; what is left fits on no emptied node."""
    spec = msgspec.structs.replace(spec, count=1, cpu_mhz=max(spec.cpu_mhz, 100))
    could = [node for node in range(cluster.state.fleet.size) if fits(cluster, spec, node, [])]
    movable: dict[int, list[int]] = {}
    table = cluster.state.allocations
    for row in table.live_rows().tolist():
        if table.groups.priority[table.group[row]] <= priority - PRIORITY_GAP_MIN:
            movable.setdefault(int(table.node[row]), []).append(row)
    emptied = [
        node
        for node in range(cluster.state.fleet.size)
        if fits(cluster, spec, node, movable.get(node, []))
    ]
    cluster.do(register("new", spec, priority=priority))
    proposal = cluster.propose("new")
    committed = cluster.do(cluster.plan("new"))[0]
    assert isinstance(committed, PlanCommitted)
    # The applier tries without victims first and drops superfluous ones: it finds none.
    assert committed.evictions == proposal.evictions
    assert not committed.cut and not committed.spared
    event(f"{sum(len(one.rows) for one in committed.evictions)} victims")
    placed = [row for one in committed.placements for row in one.rows]
    assert bool(placed) == bool(emptied)
    assert bool(committed.evictions) == (bool(emptied) and not could)
    for one in committed.evictions:
        for row in one.rows:
            assert int(table.node[row]) == placed[0]
            assert table.groups.priority[table.group[row]] <= priority - PRIORITY_GAP_MIN
