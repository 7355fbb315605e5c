"""One simulated world: ten nodes, every role, faults from one seed, and an oracle that watches.

Decides the story: customers come, a storm of faults passes, then all must come to rest as promised. Must not know how
any part works. `World(seed).run()` is a pure function of the seed (and of the planted bug, where one is named).
Read in this order: loop, weather, stores, bus, process, writes, drivers, customers, chaos, findings, books, oracle.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from shared.core import role
from shared.sim.bus import Bus
from shared.sim.chaos import Chaos
from shared.sim.customers import Customer, Shape
from shared.sim.drivers import Node
from shared.sim.findings import Broken
from shared.sim.hands import Hands
from shared.sim.loop import MS, SECOND, Draws, Loop
from shared.sim.memo import Memo, remembered
from shared.sim.mutants import planted
from shared.sim.oracle import Oracle
from shared.sim.process import Process, Site
from shared.sim.roster import NODES, ROLES, agent_builder, builder
from shared.sim.weather import Weather

STORM_BEGINS_NS = 1 * SECOND
STORM_ENDS_NS = 12 * SECOND
AGENTS_COME_NS = 3 * SECOND
#: After the storm the world must come to rest within this; rescheduling alone waits 5 s and a node's loss 6 s.
CALM_MAX_NS = 60 * SECOND
_LOOK_NS = 500 * MS
_SERVICES = 4
_BATCHES = 2
_EVERYWHERE = ("system", "sysbatch")
#: By customer in turn; the large one's lies between them: it evicts, and is evicted.
_PRIORITIES = (20, 70, 35, 50)
_BIG_PRIORITY = 50
#: What allocations do whose node is away, by service in turn: None of the block, briefly, for long, never replaced.
_ABSENCES: tuple[dict[str, Any], ...] = (
    {},
    {"lost_after_ms": 3_000, "strategy": "keep_replacement"},
    {"lost_after_ms": 30_000},
    {"lost_after_ms": 2_000, "replace": False},
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one world. `invariant` is empty where all held."""

    seed: int
    invariant: str = ""
    detail: str = ""
    #: length of the log when it broke, or at the end.
    seq: int = 0
    at_ns: int = 0
    transactions: int = 0
    steps: int = 0
    faults: dict[str, int] = {}
    checks: dict[str, int] = {}
    #: hash of the log's bytes; with a trace, of the trace too.
    digest: str = ""
    trace: tuple[str, ...] = ()


