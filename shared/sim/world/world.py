"""One simulated world: ten nodes, every role, faults drawn from one seed, and an oracle.

Submitters change their jobs while a storm of faults passes; then everything must converge as promised.
`SimulatedWorld(seed).run()` is a pure function of the seed (and of the mutant). Reading order: virtual_time.py, the
modules of environment/, fault_injector.py, oracle/, this module.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from schemas.jobs import JOB_TYPES, SYSTEM_JOB_TYPES
from shared.core.runtime import messages
from shared.core.runtime.role import Input
from shared.sim.environment.dispatcher import META_REQUIRED, Dispatcher
from shared.sim.environment.gauge_publisher import GaugePublisher
from shared.sim.environment.joint_submitter import JointSubmitter
from shared.sim.environment.memory_bus import MemoryBus
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.environment.remote_runtime import RemoteRuntime
from shared.sim.environment.role_factory import NODES, ROLES, agent_builder, role_builder
from shared.sim.environment.simulated_node import SimulatedNode
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.environment.submitters import REMOTE, VOLUME, SubmittedJob, Submitter
from shared.sim.environment.variable_sender import VariableSender
from shared.sim.environment.version_submitter import VersionSubmitter
from shared.sim.oracle.invariants import InvariantBroken
from shared.sim.oracle.oracle import Oracle
from shared.sim.record_cache import RecordCache
from shared.sim.virtual_time import MS, SECOND, RandomDraws, VirtualLoop
from shared.sim.world.death_confirmer import DeathConfirmer
from shared.sim.world.fault_injector import FaultInjector
from shared.sim.world.mutants import plant_bug
from shared.sim.world.restore import ONE_OF, RestoreFromCopy
from shared.sim.world.scripted_operator import ScriptedOperator
from shared.sim.world.simulated_keepers import SimulatedKeepers
from shared.sim.world.volume_operator import VOLUME as MOUNTED
from shared.sim.world.volume_operator import VolumeOperator

STORM_BEGINS_NS = 1 * SECOND
STORM_ENDS_NS = 12 * SECOND
AGENTS_COME_NS = 3 * SECOND
#: The world must converge within this time after the storm; rescheduling alone waits 5 s and a node's loss 6 s.
CALM_MAX_NS = 60 * SECOND
_LOOK_NS = 500 * MS
_SERVICES = 4
_BATCHES = 2
#: The service whose deployments have a gate.
_GATED = 1
_EVERYWHERE = tuple(kind for kind in JOB_TYPES if kind in SYSTEM_JOB_TYPES)
#: One world of so many has jobs that are changed together.
_JOINT_ONE_OF = 3
#: In these worlds services are also reverted, scaled and started, versions get names, and drains have all their flags.
_THOROUGH_OF, _THOROUGH = 11, frozenset({1, 2, 7})
#: In one world of so many the first service has a sticky disk, and the others have distinct rules that come and go.
_RULED_OF, _RULED = 13, 8
#: In one world of so many the services have templates that change while they run.
_TEMPLATED_OF, _TEMPLATED = 7, 3
#: In one world of so many groups of services have networks of their own.
_BRIDGED_OF, _BRIDGED = 17, 4
_BRIDGE = {"network.bridge": "nft", "network.bridge.subnet": "172.27.64.0/24"}
#: In one world of so many variables are put and deleted.
_VARIABLES_OF, _VARIABLES = 11, 5
#: In one world of so many the first and the last service are stateful, unless they have rules.
_STATEFUL_OF, _STATEFUL = 7, 0
#: In one world of so many there is one service more, whose indexes claim volumes.
_CLAIMED_OF, _CLAIMED = 13, 4
#: In one world of so many host volumes are created and deleted, and one service more uses one of them.
_VOLUMES_OF, _VOLUMES = 23, 8
_MKDIR = {"plugins.host_volume.mkdir.version": "1"}
#: In one world of so many there is one service more, whose tasks run elsewhere. None of them is restored from a copy,
#: which forgets what runs there.
_REMOTE_OF, _REMOTE = 15, 7
_REMOTE_ATTRIBUTES = {f"driver.{REMOTE}": "1", f"driver.{REMOTE}.capabilities": "remote"}
_CHANGE_MODES = (("restart",), ("signal",), ("script", "script"), ("restart", "script"))
#: Cron specs of the periodic jobs, and whether their children may overlap; the first field is the second.
_PERIODIC = ((("*/2 * * * * * *", "*/3 * * * * * *"), False), (("* * * * * * *",), True))
#: By submitter in turn; that of the large job lies between them: it evicts, and is evicted.
_PRIORITIES = (20, 70, 35, 50)
_BIG_PRIORITY = 50
#: Disconnect settings, by service in turn: none, short, long, never replaced.
_ABSENCES: tuple[dict[str, Any], ...] = (
    {},
    {"lost_after_ms": 3_000, "strategy": "keep_replacement"},
    {"lost_after_ms": 30_000},
    {"lost_after_ms": 2_000, "replace": False},
)


class WorldOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one world. `invariant` is empty if all held."""

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
    #: hash of the log's bytes; with a trace, also of the trace.
    digest: str = ""
    trace: tuple[str, ...] = ()


