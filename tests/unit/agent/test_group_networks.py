"""The role and the networks of groups: an address in the journal first, tasks after their network, and lost ones."""

from typing import Any

from schemas.nodes import NodeSpec
from services.agent.tasks.group_network import choose_address
from shared.core.runtime.agent_messages import (
    AllocKept,
    CloseAlloc,
    NodeFound,
    SignalTask,
    StartTask,
    WriteJournal,
)
from shared.core.runtime.network_messages import (
    NetworkFailed,
    NetworkLost,
    NetworkReady,
    PrepareNetwork,
)
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

NODE = NodeSpec(
    node_id="n1",
    cpu_mhz=1000,
    memory_mib=1000,
    attributes={"network.bridge": "nft", "network.bridge.subnet": "172.27.64.0/20"},
)
NETWORK = {"Mode": "bridge", "DynamicPorts": [{"Label": "http", "To": 80}]}


def bridged(**more: Any) -> dict[str, Any]:
    """A job whose group has a network."""
    job = job_json(task_json(**more))
    job["TaskGroups"][0]["Networks"] = [NETWORK]
    return job


def story(job: dict[str, Any] | None = None, **more: Any) -> Story:
    """An agent on a node with a bridge that was given an allocation."""
    found = Story(job=job or bridged(), **more).step(NodeFound(spec=NODE))
    return found.hear(5, alloc(ports=(20_001,)))


def kept(found: Story) -> AllocKept:
    """The allocation as the journal has it."""
    return [one for one in found.journal if isinstance(one, AllocKept)][-1]


def test_a_task_starts_after_its_network_whose_address_is_kept_first() -> None:
    """The order names address, ports and host name; the start has the address."""
    found = story()
    written, order = found.did(WriteJournal, PrepareNetwork)[-2:]
    assert written.sync and kept(found).address == order.address
    assert order.address.startswith("172.27.") and order.address.endswith("/20")
    assert [(one.label, one.host, one.inside) for one in order.ports] == [("http", 20_001, 80)]
    assert not order.adopt and not order.has_containers
    assert not story().did(StartTask)
    (start,) = found.step(NetworkReady(key=7)).did(StartTask)
    assert f"{start.launch.network.address}/20" == order.address
    assert start.launch.env["NOMAD_ALLOC_ADDR_http"] == f"{start.launch.network.address}:80"


def test_a_network_that_fails_fails_the_allocation() -> None:
    """No task starts; the event has the reason; the network is removed."""
    found = story().step(NetworkFailed(key=7, reason="no room"))
    assert not found.did(StartTask)
    report = found.agent._desired.report_of(7)
    assert report.status == "failed"
    first = report.tasks["main"].events[0]
    assert (first.kind, first.message) == ("Setup Failure", "network: no room")
    assert found.agent.alloc(7).closed  # type: ignore[union-attr]


def test_a_node_without_a_bridge_says_so() -> None:
    """What was placed there all the same fails with the reason."""
    found = Story(job=bridged()).hear(5, alloc(ports=(20_001,)))
    assert found.agent._desired.report_of(7).status == "failed"
    assert not found.did(PrepareNetwork, StartTask)


def test_another_life_takes_the_network_over() -> None:
    """It asks before anything else, with the address of the journal; a start waits for the answer."""
    first = story().step(NetworkReady(key=7)).started()
    address = kept(first).address
    again = first.restarted()
    (order,) = again.did(PrepareNetwork)
    assert (order.address, order.adopt) == (address, True)
    again.hear(6, alloc(ports=(20_001,))).started(adopted=True)
    assert not again.did(StartTask, SignalTask)


def test_tasks_of_a_lost_network_end_and_start_in_the_next_one() -> None:
    """At no charge and with one event; the loss is in the journal until they have ended."""
    found = story().step(NetworkReady(key=7)).started()
    found.did(object)
    found.step(NetworkLost(key=7, reason="gone"))
    assert len(found.did(SignalTask)) == 1 and kept(found).network_lost
    assert not found.exited(None, signal=2).did(StartTask)
    (start,) = found.step(NetworkReady(key=7)).did(StartTask)
    assert start.run == 2 and not kept(found).network_lost
    task = found.started(run=2).agent._desired.report_of(7).tasks["main"]
    said = [one.message for one in task.events if one.kind == "Restart Signaled"]
    assert said == ["network of the group is lost: gone"]


def test_a_loss_that_was_cut_short_is_continued() -> None:
    """A life that begins while tasks run in the lost namespace ends them, and has a new network made."""
    found = story().step(NetworkReady(key=7)).started()
    found.step(NetworkLost(key=7, reason="gone"))
    again = found.restarted()
    (order,) = again.did(PrepareNetwork)
    assert not order.adopt
    assert len(again.started(adopted=True).did(SignalTask)) == 1


def test_a_reboot_makes_a_new_network() -> None:
    """The namespace is gone with its tasks: nothing has to be ended."""
    again = story().step(NetworkReady(key=7)).started().restarted()
    again.did(object)
    (order,) = again.step(NetworkLost(key=7, reason="its namespace is gone")).did(PrepareNetwork)
    assert not order.adopt


def test_an_allocation_that_ends_before_its_network_asks_for_no_more() -> None:
    """It is closed, and a late answer starts nothing."""
    found = story()
    found.did(object)
    found.hear(6)
    assert found.did(CloseAlloc)
    assert not found.step(NetworkReady(key=7)).did(StartTask, PrepareNetwork)


def test_addresses_are_chosen_once_and_not_again_at_once() -> None:
    """Each allocation another one, none of the network, the bridge or all; an exhausted subnet says so."""
    used: list[str] = []
    while one := choose_address("10.0.0.0/28", len(used), used):
        used.append(one)
    assert len(set(used)) == len(used) == 13
    assert not {"10.0.0.0/28", "10.0.0.1/28", "10.0.0.15/28"} & set(used)
    assert choose_address("10.0.0.0/28", 1, ()) != choose_address("10.0.0.0/28", 2, ())