class World:
    """Everything of one seed. Run it once."""

    def __init__(self, seed: int, *, trace: bool = False, mutant: str = "") -> None:
        self.seed = seed
        self.mutant = mutant
        self.steps = 0
        self.lines: list[str] | None = [] if trace else None
        loop = Loop()
        self.weather = Weather(Draws(seed, 1))
        self.site = Site(loop, Bus(loop, self.weather), self.weather, Draws(seed, 2))
        self._draws = Draws(seed, 3)
        self.nodes = [Node(self.site, f"node-{n}", Draws(seed, 100 + n)) for n in range(NODES)]
        for node in self.nodes:
            node.process = Process(self.site, f"agent-{node.node_id}", agent_builder(node), node)
        self.processes = [
            Process(self.site, f"{module}-{n}", builder(module, name))
            for module, name, count in ROLES
            for n in range(count)
        ]
        self.customers = [self._customer(n) for n in range(_SERVICES + _BATCHES + 1)]
        self.customers += [self._everywhere(n, kind) for n, kind in enumerate(_EVERYWHERE)]

    def _customer(self, n: int) -> Customer:
        kind = "service" if n < _SERVICES else "batch"
        shape = Shape(
            job_id=f"{kind}-{n}",
            job_type=kind,
            count=self._draws.between(1, 6),
            cpu_mhz=(500, 1000)[n % 2],
            run_ms=0 if kind == "service" else self._draws.between(300, 2500),
            priority=_PRIORITIES[n % len(_PRIORITIES)],
            has_life=n % 3 == 1,
            extras=n,
            **(_ABSENCES[n] if n < _SERVICES else {}),
        )
        if n == _SERVICES + _BATCHES:
            # Asks for most of the fleet, so that others have to wait until it goes.
            shape = Shape(
                job_id="service-big",
                job_type="service",
                count=9,
                cpu_mhz=3000,
                priority=_BIG_PRIORITY,
            )
            return Customer(self.site, Draws(self.seed, 200 + n), shape, (8, 10))
        return Customer(self.site, Draws(self.seed, 200 + n), shape)

    def _everywhere(self, n: int, kind: str) -> Customer:
        """Make the owner of a job that runs on every node."""
        is_system = kind == "system"
        shape = Shape(
            job_id=f"{kind}-{n}",
            job_type=kind,
            count=1,
            cpu_mhz=200,
            run_ms=0 if is_system else self._draws.between(300, 2500),
            priority=60,
            lost_after_ms=4_000 if is_system else None,
        )
        counts = (1, 1) if is_system else (1, 2)
        return Customer(self.site, Draws(self.seed, 300 + n), shape, counts)

    def run(self) -> Outcome:
        """Let the story happen. Never raises for what it finds."""
        with remembered() as memo, planted(self.mutant, self.site):
            oracle = Oracle(self.site, memo, self.nodes)
            try:
                self._story(oracle)
            except Broken as found:
                return self._outcome(oracle, memo, found)
            return self._outcome(oracle, memo, None)

    def _story(self, oracle: Oracle) -> None:
        site, loop = self.site, self.site.loop
        self.oracle = oracle
        site.observer = self
        site.bus.log.watch(oracle.on_log)
        chaos = Chaos(
            site,
            Draws(self.seed, 4),
            processes=self.processes,
            nodes=self.nodes,
            forge=oracle.forged.add,
        )
        chaos.skew()
        agents = [node.process for node in self.nodes if node.process is not None]
        for process in self.processes:
            loop.after(self._draws.below(100 * MS), process.start)
        for process in agents:
            # Some of them come when there are jobs already that want every node.
            loop.after(self._draws.below(AGENTS_COME_NS), process.start)
        for customer in self.customers:
            customer.on_verdict = oracle.on_verdict
            customer.verdict_of = oracle.verdict_of
            customer.begin(self._draws.between(100 * MS, 2 * SECOND))
        operator = Hands(site, Draws(self.seed, 5), oracle.books)
        operator.on_verdict = oracle.heed
        operator.begin(self._draws.between(2 * SECOND, 3 * SECOND))
        loop.run(STORM_BEGINS_NS)
        self.weather.stormy = True
        for node in self.nodes:
            node.fail_per_mille = 60
        chaos.begin(STORM_ENDS_NS)
        loop.run(STORM_ENDS_NS)
        self.weather.stormy = False
        for node in self.nodes:
            node.fail_per_mille = 0
        for customer in self.customers:
            customer.close(stop=customer.shape.job_id == "service-big")
        operator.close()
        self._rest(oracle, agents, operator)

    def _rest(self, oracle: Oracle, agents: list[Process], operator: Hands) -> None:
        everyone = [*self.processes, *agents]
        loop = self.site.loop
        reason = "nothing looked at"
        while reason and loop.now_ns < STORM_ENDS_NS + CALM_MAX_NS:
            loop.run(loop.now_ns + _LOOK_NS)
            reason = oracle.unsettled(self.customers, everyone)
            reason = reason or ("" if operator.is_idle else "the operator waits for a verdict")
        oracle.ledger.hold("converged", not reason, reason)
        oracle.settle(everyone)

    # ---- what is heard of processes ----

    def stepped(
        self, process: Process, inputs: list[role.Input], effects: list[role.Effect]
    ) -> None:
        """Pass a step on to the oracle, and to the trace where one is kept."""
        self.steps += 1
        if self.lines is not None:
            self.lines.append(_line(self.site.loop.now_ns, process, inputs, effects))
        self.oracle.stepped(process, inputs, effects)

    def ended(self, process: Process, reason: str, *, raised: bool) -> None:
        """Pass an end on to the oracle."""
        self.oracle.ended(process, reason, raised=raised)

    def _outcome(self, oracle: Oracle, memo: Memo, found: Broken | None) -> Outcome:
        del memo
        digest = blake2b(digest_size=16)
        for _, data in self.site.bus.log.records:
            digest.update(data)
        for line in self.lines or ():
            digest.update(line.encode())
        return Outcome(
            seed=self.seed,
            invariant="" if found is None else found.invariant,
            detail="" if found is None else found.detail,
            seq=len(self.site.bus.log.records),
            at_ns=self.site.loop.now_ns,
            transactions=oracle.books.transactions,
            steps=self.steps,
            faults=self.weather.faults,
            checks=oracle.ledger.checks,
            digest=digest.hexdigest(),
            trace=tuple(self.lines or ()),
        )


def _line(
    now_ns: int, process: Process, inputs: list[role.Input], effects: list[role.Effect]
) -> str:
    taken = " ".join(_word(one) for one in inputs)
    done = " ".join(_word(one) for one in effects)
    return f"{now_ns / SECOND:10.6f} {process.instance:16} {taken} -> {done}"


def _word(one: object) -> str:
    """Say an input or effect in one word, with what tells it from others of its kind."""
    name = type(one).__name__
    for field in ("seq", "subject", "name", "key", "expected_seq", "token"):
        value = getattr(one, field, None)
        if value is not None:
            return f"{name}({value})"
    return name