class SimulatedWorld:
    """The world of one seed. Run it once."""

    def __init__(self, seed: int, *, trace: bool = False, mutant: str = "") -> None:
        self.seed = seed
        self.mutant = mutant
        self.steps = 0
        self.lines: list[str] | None = [] if trace else None
        loop = VirtualLoop()
        self.message_faults = MessageFaults(RandomDraws(seed, 1))
        self.context = SimulationContext(
            loop, MemoryBus(loop, self.message_faults), self.message_faults, RandomDraws(seed, 2)
        )
        self._draws = RandomDraws(seed, 3)
        self.cache = RecordCache()
        self.nodes = [
            SimulatedNode(self.context, f"node-{n}", RandomDraws(seed, 100 + n))
            for n in range(NODES)
        ]
        has_claims = seed % _CLAIMED_OF == _CLAIMED
        volumes = {f"volume.{VOLUME}": "ro"} if has_claims else {}
        self.remotes = RemoteRuntime(loop) if seed % _REMOTE_OF == _REMOTE else None
        for node in self.nodes:
            node.attributes = {**(_BRIDGE if self._is_bridged else {}), **volumes}
            if self._has_volumes:
                node.attributes |= _MKDIR
            if self.remotes is not None:
                node.attributes |= _REMOTE_ATTRIBUTES
                node.track(self.remotes)
            node.process = SimulatedProcess(
                self.context, f"agent-{node.node_id}", agent_builder(node), node.perform
            )
        self.processes = [
            SimulatedProcess(
                self.context, f"{module}-{n}", role_builder(module, name, self.cache.decode)
            )
            for module, name, count in ROLES
            for n in range(count)
        ]
        self.keepers = SimulatedKeepers(self.context, seed, self.cache.decode)
        self.processes += self.keepers.processes
        self.customers = [self._customer(n) for n in range(_SERVICES + _BATCHES + 1)]
        self.customers += [self._everywhere(n, kind) for n, kind in enumerate(_EVERYWHERE)]
        self.customers += [self._periodic(n) for n in range(len(_PERIODIC))]
        self.customers.append(self._dispatched())
        if seed % _JOINT_ONE_OF == 1:
            self.customers.append(self._joint())
        if has_claims:
            self.customers.append(self._claiming())
        if self._has_volumes:
            self.customers.append(self._mounting())
        if self.remotes is not None:
            self.customers.append(self._remote())
        self.gauge = GaugePublisher(self.context, RandomDraws(seed, 7))

    def _customer(self, n: int) -> Submitter:
        kind = "service" if n < _SERVICES else "batch"
        shape = SubmittedJob(
            job_id=f"{kind}-{n}",
            job_type=kind,
            count=self._draws.between(1, 6),
            cpu_mhz=(500, 1000)[n % 2],
            run_ms=0 if kind == "service" else self._draws.between(300, 2500),
            priority=_PRIORITIES[n % len(_PRIORITIES)],
            has_lifecycle=n % 3 == 1,
            extras=n,
            canaries=n % 3 if kind == "service" else -1,
            has_gate=n == _GATED,
            **(_ABSENCES[n] if n < _SERVICES else {}),
        )
        if self.seed % _RULED_OF == _RULED and kind == "service":
            # Ports and devices would be a reason to leave the node of the data.
            ruled: dict[str, Any] = (
                {"has_distinct": True} if n else {"is_sticky": True, "extras": None, "priority": 80}
            )
            shape = msgspec.structs.replace(shape, **ruled)
        elif self._is_stateful and n in {0, _SERVICES - 1}:
            shape = msgspec.structs.replace(
                shape, is_stateful=True, canaries=0, lost_after_ms=None, replace=True
            )
        if self.seed % _TEMPLATED_OF == _TEMPLATED and n < _SERVICES:
            shape = msgspec.structs.replace(shape, change_modes=_CHANGE_MODES[n])
        if self._is_bridged and n < _SERVICES:
            shape = msgspec.structs.replace(shape, is_bridged=True)
        if n == _SERVICES + _BATCHES:
            # Takes most of the fleet, so that others must wait.
            shape = SubmittedJob(
                job_id="service-big",
                job_type="service",
                count=9,
                cpu_mhz=3000,
                priority=_BIG_PRIORITY,
            )
            return Submitter(self.context, RandomDraws(self.seed, 200 + n), shape, (8, 10))
        kind_of = VersionSubmitter if kind == "service" and self._is_thorough else Submitter
        return kind_of(self.context, RandomDraws(self.seed, 200 + n), shape)

    @property
    def _is_stateful(self) -> bool:
        return self.seed % _STATEFUL_OF == _STATEFUL

    @property
    def _is_bridged(self) -> bool:
        return self.seed % _BRIDGED_OF == _BRIDGED

    @property
    def _has_volumes(self) -> bool:
        return self.seed % _VOLUMES_OF == _VOLUMES

    @property
    def _is_thorough(self) -> bool:
        return self.seed % _THOROUGH_OF in _THOROUGH

    def _everywhere(self, n: int, kind: str) -> Submitter:
        """Create the submitter of a job that runs on every node."""
        is_system = kind == "system"
        shape = SubmittedJob(
            job_id=f"{kind}-{n}",
            job_type=kind,
            count=1,
            cpu_mhz=200,
            run_ms=0 if is_system else self._draws.between(300, 2500),
            priority=60,
            lost_after_ms=4_000 if is_system else None,
            canaries=0 if is_system else -1,
        )
        counts = (1, 1) if is_system else (1, 2)
        return Submitter(self.context, RandomDraws(self.seed, 300 + n), shape, counts)

    def _periodic(self, n: int) -> Submitter:
        """Make the submitter of a job whose children are launched every few seconds."""
        crons, prohibits_overlap = _PERIODIC[n]
        shape = SubmittedJob(
            job_id=f"periodic-{n}",
            job_type="batch",
            count=1,
            cpu_mhz=100,
            run_ms=self._draws.between(100, 2500),
            priority=60,
            crons=crons,
            prohibits_overlap=prohibits_overlap,
        )
        return Submitter(self.context, RandomDraws(self.seed, 400 + n), shape, (1, 2))

    def _dispatched(self) -> Submitter:
        """Make the submitter of a job that is dispatched."""
        shape = SubmittedJob(
            job_id="dispatched",
            job_type="batch",
            count=1,
            cpu_mhz=100,
            run_ms=self._draws.between(100, 1500),
            priority=60,
            dispatched_with=(META_REQUIRED,),
        )
        return Dispatcher(self.context, RandomDraws(self.seed, 500), shape)

    def _claiming(self) -> Submitter:
        """Make the submitter of a job whose indexes stay where their volumes are."""
        shape = SubmittedJob(
            job_id="claiming",
            job_type="service",
            count=3,
            cpu_mhz=200,
            priority=60,
            lost_after_ms=3_000,
            has_claims=True,
        )
        return Submitter(self.context, RandomDraws(self.seed, 700), shape)

    def _mounting(self) -> Submitter:
        """Make the submitter of a job that runs where a volume of a name is."""
        shape = SubmittedJob(
            job_id="mounting",
            job_type="service",
            count=2,
            cpu_mhz=200,
            priority=60,
            lost_after_ms=3_000,
            volume=MOUNTED,
        )
        return Submitter(self.context, RandomDraws(self.seed, 800), shape)

    def _remote(self) -> Submitter:
        """Make the submitter of a job whose tasks run elsewhere."""
        shape = SubmittedJob(
            job_id="remote",
            job_type="service",
            count=5,
            cpu_mhz=20,
            priority=80,
            canaries=0,
            is_remote=True,
        )
        return Submitter(self.context, RandomDraws(self.seed, 800), shape, (4, 7))

    def _joint(self) -> JointSubmitter:
        """Make the submitter of jobs that are changed together."""
        shapes = [
            SubmittedJob(
                job_id=f"joint-{n}",
                job_type="service",
                count=1 + n % 2,
                cpu_mhz=200,
                priority=60,
                canaries=n % 2,
            )
            for n in range(4)
        ]
        return JointSubmitter(self.context, RandomDraws(self.seed, 600), shapes)

    def run(self) -> WorldOutcome:
        """Run the world. A broken invariant is returned, not raised."""
        with plant_bug(self.mutant, self.context):
            oracle = Oracle(self.context, self.cache, self.nodes)
            try:
                self._story(oracle)
            except InvariantBroken as found:
                return self._outcome(oracle, found)
            return self._outcome(oracle, None)

    def _story(self, oracle: Oracle) -> None:
        context, loop = self.context, self.context.loop
        self.oracle = oracle
        context.observer = self
        context.bus.log.watch(oracle.on_log)
        if self.remotes is not None:
            oracle.remotes.watch(self.remotes)
        chaos = FaultInjector(
            context,
            RandomDraws(self.seed, 4),
            processes=self.processes,
            nodes=self.nodes,
            forge=oracle.forged.add,
        )
        chaos.skew()
        agents = [node.process for node in self.nodes if node.process is not None]
        for process in self.processes:
            loop.after(self._draws.below(100 * MS), process.start)
        for process in agents:
            # Some join after system jobs were submitted.
            loop.after(self._draws.below(AGENTS_COME_NS), process.start)
        for customer in self.customers:
            customer.on_verdict = oracle.on_verdict
            customer.status_of_submission = oracle.status_of_submission
            customer.begin(self._draws.between(100 * MS, 2 * SECOND))
        operator = ScriptedOperator(
            context, RandomDraws(self.seed, 5), oracle.model, is_thorough=self._is_thorough
        )
        operator.on_verdict = oracle.check_operator_verdict
        self.gauge.begin()
        self.keepers.begin(oracle)
        variables = VariableSender(context, RandomDraws(self.seed, 8), oracle.model.variables)
        if self.seed % _VARIABLES_OF == _VARIABLES and not self.keepers.processes:
            variables.begin(SECOND)
        operator.begin(self._draws.between(2 * SECOND, 3 * SECOND))
        confirmer, volumes = self._operators(oracle)
        loop.run(STORM_BEGINS_NS)
        self.message_faults.stormy = True
        for node in self.nodes:
            node.fail_per_mille = 60
        chaos.begin(STORM_ENDS_NS)
        loop.run(STORM_ENDS_NS)
        self.message_faults.stormy = False
        for node in self.nodes:
            node.fail_per_mille = 0
        for customer in self.customers:
            shape = customer.shape
            # What waits for a node that stays drained, or for room, would never come to rest.
            is_last = shape.job_id == "service-big" or bool(shape.crons) or shape.has_claims
            customer.close(stop=is_last or bool(shape.volume))
        operator.close()
        confirmer.close()
        volumes.close()
        variables.close()
        self.keepers.close()
        self.gauge.close()
        self._rest(oracle, agents, operator, variables)

    def _operators(self, oracle: Oracle) -> tuple[DeathConfirmer, VolumeOperator]:
        """Begin those that confirm deaths and make volumes, in worlds that have them."""
        confirmer = DeathConfirmer(self.context, oracle.model, self.nodes)
        if self._is_stateful:
            confirmer.begin(2 * SECOND)
        volumes = VolumeOperator(self.context, RandomDraws(self.seed, 9), oracle.volumes)
        if self._has_volumes:
            volumes.begin(2 * SECOND)
        return confirmer, volumes

    def _rest(
        self,
        oracle: Oracle,
        agents: list[SimulatedProcess],
        operator: ScriptedOperator,
        variables: VariableSender,
    ) -> None:
        everyone = [*self.processes, *agents]
        loop = self.context.loop
        reason = "not checked yet"
        while reason and loop.now_ns < STORM_ENDS_NS + CALM_MAX_NS:
            loop.run(loop.now_ns + _LOOK_NS)
            reason = oracle.unsettled(self.customers, everyone)
            reason = reason or ("" if operator.is_idle else "the operator waits for a verdict")
            reason = reason or ("" if variables.is_idle else "a command about variables waits")
            reason = reason or self.keepers.unsettled() or oracle.volumes.unsettled()
        oracle.ledger.hold("converged", not reason, reason)
        overtaken = operator.overtaken()
        oracle.ledger.hold("newest_request", not overtaken, *overtaken)
        oracle.settle(everyone)
        self.keepers.settle()
        if not self.seed % ONE_OF:
            self.context.bus.log.unwatch(oracle.on_log)
            restore = RestoreFromCopy(
                self.context,
                RandomDraws(self.seed, 6),
                oracle.ledger,
                processes=self.processes,
                nodes=self.nodes,
            )
            restore.run()

    # ---- reports of processes ----

    def stepped(
        self,
        process: SimulatedProcess,
        inputs: list[Input],
        effects: list[messages.Effect],
    ) -> None:
        """Pass a step on to the oracle, and to the trace where one is kept."""
        self.steps += 1
        if self.lines is not None:
            self.lines.append(_line(self.context.loop.now_ns, process, inputs, effects))
        self.keepers.stepped(process, effects)
        self.oracle.stepped(process, inputs, effects)

    def ended(self, process: SimulatedProcess, reason: str, *, raised: bool) -> None:
        """Pass an end on to the oracle."""
        self.oracle.ended(process, reason, raised=raised)

    def _outcome(self, oracle: Oracle, found: InvariantBroken | None) -> WorldOutcome:
        digest = blake2b(digest_size=16)
        for _, data in self.context.bus.log.records:
            digest.update(data)
        for line in self.lines or ():
            digest.update(line.encode())
        return WorldOutcome(
            seed=self.seed,
            invariant="" if found is None else found.invariant,
            detail="" if found is None else found.detail,
            seq=len(self.context.bus.log.records),
            at_ns=self.context.loop.now_ns,
            transactions=oracle.model.transactions,
            steps=self.steps,
            faults=self.message_faults.faults,
            checks=oracle.ledger.checks,
            digest=digest.hexdigest(),
            trace=tuple(self.lines or ()),
        )


def _line(
    now_ns: int,
    process: SimulatedProcess,
    inputs: list[Input],
    effects: list[messages.Effect],
) -> str:
    taken = " ".join(_word(one) for one in inputs)
    done = " ".join(_word(one) for one in effects)
    return f"{now_ns / SECOND:10.6f} {process.instance:16} {taken} -> {done}"


def _word(one: object) -> str:
    """Name an input or effect, with its identifying field."""
    name = type(one).__name__
    for field in ("seq", "subject", "name", "key", "expected_seq", "token"):
        value = getattr(one, field, None)
        if value is not None:
            return f"{name}({value})"
    return name
