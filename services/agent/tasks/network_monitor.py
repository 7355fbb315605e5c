"""Follows the networks of groups in mode bridge: asks for them, and ends tasks whose network is lost.

Decides when a network is made, taken over, or given up. Each address is in the journal before anything is made with
it. Read `group_network.py` first.
"""

from collections.abc import Iterable, Mapping

from services.agent.reports import Reports
from services.agent.tasks import lifecycle
from services.agent.tasks.group_network import (
    bridge_subnet,
    choose_address,
    network_order,
    uses_bridge,
)
from services.agent.tasks.runtime_state import AllocRuntime, NetworkPhase, TaskPhase
from services.agent.tasks.supervisor import AgentStep, Supervisor
from shared.core.runtime.network_messages import NetworkFailed, NetworkLost, NetworkReady

NO_BRIDGE = "this node has no bridge for networks of groups"
NO_ADDRESS = "all addresses of the bridge are used"
_UNANSWERED = (TaskPhase.STARTING, TaskPhase.RECOVERING)


class NetworkMonitor:
    """The networks of all allocations of this node."""

    def __init__(
        self, reports: Reports, supervisor: Supervisor, allocs: Mapping[int, AllocRuntime]
    ) -> None:
        self._reports = reports
        self._supervisor = supervisor
        self._allocs = allocs

    def adopt(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        """Take over the network of an earlier life of the agent, where there was one."""
        if not alloc.address or not uses_bridge(alloc.plan) or alloc.is_dead():
            return
        if alloc.network_lost:
            self._restart_tasks(alloc, "", turn)
        alloc.network = NetworkPhase.PREPARING
        node = self._supervisor.node
        # What no task has started in can be made anew.
        has_tasks = any(task.run for task in alloc.tasks.values())
        turn.act(network_order(alloc, node, adopt=has_tasks and not alloc.network_lost))

    def sync(self, keys: Iterable[int], turn: AgentStep) -> None:
        """Ask for the networks that tasks wait for."""
        for key in list(keys):
            alloc = self._allocs.get(key)
            if alloc is None or alloc.closed:
                continue
            if alloc.network_lost and not _has_former_runs(alloc):
                alloc.network_lost = False
                turn.keep(alloc.kept())
            if alloc.network is NetworkPhase.WANTED:
                self._request(alloc, turn)

    def take(self, event: NetworkReady | NetworkFailed | NetworkLost, turn: AgentStep) -> None:
        """Take what the node says of a network."""
        alloc = self._allocs.get(event.key)
        if alloc is None or alloc.closed:
            return
        match event:
            case NetworkReady():
                if alloc.network is NetworkPhase.PREPARING:
                    alloc.network = NetworkPhase.READY
                self._supervisor.advance(alloc, turn)
            case NetworkFailed():
                alloc.network = NetworkPhase.NONE
                self._fail(alloc, event.reason, turn)
            case NetworkLost():
                self._lose(alloc, event.reason, turn)

    # ---- inside ----

    def _request(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        node = self._supervisor.node
        if not alloc.address:
            subnet = bridge_subnet(node)
            if not subnet:
                self._fail(alloc, NO_BRIDGE, turn)
                return
            used = [one.address for one in self._allocs.values() if one.address]
            alloc.address = choose_address(subnet, alloc.key, used)
            if not alloc.address:
                self._fail(alloc, f"{NO_ADDRESS}: {subnet}", turn)
                return
        alloc.network = NetworkPhase.PREPARING
        turn.keep(alloc.kept(), sync=True)
        turn.act(network_order(alloc, node, adopt=False))

    def _fail(self, alloc: AllocRuntime, reason: str, turn: AgentStep) -> None:
        """End an allocation that has no network, as failed."""
        for task in alloc.tasks.values():
            if task.phase is not TaskPhase.DEAD:
                task.note("Setup Failure", f"network: {reason}", turn.now_ns)
        text = f"network of the group failed: {reason}"
        self._supervisor.stop(alloc, text, turn, cause=lifecycle.NETWORK)

    def _lose(self, alloc: AllocRuntime, reason: str, turn: AgentStep) -> None:
        """End what runs in a lost namespace, and make another one. What was not started yet waits for it."""
        if alloc.network is NetworkPhase.NONE:
            return
        alloc.network = NetworkPhase.WANTED
        alloc.network_lost = True
        self._restart_tasks(alloc, reason, turn)
        turn.keep(alloc.kept(), sync=True)
        self._supervisor.advance(alloc, turn)

    def _restart_tasks(self, alloc: AllocRuntime, reason: str, turn: AgentStep) -> None:
        text = f"network of the group is lost: {reason}" if reason else "network is lost"
        for task in alloc.tasks.values():
            if task.phase is TaskPhase.RUNNING:
                self._supervisor.restart(alloc, task, turn, reason=text)
            elif task.phase in _UNANSWERED and not task.stopping:
                task.restarting = True
                task.note("Restart Signaled", text, turn.now_ns)
        self._reports.touch(alloc.key)


def _has_former_runs(alloc: AllocRuntime) -> bool:
    """Say whether a task runs that is ended because its network is lost."""
    alive = (TaskPhase.RUNNING, *_UNANSWERED)
    return any(task.restarting and task.phase in alive for task in alloc.tasks.values())
