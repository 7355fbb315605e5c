"""The node, looked at again: what came, what went, and what is not worth a word."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from schemas.base import NodeId
from schemas.nodes import Instance, NodeSpec, Pool
from services.agent.fingerprint.host import HostFacts, HostReserved, NodeNaming, node_spec
from services.agent.fingerprint.pools import read_pools
from services.agent.fingerprint.refresh import FingerprintRefresher
from shared.core.runtime.agent_messages import NodeFound
from shared.errors import ConfigInvalid
from tests.unit.agent.agent_story import Story

GIB = 1 << 30


class Fixed:
    """A driver that is asked once."""

    name = "exec"

    def __init__(self) -> None:
        self.there = True
        self.asked = 0

    def fingerprint(self) -> dict[str, str]:
        """What it says."""
        self.asked += 1
        return {f"driver.{self.name}": "1"} if self.there else {}


class Engine(Fixed):
    """A driver whose engine may be away."""

    name = "docker"
    has_dynamic_fingerprint = True


class Cards:
    """A device plug-in."""

    name = "cards"
    has_dynamic_fingerprint = True

    def __init__(self) -> None:
        self.ids = ["a", "b"]

    def fingerprint(self) -> dict[str, str]:
        """Nothing to say."""
        return {}

    def pools(self) -> tuple[Pool, ...]:
        """What is there."""
        found = tuple(Instance(id=one) for one in self.ids)
        return (Pool(name="device.gpu", instances=found),) if found else ()


class Machine:
    """A machine whose disk fills, and a finder that looks at it."""

    def __init__(self, *sources: object, pools: Path | None = None) -> None:
        self.free = 100 * GIB
        self.finder = FingerprintRefresher(
            sources,  # type: ignore[arg-type]
            facts=lambda: HostFacts(
                cores=2, meminfo="MemTotal: 1024000 kB", disk_free_bytes=self.free
            ),
            pools=lambda: read_pools(pools) if pools else (),
            compose=_compose,
        )

    def look(self, held_mib: int = 0) -> NodeSpec:
        """Look at it."""
        return self.finder.find(held_mib)


def _compose(facts: HostFacts, found: Mapping[str, str], pools: tuple[Pool, ...]) -> NodeSpec:
    naming = NodeNaming(node_id="n1")
    return node_spec(facts, naming, drivers=found, reserved=HostReserved(), pools=pools)


def test_an_engine_that_comes_later_is_offered_at_once() -> None:
    """What is new is said with the next look."""
    engine = Engine()
    engine.there = False
    machine = Machine(engine)
    assert "driver.docker" not in machine.look().attributes
    assert "driver.docker" not in machine.look().attributes
    engine.there = True
    assert machine.look().attributes["driver.docker"] == "1"


def test_an_engine_that_restarts_is_not_gone() -> None:
    """Only who is missing twice in a row is withdrawn."""
    engine = Engine()
    machine = Machine(engine)
    machine.look()
    for there, offered in ((False, True), (True, True), (False, True), (False, False)):
        engine.there = there
        assert ("driver.docker" in machine.look().attributes) is offered


def test_who_does_not_change_is_asked_once() -> None:
    """A fingerprint that costs much is taken at the start alone."""
    fixed, engine = Fixed(), Engine()
    machine = Machine(fixed, engine)
    for _ in range(3):
        machine.look()
    assert (fixed.asked, engine.asked) == (1, 3)


def test_a_device_that_vanishes_is_offered_no_more() -> None:
    """Instances are counted anew with every look."""
    cards = Cards()
    machine = Machine(cards)
    assert len(machine.look().pools[-1].instances) == 2
    cards.ids = ["b"]
    assert [one.id for one in machine.look().pools[-1].instances] == ["b"]


def test_the_disk_is_told_when_it_changed_much_and_not_for_what_tasks_hold() -> None:
    """Disk used by allocations is already counted; smaller changes are not reported."""
    machine = Machine()
    first = machine.look()
    machine.free -= 20 * GIB
    assert machine.look(held_mib=20 * 1024) == first
    assert machine.look(held_mib=17 * 1024) == first
    assert machine.look().disk_mib == first.disk_mib - 20 * 1024


def test_a_file_of_pools_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    """An operator's slip of the pen takes nothing away from a node that runs; at its start it is refused."""
    path = tmp_path / "pools.json"
    path.write_text('[{"name": "licences", "amount": 2}]')
    machine = Machine(pools=path)
    machine.look()
    path.write_text("[{")
    assert machine.look().pools[-1].amount == 20_000
    path.write_text('[{"name": "licences", "amount": 3}]')
    assert machine.look().pools[-1].amount == 30_000
    path.write_text("[{")
    with pytest.raises(ConfigInvalid):
        Machine(pools=path).look()


def test_a_node_that_changed_registers_again() -> None:
    """The agent says what it is now until the log has it, and tasks that start see the new attributes."""
    story = Story()
    story.hear(2, reports_seen=1)
    spec = NodeSpec(
        node_id=NodeId("n1"), cpu_mhz=1, memory_mib=1, attributes={"driver.docker": "1"}
    )
    story.done.clear()
    story.step(NodeFound(spec=spec)).wait(0.1)
    said = story.reports()[-1]
    assert said.spec == spec
    story.hear(3, reports_seen=said.number)
    story.done.clear()
    story.wait(20)
    assert not story.reports()


def test_what_is_found_is_a_whole_registration() -> None:
    """A look without a change is equal to the one before, so that nothing is said."""
    machine = Machine(Engine(), Cards())
    assert machine.look() == machine.look()
    assert msgspec.structs.asdict(machine.look())["node_id"] == "n1"


def test_a_driver_that_fails_to_say_what_it_is_is_left_out() -> None:
    """One that raises costs the node itself alone, at the start too; when it speaks again it is back."""

    class Broken(Engine):
        def fingerprint(self) -> dict[str, str]:
            """Nothing but trouble, the first time."""
            if not self.asked:
                self.asked += 1
                raise RuntimeError("no")
            return super().fingerprint()

    machine = Machine(Broken(), Cards())
    first = machine.look()
    assert "driver.docker" not in first.attributes and first.pools[-1].name == "device.gpu"
    assert "driver.docker" in machine.look().attributes
