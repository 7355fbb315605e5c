"""Rolling updates and canaries of service jobs, pass by pass, after the scenarios of Nomad's reconciler."""

import pytest

from schemas.allocations import AllocationsCollected, AllocationsReported
from schemas.base import JobId
from schemas.jobs import JobStabilityChanged, UpdatePolicy
from schemas.nodes import ChangeLiveness
from schemas.plans import Stops
from schemas.policy import StopAllocation
from shared.core.state.tables.allocations import COMPLETE
from tests.builders import group
from tests.unit.core.scheduling.rollout import A, B, Rollout

CHANGED, UNNEEDED, UNPROMOTED = "job changed", "not needed", "canary that was not promoted"
REPLACED, TWIN = "replaced", "its canary was promoted"


def rollout(old: int = 10, **fields: object) -> Rollout:
    """A job with healthy allocations of an old version."""
    world = Rollout()
    world.old(old, **fields)
    return world


# ---- rolling ----


def test_r3_first_names_are_replaced() -> None:
    """R3: max_parallel 4 replaces names 0 to 3 and leaves six; the new ones belong to the deployment."""
    world = rollout()
    world.register("new")
    done = world.look()
    assert done.stopped == {CHANGED: [0, 1, 2, 3]} and done.names == [0, 1, 2, 3]
    assert done.replaced == [0, 1, 2, 3]
    assert set(world.table.deployment[world.rows(1)].tolist()) == {world.deployment.key}
    assert world.deployment.groups[0].placed == 4


def test_r4_in_place_is_not_paced() -> None:
    """R4: a change in place updates all at once, and all belong to the deployment."""
    world = rollout()
    world.register("old")
    done = world.look()
    assert done.updated == list(range(10)) and not done.placed and not done.stopped
    assert set(world.table.deployment[world.rows()].tolist()) == {world.deployment.key}


def test_r6_missing_ones_take_their_share() -> None:
    """R6: with seven of ten, three are placed and one is replaced."""
    world = rollout(7)
    world.register("new")
    done = world.look()
    assert done.names == [0, 7, 8, 9] and done.stopped == {CHANGED: [0]}


@pytest.mark.parametrize(
    ("update", "count", "placed", "stopped"),
    [
        pytest.param(None, 15, range(15), {CHANGED: list(range(10))}, id="R7 up, no update"),
        pytest.param(None, 5, range(5), {CHANGED: list(range(10))}, id="R7 down, no update"),
        pytest.param(
            UpdatePolicy(max_parallel=0), 10, range(10), {CHANGED: list(range(10))}, id="R8"
        ),
        pytest.param(A, 15, range(10, 15), {}, id="R7 up, paced: the new ones took the room"),
        pytest.param(
            A, 5, range(4), {UNNEEDED: [5, 6, 7, 8, 9], CHANGED: [0, 1, 2, 3]}, id="R7 down, paced"
        ),
    ],
)
def test_r7_r8_counts_and_no_deployment(
    update: UpdatePolicy | None, count: int, placed: range, stopped: dict[str, list[int]]
) -> None:
    """R7, R8: without a deployment everything is replaced at once; with one the count is met first."""
    world = rollout(update=update)
    world.register("new", count=count, update=update)
    done = world.look()
    assert (done.names, done.stopped) == (list(placed), stopped)


def test_r9_new_ones_without_health_use_up_the_room() -> None:
    """R9: nothing moves while more of the deployment are without health than max_parallel."""
    world = rollout()
    world.register("new", count=30)
    assert world.look().names == list(range(10, 30))
    done = world.look()
    assert not done.placed and not done.stopped


@pytest.mark.parametrize(
    ("count", "placed", "stopped"), [(15, range(10, 15), {}), (5, (), {UNNEEDED: [5, 6, 7, 8, 9]})]
)
def test_r10_in_place_with_another_count(
    count: int, placed: tuple[int, ...], stopped: dict[str, list[int]]
) -> None:
    """R10: a change in place comes with its count at once."""
    world = rollout()
    world.register("old", count=count)
    done = world.look()
    assert done.updated == list(range(min(count, 10)))
    assert (done.names, done.stopped) == (list(placed), stopped)


