"""Scenario: an evicted job is submitted again at once, many times, and never evicts its evictor."""

import msgspec
import pytest

from schemas.nodes import NodeSpec
from schemas.policy import Policy, Preemption
from shared.core.runtime import messages
from shared.core.scheduling.explain.verify_decisions import verify_decisions
from shared.core.scheduling.preemption.search import PRIORITY_GAP_MIN
from shared.sim.virtual_time import RandomDraws
from tests.sim.town import MS, SECOND, JobRequest, Town, nodes

NODES, NODE_MHZ = 6, 4_000
#: Requested sizes; the largest holds as much as this many of the smallest at most.
SIZES = (500, 1_000, 2_000)
VICTIMS_EACH = max(SIZES) // min(SIZES)
TIERS = (20, 45, 70)
#: How often the owner of a job asks again in place, and as another job.
AGAIN_MAX = 6


class Arena(Town):
    """A town in which every job may evict, and whose owners ask again as soon as they lose anything."""

    def __init__(self, seed: int, fleet: list[NodeSpec] | None = None, schedulers: int = 2) -> None:
        may = Preemption(service=True, batch=True)
        fleet = fleet or nodes(NODES, cpu_mhz=NODE_MHZ)
        super().__init__(seed, fleet, Policy(preemption=may), schedulers)
        self.draws = RandomDraws(seed, 9)
        #: who went for whom, and how many.
        self.losses: list[tuple[str, str, int]] = []
        self.newest: dict[str, JobRequest] = {}
        self.on_evicted = self._lost

    def ask(self, request: JobRequest) -> None:
        """Submit what may lose its place later."""
        self.newest[request.job_id] = request
        self.submit(request)

    def _lost(self, job_id: str, by: str, count: int) -> None:
        self.losses.append((job_id, by, count))
        request = self.newest[job_id]
        if request.edition >= AGAIN_MAX:
            return
        again = msgspec.structs.replace(request, edition=request.edition + 1)
        copy = msgspec.structs.replace(again, job_id=f"{job_id}+", count=1)
        after = self.draws.between(MS, 300 * MS)
        self.context.loop.after(after, self.ask, again)
        self.context.loop.after(after + MS, self.ask, copy)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_resubmitted_victim_never_displaces_who_displaced_it(seed: int) -> None:
    """Evictions go down by ten levels each, so no two jobs displace each other, and they come to an end.

    Bound: a new job evicts at most VICTIMS_EACH; the replacement of an evicted allocation evicts none.
    """
    town = Arena(seed)
    for nth in range(24):
        tier = TIERS[nth // 10]
        request = JobRequest(
            job_id=f"t{tier}-{nth}",
            cpu_mhz=SIZES[town.draws.below(len(SIZES))],
            count=town.draws.between(1, 3),
            priority=tier,
        )
        town.ask(request)
        town.run(town.draws.between(20 * MS, 500 * MS))
    town.settle(120 * SECOND)
    town.verify()
    priority = {job: request.priority for job, request in town.newest.items()}
    assert town.losses
    pairs = {(victim, by) for victim, by, _ in town.losses}
    assert all(priority[victim] <= priority[by] - PRIORITY_GAP_MIN for victim, by in pairs)
    assert not any((by, victim) in pairs for victim, by in pairs)
    asked = sum(
        request.count
        for request in town.newest.values()
        if request.priority >= min(TIERS) + PRIORITY_GAP_MIN
    )
    evicted = sum(count for *_, count in town.losses)
    # An owner's new edition may replace allocations that were never evicted: each of these asks afresh.
    fresh = asked + sum(
        request.count * request.edition
        for request in town.newest.values()
        if request.priority >= min(TIERS) + PRIORITY_GAP_MIN
    )
    print(f"seed {seed}: {evicted} evictions, {fresh} allocations asked for that may evict")
    assert evicted <= fresh * VICTIMS_EACH
    # Every plan is what deciding again makes of its snapshot, victims included, those of its worker's own plans too.
    records = [
        messages.Record(nth + 1, subject, data)
        for nth, (subject, data) in enumerate(town.context.bus.log.records)
    ]
    found = verify_decisions(lambda: records)
    assert found.differences == [] and found.equal == found.checked > 0
    # The highest tier lost nothing, and the room that it could have is all in use.
    assert not any(victim.startswith("t70") for victim, _ in pairs)


def test_who_was_evicted_waits_and_nobody_goes_for_it() -> None:
    """No cascades: the middle tier waits while the lowest, whom it outranks, runs on; room brings it back."""
    small = nodes(4, first=2, cpu_mhz=1_900)
    town = Arena(1, [*nodes(2, cpu_mhz=4_000), *small], 1)
    for request in (
        JobRequest(job_id="low", cpu_mhz=1_900, count=4, priority=20, edition=AGAIN_MAX),
        JobRequest(job_id="middle", cpu_mhz=1_900, count=4, priority=45, edition=AGAIN_MAX),
        # Only a large node is enough for it, and only the middle tier is there.
        JobRequest(job_id="high", cpu_mhz=4_000, priority=70),
    ):
        town.ask(request)
        town.run(SECOND)
    town.settle()
    town.verify()
    assert town.losses == [("middle", "high", 2)]
    assert town.wait_class("middle") == "priority"
    (spec,) = nodes(1, first=9, cpu_mhz=4_000)
    town.join(spec)
    town.settle()
    town.verify()
    assert town.wait_class("middle") == "" and len(town.losses) == 1
