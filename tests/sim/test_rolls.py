"""The log is rolled in the simulated world, under every fault: what was promised holds across generations."""

from collections import Counter

import msgspec
import pytest

from schemas.envelope import CommandBatch
from schemas.policy import RollLog
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.protocol import subjects
from shared.sim.virtual_time import SECOND
from shared.sim.world.world import SimulatedWorld


def order(world: SimulatedWorld, generation: int) -> None:
    """Ask for a roll, as the view does."""
    command = RollLog(request_id=f"r{generation}", generation=generation)
    batch = CommandBatch(sender="view", commands=(command,))
    world.context.bus.publish(subjects.command("operator"), msgspec.json.encode(batch))


@pytest.mark.parametrize("seed", range(1, 7))
def test_storms_with_rolls_break_nothing(seed: int) -> None:
    """Commands arrive every second during faults; each generation ends once, and the replay is complete."""
    world = SimulatedWorld(seed)
    for second in range(1, 60):
        for generation in range(1, 12):
            at_ns = second * SECOND + generation
            world.context.loop.after(at_ns, order, world, generation)
    report = world.run()
    assert not report.invariant, report
    replica, rolls = Replica(), Counter[int]()
    for seq, (subject, data) in enumerate(world.context.bus.log.records, 1):
        record = replica.apply(Record(seq, subject, data))
        if record is not None and record.kind == "roll":
            rolls[replica.state.policy.generation] += 1
            assert len(record.events) == 1
    assert rolls and set(rolls.values()) == {1}
    assert replica.state.policy.generation == world.context.bus.log.generation > 2