@pytest.mark.parametrize("healthy", range(5))
def test_r12_health_makes_room(healthy: int) -> None:
    """R12: of four new ones each healthy one lets another old one go, from name 4 on."""
    world = rollout()
    world.register("new")
    world.look()
    world.say(1, world.rows(1)[:healthy])
    assert world.look().names == list(range(4, 4 + healthy))


def test_r12_an_unhealthy_one_stops_the_pace() -> None:
    """R12: with one unhealthy nothing old is replaced."""
    world = rollout()
    world.register("new")
    world.look()
    world.say(1, world.rows(1)[:3])
    world.say(2, world.rows(1)[3:])
    done = world.look()
    assert not done.placed and not done.stopped


def test_old_ones_that_are_not_healthy_are_replaced_first() -> None:
    """A drain has just moved two of ten: an update with max_parallel 4 replaces these and two that are up, not four."""
    world = rollout()
    world.table.health[[row for row in world.rows() if world.table.index[row] in {7, 9}]] = 0
    world.register("new")
    assert world.look().stopped == {CHANGED: [0, 1, 7, 9]}


def test_r13_moves_do_not_use_up_the_room() -> None:
    """R13: what an operator stopped is placed beside the pace; what was lost takes its share."""
    world = rollout()
    world.register("new", update=UpdatePolicy(max_parallel=8))
    world.look()
    new = world.rows(1)
    world.say(1, new)
    for row in new[:2]:
        key = int(world.table.key[row])
        world.world.do(StopAllocation(request_id=f"r{row}", alloc_key=key))
    lost = world.world.state.fleet.ids[int(world.table.node[new[2]])]
    world.world.do(ChangeLiveness(node_ids=(lost,), status="down", seen_seq=world.world.state.seq))
    gone = sum(
        1 for row in world.rows() if world.world.state.fleet.ids[int(world.table.node[row])] == lost
    )
    done = world.look()
    assert done.stopped[CHANGED] and len(done.placed) == 2 + gone + len(done.stopped[CHANGED])
    assert len(world.rows()) == 10


@pytest.mark.parametrize("status", ["paused", "held", "failed"])
def test_r14_r15_lost_ones_are_replaced_and_nothing_else(status: str) -> None:
    """R14, R15: a paused or failed deployment neither places what is new nor replaces what is old."""
    world = rollout()
    world.register("new", count=12)
    world.wait(status)
    done = world.look()
    assert not done.placed and not done.stopped
    lost = world.world.nodes_of()[0]
    world.world.do(ChangeLiveness(node_ids=(lost,), status="down", seen_seq=world.world.state.seq))
    done = world.look()
    assert list(done.stopped) == ["node is down"]
    assert done.names == done.stopped["node is down"] == done.replaced


@pytest.mark.parametrize("status", ["paused", "held", "failed"])
def test_r15_a_first_version_waits(status: str) -> None:
    """R15: a paused or failed deployment of a job without allocations places nothing."""
    world = Rollout()
    world.register("new")
    world.wait(status)
    assert not world.look().placed


def test_r2_r27_the_next_version_begins_anew() -> None:
    """R2, R27: after a failed deployment a newer version replaces four again."""
    world = rollout()
    world.register("new")
    world.look()
    world.say(2, world.rows(1))
    world.end("failed")
    assert not world.look().placed
    world.register("newer")
    done = world.look()
    assert done.stopped == {CHANGED: [0, 1, 2, 3]} and {one[0] for one in done.placed} == {2}


def test_a_rollout_ends() -> None:
    """Pass by pass all are replaced, never more than max_parallel without health."""
    world = rollout()
    world.register("new")
    for _ in range(10):
        world.look()
        waiting = [row for row in world.rows(1) if not world.table.health[row]]
        assert len(waiting) <= A.max_parallel and len(world.rows()) == 10
        world.say(1, waiting[:3])
    assert world.names(1) == list(range(10)) and not world.rows(0)


