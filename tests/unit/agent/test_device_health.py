"""Devices that change under tasks that hold them: an event, and the task runs on."""

import msgspec

from schemas.base import NodeId
from schemas.nodes import Instance, NodeSpec, Pool
from shared.core.runtime.agent_messages import KillTask, NodeFound, SignalTask
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

GPU = "device.gpu"


def node(**unhealthy: str) -> NodeSpec:
    """A node whose GPUs are a and b, without those that are unhealthy for the reason "gone"."""
    found = [Instance(id=one, unhealthy=unhealthy.get(one, "")) for one in ("a", "b")]
    kept = tuple(one for one in found if one.unhealthy != "gone")
    return NodeSpec(
        node_id=NodeId("n1"),
        cpu_mhz=1,
        memory_mib=1,
        pools=(Pool(name=GPU, instances=kept),) if kept else (),
    )


def holder() -> Story:
    """A running task that holds GPU a."""
    devices = [{"Name": "gpu", "Count": 1}]
    story = Story(job=job_json(task_json(Resources={"Devices": devices})))
    story.step(NodeFound(spec=node()))
    story.hear(2, alloc(instances={GPU: ("a",)}))
    story.wait(1)
    return story


def events(story: Story) -> list[tuple[str, str]]:
    """Events of its task that are about devices."""
    found = story.agent.alloc(7)
    assert found is not None
    return [(e.kind, e.message) for e in found.tasks["main"].events if "Device" in e.kind]


def test_a_device_that_becomes_unhealthy_is_an_event_of_its_holder() -> None:
    """The task is neither signaled nor killed; the event is said once, and so is that the device is back."""
    story = holder()
    story.done.clear()
    story.step(NodeFound(spec=node(a="XID 79")))
    story.step(NodeFound(spec=msgspec.structs.replace(node(a="XID 79"), disk_mib=9)))
    assert events(story) == [("Device Unhealthy", "device.gpu a: XID 79")]
    story.step(NodeFound(spec=node()))
    assert events(story)[1:] == [("Device Healthy", "device.gpu a")]
    assert not [one for one in story.done if isinstance(one, KillTask | SignalTask)]


def test_a_device_of_another_task_is_no_event() -> None:
    """Only who holds it hears of it."""
    story = holder()
    story.step(NodeFound(spec=node(b="ECC")))
    assert events(story) == []


def test_a_device_that_vanishes_is_an_event_too() -> None:
    """A plug-in that ended, or a card that fell off its bus."""
    story = holder()
    story.step(NodeFound(spec=node(a="gone")))
    text = "device.gpu a: the node does not have it any more"
    assert events(story) == [("Device Unhealthy", text)]


def test_a_new_life_of_the_agent_repeats_no_event() -> None:
    """The event is in the journal; what became unhealthy while no agent ran is said by the next one."""
    story = holder()
    story.step(NodeFound(spec=node(a="XID 79")))
    same = story.restarted("b2", spec=node(a="XID 79"))
    assert [text for _, text in events(same)] == ["device.gpu a: XID 79"]
    other = story.restarted("b3", spec=node(a="XID 48"))
    assert [text for _, text in events(other)][1:] == ["device.gpu a: XID 48"]
