"""What follows in one world of five when it has converged: the log is restored from an older copy under running tasks.

All roles end, the bus comes back with the first part of its log, agents and tasks continue. Decides what must hold
then: what runs is known to the log, and no id was given to two allocations (ADR 27). The oracle of the storm, which
knows the lost history, looks no more.
"""

from collections import defaultdict

from shared.core.runtime import messages
from shared.core.runtime.agent_messages import AllocKept
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.runtime.role import Input
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.virtual_time import MS, SECOND, RandomDraws

#: One world of so many.
ONE_OF = 5
#: An agent that is not in the older log checks every 30 s for missed messages.
CALM_NS = 50 * SECOND


class RestoreFromCopy:
    """One restore. It also receives the reports of processes from then on."""

    def __init__(
        self,
        context: SimulationContext,
        draws: RandomDraws,
        ledger: InvariantChecks,
        *,
        processes: list[SimulatedProcess],
        nodes: list[SimulatedNode],
    ) -> None:
        self._context = context
        self._draws = draws
        self._ledger = ledger
        self._processes = processes
        self._nodes = nodes
        self._agents = [node.process for node in nodes if node.process is not None]

    def run(self) -> None:
        """Restore, wait, and check. Raises InvariantBroken."""
        context = self._context
        context.observer = self
        context.bus.is_up = False
        for process in self._processes:
            if process.role is not None:
                process.crash()
        for agent in self._agents:
            agent.disconnect()
        context.bus.restart()
        records = context.bus.log.records
        context.bus.log.restore(self._draws.between(len(records) // 3, len(records) - 1))
        context.bus.identity = f"bus-{context.bus.boot}"
        context.message_faults.faults["log_restored"] += 1
        for node in self._nodes:
            node.on_start = None
            if self._draws.hit(300):
                node.crash_agent(power_lost=False)
                context.loop.after(self._draws.below(SECOND), node.start_agent)
        for process in self._processes:
            context.loop.after(self._draws.below(100 * MS), process.start)
        context.loop.after(200 * MS, self._bus_up)
        context.loop.run(context.loop.now_ns + CALM_NS)
        self._check_tasks()
        self._check_ids()

    def _bus_up(self) -> None:
        self._context.bus.is_up = True
        for agent in self._agents:
            self._context.loop.after(self._draws.below(200 * MS), agent.reconnect)

    def _check_tasks(self) -> None:
        """Hold what runs on every node against the log alone."""
        replica = Replica()
        for at, (subject, data) in enumerate(self._context.bus.log.records, 1):
            replica.apply(Record(at, subject, data))
        table, fleet = replica.state.allocations, replica.state.fleet
        rows = {int(key): row for row, key in enumerate(table.key[: table.size].tolist()) if key}
        for node in self._nodes:
            for key, task, _ in node.alive():
                row = rows.get(key)
                known = (
                    row is not None
                    and fleet.ids[int(table.node[row])] == node.node_id
                    and table.desired[row] == RUN
                    and not TERMINAL[table.client[row]]
                )
                self._ledger.hold("no_orphan_after_restore", known, node.node_id, key, task)

    def _check_ids(self) -> None:
        """Hold all that agents ever wrote of allocations against each other: one id is one allocation."""
        meant: dict[int, set[tuple[str, str, str, int]]] = defaultdict(set)
        for node in self._nodes:
            for entry in node.journal:
                if isinstance(entry, AllocKept):
                    one = entry.alloc
                    meant[one.key].add((node.node_id, one.job_id, one.group, one.index))
        for key, names in meant.items():
            self._ledger.hold("no_id_twice", len(names) == 1, key, sorted(names))

    # ---- reports of processes ----

    def stepped(
        self, process: SimulatedProcess, inputs: list[Input], effects: list[messages.Effect]
    ) -> None:
        """Receive a step."""

    def ended(self, process: SimulatedProcess, reason: str, *, raised: bool) -> None:
        """Receive an end: no end is correct."""
        self._ledger.hold("roles_go_on", False, process.name, reason, raised)