def test_r39_only_groups_with_an_update_are_paced() -> None:
    """R39: a group without an update policy changes at once, and is not in the deployment."""
    world = Rollout()
    for digest in ("old", "new"):
        world.register_groups(
            group("a", count=5, digest=digest, update=UpdatePolicy(max_parallel=2)),
            group("b", count=5, digest=digest),
        )
        world.look()
        if digest == "old":
            world.say(1, world.rows())
            world.end("successful")
    new = [(world.group_of(row), int(world.table.deployment[row])) for row in world.rows(1)]
    assert sorted(new) == [("a", world.deployment.key)] * 2 + [("b", 0)] * 5


def test_an_old_one_goes_on_where_its_replacement_has_no_room() -> None:
    """What cannot be placed anywhere, even in the old one's room, stops nothing."""
    world = Rollout(nodes=2)
    world.old(4)
    world.register("new", count=4, memory_mib=5_000)
    done = world.look()
    assert not done.placed and not done.stopped


def test_an_old_one_makes_room_for_its_replacement() -> None:
    """In a full cluster old ones stop first, at most max_parallel, and their replacements follow."""
    world = Rollout(nodes=2)
    world.old(8, memory_mib=1_000)
    world.register("new", count=8, memory_mib=1_000, update=UpdatePolicy(max_parallel=2))
    done = world.look()
    assert not done.placed and done.stopped == {CHANGED: [0, 1]}
    done = world.look()
    assert not done.placed and not done.stopped


# ---- rescheduling inside a deployment ----


@pytest.mark.parametrize(
    ("status", "marked", "again"),
    [
        pytest.param("failed", 10, 0, id="R30 failed"),
        pytest.param("running", 5, 5, id="R30 running, five marked"),
        pytest.param("paused", 5, 5, id="paused, five marked"),
        pytest.param("held", 5, 5, id="held, five marked"),
        pytest.param("successful", 0, 10, id="R30 successful"),
    ],
)
def test_r30_what_fails_in_a_deployment(status: str, marked: int, again: int) -> None:
    """R30: of an active deployment only those whose health is known, of a failed one none, afterwards all."""
    world = Rollout()
    world.register("new")
    world.look()
    rows = world.rows()
    world.say(0, rows[marked:])
    if marked:
        world.say(2, rows[:marked])
    if status == "successful":
        world.end(status)
    elif status != "running":
        world.wait(status)
    world.fail(rows)
    done = world.look()
    assert len(done.placed) == again and done.stopped == ({REPLACED: done.names} if again else {})


def test_r31_a_failed_canary_is_replaced_as_a_canary_or_left() -> None:
    """R31: with attempts left it comes back as a canary, otherwise it keeps its place."""
    world = rollout(update=B)
    world.register("new", update=B)
    world.look()
    first, second = world.rows(1)
    world.say(2, (first, second))
    world.fail((first,))
    world.fail((second,), due=False)
    done = world.look()
    assert done.placed == [(1, 0, True)] and done.stopped == {REPLACED: [0]}


def test_r34_a_complete_service_allocation_is_placed_anew() -> None:
    """R34: what ended well without being asked to comes back."""
    world = rollout()
    row = world.rows()[3]
    world.world.report(world.world.state.fleet.ids[int(world.table.node[row])], (row, "complete"))
    assert world.look().names == [3]


# ---- canaries ----


def test_r17_canaries_come_first() -> None:
    """R17: two canaries under names 0 and 1; the old ones are untouched."""
    world = rollout(update=B)
    world.register("new", update=B)
    done = world.look()
    assert done.placed == [(1, 0, True), (1, 1, True)] and not done.stopped
    assert world.deployment.groups[0].placed_canaries == 2
    again = world.look()
    assert not again.placed and not again.stopped
    world.say(1, world.rows(1))
    healthy = world.look()
    assert not healthy.placed and not healthy.stopped


