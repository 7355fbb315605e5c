"""Nodes that fall silent and come back: who is unknown, who is lost, who is replaced and who stays."""

from typing import Any

import pytest

from schemas.evaluations import EvaluationsCreated, WakeEvaluations
from schemas.jobs import Disconnect, GroupSpec, ReschedulePolicy
from schemas.nodes import ChangeLiveness
from schemas.plans import PlanRefused
from schemas.policy import SetEligibility
from shared.core.decide.nodes import liveness
from shared.core.state.tables.allocations import COMPLETE, LOST, RUNNING, UNKNOWN
from shared.core.state.tables.fleet import DISCONNECTED, DOWN, READY
from tests.builders import SECOND, Cluster, group, join, register, stop

MINUTE = 60 * SECOND


def waiting(count: int = 1, **fields: Any) -> GroupSpec:
    """A group whose allocations may be away for a minute."""
    more = {name: fields.pop(name) for name in ("replace", "reconcile") if name in fields}
    block = Disconnect(lost_after_ns=fields.pop("lost_after_ns", MINUTE), **more)
    return group(count=count, disconnect=block, **fields)


class Story:
    """A job that runs on one of two nodes, and what happens to that node."""

    def __init__(self, one: GroupSpec, *, nodes: int = 2, **job: Any) -> None:
        self.world = Cluster()
        for n in range(nodes):
            self.world.do(join(f"n{n}"))
        self.world.run(register("app", one, **job))
        self.first = self.world.rows()[0]
        self.node = self.name_of(self.first)
        self.running()

    def name_of(self, row: int) -> str:
        return self.world.state.fleet.ids[int(self.world.state.allocations.node[row])]

    def running(self) -> None:
        for row in self.world.rows():
            if not self.client(row):
                self.world.report(self.name_of(row), (row, "running"))

    def ask(self, status: str, node: str = "") -> list:
        seq = self.world.state.seq
        command = ChangeLiveness(node_ids=(node or self.node,), status=status, seen_seq=seq)
        return self.world.do(command)

    def settle(self) -> None:
        table = self.world.state.evaluations
        for _ in range(10):
            keys = table.open_of.get("app", {})
            now = [k for k in keys if table.by_key[k].status == "pending"]
            if all(table.by_key[k].wait_until_ns for k in now):
                return
            self.world.do(
                self.world.plan(key=next(k for k in now if not table.by_key[k].wait_until_ns))
            )
        raise AssertionError("evaluations without an end")

    def wake(self) -> None:
        """Wake what is due."""
        self.world.do(WakeEvaluations(keys=tuple(self.world.state.evaluations.open)))
        self.settle()

    def client(self, row: int) -> int:
        return int(self.world.state.allocations.client[row])

    def wanted(self) -> list[int]:
        table = self.world.state.allocations
        rows = table.rows_of("app")
        return rows[table.is_wanted(rows)].tolist()

    @property
    def status(self) -> int:
        fleet = self.world.state.fleet
        return int(fleet.status[fleet.row_of[self.node]])


def timeouts(events: list) -> list[int]:
    return [
        new.wait_until_ns
        for event in events
        if isinstance(event, EvaluationsCreated)
        for new in event.evaluations
        if new.triggered_by == "max-disconnect-timeout"
    ]


def test_a_silent_node_that_holds_what_may_wait_is_disconnected() -> None:
    """Its running allocations are unknown and replaced; an evaluation comes when they are lost."""
    story = Story(waiting())
    events = story.ask("down")
    assert story.status == DISCONNECTED and story.client(story.first) == UNKNOWN
    assert timeouts(events) == [story.world.now_ns + MINUTE]
    story.settle()
    table = story.world.state.allocations
    first, second = story.wanted()
    assert first == story.first and story.name_of(second) != story.node
    assert table.previous[second] == int(table.key[first]) and table.index[second] == 0
    assert table.reschedules[second] == 0


def test_without_the_block_a_silent_node_is_down() -> None:
    """What says nothing of disconnects is lost at once, and the node with it."""
    story = Story(group())
    story.ask("down")
    story.settle()
    assert story.status == DOWN and story.client(story.first) == LOST


