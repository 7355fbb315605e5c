"""Counts of devices, cores, ports, sums and licences placed at once, against a scalar greedy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import JobId
from schemas.jobs import GroupSpec, ResourceAsk
from schemas.nodes import Instance, Pool
from schemas.plans import PlanCommitted
from schemas.policy import DeclarePool, Policy
from shared.core.resources.asks import Holding, extra_asks_of, holdings_of
from shared.core.resources.assign import ResourceAssigner
from shared.core.scheduling.scoring.scores import mean_score, node_scores
from shared.core.scheduling.selection.candidates import ask_columns
from shared.core.splitmix import splitmix64
from tests.builders import Cluster, group, join, register
from tests.examples import examples

pytestmark = pytest.mark.property
Choice = tuple[int, Holding]

UNIT = 10_000
GPU = "device.gpu"


@st.composite
def asks(draw: st.DrawFn) -> tuple[ResourceAsk, ...]:
    """Fractions, whole ones, several and a part; of one model or any; sums, cores, licences; now and then twice."""
    gpu = st.builds(
        ResourceAsk,
        pool=st.just(GPU),
        amount=st.sampled_from((2_500, 3_300, 5_000, 6_600, UNIT, UNIT, 2 * UNIT, 15_000, 23_000)),
        model=st.sampled_from(("", "", "a", "b")),
        grouping=st.sampled_from(("", "", "strict", "compact", "scatter")),
    )
    cores = st.builds(ResourceAsk, pool=st.just("cores"), amount=st.sampled_from((UNIT, 2 * UNIT)))
    disks = st.builds(ResourceAsk, pool=st.just("disks"), amount=st.sampled_from((4_000, UNIT)))
    seats = st.just(ResourceAsk(pool="seats", amount=UNIT))
    unoffered = st.just(ResourceAsk(pool="unoffered"))
    some = st.one_of(gpu, gpu, gpu, gpu, gpu, gpu, gpu, cores, cores, disks, seats, unoffered)
    return tuple(draw(st.lists(some, min_size=1, max_size=2)))


@st.composite
def groups(draw: st.DrawFn) -> GroupSpec:
    """Draw a group of up to twelve; ports as well."""
    return group(
        "web",
        count=draw(st.integers(1, 12)),
        cpu_mhz=draw(st.sampled_from((0, 50, 100, 300))),
        memory_mib=draw(st.sampled_from((0, 10, 100))),
        alternatives=tuple(
            draw(st.lists(asks(), min_size=draw(st.sampled_from((0, 1, 1, 1))), max_size=3))
        ),
        static_ports=draw(st.sampled_from(((), (), (), (80,), (20_001,)))),
        dynamic_ports=draw(st.sampled_from((0, 0, 1, 2))),
        distinct_hosts=draw(st.sampled_from(("", "", "", "group"))),
        algorithm=draw(st.sampled_from(("", "spread"))),
    )


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what one node offers: instances of two models in two groups, cores, a sum, a short range of ports."""
    instances = st.lists(st.integers(0, 1), min_size=draw(st.sampled_from((0, 2, 3))), max_size=6)
    pools = [
        Pool(
            name=GPU,
            model=model,
            instances=tuple(
                Instance(id=f"{model}{n}", group=g) for n, g in enumerate(draw(instances))
            ),
        )
        for model in ("a", "b")
    ]
    cores = draw(st.integers(0, 4))
    pools.append(Pool(name="cores", instances=tuple(Instance(id=str(n)) for n in range(cores))))
    pools.append(Pool(name="disks", amount=draw(st.sampled_from((0, UNIT, 3 * UNIT)))))
    return {
        "pools": tuple(pools),
        "core_mhz": draw(st.sampled_from((0, 100, 250, 250))),
        "cpu_mhz": draw(st.sampled_from((500, 1000, 1000, 2000))),
        "port_max": 20_000 + draw(st.integers(0, 9)),
        "reserved_ports": draw(st.sampled_from(((), (20_002,), (80, 20_000)))),
    }


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw a cluster on which two jobs run already."""
    # What waits must hold no node back: that is another rule.
    cluster = Cluster(policy=Policy(reservations_max=0))
    for nth, offers in enumerate(draw(st.lists(nodes(), min_size=1, max_size=5))):
        cluster.do(join(f"n{nth}", **offers))
    cluster.do(DeclarePool(request_id="r", node_id="", pool=Pool(name="seats", amount=7 * UNIT)))
    for name in ("old", "older"):
        cluster.run(register(name, draw(groups())))
    return cluster


def greedy(cluster: Cluster, spec: GroupSpec, lane: int, lanes: int) -> list[Choice]:
    """One after another: the best node of the own lane with room, else of the others; alternatives in turn."""
    fleet, held = cluster.state.fleet, cluster.state.allocations.held.copy(cluster.state.fleet.size)
    extras, ask, out = extra_asks_of(spec), ask_columns(spec), list[Choice]()
    assigner = ResourceAssigner(fleet.offers, held)
    for variant in range(len(extras.alternatives) if extras else 1):
        # What this count reserves of cores is room it takes, but not yet in its own scores.
        score_used = held.used + fleet.core_correction(held)
        while len(out) < spec.count:
            found: list[tuple[bool, int, int, Holding]] = []
            full = held.used + fleet.core_correction(held)
            for row in range(fleet.size):
                mine = sum(one == row for one, _ in out)
                holding: Holding | None = Holding()
                if extras is not None:
                    holding = assigner.assign(row, extras, variant, nth=len(out))
                if holding is None or (spec.distinct_hosts and mine):
                    continue
                trial = held.copy()
                trial.add(row, ask, holding)
                after = trial.used + fleet.core_correction(trial)
                has_cores = any(name == "cores" for name, *_ in holding.parts)
                if (after[row] > fleet.capacity[row]).any() or (
                    full[row] > fleet.capacity[row]
                ).any():
                    continue
                if has_cores and not fleet.specs[row].core_mhz:
                    continue
                named = node_scores(
                    capacity=fleet.capacity[row].tolist(),
                    used_after=(score_used[row] + ask).tolist(),
                    collisions=mine,
                    desired_count=spec.count,
                    algorithm="spread" if spec.algorithm else "binpack",
                    anti_affinity=True,
                )
                is_own = splitmix64(row) % lanes == lane
                found.append((not is_own, -mean_score(list(named.values())), row, holding))
            if not found:
                break
            *_, row, holding = min(found, key=lambda one: one[:3])
            held.add(row, ask, holding)
            score_used[row] += ask
            out.append((row, holding))
    return out


@examples(400, gate=100)
@given(clusters(), groups(), st.sampled_from((1, 1, 2, 3)), st.integers(0, 2))
def test_a_count_is_scalar_greedy(cluster: Cluster, spec: GroupSpec, lanes: int, lane: int) -> None:
    """Rows, alternatives, slots and ports are those of one at a time, with lanes too; the applier keeps all."""
    expected = greedy(cluster, spec, lane % lanes, lanes)
    cluster.do(register("app", spec))
    proposal = cluster.propose("app", lane=lane % lanes, lanes=lanes)
    extras = extra_asks_of(spec)
    chosen: list[Choice] = []
    for one in proposal.placements:
        rows = np.repeat(one.rows, one.counts).tolist()
        held = holdings_of(extras, one) if extras else [Holding()] * len(rows)
        chosen += zip(rows, held, strict=True)
    if spec.cpu_mhz or not extras:
        assert [row for row, _ in chosen] == [row for row, _ in expected]
    # Runs of one node are written together: which port an allocation draws follows its place in the plan.
    assert [(row, one.variant, one.parts) for row, one in sorted(chosen, key=_by_row)] == [
        (row, one.variant, one.parts) for row, one in sorted(expected, key=_by_row)
    ]
    committed = cluster.schedule("app")
    for event in committed:
        if isinstance(event, PlanCommitted):
            assert not event.cut and not event.asked
    assert len(cluster.rows("app")) == len(expected)


def _by_row(choice: Choice) -> tuple[int, int]:
    return choice[0], choice[1].variant


@examples(150, gate=40)
@given(clusters(), groups(), groups(), st.integers(0, 3))
def test_two_workers_never_give_the_same_twice(
    cluster: Cluster, first: GroupSpec, second: GroupSpec, seed: int
) -> None:
    """Two plans of one snapshot commit one after the other: slots and ports are given anew or cut, never twice."""
    cluster.do(register("a", first), register("b", second))
    plans = [cluster.plan(name, worker=f"w-{name}") for name in ("a", "b")]
    asked = {plan.job_id: sum(sum(one.counts) for one in plan.placements) for plan in plans}
    cut = 0
    for plan in plans if seed % 2 else reversed(plans):
        # Every transaction leaves the invariants whole: no slot, sum, port or licence beyond what there is.
        events = cluster.do(plan)
        cut += sum(sum(one.counts) for e in events if isinstance(e, PlanCommitted) for one in e.cut)
    assert len(cluster.rows("a")) + len(cluster.rows("b")) == sum(asked.values()) - cut
    assert {JobId("a"), JobId("b")} == set(asked)