def test_r18_at_most_the_count_in_one_pass() -> None:
    """R18: seven canaries for a count of three begin with three."""
    update = UpdatePolicy(max_parallel=2, canary=7)
    world = rollout(3, update=update)
    world.register("new", count=3, update=update)
    assert world.look().names == [0, 1, 2]
    assert world.look().names == [3, 4, 5]
    assert world.look().names == [6]


def test_r19_r20_counts_wait_for_promotion() -> None:
    """R19, R20: neither more nor fewer than before while canaries stand; we leave old counts alone, unlike Nomad."""
    for count in (15, 5):
        world = rollout(update=B)
        world.register("new", count=count, update=B)
        done = world.look()
        assert done.placed == [(1, 0, True), (1, 1, True)] and not done.stopped


def test_r19_two_groups_share_a_deployment() -> None:
    """R19: each group has its own canaries."""
    world = Rollout()
    for digest in ("old", "new"):
        world.register_groups(
            group("a", count=5, digest=digest, update=B),
            group("b", count=5, digest=digest, update=B),
        )
        done = world.look()
        if digest == "old":
            world.say(1, world.rows())
            world.end("successful")
    assert done.placed == [(1, 0, True), (1, 0, True), (1, 1, True), (1, 1, True)]


def test_r21_missing_canaries_are_filled_up() -> None:
    """R21: of four canaries one stands after a loss, and three more come."""
    update = UpdatePolicy(max_parallel=2, canary=4)
    world = rollout(update=update)
    world.register("new", update=update)
    assert world.look().names == [0, 1, 2, 3]
    for row in world.rows(1)[1:]:
        world.world.do(StopAllocation(request_id=f"r{row}", alloc_key=int(world.table.key[row])))
    done = world.look()
    assert done.placed == [(1, 1, True), (1, 2, True), (1, 3, True)]


def test_r22_promotion_stops_the_old_ones_of_the_canaries_names_first() -> None:
    """R22: after promotion old 0 and 1 stop, and 2 and 3 are replaced."""
    world = rollout(update=B)
    world.register("new", update=B)
    world.look()
    world.say(1, world.rows(1))
    world.promote()
    done = world.look()
    assert done.stopped == {TWIN: [0, 1], CHANGED: [2, 3]} and done.placed == [
        (1, 2, False),
        (1, 3, False),
    ]
    assert world.names() == list(range(10))


def test_r23_blue_and_green() -> None:
    """R23: as many canaries as the count: promotion stops all old ones at once."""
    update = UpdatePolicy(max_parallel=1, canary=2)
    world = rollout(2, update=update)
    world.register("new", count=2, update=update)
    world.look()
    world.say(1, world.rows(1))
    world.promote()
    done = world.look()
    assert done.stopped == {TWIN: [0, 1]} and not done.placed
    assert world.names(1) == [0, 1]


def test_r24_a_newer_version_takes_the_canaries_down() -> None:
    """R24: the canaries of the version before stop, and two new ones come."""
    world = rollout(update=B)
    world.register("new", update=B)
    world.look()
    world.register("newer", update=B)
    done = world.look()
    assert done.stopped == {UNPROMOTED: [0, 1]}
    assert done.placed == [(2, 0, True), (2, 1, True)] and world.names(0) == list(range(10))


@pytest.mark.parametrize(
    ("status", "stopped"), [("paused", {}), ("held", {}), ("failed", {UNPROMOTED: [0, 1]})]
)
def test_r16_paused_and_failed_canaries(status: str, stopped: dict[str, list[int]]) -> None:
    """R16: paused, no more come; failed, they stop, and the old ones are never touched."""
    world = rollout(update=B)
    world.register("new", update=B)
    world.look()
    world.wait(status)
    done = world.look()
    assert done.stopped == stopped and not done.placed and world.names(0) == list(range(10))
    again = world.look()
    assert not again.stopped and not again.placed


