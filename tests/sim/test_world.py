"""The simulated world: every role under every fault, the same for the same seed, and planted bugs are found."""

import os
import subprocess
import sys

import pytest

from services.timekeeper.gates import UpdateGates
from services.timekeeper.role import SOURCES, Timekeeper
from shared.sim.environment.message_faults import FAULTS
from shared.sim.environment.role_factory import role_builder
from shared.sim.oracle.invariants import INVARIANTS
from shared.sim.record_cache import RecordCache
from shared.sim.world.mutants import MUTANTS
from shared.sim.world.seed_check import PROOF_SEEDS_MIN, run_seeds
from shared.sim.world.world import SimulatedWorld, WorldOutcome
from tests.seeds import seed as run_seed

pytestmark = pytest.mark.sim

#: Fresh seeds begin behind all fixed ones.
FRESH_SEEDS, FRESH_PARTS, FRESH_BEGIN = 20, 50, 1_000_000
SEEDS, FIRST_SEED = 12, 140
#: Seeds within which `caravan sim check --mutant` must find each; the tests stop at the first that does.
MUTANT_SEEDS_MAX = 200
#: Seeds that find the rare ones: where their search begins, so that it is short. Another world may need another seed.
RARE = {
    "both-stay": 59,
    "cas-ignored": 5,
    "change-forgotten": 66,
    "data-left-behind": 151,
    "drain-takes-system": 12,
    "epoch-ignored": 67,
    "erase-before-end": 36,
    "expected-by-keeper": 226,
    "give-twice": 11,
    "keep-variables": 184,
    "keys-come-back": 36,
    "late-delete-heeded": 27,
    "life-used-twice": 5,
    "lock-ignored": 17,
    "no-job-fence": 13,
    "one-incarnation": 15,
    "promotes-one-alone": 10,
    "replaced-before-its-end": 7,
    "revert-loop": 37,
    "rule-reaches-nothing": 21,
    "silence-is-death": 14,
    "stale-projection": 7,
    "stale-timer": 25,
    "start-unannounced": 67,
    "start-without-token": 67,
    "starts-unready": 7,
    "stops-lowest": 7,
    "tracker-kills-on-lost": 67,
    "volume-deleted-in-use": 8,
    "volume-forgotten": 100,
    "volume-leaves-under-plan": 31,
}

ONE_WORLD = "from shared.sim.world.world import SimulatedWorld; print(SimulatedWorld(3, trace=True).run().digest)"


def test_worlds_hold_and_exercise_everything() -> None:
    """A handful of seeds holds every invariant, and leaves hardly a fault and no invariant unexercised."""
    result = run_seeds(SEEDS, FIRST_SEED)
    assert result.failed == ()
    assert {name for name in INVARIANTS if not result.checks[name]} == set()
    # Rare ones need more seeds than a quick test has; a run of PROOF_SEEDS_MIN fails without them.
    assert len([kind for kind in FAULTS if not result.faults[kind]]) <= 2


@pytest.mark.full("fresh seeds, minutes")
@pytest.mark.parametrize("part", range(FRESH_PARTS))
def test_fresh_seeds_hold(capsys: pytest.CaptureFixture[str], part: int) -> None:
    """Seeds that no run had before hold every invariant; the first one is printed."""
    first = FRESH_BEGIN + run_seed() + part * FRESH_SEEDS
    with capsys.disabled():
        print(f"\nfresh seeds: caravan sim check --seeds {FRESH_SEEDS} --seed {first}", flush=True)
    result = run_seeds(FRESH_SEEDS, first)
    assert result.failed == ()


def test_a_seed_is_one_story() -> None:
    """The same seed makes the same trace, another one another."""
    first, again, other = (SimulatedWorld(seed, trace=True).run() for seed in (3, 3, 4))
    assert first.digest == again.digest != other.digest
    assert first.trace


def test_hidden_order_changes_nothing() -> None:
    """Two processes with different hash seeds live the same story."""
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ONE_WORLD],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_planted_bug_is_found(mutant: str) -> None:
    """Each planted bug breaks an invariant within the seeds that a check is given."""
    result = run_seeds(MUTANT_SEEDS_MAX, RARE.get(mutant, 1), mutant=mutant)
    assert result.found
    assert result.ok


@pytest.mark.parametrize(
    ("mutant", "invariant", "seed"),
    [
        ("rule-reaches-nothing", "distinct_kept", 21),
        ("rule-reaches-nothing", "distinct_kept", 151),
        ("data-left-behind", "data_node_kept", 164),
        ("data-left-behind", "data_node_kept", 151),
    ],
)
def test_only_the_planted_bug_fails_a_ruled_world(mutant: str, invariant: str, seed: int) -> None:
    """Worlds with distinct rules and sticky disks fail by their own invariant with the bug, and hold without."""
    outcome = SimulatedWorld(seed, mutant=mutant).run()
    assert outcome.invariant == invariant, outcome.detail
    healthy = SimulatedWorld(seed).run()
    assert healthy.invariant == "", healthy.detail
    assert healthy.checks[invariant] > 0


@pytest.mark.parametrize("seed", [1, 3])
def test_several_workers_overtake_those_that_waited_with_the_bug_alone(seed: int) -> None:
    """Leased like all others, what was woken together is decided in any order; as it is, never."""
    outcome = SimulatedWorld(seed, mutant="waited-like-others").run()
    assert outcome.invariant == "queue_order_kept", outcome.detail
    healthy = SimulatedWorld(seed).run()
    assert healthy.invariant == "", healthy.detail
    assert healthy.checks["queue_order_kept"] > 0


