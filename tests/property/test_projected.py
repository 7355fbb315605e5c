"""Projections of nodes: what columns say is what the state holds, whatever its order; reading and writing agree."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import EvalKey, JobId, NodeId
from schemas.envelope import ENCODER
from schemas.jobs import GroupSpec, JobRegistered
from schemas.nodes import NodeRegistered, NodeSpec
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from schemas.projections import GroupRef, NodeProjection
from services.view.publisher import VALUE_BYTES_MAX
from shared.core.runtime.desired_allocs import DesiredAlloc, read_columns, read_desired_allocs
from shared.core.state.ids import alloc_id
from shared.core.state.state import State
from shared.query import projections
from tests.examples import examples
from tests.projected import projected

pytestmark = pytest.mark.property
ONE = {"seq": 1, "node_id": "n1", "cluster_id": "c"}

PLACED = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=1, max_size=6)), max_size=6
)


def state_of(placed: list[tuple[int, list[int]]]) -> State:
    """Four nodes and three jobs; each placement names its job and a node an allocation."""
    state = State()
    for node in range(4):
        spec = NodeSpec(node_id=NodeId(f"n{node}"), cpu_mhz=1, memory_mib=1)
        state.evolve(NodeRegistered(spec=spec, host_id="h", boot_id="b"), node + 1)
    for job in range(3):
        registered = JobRegistered(
            submission_id=f"s{job}",
            digest="d",
            job_id=JobId(f"j{job}"),
            version=0,
            groups=(GroupSpec(name="g"),),
            spec=msgspec.Raw(b"{}"),
        )
        state.evolve(registered, 10 + job)
    for seq, (job, nodes) in enumerate(placed, 20):
        placement = GroupPlacement(
            group="g",
            version=0,
            rows=tuple(nodes),
            counts=(1,) * len(nodes),
            names=(seq, len(nodes)),
        )
        plan = PlanCommitted(
            key=EvalKey(0),
            job_id=JobId(f"j{job}"),
            origin=Origin(worker="w", number=seq, snapshot_seq=0),
            placements=(placement,),
        )
        # The tables of evaluations have no say in where an allocation is.
        state.allocations.evolve(plan, seq)
    return state


def read(state: Any, node: int) -> list[tuple[Any, ...]]:
    """What the state itself says of a node's allocations, one by one."""
    table = state.allocations
    out = []
    for row in table.live_rows().tolist():
        if table.node[row] == node:
            ref = int(table.group[row])
            name = (table.groups.job_ids[ref], table.groups.versions[ref], table.groups.names[ref])
            out.append((int(table.key[row]), row, *name, int(table.index[row])))
    return out


@examples(60)
@given(PLACED, st.sets(st.integers(0, 30)))
def test_columns_say_what_the_state_holds(
    placed: list[tuple[int, list[int]]], stopped: set[int]
) -> None:
    """Runs over neighbours, other nodes and other groups: each node gets its allocations, no other's."""
    state = state_of(placed)
    table = state.allocations
    rows = [row for row in sorted(stopped) if row < table.size]
    table.desired[rows] = 1
    nodes = np.arange(4, dtype=np.int32)
    told = projections.node_projections(state, nodes, projections.desired_rows(state, nodes))
    for node, said in enumerate(told):
        again = msgspec.json.decode(ENCODER.encode(said), type=NodeProjection)
        found = read_desired_allocs(again)
        assert [
            (one.key, one.row, one.job_id, one.version, one.group, one.index) for one in found
        ] == read(state, node)
        assert [one.alloc_id for one in found] == [alloc_id(one.key) for one in found]
        assert {one.row for one in found if one.desired == "stop"} == {
            row for row in rows if table.node[row] == node
        }
        assert read_columns(again).keys.tolist() == [one.key for one in found]


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": (1, 2), "rows": (1,), "indexes": (0, 0)},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "groups": ()},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "groups_at": (1,)},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "groups_at": (-1,)},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "counts": (0,)},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "counts": (10**9,)},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "counts": (1, 1)},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "stops": (1,)},
        {"keys": (1,), "rows": (1,), "indexes": (0,), "evicts": (-1,)},
    ],
)
def test_columns_that_do_not_hold_together_are_refused(columns: dict[str, Any]) -> None:
    """Lengths that differ, positions and groups that are not there: no order at all."""
    said = NodeProjection(**{**ONE, "groups": (GroupRef("j", 0, "g"),), **columns})
    with pytest.raises(ValueError, match=r"columns|group|position|runs"):
        read_desired_allocs(said)


def test_fifty_thousand_allocations_of_as_many_groups_fit_a_message() -> None:
    """A node may hold 50,000 allocations, each of another plan, and its projection still fits the bus."""
    many = range(50_000)
    allocs = tuple(
        DesiredAlloc(
            key=(1_000_000 + 3 * at) << 20,
            row=9_000_000 - 2 * at,
            alloc_id="",
            job_id=f"project-{at:05d}",
            version=at % 7,
            group="group",
            index=at,
        )
        for at in many
    )
    encoded = ENCODER.encode(projected(allocs, **ONE))
    assert len(encoded) < VALUE_BYTES_MAX
    found = read_desired_allocs(msgspec.json.decode(encoded, type=NodeProjection))
    assert [(one.key, one.job_id) for one in found] == [(one.key, one.job_id) for one in allocs]


def test_the_id_of_the_page_for_any_language_is_that_of_its_key() -> None:
    """docs/any-language.md says how an id is computed; its example is right."""
    page = (Path(__file__).parents[2] / "docs" / "any-language.md").read_text(encoding="utf-8")
    assert f"Key 7340032 is `{alloc_id(7340032)}`." in page
