"""Registration, liveness and reports against the state."""

import msgspec
import pytest

from schemas.allocations import AllocationsReported
from schemas.evaluations import EvaluationsCreated, WakeEvaluations
from schemas.jobs import ReschedulePolicy
from schemas.nodes import (
    CapacityFreed,
    ChangeLiveness,
    NodeRefused,
    NodeRegistered,
    NodesStatusChanged,
)
from schemas.policy import IncarnationBegan
from shared.core.decide.nodes import liveness
from shared.core.decide.nodes.registration import CAPACITY_MAX
from shared.core.decide.reschedules import reschedule_delay_ns
from shared.core.state.tables.fleet import computed_class_key
from tests.builders import SECOND, Cluster, group, join, node, register


def running(count: int = 1) -> Cluster:
    """One node that runs a job."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(count=count)))
    world.report("n1", *((row, "running") for row in world.rows()))
    return world


def test_a_node_joins_once() -> None:
    """The first report registers and frees capacity; a resend of the same number is nothing."""
    world = Cluster()
    registered, freed = world.do(join("n1"))
    assert isinstance(registered, NodeRegistered) and freed == CapacityFreed(
        classes=(0,), grown=True
    )
    assert world.do(join("n1")) == []


def test_another_host_under_the_same_id_is_refused_once() -> None:
    """While the node is up its id belongs to its host; the refusal is not repeated for a resend."""
    world = Cluster()
    world.do(join("n1"))
    (refused,) = world.do(join("n1", host="other"))
    assert isinstance(refused, NodeRefused) and refused.code == "conflict"
    assert world.do(join("n1", host="other", number=2)) == []
    assert world.state.fleet.host_ids[0] == "host-n1"


def test_a_dead_nodes_id_can_be_taken_over() -> None:
    """When the node is down another host may register under its id."""
    world = Cluster()
    world.do(join("n1"))
    world.do(ChangeLiveness(node_ids=("n1",), status="down", seen_seq=world.state.seq))
    assert isinstance(world.do(join("n1", host="other"))[0], NodeRegistered)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_mhz": 0},
        {"memory_mib": 0},
        {"memory_mib": 2**40},
        {"cpu_mhz": -5},
        {"disk_mib": CAPACITY_MAX + 1},
    ],
)
def test_nonsense_capacities_are_refused(wrong: dict[str, int]) -> None:
    """A fingerprint outside the limits is refused with the limits."""
    world = Cluster()
    (refused,) = world.do(join("n1", **wrong))
    assert isinstance(refused, NodeRefused) and "it must be" in refused.reason
    assert not world.state.fleet.row_of


def test_a_node_that_followed_a_lost_history_says_so_in_the_log() -> None:
    """Once: its registration names the lost records, though nothing else of it changed."""
    world = Cluster()
    world.do(join("n1"))
    world.apply(IncarnationBegan(incarnation=1_000, bus="b2"))
    first = world.state.seq
    again = msgspec.structs.replace(join("n1"), number=5, followed_seq=first + 40)
    registered, *_ = world.do(again)
    assert isinstance(registered, NodeRegistered)
    assert (registered.lost_first_seq, registered.lost_seq) == (first, first + 40)
    assert world.do(again) == []
    # What was seen before this incarnation began is this log's own.
    same = msgspec.structs.replace(again, number=6, followed_seq=first - 1)
    assert not [one for one in world.do(same) if isinstance(one, NodeRegistered)]


def test_a_node_may_shrink_below_its_use() -> None:
    """What runs stays, nothing new comes."""
    world = running(5)
    world.shrinks = True
    world.do(join("n1", number=9, cpu_mhz=200))
    world.run(register("more"))
    assert len(world.rows()) == 5 and world.rows("more") == []


def test_a_report_for_another_nodes_allocation_is_ignored() -> None:
    """A node speaks only for its own allocations."""
    world = running()
    world.do(join("n2"))
    events = world.report("n2", (world.rows()[0], "failed"))
    assert events == [AllocationsReported(nodes=(1,), numbers=(2,))]
    assert len(world.rows()) == 1


def test_a_wrong_key_for_a_row_is_ignored() -> None:
    """A report about a row that means another allocation now changes nothing."""
    world = running()
    row = world.rows()[0]
    table = world.state.allocations
    before = int(table.client[row])
    from schemas.nodes import AllocReport

    entry = AllocReport(key=int(table.key[row]) + 1, row=row, status="failed")
    world.report("n1", states=(entry, AllocReport(key=1, row=10**6, status="failed")))
    assert int(table.client[row]) == before


def test_an_old_report_number_is_nothing() -> None:
    """Reports are numbered; what was seen before is no event."""
    world = running()
    row = world.rows()[0]
    assert world.report("n1", (row, "failed"), number=1) == []


def test_another_boot_must_register_first() -> None:
    """A report of a boot that the log does not know is ignored."""
    world = running()
    assert world.report("n1", (world.rows()[0], "failed"), boot_id="b2", number=99) == []


def test_a_terminal_allocation_stays_terminal() -> None:
    """A late running after the end is not a legal path."""
    world = running()
    row = world.rows()[0]
    world.report("n1", (row, "complete"))
    world.report("n1", (row, "running"))
    assert int(world.state.allocations.client[row]) == 2
    assert not world.state.allocations.held.used.any()


def test_failures_share_one_delayed_evaluation() -> None:
    """Failures whose delays fall into one window make one evaluation."""
    world = running(3)
    rows = world.rows()
    first = world.report("n1", (rows[0], "failed"))
    assert isinstance(first[-1], EvaluationsCreated)
    second = world.later(-2).report("n1", (rows[1], "failed"))
    assert not any(isinstance(event, EvaluationsCreated) for event in second)
    third = world.later(60).report("n1", (rows[2], "failed"))
    assert any(isinstance(event, EvaluationsCreated) for event in third)


def test_liveness_is_decided_once_and_not_against_news() -> None:
    """A node that registered after the monitor looked is left alone; a repeat is nothing."""
    world = running()
    command = ChangeLiveness(node_ids=("n1", "unknown"), status="down", seen_seq=world.state.seq)
    stale = msgspec.structs.replace(command, seen_seq=1)
    assert world.do(stale) == []
    assert len(world.do(command)) == 2
    assert world.do(command) == []
    back = world.do(ChangeLiveness(node_ids=("n1",), status="ready", seen_seq=0))
    assert isinstance(back[-1], CapacityFreed)


def test_a_rack_of_small_jobs_goes_down_in_transactions_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many lost nodes with many jobs are declared a part at a time, one at least; asked again, none is forgotten."""
    world = Cluster()
    for number in range(4):
        world.do(join(f"n{number}"))
    for number in range(8):
        world.run(register(f"job-{number}", group(cpu_mhz=450, memory_mib=450)))
    command = ChangeLiveness(
        node_ids=("n0", "n1", "n2", "n3"), status="down", seen_seq=world.state.seq
    )
    for most, parts in ((3, [1, 1]), (1, [1]), (8, [1])):
        monkeypatch.setattr(liveness, "EVALUATIONS_MAX", most)
        for down in parts:
            changed, created = world.do(command)
            assert isinstance(changed, NodesStatusChanged)
            assert isinstance(created, EvaluationsCreated)
            assert (len(changed.rows), len(created.evaluations)) == (down, 2)
    assert world.do(command) == []


