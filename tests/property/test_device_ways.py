"""Counts placed one by one: by the affinities of devices, and by the packing policy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Affinity, GroupSpec, ResourceAsk
from schemas.nodes import Instance, Pool
from schemas.policy import Policy
from shared.core.resources.ask_shape import ask_shape_of
from shared.core.resources.asks import Holding, extra_asks_of, holdings_of
from shared.core.resources.assign import ResourceAssigner
from shared.core.scheduling.packing import placement_costs as fragmentation
from shared.core.scheduling.packing.gpu_packing import gpu_ask, gpu_columns
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.scoring.scores import mean_score, node_scores
from shared.core.scheduling.selection.candidates import ask_columns
from shared.core.splitmix import splitmix64
from tests.builders import Cluster, group, join, register
from tests.examples import examples
from tests.property.gpu_reference import place_count

pytestmark = pytest.mark.property
UNIT = 10_000
GPU = "device.gpu"
AMOUNTS = st.sampled_from((1_600, 3_300, 5_000, 6_600, UNIT, UNIT, 2 * UNIT))


def gpus(model: str, count: int) -> Pool:
    instances = tuple(Instance(id=f"{model}{nth}") for nth in range(count))
    return Pool(name=GPU, instances=instances, model=model)


@st.composite
def asks(draw: st.DrawFn, *, weights: bool) -> ResourceAsk:
    """Draw an ask of devices, with one or two wishes where there are `weights`."""
    liked = [
        Affinity(left="${device.model}", right=draw(st.sampled_from("ab")), weight=draw(weight))
        for weight in [st.sampled_from((-80, -20, 30, 100))] * draw(st.integers(1, 2))
        if weights
    ]
    model = "" if weights else draw(st.sampled_from(("", "", "a", "b")))
    return ResourceAsk(pool=GPU, amount=draw(AMOUNTS), model=model, affinities=tuple(liked))


@st.composite
def problems(draw: st.DrawFn, *, weights: bool) -> tuple[Cluster, GroupSpec]:
    """Draw nodes of one or two models, jobs that run there already, and one more group."""
    cluster = Cluster(policy=Policy(reservations_max=0, algorithm="fragmentation"))
    for nth in range(draw(st.integers(1, 5))):
        a, b = draw(st.integers(0, 4)), draw(st.integers(0, 3)) if weights else 0
        pools = (gpus("a", a), gpus("b", b)) if nth % 2 else (gpus("b", a), gpus("a", b))
        cpu = draw(st.sampled_from((400, 1000, 2000)))
        cluster.do(join(f"n{nth}", pools=pools, cpu_mhz=cpu))
    for nth in range(draw(st.integers(0, 4))):
        cluster.run(register(f"old{nth}", draw(groups(weights=False))))
    return cluster, draw(groups(weights=weights))


@st.composite
def groups(draw: st.DrawFn, *, weights: bool) -> GroupSpec:
    """Draw a group that takes devices."""
    fields: dict[str, Any] = {
        "count": draw(st.integers(1, 8)),
        "cpu_mhz": draw(st.sampled_from((50, 100, 300))),
        "memory_mib": draw(st.sampled_from((10, 100))),
        "static_ports": draw(st.sampled_from(((), (), (80,)))),
        "dynamic_ports": draw(st.sampled_from((0, 0, 1))),
    }
    return group("web", alternatives=((draw(asks(weights=weights)),),), **fields)


def placed(cluster: Cluster, spec: GroupSpec, **lanes: int) -> list[tuple[int, tuple[int, ...]]]:
    """Row and slots of each allocation of a group, as the product places it."""
    extras = extra_asks_of(spec)
    assert extras is not None
    found: list[tuple[int, Holding]] = []
    for one in cluster.propose("app", **lanes).placements:
        found += zip(
            np.repeat(one.rows, one.counts).tolist(), holdings_of(extras, one), strict=True
        )
    return [(row, tuple(slot for _, slot, _ in one.parts)) for row, one in found]


@examples(200, gate=60)
@given(problems(weights=False), st.sampled_from((1, 1, 3)))
def test_the_product_packs_as_the_policy_does(
    problem: tuple[Cluster, GroupSpec], lanes: int
) -> None:
    """Rows and devices are those of the policy on the same columns, prices from what the log has seen."""
    cluster, spec = problem
    cluster.do(register("app", spec))
    state = cluster.state
    offers, held, size = state.fleet.offers, state.allocations.held, state.fleet.size
    if offers.kind(GPU) != "indexed":
        return
    shape = ask_shape_of(spec, spec.alternatives[0])
    assert shape is not None
    counts: dict[Any, int] = {}
    for one, count in state.allocations.workload.settled.items():
        seen = gpu_ask(offers, one)
        counts[seen] = counts.get(seen, 0) + count
    prices = fragmentation.make_prices(counts, max(len(offers.models), 1))
    columns = gpu_columns(offers, held, state.fleet.capacity[:size], held.columns(size))
    own = np.array([splitmix64(row) % lanes == 0 for row in range(size)])
    ask = gpu_ask(offers, shape)
    if spec.static_ports:
        # One a node: the policy knows no ports.
        free = np.array([not held.ports.is_held(row, 80) for row in range(size)])
        expected: list[tuple[int, tuple[int, ...]]] = []
        while len(expected) < spec.count:
            some = place_count(columns, ask, 1, prices, usable=free, preferred=own & free)
            if not some:
                break
            expected += some
            free[some[0][0]] = False
    else:
        usable = np.ones(size, dtype=bool)
        expected = place_count(columns, ask, spec.count, prices, usable=usable, preferred=own)
    assert placed(cluster, spec, lane=0, lanes=lanes) == expected


def greedy(cluster: Cluster, spec: GroupSpec) -> list[int]:
    """One after another: the highest mean of the scorers, the devices that a node would give being one of them."""
    fleet, held = cluster.state.fleet, cluster.state.allocations.held.copy(cluster.state.fleet.size)
    extras, ask, rows = extra_asks_of(spec), ask_columns(spec), list[int]()
    assert extras is not None
    assigner = ResourceAssigner(fleet.offers, held)
    wish = extras.alternatives[0][0]
    total = sum(abs(one.weight) for one in wish.affinities)
    weigh = {
        code: sum(one.weight for one in wish.affinities if one.right == model.model)
        for code, model in enumerate(fleet.offers.models)
    }
    while len(rows) < spec.count:
        found: list[tuple[int, int, Holding]] = []
        for row in range(fleet.size):
            given_ = assigner.assign(row, extras, 0, nth=len(rows), likes=[weigh])
            if given_ is None or (held.used[row] + ask > fleet.capacity[row]).any():
                continue
            model = int(fleet.offers.slots[GPU].model[row, given_.parts[0][1]])
            named = node_scores(
                capacity=fleet.capacity[row].tolist(),
                used_after=(held.used[row] + ask).tolist(),
                collisions=rows.count(row),
                desired_count=spec.count,
                algorithm="binpack",
                anti_affinity=True,
                devices=weigh[model] * SCALE // total,
            )
            found.append((-mean_score(list(named.values())), row, given_))
        if not found:
            break
        _, row, given_ = min(found, key=lambda one: one[:2])
        held.add(row, ask, given_)
        rows.append(row)
    return rows


@examples(200, gate=60)
@given(problems(weights=True))
def test_liked_devices_go_first(problem: tuple[Cluster, GroupSpec]) -> None:
    """A count with device affinities is scalar greedy; nothing of it is cut."""
    cluster, spec = problem
    expected = greedy(cluster, spec)
    cluster.do(register("app", spec))
    assert [row for row, _ in placed(cluster, spec)] == expected
    cluster.schedule("app")
    assert len(cluster.rows("app")) == len(expected)
