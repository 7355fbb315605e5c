"""A replacement that has to wait knows what it replaces, whatever stopped it and however late it is placed."""

from typing import Any

import pytest

from schemas.base import JobId
from schemas.evaluations import EvaluationsCreated, EvaluationsWoken, NewEvaluation
from schemas.jobs import ReschedulePolicy, UpdatePolicy
from schemas.nodes import ChangeLiveness
from schemas.policy import CollectGarbage, DrainNode, SetEligibility, StopAllocation
from tests.builders import SECOND, Cluster, group, join, register, stop

ONCE = ReschedulePolicy(attempts=1, unlimited=False, interval_ns=3_600 * SECOND, delay_ns=0)
GROWING = ReschedulePolicy(delay_ns=5 * SECOND, delay_function="exponential")


def close(world: Cluster, node: str = "n1", *, eligible: bool = False) -> None:
    """Close a node for placements, or open it."""
    request = SetEligibility(request_id=f"e{world.state.seq}", node_id=node, eligible=eligible)
    world.do(request)


def again(world: Cluster, job_id: str = "app") -> list[int]:
    """Look at a job once more; return the rows that came."""
    before = set(world.rows(job_id))
    table = world.state.evaluations
    keys = table.open_of.get(JobId(job_id), ())
    if not any(table.by_key[key].status == "pending" for key in keys):
        blocked = table.blocked_of.get(JobId(job_id))
        job = world.state.jobs.by_id[JobId(job_id)]
        if blocked is not None:
            world.apply(EvaluationsWoken(keys=(blocked,)))
        else:
            new = NewEvaluation(job_id=job.id, job_type=job.job_type, triggered_by="node-update")
            world.apply(EvaluationsCreated(evaluations=(new,)))
    world.schedule(job_id)
    return [row for row in world.rows(job_id) if row not in before]


def previous(world: Cluster, row: int) -> int:
    """Key of what a row replaces; 0: nothing."""
    return world.state.allocations.previous.get(row, 0)


def key_of(world: Cluster, row: int) -> int:
    return int(world.state.allocations.key[row])


def wake_due(world: Cluster) -> None:
    table = world.state.evaluations
    due = [k for k in table.open if 0 < table.by_key[k].wait_until_ns <= world.now_ns]
    world.apply(EvaluationsWoken(keys=tuple(due)))


@pytest.mark.parametrize("job_type", ["service", "batch"])
def test_a_late_reschedule_counts(job_type: str) -> None:
    """One attempt is one, though the replacement waited for its node: the second failure is final."""
    world = Cluster()
    world.do(join())
    world.run(register("app", group(reschedule=ONCE), job_type=job_type))
    (first,) = world.rows()
    close(world)
    world.report("n1", (first, "running"))
    world.report("n1", (first, "failed"))
    assert again(world) == []
    close(world, eligible=True)
    (second,) = again(world)
    assert previous(world, second) == key_of(world, first)
    assert int(world.state.allocations.reschedules[second]) == 1
    events = world.report("n1", (second, "failed"))
    assert not [event for event in events if isinstance(event, EvaluationsCreated)]
    assert again(world) == []


