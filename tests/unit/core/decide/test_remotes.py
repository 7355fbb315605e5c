"""Slots of remote tasks: handed on when an allocation leaves, ended when the job wants them no more."""

from typing import Any

import msgspec

from schemas.base import JobId, NodeId
from schemas.evaluations import WakeEvaluations
from schemas.nodes import AllocReport, ChangeLiveness, ReportNode
from schemas.policy import DrainNode
from schemas.remotes import RemoteTask, ReportRemoteEnded
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.state import State
from shared.core.state.tables.remotes import SlotRow
from shared.query.remotes import remote_endings, remotes_wanted
from tests.builders import Cluster, group, join, register, stop

HAS: dict[str, Any] = {"attributes": {"driver.cloud": "1", "driver.cloud.capabilities": "remote"}}
HANDLE = msgspec.Raw(b'{"instance":"i-1"}')


def task(state: str = "running", attempt: int = 1) -> RemoteTask:
    handle = HANDLE if state == "running" else msgspec.Raw(b"null")
    return RemoteTask(driver="cloud", attempt=attempt, state=state, handle=handle)


def say(world: Cluster, at: int, status: str = "running", **tasks: RemoteTask) -> None:
    """Report an allocation with its remote tasks."""
    table, fleet = world.state.allocations, world.state.fleet
    row = int(table.node[at])
    entry = AllocReport(key=int(table.key[at]), row=at, status=status, remotes=tasks)
    world.do(
        ReportNode(
            node_id=NodeId(fleet.ids[row]),
            host_id=fleet.host_ids[row],
            boot_id=fleet.boot_ids[row],
            number=int(fleet.reports_seen[row]) + 1,
            states=(entry,),
        )
    )


def tracked(count: int = 1, *nodes: str) -> Cluster:
    """A job whose tasks run, each with its slot."""
    world = Cluster()
    world.do(*[join(name, **HAS) for name in nodes or ("n1", "n2")])
    world.run(register("app", group(count=count)))
    for at in world.rows():
        say(world, at, "pending", t=task("starting"))
        say(world, at, t=task())
    return world


def wanted(world: Cluster) -> Any:
    """What projections say of slots, by allocation."""
    return remotes_wanted(world.state, world.state.allocations.key.tolist())


def slots(world: Cluster) -> list[SlotRow]:
    return list(world.state.remotes.by_key.values())


def only(world: Cluster) -> SlotRow:
    (found,) = slots(world)
    return found


def key_of(world: Cluster, at: int) -> int:
    return int(world.state.allocations.key[at])


def lose(world: Cluster, name: str) -> None:
    world.do(ChangeLiveness(node_ids=(NodeId(name),), status="down", seen_seq=10**9))
    world.schedule()


def node_of(world: Cluster, at: int) -> str:
    return str(world.state.fleet.ids[int(world.state.allocations.node[at])])


def test_a_start_is_in_the_log_before_it_is_made() -> None:
    """The report of a pending allocation makes its slot: the log knows what may be there."""
    world = Cluster()
    world.do(join("n1", **HAS))
    world.run(register("app", group()))
    (at,) = world.rows()
    say(world, at, "pending", t=task("starting"))
    slot = only(world)
    assert (slot.status, slot.tracker, slot.index) == ("tracked", key_of(world, at), 0)
    assert slot.tasks == {"t": task("starting")}


def test_what_a_lost_node_tracked_is_taken_over() -> None:
    """The replacement gets generation, attempt and handle; the lost tracker's late words count for nothing."""
    world = tracked()
    (first,) = world.rows()
    generation = key_of(world, first)
    lose(world, node_of(world, first))
    (second,) = world.rows()
    key = key_of(world, second)
    assert (only(world).status, only(world).tracker) == ("tracked", key)
    said = wanted(world)[key]
    assert (said.generation, said.tasks, said.ends) == (generation, {"t": task()}, False)
    say(world, first, t=task("ended"))
    assert only(world).tasks == {"t": task()}
    say(world, second, t=task("starting", attempt=2))
    assert only(world).tasks == {"t": task("starting", attempt=2)}
    assert wanted(world)[key].tasks == {"t": task()}


