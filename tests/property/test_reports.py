"""Reports of many nodes decided as one, in brief, against the same said one node and one allocation at a time."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.allocations import CLIENT_STATUSES, AllocationsReported
from schemas.base import NodeId
from schemas.nodes import AllocReport, BriefStates, ReportNode
from shared.core.decide.nodes.registration import decide_reports, is_plain
from shared.core.state.ids import make_key
from tests.builders import Cluster, group, join, register
from tests.examples import examples

pytestmark = pytest.mark.property
NODES = ("n0", "n1", "n2")
SAID = st.lists(
    st.tuples(st.sampled_from((0, 0, 0, 1, 2)), st.integers(0, 9), st.integers(0, 5)),
    max_size=12,
    unique_by=lambda said: said[1],
)


def cluster() -> Cluster:
    """Three nodes with a service and a batch job on each."""
    one = Cluster()
    for node_id in NODES:
        one.do(join(node_id))
    one.run(register("serve", group(count=5)))
    one.run(register("work", group(count=5), job_type="batch"))
    return one


def entries(one: Cluster, said: Sequence[tuple[int, int, int]]) -> dict[str, list[AllocReport]]:
    """What each node says: mostly of its own allocations, sometimes of another's, or under a wrong key."""
    table, fleet = one.state.allocations, one.state.fleet
    out: dict[str, list[AllocReport]] = {node_id: [] for node_id in NODES}
    for odd, row, code in said:
        key = int(table.key[row])
        owner = fleet.ids[table.node[row]]
        if odd == 1:
            owner = NODES[(NODES.index(owner) + 1) % 3]
        if odd == 2:
            key = make_key(10**6, row)
        out[owner].append(AllocReport(key=key, row=row, status=CLIENT_STATUSES[code]))
    return out


def brief(states: Sequence[AllocReport]) -> BriefStates:
    """The same in columns."""
    return BriefStates(
        keys=tuple(one.key for one in states),
        rows=tuple(one.row for one in states),
        statuses=tuple(n for one in states for n in (CLIENT_STATUSES.index(one.status), 1)),
    )


def message(one: Cluster, node_id: str, **fields: Any) -> ReportNode:
    """The next report of a node."""
    fleet = one.state.fleet
    row = fleet.row_of[NodeId(node_id)]
    return ReportNode(
        node_id=NodeId(node_id),
        host_id=fleet.host_ids[row],
        boot_id=fleet.boot_ids[row],
        number=int(fleet.reports_seen[row]) + 1,
        **fields,
    )


@examples(150)
@given(st.lists(SAID, min_size=1, max_size=3))
def test_brief_reports_as_one_are_detailed_ones_one_by_one(
    rounds: list[list[tuple[int, int, int]]],
) -> None:
    """For any report, legal or not: tables, evaluations and replacements are the same."""
    alone, together = cluster(), cluster()
    for said in rounds:
        told = entries(alone, said)
        for node_id, states in told.items():
            for state in states:
                alone.do(message(alone, node_id, states=(state,)))
        reports = [message(together, node_id, brief=brief(told[node_id])) for node_id in NODES]
        assert all(is_plain(together.state, report) for report in reports)
        together.apply(*decide_reports(together.state, reports, together.now_ns))
    ours, theirs = together.state.allocations, alone.state.allocations
    assert ours.client[: ours.size].tolist() == theirs.client[: theirs.size].tolist()
    assert ours.reschedule_at_ns == theirs.reschedule_at_ns
    assert ours.used(3).tolist() == theirs.used(3).tolist()
    jobs = [
        sorted({one.job_id for one in which.state.evaluations.by_key.values() if one.is_open})
        for which in (alone, together)
    ]
    assert jobs[0] == jobs[1]


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": (1, 2), "rows": (1,), "statuses": (1, 2)},
        {"keys": (1,), "rows": (1,), "statuses": (1, 2)},
        {"keys": (1,), "rows": (1,), "statuses": (9, 1)},
        {"keys": (1,), "rows": (1,), "statuses": (-1, 1)},
        {"keys": (1,), "rows": (1,), "statuses": (1,)},
        {"keys": (1,), "rows": (1,), "statuses": (1, 10**12, 1, 1 - 10**12)},
        {"keys": (2**70,), "rows": (1,), "statuses": (1, 1)},
        {"keys": (1,), "rows": (2**70,), "statuses": (1, 1)},
        {"keys": (1,), "rows": (-1,), "statuses": (1, 1)},
        {"keys": (1,), "rows": (10**9,), "statuses": (1, 1)},
        {"keys": (1,), "rows": (1,), "statuses": (1, 1), "health_versions": (-2, 1)},
        {"keys": (1,), "rows": (1,), "statuses": (1, 1), "health_versions": (2**70, 1)},
    ],
)
def test_brief_columns_that_do_not_hold_together_say_nothing(columns: dict[str, Any]) -> None:
    """Columns of odd lengths and impossible numbers change no allocation; the number counts as seen."""
    one = cluster()
    before = one.state.allocations.client.tolist()
    one.do(message(one, "n0", brief=BriefStates(**columns)))
    assert one.state.allocations.client.tolist() == before
    assert int(one.state.fleet.reports_seen[0]) == 2


def test_the_first_word_of_a_message_about_an_allocation_counts() -> None:
    """Who says two things of one allocation in one message frees its room once."""
    one = cluster()
    table = one.state.allocations
    row = int(next(at for at in table.live_rows() if table.node[at] == 0))
    failed = AllocReport(key=int(table.key[row]), row=row, status="failed")
    said = brief([failed, msgspec.structs.replace(failed, status="complete"), failed])
    used = one.state.allocations.used(3)[0].tolist()
    one.do(message(one, "n0", brief=said, states=(failed, failed)))
    assert CLIENT_STATUSES[table.client[row]] == "failed"
    assert [a - b for a, b in zip(used, table.used(3)[0].tolist(), strict=True)] == [100, 100, 0]


def test_a_brief_word_keeps_what_is_known_of_tasks() -> None:
    """Reported task states stay when a brief report has only the status; an equal report changes nothing."""
    from schemas.nodes import TaskState

    one = cluster()
    table = one.state.allocations
    row = int(next(at for at in table.live_rows() if table.node[at] == 0))
    entry = AllocReport(
        key=int(table.key[row]), row=row, status="pending", tasks={"t": TaskState(state="pending")}
    )
    one.do(message(one, "n0", states=(entry,)))
    known = table.details[row]
    said = brief([AllocReport(key=entry.key, row=row, status="running")])
    assert one.do(message(one, "n0", brief=said))
    assert (int(table.client[row]), table.details[row]) == (1, known)
    (again,) = one.do(message(one, "n0", brief=said))
    assert isinstance(again, AllocationsReported)
    assert again.rows == ()