def test_a_late_reschedule_goes_on_with_its_delays() -> None:
    """An exponential delay doubles over replacements that waited."""
    world = Cluster()
    world.do(join())
    world.run(register("app", group(reschedule=GROWING)))
    delays = []
    for _ in range(3):
        (row,) = world.rows()
        close(world)
        (made,) = [
            one
            for one in world.report("n1", (row, "failed"))
            if isinstance(one, EvaluationsCreated)
        ]
        delays.append((made.evaluations[0].wait_until_ns - world.now_ns) // SECOND)
        world.later(delays[-1])
        wake_due(world)
        assert again(world) == []
        close(world, eligible=True)
        assert len(again(world)) == 1
    assert delays == [5, 10, 20]


def test_a_late_reschedule_avoids_the_node_that_failed() -> None:
    """The penalty of the node that it failed on holds, though the node is the emptier one by then."""
    world = Cluster()
    world.do(join("n1"), join("n2"))
    close(world, "n2")
    world.run(register("app", group(reschedule=ONCE, cpu_mhz=500)))
    (first,) = world.rows()
    close(world)
    world.report("n1", (first, "failed"))
    assert again(world) == []
    close(world, eligible=True)
    close(world, "n2", eligible=True)
    again(world)
    assert world.nodes_of() == ["n2"]


def lose(world: Cluster, row: int) -> None:
    del row
    down = ChangeLiveness(node_ids=("n1",), status="down", reason="", seen_seq=world.state.seq)
    world.do(down)


def stop_it(world: Cluster, row: int) -> None:
    world.do(StopAllocation(request_id="s", alloc_key=key_of(world, row)))


def drain(world: Cluster, row: int) -> None:
    del row
    world.do(DrainNode(request_id="d", node_id="n1", draining=True, deadline_ns=world.now_ns))


def change(world: Cluster, row: int) -> None:
    del row
    spec = world.state.jobs.by_id[JobId("app")].groups[0]
    changed: dict[str, Any] = {"digest": "d2", "update": spec.update, "cpu_mhz": 900}
    world.do(register("app", group(**changed), salt=9, submission_id="other"))


@pytest.mark.parametrize("update", [None, UpdatePolicy(max_parallel=1)])
@pytest.mark.parametrize("cause", [lose, stop_it, drain, change])
def test_whatever_stopped_it(cause: Any, update: UpdatePolicy | None) -> None:
    """Lost, stopped, drained or changed: the allocation that comes later names what it replaces, over three tries."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(update=update, cpu_mhz=900)))
    (first,) = world.rows()
    world.report("n1", (first, "running"))
    if cause is not change:
        # Someone else takes what is there besides.
        close(world)
    cause(world, first)
    assert again(world) == []
    assert again(world) == []
    assert key_of(world, first) in world.state.allocations.predecessors.by_key
    if cause is not lose:
        # That it dies of its stop is no failure of its own.
        world.report("n1", (first, "failed"))
    world.do(join("n2"))
    (second,) = again(world)
    assert previous(world, second) == key_of(world, first)
    assert int(world.state.allocations.reschedules[second]) == 0
    assert not world.state.allocations.predecessors


def test_a_lost_one_that_is_cut_keeps_its_predecessor() -> None:
    """A placement that the applier cuts is planned again, with its predecessor."""
    world = Cluster()
    world.do(join("n1"), join("n2"))
    world.run(register("app", group(cpu_mhz=900)))
    (first,) = world.rows()
    node = world.nodes_of()[0]
    other = "n2" if node == "n1" else "n1"
    down = ChangeLiveness(node_ids=(node,), status="down", reason="", seen_seq=world.state.seq)
    world.do(down)
    late = world.plan()
    world.do(register("thief", group(cpu_mhz=900)))
    world.do(world.plan("thief", worker="w2"))
    assert world.nodes_of("thief") == [other]
    world.do(late)
    assert world.rows() == []
    world.do(join("n3"))
    (second,) = again(world)
    assert previous(world, second) == key_of(world, first)


def test_what_completed_in_an_older_version_holds_no_name() -> None:
    """A batch job whose last version completed: what is lost late of the new one is known under the same name."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(cpu_mhz=900), job_type="batch"))
    world.report("n1", (world.rows()[0], "complete"))
    world.run(register("app", group(cpu_mhz=900, digest="d2"), job_type="batch", submission_id="2"))
    (second,) = world.rows()
    world.report("n1", (second, "running"))
    lose(world, second)
    assert again(world) == []
    world.do(join("n2"))
    (third,) = again(world)
    assert previous(world, third) == key_of(world, second)


def test_a_system_job_knows_what_it_replaces_on_its_node() -> None:
    """A system allocation that an update stopped, and that waits for room, names its predecessor of the node."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(cpu_mhz=600), job_type="system"))
    (first,) = world.rows()
    world.report("n1", (first, "running"))
    world.do(
        register(
            "app", group(cpu_mhz=600, digest="d2"), job_type="system", salt=1, submission_id="s2"
        )
    )
    assert again(world) == []
    world.report("n1", (first, "complete"))
    (second,) = again(world)
    assert previous(world, second) == key_of(world, first)


def test_what_is_not_needed_any_more_is_forgotten() -> None:
    """A smaller count, a stop of the job and a group that goes settle what was to be replaced; garbage may take it."""
    for end in ("count", "stop", "group"):
        world = Cluster()
        world.do(join("n1"))
        world.run(register("app", group(cpu_mhz=900)))
        world.report("n1", (world.rows()[0], "running"))
        drain(world, 0)
        assert again(world) == []
        assert len(world.state.allocations.predecessors) == 1
        if end == "count":
            world.do(register("app", group(cpu_mhz=900, count=0), salt=2, submission_id="s2"))
        elif end == "group":
            world.do(
                register("app", group("other", cpu_mhz=900, count=0), salt=2, submission_id="s2")
            )
        else:
            world.do(stop())
        world.schedule()
        assert not world.state.allocations.predecessors, end


def test_what_waits_for_its_replacement_is_not_collected() -> None:
    """Garbage of any age leaves a predecessor alone, and takes it once it is replaced."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(reschedule=ONCE)))
    (first,) = world.rows()
    close(world)
    world.report("n1", (first, "failed"))
    assert again(world) == []
    key = key_of(world, first)
    world.later(1).do(CollectGarbage(request_id="g"))
    world.later(1).do(CollectGarbage(request_id="g2"))
    assert key_of(world, first) == key
    close(world, eligible=True)
    (second,) = again(world)
    assert previous(world, second) == key