def test_without_a_place_the_slot_waits_with_its_handle() -> None:
    """No node is left: the slot is vacant, and the next allocation, however much later, takes it over."""
    world = tracked(1, "n1")
    lose(world, "n1")
    assert (only(world).status, only(world).tracker) == ("vacant", 0)
    world.later(86_400)
    world.do(join("n2", **HAS))
    world.do(WakeEvaluations(keys=(world.state.evaluations.blocked_of[JobId("app")],)))
    world.schedule()
    (second,) = world.rows()
    assert (only(world).status, only(world).tracker) == ("tracked", key_of(world, second))
    assert only(world).handed == {"t": task()}


def test_a_drained_allocation_leaves_its_slot() -> None:
    """Its projection does not order to end what runs elsewhere."""
    world = tracked()
    (first,) = world.rows()
    name = node_of(world, first)
    world.do(DrainNode(request_id="r", node_id=name, draining=True, deadline_ns=world.now_ns))
    world.run(register("app", group(), submission_id="2", salt=1))
    (second,) = [at for at in world.rows() if at != first]
    assert only(world).tracker == key_of(world, second)
    assert key_of(world, first) not in wanted(world)


def test_a_stopped_job_ends_what_it_has() -> None:
    """The tracker is ordered to end it; when it has, nothing of the slot is left."""
    world = tracked()
    (at,) = world.rows()
    world.do(stop("app"))
    world.schedule()
    assert (only(world).status, only(world).tracker) == ("ending", key_of(world, at))
    assert wanted(world)[key_of(world, at)].ends
    say(world, at, "complete", t=task("ended"))
    assert slots(world) == []


def test_fewer_and_another_text_end_what_is_too_much() -> None:
    """Scaled down, the highest index ends; with another text the old slot ends, and a new one begins."""
    world = tracked(2)
    world.run(register("app", group(count=1), submission_id="2", salt=1))
    assert sorted((one.index, one.status) for one in slots(world)) == [
        (0, "tracked"),
        (1, "ending"),
    ]
    world.run(register("app", group(count=1, digest="other"), submission_id="3", salt=2))
    assert {one.status for one in slots(world)} == {"ending"}


def test_without_a_tracker_another_node_ends_it() -> None:
    """Node lost, then job stopped: any node with the driver is ordered to end it; only its word counts."""
    world = tracked(1, "n1")
    lose(world, "n1")
    world.do(stop("app"))
    assert (only(world).status, only(world).node_id) == ("ending", "")
    world.do(join("n2", **HAS))
    assert only(world).node_id == "n2"
    (order,) = remote_endings(world.state)["n2"]
    assert order.tasks == {"t": task()}
    word = ReportRemoteEnded(node_id=NodeId("n1"), generation=order.generation, epoch=order.epoch)
    world.do(word)
    assert only(world).status == "ending"
    world.do(msgspec.structs.replace(word, node_id=NodeId("n2")))
    assert slots(world) == []


def test_the_order_moves_on_when_its_node_is_lost() -> None:
    """With a higher epoch, so that the first one can do nothing any more."""
    world = tracked(1, "n1")
    lose(world, "n1")
    world.do(stop("app"))
    world.do(join("n2", **HAS), join("n3", **HAS))
    before = only(world)
    lose(world, "n2")
    assert (before.node_id, only(world).node_id) == ("n2", "n3")
    assert only(world).epoch > before.epoch


def test_epochs_of_trackers_and_orders_grow() -> None:
    """The epoch of a tracker begins its key: what replaces it has a higher one, and so has the order to end."""
    world = tracked()
    (first,) = world.rows()
    lose(world, node_of(world, first))
    (second,) = world.rows()
    assert key_of(world, first) >> 20 < key_of(world, second) >> 20
    lose(world, node_of(world, second))
    world.do(stop("app"), join("n4", **HAS))
    assert only(world).epoch > key_of(world, second) >> 20


def test_a_snapshot_has_the_slots() -> None:
    """Written and read again, the table has the same hash, and finds slots by tracker and job."""
    world = tracked(2)
    table = world.state.remotes
    codec = TABLE_CODECS["remotes"]
    assert codec is not None
    state = State()
    for event_row in table.by_key.items():
        state.remotes.by_key[event_row[0]] = event_row[1]
    state.remotes.settle()
    assert state.remotes.digest() == table.digest()
    assert state.remotes.tracked == table.tracked
    assert state.remotes.generations(JobId("app")) == table.generations(JobId("app"))
