"""A calm town for scenarios of the queue: real applier, brokers and schedulers; nodes that only start, run and end.

Decides how long things run and what was seen when; reads the log as any replica does. Nothing is lost here: faults are
shared/sim's business. Times are virtual ns since the town began.
"""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from schemas.base import JobId, NodeId
from schemas.envelope import ENCODER, AnyCommand, CommandBatch
from schemas.evaluations import EvaluationEnded
from schemas.jobs import GroupSpec, RegisterJob, ResourceAsk
from schemas.nodes import AllocReport, NodeSpec, Pool, ReportNode
from schemas.plans import Evictions, PlanCommitted, PlanRefused
from schemas.policy import Policy
from services.eval_broker.role import EvalBroker
from services.plan_applier.role import PlanApplier
from services.scheduler.role import Scheduler
from shared.core.runtime import messages
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.verify_decisions import verify_decisions
from shared.core.state.ids import make_key
from shared.core.state.invariants import check
from shared.protocol import subjects
from shared.sim.environment.memory_bus import MemoryBus
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.oracle.oracle import replica_of
from shared.sim.record_cache import RecordCache
from shared.sim.virtual_time import MS, SECOND, RandomDraws, VirtualLoop

GPU = 10_000


def gpus(name: str, count: int) -> Pool:
    """A pool of this many whole ones."""
    return Pool(name=name, amount=count * GPU)


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job of one group. `run_ms` 0: until the end of the story."""

    job_id: str
    cpu_mhz: int = 100
    gpus: int = 0
    gpu_pool: str = "gpu"
    count: int = 1
    priority: int = 50
    node_pool: str = "default"
    run_ms: int = 0
    #: another text of the same job.
    edition: int = 0

    def command(self) -> RegisterJob:
        """What intake would make of it."""
        asks = ((ResourceAsk(pool=self.gpu_pool, amount=self.gpus * GPU),),) if self.gpus else ()
        group = GroupSpec(
            name="g", count=self.count, cpu_mhz=self.cpu_mhz, memory_mib=16, alternatives=asks
        )
        spec = {"ID": self.job_id, "Edition": self.edition} if self.edition else {}
        return RegisterJob(
            submission_id=f"s-{self.job_id}-{self.edition}",
            digest="d",
            spec=msgspec.Raw(ENCODER.encode(spec)),
            job_id=JobId(self.job_id),
            job_type="batch" if self.run_ms else "service",
            priority=self.priority,
            node_pool=self.node_pool,
            groups=(group,),
        )


class Town:
    """Nodes, roles, and what the log told: when each job was asked for and placed."""

    def __init__(
        self, seed: int, nodes: list[NodeSpec], policy: Policy | None = None, schedulers: int = 2
    ) -> None:
        loop = VirtualLoop()
        message_faults = MessageFaults(RandomDraws(seed, 1))
        self.context = SimulationContext(
            loop, MemoryBus(loop, message_faults), message_faults, RandomDraws(seed, 2)
        )
        cache = RecordCache()
        self.replica = Replica(decode=cache.decode)
        replicas = partial(Replica, decode=cache.decode)
        self._draws = RandomDraws(seed, 3)
        self._requests: dict[str, JobRequest] = {}
        self._numbers: dict[NodeId, int] = {}
        #: job -> when it was asked for, and when its last allocation so far was placed.
        self.asked_ns: dict[str, int] = {}
        self.placed_ns: dict[str, int] = {}
        self.plans = self.refused = 0
        self.ended: list[str] = []
        #: hears of every job whose last task completed.
        self.on_done: Callable[[str], None] | None = None
        #: hears of every eviction: the job that lost, the one it went for, how many allocations.
        self.on_evicted: Callable[[str, str, int], None] | None = None
        self._left: dict[str, int] = {}
        self.context.bus.log.watch(self._on_log)
        applier = {"cluster_id": "town", "policy": policy or Policy(), "replicas": replicas}
        self.processes = [
            SimulatedProcess(
                self.context, "applier", lambda name: PlanApplier(instance=name, **applier)
            ),
            *(
                SimulatedProcess(
                    self.context,
                    f"broker-{n}",
                    lambda name: EvalBroker(instance=name, replicas=replicas),
                )
                for n in range(2)
            ),
            *(
                SimulatedProcess(
                    self.context,
                    f"scheduler-{n}",
                    lambda name: Scheduler(instance=name, replicas=replicas),
                )
                for n in range(schedulers)
            ),
        ]
        for process in self.processes:
            process.start()
        loop.run(2 * SECOND)
        for spec in nodes:
            self.join(spec)
        loop.run(3 * SECOND)

    # ---- what a story does ----

    def submit(self, *requests: JobRequest) -> None:
        """Ask for jobs, all in one moment."""
        commands: list[AnyCommand] = []
        for request in requests:
            self._requests[request.job_id] = request
            self.asked_ns[request.job_id] = self.now_ns
            commands.append(request.command())
        for at in range(0, len(commands), 200):
            self._send(subjects.command("job"), *commands[at : at + 200])

    def join(self, spec: NodeSpec) -> None:
        """Let a node come."""
        self._report(spec.node_id, spec=spec)

    def run(self, ns: int) -> None:
        """Let time pass."""
        self.context.loop.run(self.now_ns + ns)

    def settle(self, limit_ns: int = 60 * SECOND) -> None:
        """Run until no evaluation is pending; fails after `limit_ns`."""
        until = self.now_ns + limit_ns
        while self.now_ns < until:
            before = len(self.context.bus.log.records)
            self.run(700 * MS)
            if len(self.context.bus.log.records) <= before + 1:
                return
        raise AssertionError("the town does not come to rest")

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self.context.loop.now_ns

    @property
    def broker(self) -> dict[str, float]:
        """Metrics of the broker that acts, by their own names."""
        for process in self.processes:
            if isinstance(process.role, EvalBroker):
                shown = process.role.metrics()
                if shown["caravan_eval_broker_acting_bool"]:
                    return {k.removeprefix("caravan_eval_broker_"): v for k, v in shown.items()}
        raise AssertionError("no broker acts")

    def waited_ns(self, job_id: str) -> int:
        """Virtual time from asking for a job to its last placement."""
        return self.placed_ns[job_id] - self.asked_ns[job_id]

    def held_gpus(self, pool: str = "gpu") -> int:
        """How many are held now."""
        state = self.replica.state
        return int(state.allocations.held.sum_of(pool, state.fleet.size).sum()) // GPU

    def wait_class(self, job_id: str) -> str:
        """Why a job waits, as its blocked evaluation says; empty: it has none."""
        table = self.replica.state.evaluations
        key = table.blocked_of.get(JobId(job_id))
        blocked = table.by_key[key].blocked if key is not None else None
        return blocked.waiting["g"].wait_class if blocked is not None else ""

    def verify(self) -> None:
        """Hold the tables against their invariants, every replica against this one, every plan against `place`."""
        found = check(self.replica.state)
        assert found == [], found
        decided = verify_decisions(self._records)
        assert decided.differences == []
        assert decided.equal == decided.checked > 0
        ours = self.replica.state.hashes()
        for process in self.processes:
            theirs = replica_of(process.role)
            if theirs is not None and theirs.next_seq == self.replica.next_seq:
                assert {n: ours[n] for n in theirs.state.hashes()} == theirs.state.hashes()

    def _records(self) -> Iterator[messages.Record]:
        for at, (subject, data) in enumerate(self.context.bus.log.records, 1):
            yield messages.Record(at, subject, data)

    # ---- what happens ----

    def _on_log(self, seq: int, subject: str, data: bytes) -> None:
        record = self.replica.apply(messages.Record(seq, subject, data))
        ordinal = 0
        for event in record.events if record is not None else ():
            match event:
                case PlanCommitted():
                    self.plans += 1
                    for placement in event.placements:
                        ordinal = self._placed(event.job_id, placement, seq, ordinal)
                    for one in event.evictions:
                        self._evicted(one, event.job_id)
                case PlanRefused():
                    self.refused += 1
                case EvaluationEnded():
                    self.ended.append(event.status)
                case _:
                    pass

    def _placed(self, job_id: JobId, placement: object, seq: int, ordinal: int) -> int:
        request = self._requests[job_id]
        self.placed_ns[job_id] = self.now_ns
        rows, counts = placement.rows, placement.counts
        nodes = [row for row, n in zip(rows, counts, strict=True) for _ in range(n)]
        self._left[job_id] = self._left.get(job_id, 0) + len(nodes)
        for row in nodes:
            key = make_key(seq, ordinal)
            ordinal += 1
            node_id = self.replica.state.fleet.ids[row]
            self.context.loop.after(20 * MS, self._tell, node_id, key, "running", job_id)
            if request.run_ms:
                after = (request.run_ms + 20) * MS
                self.context.loop.after(after, self._tell, node_id, key, "complete", job_id)
        return ordinal

    def _evicted(self, evictions: Evictions, by: JobId) -> None:
        """End whom a plan evicted, some time after."""
        table = self.replica.state.allocations
        for row in evictions.rows:
            node_id = self.replica.state.fleet.ids[int(table.node[row])]
            report = AllocReport(key=int(table.key[row]), row=row, status="complete")
            self.context.loop.after(50 * MS, self._report, node_id, report)
        if self.on_evicted is not None:
            self.on_evicted(evictions.job_id, by, len(evictions.rows))

    def _tell(self, node_id: NodeId, key: int, status: str, job_id: JobId) -> None:
        table = self.replica.state.allocations
        row = int((table.key[: table.size] == key).argmax())
        self._report(node_id, AllocReport(key=key, row=row, status=status))
        if status == "complete":
            self._left[job_id] -= 1
            if not self._left[job_id] and self.on_done is not None:
                self.on_done(job_id)

    def _report(self, node_id: NodeId, *states: AllocReport, spec: NodeSpec | None = None) -> None:
        number = self._numbers[node_id] = self._numbers.get(node_id, 0) + 1
        report = ReportNode(
            node_id=node_id, host_id="h", boot_id="b", number=number, spec=spec, states=states
        )
        self._send(subjects.report(node_id), report)

    def _send(self, subject: str, *commands: AnyCommand) -> None:
        batch = CommandBatch(sender="town", commands=commands)
        self.context.loop.after(MS, self.context.bus.publish, subject, ENCODER.encode(batch))


def nodes(count: int, first: int = 0, **fields: object) -> list[NodeSpec]:
    """Nodes of one kind."""
    plain = {"cpu_mhz": 8_000, "memory_mib": 65_536, "disk_mib": 100_000}
    return [
        NodeSpec(node_id=NodeId(f"n{at}"), name=f"n{at}", **{**plain, **fields})
        for at in range(first, first + count)
    ]


__all__ = ["MS", "SECOND", "JobRequest", "Town", "gpus", "nodes", "replica_of"]
