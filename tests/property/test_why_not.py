"""Why-not agrees with placing, whatever a group asks for: devices, wishes, ports, spreads and alternatives."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import JobId
from schemas.jobs import Affinity, GroupSpec, Spread, SpreadTarget
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.query.explain import explain_candidate
from tests.builders import Cluster, register
from tests.examples import examples
from tests.property.test_device_ways import asks, problems

pytestmark = pytest.mark.property
NAME = "${node.unique.name}"


@st.composite
def cases(draw: st.DrawFn) -> tuple[Cluster, GroupSpec]:
    """Draw a fleet of devices, and a group of everything that decides where it goes."""
    cluster, spec = draw(problems(weights=draw(st.booleans())))
    if draw(st.booleans()):
        more = (draw(asks(weights=draw(st.booleans()))),)
        spec = msgspec.structs.replace(spec, alternatives=(*spec.alternatives, more))
    if draw(st.booleans()):
        targets = draw(st.sampled_from(((), (SpreadTarget(value="n0", percent=60),))))
        spread = Spread(attribute=NAME, weight=50, targets=targets)
        spec = msgspec.structs.replace(spec, spreads=(spread,))
    if draw(st.booleans()):
        wish = Affinity(left=NAME, right="n1", weight=draw(st.sampled_from((-50, 50))))
        spec = msgspec.structs.replace(spec, affinities=(wish,))
    fields = {
        "distinct_hosts": draw(st.sampled_from(("", "", "group"))),
        "algorithm": draw(st.sampled_from(("binpack", "spread", "fragmentation"))),
    }
    return cluster, msgspec.structs.replace(spec, **fields)


@examples(400, gate=100)
@given(cases())
def test_one_more_goes_where_why_not_says(case: tuple[Cluster, GroupSpec]) -> None:
    """Asked before each of five allocations: its best node is taken, and where it has none nothing is placed."""
    cluster, spec = case
    for count in range(1, 6):
        grown = msgspec.structs.replace(spec, count=count)
        cluster.do(register("app", grown, submission_id=f"s{count}"))
        answer = explain_candidate(
            cluster.state, PlacementCache(), cluster.state.jobs.by_id[JobId("app")], ""
        )
        refused = sum(one.refused for one in answer.filters)
        assert answer.nodes_considered == refused + answer.lacking + answer.fitting
        assert all(lack > 0 for one in answer.nearest for lack in one.shortfall.values())
        rows = [row for one in cluster.propose("app").placements for row in one.rows]
        names = [cluster.state.fleet.ids[row] for row in rows]
        assert names == [one.node for one in answer.top[:1]], answer.text
        assert bool(answer.wait_class) == (not names)
        if not names:
            return
        cluster.schedule("app")
