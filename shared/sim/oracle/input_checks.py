"""Checks of task inputs: no task starts before its inputs are there, none is prepared again once the journal has it."""

from collections.abc import Sequence

from shared.core.runtime import agent_messages
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.oracle.invariants import InvariantChecks


class InputChecks:
    """Preparations and starts of all nodes, by what each node and its journal really hold."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self._ledger = ledger

    def stepped(self, node: SimulatedNode, effects: Sequence[object]) -> None:
        """Check the effects of one step, before they are performed. Raises InvariantBroken."""
        for effect in effects:
            if isinstance(effect, agent_messages.PrepareTask):
                kept = node.kept_inputs(effect.key, effect.task)
                again = sorted(
                    one.name for one in effect.inputs if _is_there(node, effect, one, kept)
                )
                self._ledger.hold("inputs_once", not again, _name(effect), again, node.node_id)
            elif isinstance(effect, agent_messages.StartTask) and effect.inputs:
                names = [one.name for one in effect.inputs]
                lacks = [one for one in names if (effect.key, effect.task, one) not in node.inputs]
                self._ledger.hold(
                    "inputs_before_start", not lacks, _name(effect), "lacks", lacks, node.node_id
                )


def _is_there(
    node: SimulatedNode,
    effect: agent_messages.PrepareTask,
    one: agent_messages.TaskInput,
    kept: frozenset[str],
) -> bool:
    """Say whether an input must not be prepared; what lies in memory is gone with the life of an agent."""
    if one.each_start:
        return False
    if one.in_memory:
        return (effect.key, effect.task, one.name) in node.inputs
    return one.name in kept


def _name(
    effect: agent_messages.PrepareTask | agent_messages.StartTask,
) -> tuple[int, str, int]:
    return effect.key, effect.task, effect.run
