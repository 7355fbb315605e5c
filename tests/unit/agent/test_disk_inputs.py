"""Disks that follow an allocation, as the role sees them: when one is asked for, and how long ended data stays."""

import msgspec
import pytest

from services.agent.tasks.retired_allocs import FETCH_NS, RetiredAllocs
from services.agent.tasks.runtime_state import AllocRuntime
from shared.core.runtime import agent_messages
from shared.core.runtime.agent_messages import PrepareTask
from shared.core.runtime.input_specs import DISK, DiskInput
from shared.core.state.ids import alloc_id
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json


def story(*tasks: str, migrate: bool = True, previous: int = 6) -> Story:
    """A story of one allocation that replaces another, which was never on this node."""
    disk = {"SizeMB": 20, "Sticky": True, "Migrate": migrate}
    job = job_json(*(task_json(name) for name in tasks or ("main",)))
    job["TaskGroups"][0]["EphemeralDisk"] = disk
    one = Story(job=job)
    return one.hear(5, alloc(previous=alloc_id(previous) if previous else ""))


def test_each_task_waits_for_the_disk_before_its_first_start() -> None:
    """Before anything starts each task is asked to have the disk, by the replaced allocation, all tasks and size."""
    one = story("a", "b")
    asked = one.did(PrepareTask)
    assert [effect.task for effect in asked] == ["a", "b"]
    for effect in asked:
        (wanted,) = effect.inputs
        assert (wanted.name, wanted.kind) == (DISK, DISK)
        spec = msgspec.json.decode(wanted.spec, type=DiskInput)
        assert spec == DiskInput(previous=alloc_id(6), tasks=("a", "b"), size_mib=20)
    assert one.starts() == []
    one.step(*(agent_messages.prepared_inputs(effect) for effect in asked))
    assert one.starts() == [("a", 1), ("b", 1)]


@pytest.mark.parametrize(("migrate", "previous"), [(False, 6), (True, 0)])
def test_without_a_replaced_allocation_or_migrate_nothing_is_fetched(
    migrate: bool,  # noqa: FBT001
    previous: int,
) -> None:
    """The task starts at once."""
    one = story(migrate=migrate, previous=previous)
    assert one.did(PrepareTask) == []
    assert one.starts() == [("main", 1)]


def test_a_disk_is_fetched_once_in_the_life_of_its_allocation() -> None:
    """A restart of the task does not ask again; nor does another life of the agent, once the journal has the answer."""
    one = story()
    (effect,) = one.did(PrepareTask)
    again = one.restarted().hear(6, alloc(previous=alloc_id(6)))
    (after,) = again.did(PrepareTask)
    assert after.inputs == effect.inputs
    one.step(agent_messages.prepared_inputs(effect)).started()
    assert one.starts() == [("main", 1)]
    one.exited(1).wait(30)
    assert one.starts() == [("main", 2)]
    later = one.restarted().hear(7, alloc(previous=alloc_id(6)))
    later.step(agent_messages.TaskGone(key=7, task="main", run=2, started=False))
    assert later.did(PrepareTask) == []
    assert later.starts() == [("main", 3)]


def retired(*keys: int, migrate: bool) -> RetiredAllocs:
    """Allocations that ended one nanosecond after another; two stay."""
    found = RetiredAllocs(2)
    plan = story(migrate=migrate, previous=0).agent.alloc(7)
    assert plan is not None
    for at, key in enumerate(keys):
        one = AllocRuntime(alloc(key))
        one.plan = plan.plan
        found.add(one, at)
    return found


def test_of_ended_allocations_the_newest_stay() -> None:
    """Their logs can be read; the oldest go first."""
    found = retired(1, 2, 3, 4, migrate=False)
    assert found.take_surplus(4) == [(1, alloc_id(1)), (2, alloc_id(2))]
    assert found.take_surplus(FETCH_NS * 2) == []
    assert [key in found for key in (2, 3, 4)] == [False, True, True]


def test_data_that_may_be_fetched_stays_for_a_while() -> None:
    """Beyond the newest few it stays until its time is over."""
    found = retired(1, 2, 3, 4, migrate=True)
    assert found.take_surplus(FETCH_NS - 1) == []
    assert found.take_surplus(FETCH_NS) == [(1, alloc_id(1))]
    assert found.take_surplus(FETCH_NS + 9) == [(2, alloc_id(2))]
    assert found.take_surplus(FETCH_NS + 9) == []


def test_data_that_may_be_fetched_is_bounded() -> None:
    """As many as stay for their logs stay for their data, however many end at once."""
    found = retired(*range(1, 8), migrate=True)
    assert [key for key, _ in found.take_surplus(10)] == [1, 2, 3]
