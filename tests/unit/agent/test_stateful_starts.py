"""Stateful groups on a node: when an instance may start, and its host name."""

from typing import Any

import msgspec
import pytest

from schemas.envelope import ENCODER
from schemas.nodes import NodeSpec
from services.agent.tasks.environment import task_launch
from services.agent.tasks.resolved_group import resolve_group
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

NODE = NodeSpec(node_id="n1", cpu_mhz=1000)


def stateful(*, kind: str = "service", **group: Any) -> dict[str, Any]:
    """A job with a stateful group."""
    job = job_json(task_json(), kind=kind)
    job["TaskGroups"][0].update({"Stateful": True, **group})
    return job


def test_nothing_starts_before_the_log_has_this_life() -> None:
    """An order that an earlier life's registration led to may be overtaken by a confirmed death."""
    story = Story(job=stateful(), boot="b2").hear(5, alloc(), boot_id="b1")
    assert not story.starts()
    story.hear(6, alloc(), boot_id="b1").wait(60)
    assert not story.starts()
    story.hear(7, alloc())
    assert story.starts() == [("main", 1)]


def test_other_groups_start_at_once() -> None:
    """What is not stateful does not wait for the registration of its node."""
    story = Story(boot="b2").hear(5, alloc(), boot_id="b1")
    assert story.starts() == [("main", 1)]


def test_a_running_instance_is_adopted_before_the_log_has_this_life() -> None:
    """An agent that was killed leaves its tasks running, and its next life finds them."""
    story = Story(job=stateful()).hear(5, alloc()).started().restarted()
    story.started(adopted=True).hear(6, alloc(), boot_id="b1")
    assert story.state().status == "running"
    assert not story.starts()


@pytest.mark.parametrize(
    ("group", "name"),
    [("g", "g-3"), ("my_db.main", "my-db-main-3"), ("x" * 80, "x" * 61 + "-3"), ("__", "group-3")],
)
def test_an_instance_has_a_host_name(group: str, name: str) -> None:
    """Group and index, as far as a host name can have them; the group's own network block wins."""
    third = msgspec.structs.replace(alloc(), group=group, index=3)
    job = stateful(Name=group)
    plan = resolve_group(ENCODER.encode(job), group)
    launch = task_launch(third, plan, plan.tasks[0], NODE)
    assert launch.network.hostname == launch.env["NOMAD_GROUP_HOSTNAME"] == name
    job["TaskGroups"][0]["Networks"] = [{"Mode": "bridge", "Hostname": "own"}]
    plan = resolve_group(ENCODER.encode(job), group)
    launch = task_launch(third, plan, plan.tasks[0], NODE)
    assert launch.network.hostname == "own"
    assert launch.env["NOMAD_GROUP_HOSTNAME"] == name
