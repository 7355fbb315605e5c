"""Planted bugs patch what is there: a function that was renamed or dissolved would leave one that changes nothing."""

import pytest

from shared.sim.environment.memory_bus import MemoryBus
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.virtual_time import RandomDraws, VirtualLoop
from shared.sim.world.mutants import MUTANTS


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_bug_patches_what_is_there(name: str) -> None:
    """Each replaces at least one attribute that exists, by another value."""
    patched: list[str] = []

    def patch(owner: object, attribute: str, new: object) -> None:
        assert getattr(owner, attribute) is not new
        patched.append(attribute)

    MUTANTS[name](patch, context())
    assert patched


def context() -> SimulationContext:
    """What a world hands to a bug, with nothing running in it."""
    loop, faults = VirtualLoop(), MessageFaults(RandomDraws(1, 1))
    return SimulationContext(loop, MemoryBus(loop, faults), faults, RandomDraws(1, 2))
