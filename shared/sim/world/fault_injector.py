"""The fault injector: draws faults of processes, nodes, clocks and the bus. Every fault heals.

Faults of single messages are those of message_faults.py.
"""

from collections.abc import Callable

from shared.core.runtime.chain import is_framed
from shared.sim.environment.memory_stores import log_subject
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.virtual_time import MS, SECOND, RandomDraws

HOUR_NS = 3600 * SECOND
_PAUSE_BETWEEN_NS = 700 * MS


class FaultInjector:
    """Injects faults from `begin` until `until_ns`; open faults then heal by themselves."""

    def __init__(
        self,
        context: SimulationContext,
        draws: RandomDraws,
        *,
        processes: list[SimulatedProcess],
        nodes: list[SimulatedNode],
        forge: Callable[[int], None],
    ) -> None:
        self.context = context
        self._draws = draws
        self._processes = processes
        self._nodes = nodes
        self._agents = [node.process for node in nodes if node.process is not None]
        self._forge = forge
        self._until_ns = 0
        self._restarts = 0
        #: seqs of foreign records: a copied lease begins no epoch.
        self._forged: set[int] = set()
        #: fault, weight, and what injects it.
        self._strikes: tuple[tuple[str, int, Callable[[], bool]], ...] = (
            ("crash", 26, self._crash),
            ("pause", 14, self._pause),
            ("partition", 14, self._partition),
            ("bus_restart", 4, self._bus_restart),
            ("clock_set_back", 6, self._clock_set_back),
            ("agent_crash", 12, self._agent_crash),
            ("node_death", 8, self._node_death),
            ("foreign_record", 10, self._foreign_record),
            ("leadership_lost", 8, self._leadership_lost),
            ("log_full", 3, self._log_full),
        )
        self._total = sum(weight for _, weight, _ in self._strikes)

    def skew(self) -> None:
        """Skew every process's wall clock by up to 2 s, and sometimes one by an hour."""
        for process in (*self._processes, *self._agents):
            if self._draws.hit(300):
                process.wall.skew_ns = self._draws.between(-2 * SECOND, 2 * SECOND)
                self.context.message_faults.faults["clock_skewed"] += 1
        if self._draws.hit(250):
            everyone = [*self._processes, *self._agents]
            victim = everyone[self._draws.below(len(everyone))]
            victim.wall.skew_ns = HOUR_NS * (1 if self._draws.hit(500) else -1)
            self.context.message_faults.faults["clock_hour_off"] += 1

    def begin(self, until_ns: int) -> None:
        """Inject faults from now until `until_ns`."""
        self._until_ns = until_ns
        self.context.loop.after(self._draws.below(_PAUSE_BETWEEN_NS), self._next)

    def _next(self) -> None:
        if self.context.loop.now_ns >= self._until_ns:
            return
        at = self._draws.below(self._total)
        for kind, weight, strike in self._strikes:
            at -= weight
            if at < 0:
                self.context.message_faults.faults[kind] += strike()
                break
        self.context.loop.after(self._draws.below(_PAUSE_BETWEEN_NS), self._next)

    def _one(self, among: list[SimulatedProcess]) -> SimulatedProcess | None:
        process = among[self._draws.below(len(among))]
        return process if process.role is not None and not process.is_paused else None

    def _any(self) -> SimulatedProcess | None:
        """Pick a process: a role's in four of five cases, else an agent."""
        return self._one(self._processes if self._draws.below(5) else self._agents)

    # ---- strikes: each says whether it hit ----

    def _crash(self) -> bool:
        process = self._one(self._processes)
        if process is None:
            return False
        process.crash()
        self.context.loop.after(self._draws.between(50 * MS, 1500 * MS), self._start, process)
        return True

    def _start(self, process: SimulatedProcess) -> None:
        if process.role is None:
            process.start()

    def _pause(self) -> bool:
        process = self._any()
        if process is None:
            return False
        process.pause()
        long = self._draws.hit(500)
        wait = self._draws.between(2500 * MS, 5 * SECOND) if long else self._draws.below(SECOND)
        self.context.loop.after(wait, self._resume, process, process.life)
        return True

    def _resume(self, process: SimulatedProcess, life: int) -> None:
        if process.life == life and process.is_paused:
            process.resume()

    def _partition(self) -> bool:
        process = self._any()
        if process is None or process.is_partitioned:
            return False
        process.is_partitioned = True
        process.disconnect()
        wait = self._draws.between(300 * MS, 4 * SECOND)
        if process in self._agents:
            # Often long enough for the node to be declared down while its tasks run on.
            wait *= 3
        self.context.loop.after(wait, self._heal, process)
        return True

    def _heal(self, process: SimulatedProcess) -> None:
        process.is_partitioned = False
        process.reconnect()

    def _bus_restart(self) -> bool:
        bus = self.context.bus
        if not bus.is_up or self._restarts >= 2:
            return False
        self._restarts += 1
        bus.is_up = False
        for process in (*self._processes, *self._agents):
            process.disconnect()
        bus.restart()
        self.context.loop.after(self._draws.between(100 * MS, SECOND), self._bus_up)
        return True

    def _bus_up(self) -> None:
        self.context.bus.is_up = True
        for process in (*self._processes, *self._agents):
            self.context.loop.after(self._draws.below(200 * MS), process.reconnect)

    def _clock_set_back(self) -> bool:
        process = self._any()
        if process is None:
            return False
        process.wall.skew_ns -= self._draws.between(SECOND // 2, 2 * SECOND)
        return True

    def _agent_crash(self) -> bool:
        node = self._nodes[self._draws.below(len(self._nodes))]
        assert node.process is not None
        if node.is_dead or node.process.role is None:
            return False
        node.crash_agent(power_lost=False)
        self.context.loop.after(self._draws.between(50 * MS, 1500 * MS), node.start_agent)
        return True

    def _node_death(self) -> bool:
        node = self._nodes[self._draws.below(len(self._nodes))]
        assert node.process is not None
        if node.is_dead or node.process.role is None or sum(n.is_dead for n in self._nodes) > 1:
            return False
        node.crash_agent(power_lost=True)
        wait = self._draws.between(2 * SECOND, 12 * SECOND)
        self.context.loop.after(wait, node.start_agent)
        return True

    def _foreign_record(self) -> bool:
        """Write a foreign record: noise, a publish acknowledgement, or a record of an older epoch."""
        log = self.context.bus.log
        kind = self._draws.below(3)
        noise = (b'{"hello":"world"}', b'{"stream":"LOG_1","seq":12}')[kind % 2]
        forged = (log_subject("tx"), noise)
        if kind == 2:
            leases = [
                n
                for n, (subject, _) in enumerate(log.records)
                if subject.endswith("lease") and n not in self._forged
            ]
            # On the real bus a copied roll is marked as foreign, and is not a record.
            old = [
                one
                for one in log.records[: leases[-1] if leases else 0]
                if is_framed(one[1]) and not one[0].endswith("roll")
            ]
            if old:
                forged = old[self._draws.below(len(old))]
        self._forged.add(len(log.records))
        self._forge(len(log.records) + 1)
        log.inject(*forged)
        return True

    def _leadership_lost(self) -> bool:
        leaders = [one for one in self._processes if one.is_leader and one.role is not None]
        if not leaders:
            return False
        role = leaders[self._draws.below(len(leaders))].role
        return role is not None and self.context.bus.leaderships.usurp(role.leader_key)

    def _log_full(self) -> bool:
        self.context.bus.log.full_until_ns = self.context.loop.now_ns + self._draws.below(SECOND)
        return True