@pytest.mark.parametrize(
    ("is_stable", "is_collected", "version"), [(True, False, 0), (False, False, 0), (True, True, 1)]
)
def test_the_version_before_comes_back_where_nothing_of_it_stands(
    *, is_stable: bool, is_collected: bool, version: int
) -> None:
    """While canaries wait, the others are placed in the version before, with its count, as long as it is known.

    Otherwise they run the version of the canaries: those are two of them, and no name of a version is given twice.
    """
    world = Rollout()
    world.old(3, update=B)
    stable = JobStabilityChanged(request_id="r", job_id=JobId("app"), version=0, stable=is_stable)
    world.world.apply(stable)
    world.register("new", count=5, update=B)
    world.look()
    rows = tuple(world.rows(0))
    world.world.apply(AllocationsReported(rows=rows, statuses=(COMPLETE,) * len(rows)))
    if is_collected:
        world.world.apply(AllocationsCollected(rows=rows))
    assert world.names() == [0, 1]
    done = world.look()
    names = range(2, 5) if version else range(3)
    assert done.placed == [(version, name, False) for name in names]
    again = world.look()
    assert not again.placed and not again.stopped


def test_r26_only_groups_that_were_not_promoted_lose_their_canaries() -> None:
    """R26: a failed deployment stops the canaries of b, and leaves the promoted a as it is."""
    world = Rollout()
    for digest in ("old", "new"):
        world.register_groups(
            group("a", count=3, digest=digest, update=B),
            group("b", count=3, digest=digest, update=B),
        )
        world.look()
        world.say(1, world.rows())
        if digest == "old":
            world.end("successful")
    world.promote("a")
    world.end("failed")
    done = world.look()
    assert done.stopped[UNPROMOTED] == [0, 1]
    left = sorted((world.group_of(row), int(world.table.index[row])) for row in world.rows(1))
    assert left == [("a", 0), ("a", 1)]


def test_r25_r43_each_comes_back_in_its_own_version() -> None:
    """R25, R43: on a lost node the canary is replaced as a canary, the old one in the version that it ran."""
    world = Rollout(nodes=2)
    world.old(4, update=B)
    world.register("new", count=4, update=B)
    world.look()
    fleet, table = world.world.state.fleet, world.table
    canary = world.rows(1)[0]
    lost = int(table.node[canary])
    gone = sorted(
        (int(table.index[row]), bool(table.canary[row]))
        for row in world.rows()
        if table.node[row] == lost
    )
    world.world.do(
        ChangeLiveness(node_ids=(fleet.ids[lost],), status="down", seen_seq=world.world.state.seq)
    )
    done = world.look()
    assert sorted((name, is_canary) for _, name, is_canary in done.placed) == gone
    assert all(version == int(is_canary) for version, _, is_canary in done.placed)
    assert world.names(0) == [0, 1, 2, 3] and world.names(1) == [0, 1]
    again = world.look()
    assert not again.placed and not again.stopped


def test_r43_the_last_old_one_comes_back_in_its_version() -> None:
    """R43: an operator stopped it and its replacement found no room: still no unpromoted new one takes its name."""
    update = UpdatePolicy(max_parallel=1, canary=1)
    world = rollout(1, update=update)
    world.register("new", count=1, update=update)
    world.look()
    (old,) = world.rows(0)
    world.world.do(StopAllocation(request_id="r", alloc_key=int(world.table.key[old])))
    cut = Stops(rows=(old,), reason="its replacement found no room")
    world.world.do(world.world.plan("app", placements=(), stops=(cut,)))
    done = world.look()
    assert done.placed == [(0, 0, False)] and world.names(1) == [0]


def test_r43_not_in_the_version_that_goes_on_in_place() -> None:
    """R43: what is missing comes back in the older text, not in one that the same plan takes to the newest version."""
    update = UpdatePolicy(max_parallel=1)
    world = rollout(3, update=update)
    world.register("new", count=3, update=update)
    world.look()
    world.register("new", count=4, update=B)
    stopped = world.rows(0)[0]
    world.world.do(StopAllocation(request_id="r", alloc_key=int(world.table.key[stopped])))
    done = world.look()
    assert done.updated == [0]
    assert [one for one in done.placed if not one[2]] == [
        (0, int(world.table.index[stopped]), False)
    ]
