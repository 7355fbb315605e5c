"""Reports of many nodes in one transaction: one event, in order with everything else that is decided."""

from schemas.allocations import AllocationsReported
from schemas.base import NodeId
from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import BriefStates, CapacityFreed, ReportNode
from services.plan_applier.batch import BatchDecider
from services.plan_applier.command_queue import CommandQueue
from shared.core.runtime.messages import Message
from shared.protocol import subjects
from tests.builders import Cluster, group, join, register

NODES = ("n1", "n2", "n3")


def running() -> Cluster:
    """Three nodes, each with one allocation at least."""
    one = Cluster()
    for node_id in NODES:
        one.do(join(node_id))
    one.run(register("app", group(count=9)))
    return one


def said(one: Cluster, node_id: str, status: int, number: int = 2) -> ReportNode:
    """What a node says of all that is on it."""
    table, fleet = one.state.allocations, one.state.fleet
    node = fleet.row_of[NodeId(node_id)]
    rows = [row for row in table.live_rows().tolist() if table.node[row] == node]
    brief = BriefStates(
        keys=tuple(int(table.key[row]) for row in rows),
        rows=tuple(rows),
        statuses=(status, len(rows)),
    )
    host, boot = fleet.host_ids[node], fleet.boot_ids[node]
    return ReportNode(
        node_id=NodeId(node_id), host_id=host, boot_id=boot, number=number, brief=brief
    )


def decided(one: Cluster, *reports: ReportNode) -> list[object]:
    """Events of one transaction that takes all of these, each a message of its own."""
    inbox = CommandQueue()
    for token, report in enumerate(reports):
        data = ENCODER.encode(CommandBatch(sender="a", commands=(report,)))
        inbox.put(Message("report", subjects.report(report.node_id), data, token))
    one.state.begin(one.state.seq + 1, one.now_ns)
    batch = BatchDecider().decide(one.state, inbox, one.horizon, one.now_ns, no_new_work=False)
    assert sorted(batch.tokens) == list(range(len(reports)))
    return list(batch.events)


def test_many_nodes_are_one_event() -> None:
    """Three nodes that say what runs become one fact, which names all three numbers."""
    one = running()
    (event,) = decided(one, *(said(one, node_id, 1) for node_id in NODES))
    assert isinstance(event, AllocationsReported)
    assert (event.nodes, event.numbers, len(event.rows)) == ((0, 1, 2), (2, 2, 2), 9)
    assert one.state.fleet.reports_seen[:3].tolist() == [2, 2, 2]
    assert (one.state.allocations.client[:9] == 1).all()


def test_two_words_of_one_node_stay_two_facts_in_order() -> None:
    """A node that says more in the same transaction is heard twice, the later word last."""
    one = running()
    first, later = said(one, "n1", 1), said(one, "n1", 3, number=3)
    events = decided(one, first, said(one, "n2", 1), later)
    reported = [event for event in events if isinstance(event, AllocationsReported)]
    assert [event.numbers for event in reported] == [(2, 2), (3,)]
    rows = list(reported[1].rows)
    assert (one.state.allocations.client[rows] == 3).all()


def test_ends_on_many_nodes_free_room_once_a_class() -> None:
    """One fact says that room appeared, and no more than the roomiest of the nodes has."""
    one = running()
    decided(one, *(said(one, node_id, 1) for node_id in NODES))
    events = decided(one, *(said(one, node_id, 2, number=3) for node_id in NODES))
    (freed,) = [event for event in events if isinstance(event, CapacityFreed)]
    assert freed.room == (1000, 1000, 1000)
    assert not one.state.allocations.used(3).any()
