"""The scripted operator judges a verdict by the log at the seq that it names."""

import pytest

from schemas.base import Event
from schemas.envelope import CORE_VERSION, SCHEMA_VERSION, LogRecord
from schemas.nodes import NodeDrainChanged, NodeRegistered
from schemas.operator import OperatorVerdict
from shared.protocol import subjects
from shared.sim.environment.memory_bus import MemoryBus
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.oracle.reference_model import ReferenceModel
from shared.sim.virtual_time import RandomDraws, VirtualLoop
from shared.sim.world.scripted_operator import OperatorRequest, ScriptedOperator
from tests.sim.recorded import spec


def model_with(*draining: bool) -> ReferenceModel:
    """A node that is drained at 2; what its operator made of it since, all in the record at 3."""
    model = ReferenceModel(InvariantChecks())
    joined = NodeRegistered(spec=spec(1), host_id="h", boot_id="b", number=1)
    changes = [NodeDrainChanged(row=0, draining=one) for one in draining]
    steps: tuple[list[Event], ...] = (
        [joined],
        [NodeDrainChanged(row=0, draining=True)],
        [*changes],
    )
    for seq, events in enumerate(steps, 1):
        tx = LogRecord(
            kind="tx",
            schema=SCHEMA_VERSION,
            core=CORE_VERSION,
            epoch=1,
            prev="",
            t_ns=seq,
            events=events,
        )
        model.apply(tx, seq)
    return model


def ending_of_a_drain(model: ReferenceModel) -> OperatorRequest:
    loop = VirtualLoop()
    faults = MessageFaults(RandomDraws(1, 1))
    context = SimulationContext(loop, MemoryBus(loop, faults), faults, RandomDraws(1, 2))
    operator = ScriptedOperator(context, RandomDraws(1, 5), model)
    operator.drain("node-1", draining=True)
    return operator.drain("node-1", draining=False)


@pytest.mark.parametrize(
    ("changes", "seq", "holds"),
    [
        # A copy of the earlier drain, sent again while a view was silent, came behind it.
        ((False, True), 3, True),
        ((False,), 3, True),
        # Accepted, and never done; or said to be done by another record.
        ((), 3, False),
        ((True,), 3, False),
        ((False, True), 2, False),
    ],
)
def test_a_verdict_is_true_at_the_seq_it_names(
    changes: tuple[bool, ...], seq: int, *, holds: bool
) -> None:
    """What another request undid later was done all the same; what no record shows was not."""
    request = ending_of_a_drain(model_with(*changes))
    verdict = OperatorVerdict(request_id="r", status="accepted", seq=seq)
    assert request.subject == subjects.api("node", "drain")
    assert request.holds(verdict.seq) is holds
