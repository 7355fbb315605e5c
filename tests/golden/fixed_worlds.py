"""Fixed worlds: commands drawn from a seed, decided and scheduled in one state, and the digest of what was decided.

Everything that decides takes part (`decide` for commands, `place` for evaluations), and nothing else: no simulated bus,
agent or fault, so that the digest changes only with decisions. A script is never edited; new ones are added.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from schemas.base import Event, NodeId
from schemas.envelope import ENCODER, AnyCommand
from schemas.evaluations import EndEvaluations, WakeEvaluations
from schemas.jobs import (
    Affinity,
    Constraint,
    Disconnect,
    DistinctProperty,
    EvaluateJob,
    GroupSpec,
    ReschedulePolicy,
    ResourceAsk,
    Spread,
)
from schemas.nodes import ChangeLiveness, Instance, Pool
from schemas.policy import (
    CollectGarbage,
    DeclarePool,
    DrainNode,
    Policy,
    Preemption,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.sim.virtual_time import RandomDraws
from tests.builders import SECOND, Cluster, group, join, register, stop

NODES = 9
JOBS = 8
STEPS = 260
KINDS = ("service", "service", "batch", "system", "sysbatch")
EVERYTHING = Preemption(service=True, batch=True, system=True, sysbatch=True)
#: By seed: what the cluster is created with.
POLICIES = {
    1: Policy(),
    2: Policy(algorithm="spread", preemption=EVERYTHING),
    3: Policy(candidates="two_choices", preemption=EVERYTHING, terminal_keep_max=20),
    4: Policy(algorithm="fragmentation", candidates="log2", anti_affinity=False),
    # In this one a plan is refused.
    8: Policy(algorithm="spread", preemption=EVERYTHING),
}
STATES = ("running", "running", "running", "failed", "complete")


class FixedWorld(Cluster):
    """One world; `run` plays its script."""

    def __init__(self, seed: int) -> None:
        self.hash = blake2b(digest_size=16)
        self.kinds: Counter[str] = Counter()
        self.draws = RandomDraws(seed, 1)
        self.made = 0
        super().__init__(policy=POLICIES[seed])

    def check(self) -> None:
        """Check nothing: counts shrink and reports come before the next plan; other tests hold the invariants."""

    def do(self, *commands: AnyCommand) -> list[Event]:
        """Decide commands, and add the facts to the digest."""
        events = super().do(*commands)
        self.hash.update(ENCODER.encode(events))
        self.kinds.update(str(type(one).__struct_config__.tag) for one in events)
        return events

    def run(self) -> dict[str, Any]:  # type: ignore[override]
        """Play the script; returns what is compared."""
        for number in range(NODES - 2):
            self._join(number)
        steps: tuple[Callable[[], object], ...] = (
            self._submit,
            self._submit,
            self._schedule,
            self._schedule,
            self._schedule,
            self._tell,
            self._tell,
            self._tell,
            self._silence,
            self._operate,
            self._nudge,
        )
        for _ in range(STEPS):
            self.later(self.draws.between(1, 40))
            steps[self.draws.below(len(steps))]()
        return {"facts": sum(self.kinds.values()), "digest": self.hash.hexdigest()}

    # ---- steps ----

    def _join(self, number: int) -> None:
        gpus = tuple(Instance(id=f"gpu-{number}-{n}", group=n // 2) for n in range(4))
        pools = (Pool(name="device.gpu", instances=gpus, vendor="v", model=f"m{number % 2}"),)
        self.do(
            join(
                f"n{number}",
                cpu_mhz=(2_000, 4_000, 8_000)[number % 3],
                memory_mib=4_000,
                disk_mib=20_000,
                pools=pools if number % 3 == 0 else (),
                meta={"rack": f"r{number % 3}"},
                attributes={"driver.raw_exec": "1", "os": ("a", "b")[number % 2]},
                number=self.draws.between(1, 3),
                boot=f"b{self.draws.below(3)}",
            )
        )

    def _group(self, name: str) -> GroupSpec:
        draw = self.draws
        rules: dict[str, Any] = [
            {},
            {"constraints": (Constraint(left="${attr.os}", right="a"),)},
            {"affinities": (Affinity(left="${meta.rack}", right="r1", weight=70),)},
            {"spreads": (Spread(attribute="${meta.rack}", weight=60),)},
            {"distinct_hosts": "job"},
            {"distinct_properties": (DistinctProperty(attribute="${meta.rack}", limit=2),)},
            {"alternatives": ((ResourceAsk(pool="device.gpu", amount=15_000),),)},
            {"dynamic_ports": 2, "static_ports": (8_080,)},
            {"alternatives": ((ResourceAsk(pool="licence", amount=10_000),),)},
        ][draw.below(9)]
        size = draw.between(1, 4)
        # Equal digests are updated in place: they must ask for the same.
        digest = f"{size}-{ENCODER.encode(rules.get('alternatives', rules.get('dynamic_ports'))).hex()}"
        return group(
            name,
            count=draw.between(0, 5),
            cpu_mhz=size * 450,
            memory_mib=size * 200,
            disk_mib=100,
            digest=digest,
            reschedule=ReschedulePolicy(attempts=draw.below(3), interval_ns=600 * SECOND),
            disconnect=Disconnect(lost_after_ns=draw.below(2) * 60 * SECOND),
            **rules,
        )

    def _submit(self) -> None:
        number = self.draws.below(JOBS)
        job_id = f"job-{number}"
        self.made += 1
        if self.draws.below(8) == 0:
            purge = self.draws.below(2) == 0
            self.do(stop(job_id, purge=purge, submission_id=f"s{self.made}"))
            return
        groups = tuple(self._group(name) for name in ("a", "b")[: self.draws.between(1, 2)])
        self.do(
            register(
                job_id,
                *groups,
                salt=self.draws.below(4),
                submission_id=f"s{self.made}",
                job_type=KINDS[number % len(KINDS)],
                priority=self.draws.between(1, 9) * 10,
                all_at_once=self.draws.below(6) == 0,
                check_index=0 if self.draws.below(12) == 0 else -1,
            )
        )

    def _schedule(self) -> None:
        """Plan every job that has a pending evaluation; now and then on a state that moved meanwhile."""
        table = self.state.evaluations
        for number in range(JOBS):
            job_id = f"job-{number}"
            open_keys = table.open_of.get(job_id, {})  # type: ignore[call-overload]
            if not any(table.by_key[key].status == "pending" for key in open_keys):
                continue
            plan = self.plan(job_id)
            if self.draws.below(10) == 0:
                self._operate()
            self.do(plan)

    def _tell(self) -> None:
        """Have the node of some row report what it should run."""
        row = self.draws.below(self.state.fleet.size)
        node_id = self.state.fleet.ids[row]
        if node_id not in self.state.fleet.row_of:
            return
        table = self.state.allocations
        told = []
        for at in range(table.size):
            if int(table.node[at]) != row or not table.key[at] or TERMINAL[table.client[at]]:
                continue
            goes_on = table.desired[at] == RUN
            told.append((at, STATES[self.draws.below(len(STATES))] if goes_on else "complete"))
        if told:
            self.report(node_id, *told)

    def _silence(self) -> None:
        status = ("down", "disconnected", "ready")[self.draws.below(3)]
        node_id = NodeId(f"n{self.draws.below(NODES)}")
        if node_id in self.state.fleet.row_of:
            seen = self.state.seq
            self.do(ChangeLiveness(node_ids=(node_id,), status=status, seen_seq=seen))
        else:
            self._join(int(node_id[1:]))

    def _operate(self) -> None:
        draw = self.draws
        self.made += 1
        request = f"q{self.made}"
        node_id = f"n{draw.below(NODES)}"
        policy = self.state.policy.policy
        live = [
            int(self.state.allocations.key[row])
            for number in range(JOBS)
            for row in self.rows(f"job-{number}")
        ]
        commands: tuple[AnyCommand, ...] = (
            DrainNode(
                request_id=request,
                node_id=node_id,
                draining=draw.below(2) == 0,
                deadline_ns=draw.below(2) * (self.now_ns + 30 * SECOND),
            ),
            SetEligibility(request_id=request, node_id=node_id, eligible=draw.below(3) > 0),
            SetNodeMeta(request_id=request, node_id=node_id, change={"rack": f"r{draw.below(4)}"}),
            DeclarePool(
                request_id=request,
                node_id="",
                pool=Pool(name="licence", amount=draw.below(5) * 10_000),
            ),
            SetPolicy(request_id=request, policy=policy),
            StopAllocation(request_id=request, alloc_key=live[draw.below(len(live))] if live else 1),
            CollectGarbage(request_id=request),
        )
        self.do(commands[draw.below(len(commands))])

    def _nudge(self) -> None:
        """Wake or end evaluations as a broker does, or evaluate a job again."""
        table = self.state.evaluations
        keys = tuple(key for keys in table.open_of.values() for key in keys)
        some = keys[: self.draws.between(1, 3)]
        self.made += 1
        job_id = f"job-{self.draws.below(JOBS)}"
        commands: tuple[AnyCommand, ...] = (
            WakeEvaluations(keys=some, reason="room"),
            WakeEvaluations(keys=keys, reason="time"),
            EndEvaluations(keys=some[:1], status="failed", reason="delivered too often"),
            EvaluateJob(submission_id=f"e{self.made}", digest="z", job_id=job_id),  # type: ignore[arg-type]
        )
        self.do(commands[self.draws.below(len(commands))])


def decided() -> dict[str, dict[str, Any]]:
    """Play every world; by name, what came of it."""
    return {f"seed-{seed}": FixedWorld(seed).run() for seed in POLICIES}
