"""Events in one line: with the state before them they speak of allocations and nodes by name."""

import msgspec

from schemas.allocations import AllocationsDisplaced, AllocationsReported
from schemas.base import JobId
from schemas.nodes import NodeDrainChanged, NodesStatusChanged, Pool, PoolDeclared
from services.cli import events
from shared.core.replica import Replica
from tests.unit.view_story import Story


def story() -> tuple[Replica, tuple[int, ...]]:
    """A state in which a job of five stands on one node, and the rows of its allocations."""
    told = Story()
    told.node("n1")
    told.job("j", count=5)
    told.plan("j", (0, 0, 0, 0, 0))
    replica = Replica()
    for record in told.records:
        replica.apply(record)
    return replica, tuple(replica.state.allocations.rows_of(JobId("j")).tolist())


def test_reports_name_allocations_and_their_node() -> None:
    """Three by name for each status, and how many more; without a state they are counted."""
    replica, rows = story()
    event = AllocationsReported(nodes=(0,), numbers=(1,), rows=rows, statuses=(1, 1, 1, 1, 2))
    assert events.describe(event) == "4 running, 1 complete"
    told = events.describe(event, replica.state)
    assert told == "j.web[0], j.web[1], j.web[2] and 1 more running; j.web[4] complete on n1"


def test_rows_that_nobody_knows_are_shown_as_numbers() -> None:
    """A record that is not proven yet is described all the same."""
    replica, _ = story()
    event = AllocationsReported(nodes=(7,), numbers=(1,), rows=(99,), statuses=(1,))
    told = events.describe(event, replica.state)
    assert told == "allocation in row 99 running on node in row 7"


def test_what_operators_and_silence_do_is_told_by_name() -> None:
    """Drained, down, stopped: the node or the allocation that it befell; a pool with what it offers."""
    replica, rows = story()
    state = replica.state
    down = NodesStatusChanged(rows=(0,), status="down", reason="silent")
    assert events.describe(down, state) == "n1 down (silent)"
    drain = NodeDrainChanged(row=0, draining=False, deadline_ns=0)
    assert events.describe(drain, state) == "n1 drained no longer"
    stopped = AllocationsDisplaced(rows=rows[:1])
    assert events.describe(stopped, state) == "j.web[0] stopped by an operator"
    pool = PoolDeclared(node_id="n1", pool=Pool(name="seat", amount=20_000))
    assert events.describe(pool) == "n1: seat 2"
    gone = msgspec.structs.replace(pool, node_id="", pool=Pool(name="seat"))
    assert events.describe(gone) == "the cluster: seat no more"