def test_what_did_not_run_yet_is_lost() -> None:
    """R42: a pending allocation on a disconnected node is lost and replaced: it is unknown whether it ever started."""
    story = Story(waiting(cpu_mhz=100), nodes=1)
    story.world.do(register("app", waiting(2, cpu_mhz=100), salt=1, submission_id="s2"))
    story.settle()
    pending = next(row for row in story.wanted() if row != story.first)
    story.world.do(join("n9"))
    story.ask("down")
    story.settle()
    assert (story.client(story.first), story.client(pending)) == (UNKNOWN, LOST)
    assert len(story.wanted()) == 3


def test_when_nobody_returns_it_is_lost_and_then_the_node_is_down() -> None:
    """R42: after lost_after the plan says lost; asked again, the node is down; one allocation is left."""
    story = Story(waiting())
    story.ask("down")
    story.settle()
    story.world.later(30)
    assert story.ask("down") == []
    story.world.later(31)
    story.wake()
    assert story.client(story.first) == LOST and len(story.wanted()) == 1
    story.ask("down")
    story.settle()
    assert story.status == DOWN and len(story.wanted()) == 1


def test_a_node_that_is_asked_late_is_down_although_nobody_woke() -> None:
    """The timeout's evaluation is not what makes a node down: time is."""
    story = Story(waiting())
    story.ask("down")
    story.world.later(61)
    story.ask("down")
    story.settle()
    assert story.status == DOWN and story.client(story.first) == LOST and len(story.wanted()) == 1


@pytest.mark.parametrize(
    ("strategy", "stays"),
    [("keep_original", 0), ("keep_replacement", 1), ("longest_running", 0), ("best_score", 0)],
)
def test_who_stays_when_both_run(strategy: str, stays: int) -> None:
    """One of a name is left after the return, whom the strategy names; equal scores leave the original."""
    story = Story(waiting(reconcile=strategy))
    story.ask("down")
    story.settle()
    story.running()
    both = story.wanted()
    events = story.ask("ready")
    assert story.status == READY and story.client(story.first) == RUNNING
    assert any(isinstance(event, EvaluationsCreated) for event in events)
    story.settle()
    assert story.wanted() == [both[stays]]


def test_the_better_node_stays_by_score() -> None:
    """best_score compares the nodes as they are now: binpack keeps the one on the fuller node."""
    story = Story(waiting())
    story.ask("down")
    story.settle()
    story.running()
    both = story.wanted()
    story.world.run(register("load", group(cpu_mhz=600, memory_mib=600)))
    assert story.world.nodes_of("load") == [story.name_of(both[1])]
    story.ask("ready")
    story.settle()
    assert story.wanted() == [both[1]]


def test_longest_running_prefers_what_runs() -> None:
    """A replacement that never came to run leaves; an original that did not either is not kept for its age."""
    story = Story(waiting(reconcile="longest_running"))
    story.ask("down")
    story.settle()
    both = story.wanted()
    story.ask("ready")
    story.settle()
    assert story.wanted() == [both[0]]


def test_a_newer_version_always_wins() -> None:
    """What was replaced by another digest while it was away stops when it comes back, whatever the strategy says."""
    story = Story(waiting(reconcile="keep_original"))
    story.ask("down")
    story.settle()
    new = waiting(reconcile="keep_original", digest="d2")
    story.world.do(register("app", new, salt=1, submission_id="s2"))
    story.settle()
    story.ask("ready")
    story.settle()
    (left,) = story.wanted()
    table = story.world.state.allocations
    assert left != story.first and table.groups.digests[int(table.group[left])] == "d2"


def test_without_replace_nobody_stands_in_and_nothing_is_lost() -> None:
    """With `replace = false` what is unknown keeps its place, also when the node is down, and runs when it is back."""
    story = Story(waiting(replace=False))
    story.ask("down")
    story.settle()
    assert story.status == DISCONNECTED and story.wanted() == [story.first]
    story.world.later(61)
    story.ask("down")
    story.settle()
    assert story.status == DOWN and story.client(story.first) == UNKNOWN
    assert story.wanted() == [story.first]
    story.ask("ready")
    story.settle()
    assert story.client(story.first) == RUNNING and story.wanted() == [story.first]


