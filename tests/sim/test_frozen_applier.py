"""The active applier stands still (SIGSTOP) with its connection alive: submissions wait for its lease, and little more.

Virtual time, so that the bound is exact. Real processes: `tests/faults/test_kills.py`.
"""

import json
from functools import partial

import msgspec
import pytest

from schemas.envelope import AnyEvent
from schemas.jobs import JobRegistered, Verdict
from services.eval_broker.role import EvalBroker
from services.intake.role import Intake
from services.plan_applier.role import PlanApplier
from shared.bus.jetstream.pull_consumer import SHARED_EXPIRES_NS
from shared.bus.shell.leader_election import TTL_S
from shared.core.runtime import messages
from shared.core.runtime.replica import Replica
from shared.protocol import subjects
from shared.sim.environment.memory_bus import MemoryBus
from shared.sim.environment.memory_stores import LEADERSHIP_TTL_NS
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.record_cache import RecordCache
from shared.sim.virtual_time import MS, SECOND, RandomDraws, VirtualLoop

#: From the freeze to a verdict, and from a submission to its verdict.
BOUND_NS = LEADERSHIP_TTL_NS + 2 * SECOND
#: Submissions from just before the freeze until the successor leads: the moments differ with each seed.
SUBMISSIONS, EVERY_NS = 40, 97 * MS
SEEDS = range(36)


class PullingProcess(SimulatedProcess):
    """One whose requests for commands end with their time, as the server ends those of a process that stands still."""

    paused_ns = 0
    #: None: they never end.
    expires_ns: int | None = SHARED_EXPIRES_NS

    def pause(self) -> None:
        """Stand still."""
        self.paused_ns = self.context.loop.now_ns
        super().pause()

    def credit(self, source: str) -> int:
        """What the server may still deliver."""
        is_over = (
            self.is_paused
            and self.expires_ns is not None
            and self.context.loop.now_ns >= self.paused_ns + self.expires_ns
        )
        return 0 if is_over else super().credit(source)


class FrozenTown:
    """Two appliers, intake and broker; submissions before and after the active applier is frozen."""

    def __init__(self, seed: int, *, expires_ns: int | None = SHARED_EXPIRES_NS) -> None:
        self.loop = VirtualLoop()
        faults = MessageFaults(RandomDraws(seed, 1))
        context = SimulationContext(
            self.loop, MemoryBus(self.loop, faults), faults, RandomDraws(seed, 2)
        )
        self._bus = context.bus
        self._draws = RandomDraws(seed, 3)
        replicas = partial(Replica, decode=RecordCache().decode)
        given = {"replicas": replicas}
        roles = {
            "applier-0": partial(PlanApplier, cluster_id="frozen", **given),
            "applier-1": partial(PlanApplier, cluster_id="frozen", **given),
            "intake": partial(Intake, **given),
            "broker": partial(EvalBroker, **given),
        }
        self.processes = {
            name: PullingProcess(context, name, lambda instance, of=role: of(instance=instance))
            for name, role in roles.items()
        }
        self.asked_ns: dict[str, int] = {}
        self.verdicts: dict[str, list[Verdict]] = {}
        self.answered_ns: dict[str, int] = {}
        self.frozen_ns = 0
        self.registered: list[str] = []
        self._replica = Replica()
        self._bus.log.watch(self._on_log)
        for process in self.processes.values():
            process.expires_ns = expires_ns
            process.start()
        self.loop.run(4 * SECOND)

    def play(self) -> None:
        """Submit all the time; freeze the leader at some moment of its tenure."""
        # A lease is renewed twice a second: the freeze comes anywhere between two renewals.
        self.loop.run(self.loop.now_ns + self._draws.below(SECOND))
        for number in range(SUBMISSIONS):
            self.loop.after(number * EVERY_NS, self._submit, f"job-{number}")
        self.loop.after(2 * EVERY_NS + self._draws.below(EVERY_NS), self._freeze)
        self.loop.run(self.loop.now_ns + SUBMISSIONS * EVERY_NS + BOUND_NS + 10 * SECOND)

    def appliers(self) -> list[PullingProcess]:
        """Both."""
        return [self.processes["applier-0"], self.processes["applier-1"]]

    def worst_ns(self) -> tuple[int, int]:
        """The longest time to a verdict: from the later of freeze and submission, and from the submission."""
        since = {name: max(at, self.frozen_ns) for name, at in self.asked_ns.items()}
        both = [
            (self.answered_ns[name] - since[name], self.answered_ns[name] - at)
            for name, at in self.asked_ns.items()
        ]
        return max(one for one, _ in both), max(one for _, one in both)

    def _freeze(self) -> None:
        [leader] = [one for one in self.appliers() if one.is_leader]
        self.frozen_ns = self.loop.now_ns
        leader.pause()

    def _submit(self, name: str) -> None:
        task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
        job = {"ID": name, "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}
        body = json.dumps({"Job": job, "SubmissionID": f"s-{name}"}).encode()
        self.asked_ns[name] = self.loop.now_ns
        self._bus.request(subjects.api_jobs("submit"), body, partial(self._answered, name))

    def _answered(self, name: str, data: bytes | None) -> None:
        assert data is not None
        self.verdicts.setdefault(name, []).append(msgspec.json.decode(data, type=Verdict))
        self.answered_ns.setdefault(name, self.loop.now_ns)

    def _on_log(self, seq: int, subject: str, data: bytes) -> None:
        record = self._replica.apply(messages.Record(seq, subject, data))
        events: tuple[AnyEvent, ...] = record.events if record is not None else ()
        self.registered += [one.job_id for one in events if isinstance(one, JobRegistered)]


@pytest.mark.parametrize("seed", SEEDS)
def test_submissions_wait_for_the_lease_of_a_frozen_applier(seed: int) -> None:
    """Accepted once each, within the lease and two seconds from the freeze, by a standby that leads in its place."""
    town = FrozenTown(seed)
    town.play()
    leads = [one.is_leader for one in town.appliers() if not one.is_paused]
    assert leads == [True]
    assert set(town.verdicts) == set(town.asked_ns)
    statuses = {name: [one.status for one in found] for name, found in town.verdicts.items()}
    assert statuses == {name: ["accepted"] for name in town.asked_ns}
    assert sorted(town.registered) == sorted(town.asked_ns)
    assert max(town.worst_ns()) <= BOUND_NS, town.worst_ns()


def test_requests_that_do_not_end_would_break_the_bound() -> None:
    """What the server delivers to a frozen applier waits for the next attempt of intake: hence short requests."""
    worst = 0
    for seed in range(4):
        town = FrozenTown(seed, expires_ns=None)
        town.play()
        answered = [town.answered_ns.get(name, 2**62) - at for name, at in town.asked_ns.items()]
        worst = max(worst, *answered)
    assert worst > BOUND_NS


def test_the_lease_is_the_one_of_the_bus() -> None:
    """Of the simulated bus and of the real one."""
    assert TTL_S * SECOND == LEADERSHIP_TTL_NS
