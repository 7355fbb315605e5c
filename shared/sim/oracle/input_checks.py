"""Checks of task inputs: no task starts before its inputs are there, none is prepared again once the journal has it.

And every run that continues has in the end seen the newest version of the inputs that change while it runs.
"""

from collections.abc import Iterable, Sequence

from shared.core.runtime import agent_messages
from shared.fleet.simulated_tasks import TaskRunId
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.virtual_time import SECOND

_PATIENCE_NS = 3 * SECOND


class InputChecks:
    """Preparations and starts of all nodes, by what each node and its journal really hold."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self._ledger = ledger
        #: by node: since when a change_mode of its runs is overdue.
        self._overdue: dict[str, dict[TaskRunId, int]] = {}

    def stepped(self, node: SimulatedNode, effects: Sequence[object]) -> None:
        """Check the effects of one step, before they are performed. Raises InvariantBroken."""
        for effect in effects:
            if isinstance(effect, agent_messages.PrepareTask):
                kept = node.kept_inputs(effect.key, effect.task)
                again = sorted(
                    one.name for one in effect.inputs if _is_there(node, effect, one, kept)
                )
                self._ledger.hold("inputs_once", not again, _name(effect), again, node.node_id)
            if isinstance(effect, agent_messages.StartTask):
                _check_network(self._ledger, node, effect)
            if isinstance(effect, agent_messages.StartTask) and effect.inputs:
                names = [one.name for one in effect.inputs]
                lacks = [one for one in names if (effect.key, effect.task, one) not in node.inputs]
                self._ledger.hold(
                    "inputs_before_start", not lacks, _name(effect), "lacks", lacks, node.node_id
                )

    def told(self, node: SimulatedNode, now_ns: int) -> None:
        """Check that no change_mode of a run is overdue. Raises InvariantBroken.

        The first step of an agent that was paused performs what became due meanwhile.
        """
        before = self._overdue.get(node.node_id, {})
        late = node.followed.overdue()
        self._overdue[node.node_id] = {run: before.get(run, now_ns) for run in late}
        if node.followed.is_used and not late:
            self._ledger.hold("change_told", holds=True)
        for run, name in late.items():
            since_ns = self._overdue[node.node_id][run]
            is_told = now_ns < since_ns + _PATIENCE_NS or run not in node.alive()
            self._ledger.hold("change_told", is_told, run, name, node.node_id)

    def unsettled(self, nodes: Iterable[SimulatedNode]) -> str:
        """Describe a run that was not told of a change; empty: all were."""
        for node in nodes:
            for run in node.alive():
                if name := node.followed.unseen(run):
                    return f"run {run} of {node.node_id} has not seen the newest {name}"
        return ""


def _check_network(
    ledger: InvariantChecks, node: SimulatedNode, effect: agent_messages.StartTask
) -> None:
    """Check that a task of a group in mode bridge starts in its network, with an address that no other group has."""
    if effect.launch.network.mode != "bridge":
        return
    own = node.networks.addresses.get(effect.key, "").partition("/")[0]
    same = [key for key, one in node.networks.addresses.items() if one.partition("/")[0] == own]
    holds = bool(own) and own == effect.launch.network.address and same == [effect.key]
    ledger.hold("network_before_start", holds, _name(effect), own, same, node.node_id)


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
