"""The queue never blocks at its head: four stories, each with its bound."""

import pytest

from schemas.policy import Policy
from shared.core.state.state import State
from tests.sim.town import MS, SECOND, JobRequest, Town, gpus, nodes

#: One evaluation in a quiet town, from the submission to the placement, and what a moment more may cost.
PROMPT_NS = 100 * MS


# ---- 1. couch and sand ----

SAND_NODES = 4
GPUS = 8
SAND_RUN_MS = 3_000
#: Sand that waits at any time; what was asked for before the couch may go before it.
SAND_WAITING = 16
BLOWS_NS = 20 * SECOND


def couch_and_sand(seed: int, reservations_max: int) -> tuple[Town, float]:
    """Endless jobs of one GPU, and one of a whole node; returns the town and the share of GPUs that ran."""
    fleet = nodes(SAND_NODES, pools=(gpus("gpu", GPUS),))
    town = Town(seed, fleet, Policy(reservations_max=reservations_max))
    grains = 0

    def blow(_job_id: str = "") -> None:
        nonlocal grains
        grains += 1
        run_ms = SAND_RUN_MS - 2 * ((grains * 379) % 1_000)
        town.submit(JobRequest(job_id=f"sand-{grains}", gpus=1, run_ms=run_ms))

    town.on_done = blow
    for _ in range(SAND_NODES * GPUS + SAND_WAITING):
        blow()
    town.run(4 * SECOND)
    town.submit(JobRequest(job_id="couch", gpus=GPUS, run_ms=4_000))
    used = steps = 0
    for _ in range(BLOWS_NS // (100 * MS)):
        town.run(100 * MS)
        used += town.held_gpus()
        steps += SAND_NODES * GPUS
    return town, used / steps


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full("a second seed"))])
def test_a_couch_finds_room_in_endless_sand(seed: int) -> None:
    """What needs a whole node starts within two lives of a grain, at a price of few GPUs; without holding, never."""
    town, held = couch_and_sand(seed, 8)
    town.verify()
    waited = town.waited_ns("couch")
    assert waited <= 2 * SAND_RUN_MS * MS, waited / SECOND
    never, free = couch_and_sand(seed, 0)
    never.verify()
    assert "couch" not in never.placed_ns
    assert never.wait_class("couch") == "capacity"
    loss = free - held
    print(
        f"gap rule: couch after {waited / SECOND:.2f} s, {held:.1%} of GPUs ran; none: {free:.1%}"
    )
    # One node of four, idle on average half a life of a grain, once in the story.
    assert loss <= 0.05, (held, free)


# ---- 2. two pools ----


def test_a_full_pool_holds_no_other_back() -> None:
    """Pool a is idle: its job starts at once, whatever of pool b stands before it."""
    fleet = [*nodes(2, node_pool="a"), *nodes(2, first=2, node_pool="b")]
    town = Town(3, fleet)
    town.submit(
        *[
            JobRequest(job_id=f"b-{n}", cpu_mhz=4_000, node_pool="b", priority=90)
            for n in range(500)
        ]
    )
    town.submit(JobRequest(job_id="a", cpu_mhz=4_000, node_pool="a", priority=10))
    town.settle()
    assert town.waited_ns("a") <= PROMPT_NS
    assert sum(job_id.startswith("b-") for job_id in town.placed_ns) == 4
    town.verify()


# ---- 3. an unsatisfiable head ----


def stream_beside(impossible: int) -> Town:
    """Jobs that come one by one, behind so many that fit nowhere."""
    town = Town(4, nodes(8))
    town.submit(
        *[JobRequest(job_id=f"no-{n}", cpu_mhz=50_000 + n, priority=100) for n in range(impossible)]
    )
    town.settle()
    for n in range(60):
        town.submit(JobRequest(job_id=f"yes-{n}", cpu_mhz=500, run_ms=300))
        town.run(50 * MS)
    town.settle()
    return town


def test_what_never_fits_costs_the_others_nothing() -> None:
    """A hundred jobs of highest priority that fit nowhere are tried once each, blocked, and delay no other job."""
    alone, beside = stream_beside(0), stream_beside(100)
    jobs = [f"yes-{n}" for n in range(60)]
    slowest = max(beside.waited_ns(job) for job in jobs)
    assert slowest <= max(alone.waited_ns(job) for job in jobs) + 2 * MS
    assert {beside.wait_class(f"no-{n}") for n in range(100)} == {"never_fits"}
    # All that ended on every node woke none of them.
    assert beside.plans == alone.plans + 100
    assert _reserved(beside.replica.state) == 0
    beside.verify()


# ---- 4. ten thousand heads ----

HEADS = 10_000


def test_ten_thousand_of_one_shape_cost_as_much_as_one() -> None:
    """The job behind ten thousand that wait for a GPU is placed in the first pass; they cost a handful of tries."""
    town = Town(5, [*nodes(4), *nodes(1, first=4, pools=(gpus("gpu", 2),))])
    town.submit(
        *[JobRequest(job_id=f"gpu-{n}", gpus=1) for n in range(HEADS)], JobRequest(job_id="cpu")
    )
    town.settle()
    assert sum(job_id.startswith("gpu-") for job_id in town.placed_ns) == 2
    assert town.waited_ns("cpu") <= 10 * PROMPT_NS
    # Two placed, one for the job behind; what was tried in vain is no more than began at once and what was placed.
    assert town.plans <= 3 + 4 + 2 * 2
    assert town.broker["parked_evaluations"] >= HEADS - 20
    town.verify()


def _reserved(state: State) -> int:
    return sum(len(h.rows) for one in state.reservations.by_job.values() for h in one.holds)


# ---- 5. those that waited keep their order ----


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("alike", [False, True])
def test_the_first_of_the_queue_is_placed_first_by_several_workers(
    seed: int, *, alike: bool
) -> None:
    """Of jobs of equal priority, woken by the same end, the first gets the room, whatever the others ask for."""
    town = Town(seed, nodes(1, cpu_mhz=1_000), Policy(reservations_max=0), schedulers=3)
    town.submit(JobRequest(job_id="old", cpu_mhz=1_000, run_ms=2_000))
    town.run(SECOND)
    # Names that sort the other way round: neither the name nor the time of its last try is the place of a job.
    waiting = [f"job-{9 - at}" for at in range(6)]
    for at, job_id in enumerate(waiting):
        cpu_mhz = 600 if alike else 600 + 10 * (at % 3)
        town.submit(JobRequest(job_id=job_id, cpu_mhz=cpu_mhz, run_ms=500))
        town.run(20 * MS)
    town.run(8 * SECOND)
    assert sorted(waiting, key=lambda job_id: town.placed_ns[job_id]) == waiting
    town.verify()