def test_a_rack_is_counted_by_jobs_not_by_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of many groups is evaluated once, so all nodes whose jobs fit go down at once."""
    world = Cluster()
    for number in range(4):
        world.do(join(f"n{number}"))
    groups = [group(f"g{number}", cpu_mhz=450, memory_mib=450) for number in range(4)]
    for number in range(2):
        world.run(register(f"job-{number}", *groups))
    command = ChangeLiveness(
        node_ids=("n0", "n1", "n2", "n3"), status="down", seen_seq=world.state.seq
    )
    monkeypatch.setattr(liveness, "EVALUATIONS_MAX", 2)
    changed, created = world.do(command)
    assert isinstance(changed, NodesStatusChanged)
    assert isinstance(created, EvaluationsCreated)
    assert (len(changed.rows), len(created.evaluations)) == (4, 2)


def delays(count: int, lives_s: int = 0, **fields: object) -> list[float | None]:
    """Delays of a chain whose members fail so long after they were due."""
    policy = ReschedulePolicy(delay_ns=5 * SECOND, max_delay_ns=60 * SECOND, **fields)
    chain: tuple[int, ...] = ()
    now = 1_000 * SECOND
    found: list[float | None] = []
    for _ in range(count):
        delay = reschedule_delay_ns(policy, chain, now)
        found.append(None if delay is None else delay / SECOND)
        if delay is not None:
            chain = (*chain, now + delay, delay)
            now += delay
        now += lives_s * SECOND
    return found


def test_reschedule_delays_follow_the_policy() -> None:
    """Constant, exponential and Fibonacci delays, and their cap."""
    assert delays(6, delay_function="constant") == [5] * 6
    assert delays(6, delay_function="exponential") == [5, 10, 20, 40, 60, 60]
    assert delays(7, delay_function="fibonacci") == [5, 5, 10, 15, 25, 40, 60]


def test_a_limited_policy_is_capped_and_counts_within_its_interval() -> None:
    """The cap holds whether attempts are limited or not; what is older than the interval does not count."""
    limited = {"unlimited": False, "attempts": 5, "interval_ns": 3_600 * SECOND}
    assert delays(6, delay_function="exponential", **limited) == [5, 10, 20, 40, 60, None]
    short = {"unlimited": False, "attempts": 1, "interval_ns": 100 * SECOND}
    assert delays(3, 101, delay_function="constant", **short) == [5, 5, 5]
    assert delays(3, 50, delay_function="constant", **short) == [5, None, 5]


def test_the_order_of_attributes_makes_no_class() -> None:
    """Two agents that name the same attributes in another order are of one computed class."""
    one = node("n1", attributes={"a": "1", "b": "2"}, meta={"x": "1", "y": "2"})
    other = node("n2", attributes={"b": "2", "a": "1"}, meta={"y": "2", "x": "1"})
    assert computed_class_key(one) == computed_class_key(other) != computed_class_key(node("n3"))


def test_an_allocation_that_lived_long_begins_with_the_first_delay() -> None:
    """What outlived the capped delay is no crash loop; what lived shorter stays at the cap."""
    assert delays(6, 61, delay_function="exponential") == [5, 10, 20, 40, 5, 10]
    assert delays(9, 61, delay_function="fibonacci") == [5, 5, 10, 15, 25, 40, 5, 45, 50]
    assert delays(6, 59, delay_function="exponential") == [5, 10, 20, 40, 60, 60]


def test_attempts_count_within_the_interval() -> None:
    """Two in a minute and no third; one that fails later than that has its attempts again."""
    limited = {"delay_function": "constant", "unlimited": False, "interval_ns": 60 * SECOND}
    assert delays(4, attempts=2, **limited) == [5, 5, None, None]
    assert delays(4, 31, attempts=2, **limited) == [5, 5, 5, 5]
    assert delays(2, attempts=0, **limited) == [None, None]


def test_a_chain_is_carried_to_its_replacement() -> None:
    """The replacement of a failed allocation knows when its chain was rescheduled, and spends its attempts."""
    world = Cluster()
    world.do(join("n1"))
    policy = ReschedulePolicy(
        attempts=2,
        interval_ns=600 * SECOND,
        delay_ns=5 * SECOND,
        delay_function="constant",
        unlimited=False,
    )
    world.run(register("app", group(reschedule=policy)))
    for attempt in range(3):
        (row,) = world.rows()
        events = world.report("n1", (row, "failed"))
        assert any(isinstance(event, EvaluationsCreated) for event in events) == (attempt < 2)
        chain = world.state.allocations.chains[int(world.state.allocations.key[row])]
        assert len(chain) == 2 * min(attempt + 1, 2)
        if attempt < 2:
            world.later(6).do(WakeEvaluations(keys=(world.pending(),)))
            world.schedule()
    assert world.state.allocations.client[row] == 3


def test_a_task_between_two_runs_is_pending() -> None:
    """What waits to be started again in place is reported as pending, holds its room, and runs again."""
    world = running()
    row = world.rows()[0]
    table = world.state.allocations
    used = table.held.used.copy()
    for status, code in (("pending", 0), ("running", 1), ("pending", 0), ("failed", 3)):
        world.report("n1", (row, status))
        assert int(table.client[row]) == code
        assert (table.held.used == used).all() == (status != "failed")