def test_without_replace_and_lost_after_the_node_is_down_and_its_allocation_unknown() -> None:
    """A node is disconnected only for lost_after."""
    story = Story(waiting(replace=False, lost_after_ns=0))
    story.ask("down")
    story.settle()
    assert story.status == DOWN and story.client(story.first) == UNKNOWN


def test_a_stop_while_it_is_away_holds_when_it_is_back() -> None:
    """An allocation stopped in absence gets the stop, and nothing is placed."""
    story = Story(waiting())
    story.ask("down")
    story.settle()
    story.world.do(stop("app"))
    story.settle()
    assert story.wanted() == []
    story.ask("ready")
    story.settle()
    assert story.wanted() == [] and story.client(story.first) == RUNNING
    story.world.report(story.node, (story.first, "complete"))


def test_scaling_down_takes_the_name_of_who_is_away() -> None:
    """A name beyond the count is not waited for."""
    story = Story(waiting(3, cpu_mhz=100))
    story.running()
    story.ask("down")
    story.settle()
    story.running()
    story.world.do(register("app", waiting(1, cpu_mhz=100), salt=1, submission_id="s2"))
    story.settle()
    table = story.world.state.allocations
    assert {int(table.index[row]) for row in story.wanted()} == {0}
    story.ask("ready")
    story.settle()
    assert len(story.wanted()) == 1


def test_a_report_of_a_disconnected_node_is_a_sign_of_life() -> None:
    """Who reports is there: the node is ready before its words count."""
    story = Story(waiting())
    story.ask("down")
    story.world.report(story.node, (story.first, "failed"))
    assert story.status == READY


def test_an_agent_that_starts_again_brings_its_node_back() -> None:
    """A registration of another boot ends the absence as well."""
    story = Story(waiting())
    story.ask("down")
    story.settle()
    story.world.do(join(story.node, boot="b2"))
    assert story.status == READY and story.client(story.first) == RUNNING
    story.settle()
    assert len(story.wanted()) == 1


def test_work_that_was_done_meanwhile_is_not_done_again() -> None:
    """A batch replacement that completed leaves nothing for the original to do."""
    story = Story(waiting(), job_type="batch")
    story.ask("down")
    story.settle()
    second = next(row for row in story.wanted() if row != story.first)
    story.world.report(story.name_of(second), (second, "complete"))
    story.ask("ready")
    story.settle()
    assert story.wanted() == []


def test_a_system_job_waits_for_its_node_and_is_replaced_nowhere() -> None:
    """Unknown on its node, running again when it is back."""
    story = Story(waiting(), job_type="system")
    story.ask("down")
    story.settle()
    assert story.client(story.first) == UNKNOWN and len(story.wanted()) == 2
    story.ask("ready")
    story.settle()
    assert story.client(story.first) == RUNNING and len(story.wanted()) == 2