@pytest.mark.parametrize("mutant", ["cas-ignored", "life-used-twice", "late-delete-heeded"])
def test_a_world_with_variables_fails_by_its_own_invariant(mutant: str) -> None:
    """Puts and deletes with copies, under all faults: a broken rule is named, and without the bug none is."""
    seed = RARE[mutant]
    outcome = SimulatedWorld(seed, mutant=mutant).run()
    assert outcome.invariant == "variable_by_rule", outcome.detail
    healthy = SimulatedWorld(seed).run()
    assert healthy.invariant == "", healthy.detail
    assert healthy.checks["variable_by_rule"] > 0


@pytest.mark.parametrize("seed", [5, 60, 82])
def test_a_world_with_variables_reaches_every_outcome(seed: int) -> None:
    """Lives begin, end and begin again, requests are refused, and every life that is over is shredded."""
    world = SimulatedWorld(seed)
    assert world.run().invariant == ""
    found = world.oracle.model.variables
    assert set(found.told.values()) == {"put", "deleted", "refused"}
    assert found.keys
    assert sum(found.last.values()) > len(found.last)
    assert found.ended == {}


def test_a_planted_bug_is_gone_afterwards() -> None:
    """A world with a planted bug leaves nothing behind for the next."""
    before = SimulatedWorld(5).run()
    SimulatedWorld(5, mutant="wall-clock-in-core").run()
    assert SimulatedWorld(5).run() == before


def test_the_timekeeper_of_a_world_has_every_source() -> None:
    """Whatever is due in a cluster is due in the simulated one."""
    role = role_builder("timekeeper", "Timekeeper", RecordCache().decode)("t-1")
    assert isinstance(role, Timekeeper)
    assert [type(one) for one in role._due_sources] == [
        *(type(one) for one in SOURCES),
        UpdateGates,
    ]


@pytest.mark.parametrize("seed", [7701138, 7702849])
def test_an_applier_ahead_of_the_log_is_not_at_rest(seed: int) -> None:
    """Worlds whose final look once found an append in flight and took it for a divergence."""
    outcome = SimulatedWorld(seed).run()
    assert outcome.invariant == "", (outcome.invariant, outcome.detail)


@pytest.mark.parametrize("seed", [24, 117])
def test_waiting_canaries_are_not_replaced_by_canaries(seed: int) -> None:
    """Worlds in which a revert to the text of what runs, while canaries waited, gave one name twice."""
    outcome = SimulatedWorld(seed).run()
    assert outcome.invariant == "", (outcome.invariant, outcome.detail)


@pytest.mark.parametrize("seed", [49, 5150028, 5150034, 77310022])
def test_others_that_are_evicted_stay_in_their_version(seed: int) -> None:
    """Worlds in which an allocation of the old version was evicted while canaries waited."""
    outcome = SimulatedWorld(seed).run()
    assert outcome.invariant == "", (outcome.invariant, outcome.detail)


def test_a_complete_drain_is_not_ended_by_a_late_request() -> None:
    """A world whose view accepted the end of a drain that was complete, and left the node closed."""
    outcome = SimulatedWorld(50).run()
    assert outcome.invariant == "", (outcome.invariant, outcome.detail)


@pytest.mark.parametrize(
    "seed",
    [
        9,
        101,
        194840120,
        81600292,
        81600439,
        81600442,
        81600519,
        1464100016,
        1464100055,
        41400007,
        41400058,
        41400077,
        41400097,
        41400260,
        41400290,
        1633,
        85,
        310000043,
        310001024,
        310000104,
        310000164,
        310000210,
        310000252,
        310000283,
        310000296,
        310000381,
        310000384,
        311000170,
        311000298,
        311000331,
        311000433,
        311000764,
        311000884,
        311001247,
        313000011,
        315000421,
        316000263,
        316001713,
        556,
        318000481,
        318001966,
        319013608,
    ],
)
def test_worlds_that_failed_once_hold(seed: int) -> None:
    """Worlds of sweeps hold that found lost evaluations and services, wrong clocks and checks, a stop undone."""
    outcome = SimulatedWorld(seed).run()
    assert outcome.invariant == "", (outcome.invariant, outcome.detail)


def test_a_failing_seed_tells_its_story() -> None:
    """A look at one seed hands its trace over, one line a transition, up to where it broke."""
    heard: list[WorldOutcome] = []
    result = run_seeds(1, 1, "ack-before-append", heard.append)
    (told,) = heard
    assert (result.seed, told.invariant) == (1, "no_acknowledged_job_lost")
    assert any("Reply" in line for line in told.trace)


def test_an_unknown_mutant_is_an_error() -> None:
    """A misspelt mutant is not a passed check."""
    with pytest.raises(KeyError):
        run_seeds(1, mutant="no-such-bug")


def test_what_was_never_exercised_fails_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run long enough to prove something fails where a fault never happened."""
    monkeypatch.setattr(
        "shared.sim.world.seed_check.run_seed", lambda seed, _mutant: WorldOutcome(seed=seed)
    )
    result = run_seeds(PROOF_SEEDS_MIN)
    assert {one.invariant for one in result.failed} >= {"crash was never exercised"}
    assert not result.ok