def test_those_who_wait_do_not_stand_in_the_way_of_those_whose_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked about many nodes at once, only those that change count against what fits a transaction."""
    monkeypatch.setattr(liveness, "EVALUATIONS_MAX", 2)
    world = Cluster()
    for n, block in enumerate((MINUTE * 10, MINUTE)):
        world.do(join(f"n{n}"))
        world.run(register(f"job-{n}", waiting(lost_after_ns=block, cpu_mhz=900)))
        world.report(f"n{n}", (world.rows(f"job-{n}")[0], "running"))
    for status in ("disconnected", "down"):
        for _ in range(2):
            names = ("n0", "n1")
            world.do(ChangeLiveness(node_ids=names, status="down", seen_seq=world.state.seq))
        world.later(61)
        expected = [DISCONNECTED, DOWN if status == "down" else DISCONNECTED]
        assert world.state.fleet.status[:2].tolist() == expected


def test_a_report_of_what_is_unknown_brings_a_node_back_that_was_taken_for_dead() -> None:
    """Else what runs on a node that is down would be lost with the next plan."""
    story = Story(waiting(replace=False, lost_after_ns=0))
    story.ask("down")
    story.settle()
    story.world.report(story.node, (story.first, "running"))
    assert story.status == READY
    story.settle()
    assert story.wanted() == [story.first]


def test_what_ended_behind_the_back_of_a_plan_is_not_lost() -> None:
    """A report that overtakes the plan which declares its allocation lost makes that plan stale."""
    story = Story(group())
    story.ask("down")
    plan = story.world.plan()
    story.world.report(story.node, (story.first, "complete"))
    (refused, *_) = story.world.do(plan)
    assert isinstance(refused, PlanRefused) and refused.code == "stale"
    story.settle()
    assert story.client(story.first) == COMPLETE


def test_of_two_that_a_new_version_replaces_the_one_in_sight_hands_on_its_name() -> None:
    """The original is away, its stand-in runs: the new one follows the stand-in, and no name is used twice."""
    story = Story(waiting(cpu_mhz=100))
    story.ask("down")
    story.settle()
    story.running()
    stand_in = next(row for row in story.wanted() if row != story.first)
    new = waiting(2, cpu_mhz=100, digest="d2")
    story.world.do(register("app", new, salt=1, submission_id="s2"))
    story.settle()
    table = story.world.state.allocations
    followed = {int(table.index[row]): table.previous.get(row, 0) for row in story.wanted()}
    assert followed == {0: int(table.key[stand_in]), 1: 0}


def test_r42_a_batch_allocation_that_completed_while_it_was_away() -> None:
    """R42: back, it stays complete, and its replacement is not needed."""
    story = Story(waiting(), job_type="batch")
    story.ask("down")
    story.settle()
    story.world.report(story.node, (story.first, "complete"))
    story.settle()
    assert story.client(story.first) == COMPLETE and story.wanted() == []


def spread(**fields: Any) -> Story:
    """Five running allocations, two of them on the node that falls silent."""
    story = Story(waiting(2, cpu_mhz=100, **fields), nodes=1)
    story.running()
    for name in ("n1", "n2"):
        story.world.do(join(name))
    more = waiting(5, cpu_mhz=100, **fields)
    story.world.do(register("app", more, salt=1, submission_id="s2"))
    story.world.do(SetEligibility(request_id="r", node_id="n0", eligible=False))
    story.settle()
    story.running()
    return story


def names(story: Story) -> list[int]:
    """Names of what is wanted, sorted."""
    return sorted(story.world.state.allocations.index[story.wanted()].tolist())


def test_r40_two_of_five_are_away() -> None:
    """R40: two are unknown and two placed; back, the originals stay if the strategy says so, each name once."""
    story = spread(reconcile="keep_original")
    away = [row for row in story.wanted() if story.name_of(row) == "n0"]
    story.ask("down")
    story.settle()
    assert [story.client(row) for row in away] == [UNKNOWN] * 2
    assert names(story) == [0, 0, 1, 1, 2, 3, 4]
    story.running()
    story.ask("ready")
    story.settle()
    assert names(story) == [0, 1, 2, 3, 4] and set(away) <= set(story.wanted())


def test_r40_back_without_replacements() -> None:
    """R40: with nothing placed for them both just continue."""
    story = spread(replace=False)
    before = story.wanted()
    story.ask("down")
    story.settle()
    assert story.wanted() == before
    story.ask("ready")
    story.settle()
    assert story.wanted() == before


@pytest.mark.parametrize("replaced", [True, False])
def test_r41_failed_when_it_is_back(*, replaced: bool) -> None:
    """R41: it stops where its replacement runs, and is placed again where it has none."""
    story = Story(waiting(replace=replaced, reschedule=ReschedulePolicy(delay_ns=0)))
    story.ask("down")
    story.settle()
    story.running()
    stand_in = [row for row in story.wanted() if row != story.first]
    assert len(stand_in) == replaced
    story.world.report(story.node, (story.first, "failed"))
    story.settle()
    (left,) = story.wanted()
    assert left != story.first and (not replaced or [left] == stand_in)


def test_r41_the_end_of_the_chain_is_compared() -> None:
    """R41: the replacement was replaced too: the original meets the last of them, and one is left."""
    story = Story(
        waiting(reconcile="keep_replacement", reschedule=ReschedulePolicy(delay_ns=0)), nodes=3
    )
    story.ask("down")
    story.settle()
    story.running()
    (second,) = [row for row in story.wanted() if row != story.first]
    story.world.report(story.name_of(second), (second, "failed"))
    story.settle()
    story.running()
    (third,) = [row for row in story.wanted() if row != story.first]
    assert third != second
    story.ask("ready")
    story.settle()
    assert story.wanted() == [third]
